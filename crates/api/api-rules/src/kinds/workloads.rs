//! Rules of Deployments, ReplicaSets, StatefulSets, DaemonSets, ReplicationControllers, PodTemplates and
//! ControllerRevisions.

use std::{borrow::Cow, collections::HashSet};

use api_meta::{
    ErrorList, FieldError, LabelSelector, Path, Selector, Tree as _, Warnings, validation,
};
use serde_json::{Value, json};

use super::status;
use crate::{
    fields::{validate_one_of, validate_optional_one_of},
    meta::{NameRule, at_least_zero, check_immutable, check_not_negative, same},
    pod::{
        check_template, check_template_restart, check_volume_claim_spec, labels_differ,
        template_defaults, template_warnings, workload_warnings,
    },
    strategy::Strategy,
    warnings,
};

const REPLICAS: (&str, fn(&Value) -> String) =
    ("status.replicas", |o| o.int("status.replicas").to_string());

pub(crate) static DEPLOYMENT: Strategy = Strategy {
    status: Some(|| json!({})),
    generation: true,
    own_defaults: |object| {
        let Some(spec) = object.at_mut("spec") else { return };
        template_defaults(spec);
        if spec.text("strategy.type") == "RollingUpdate" {
            spec.set_default("strategy.rollingUpdate.maxSurge", "25%");
            spec.set_default("strategy.rollingUpdate.maxUnavailable", "25%");
        }
    },
    // As upstream, which counts changes of annotations, too.
    own_update: |new, old, _| {
        if !same(new.at("metadata.annotations"), old.at("metadata.annotations")) {
            new.set("metadata.generation", old.int("metadata.generation") + 1);
        }
    },
    own_status: |new, old, _| new.keep(old, "metadata.labels"),
    reset_by_status: &["spec", "metadata.labels"],
    check: |object, errors| {
        check_workload(object, "deployment", errors);
        check_rollout(object.at("spec"), &Path::new("spec"), errors);
    },
    check_update: |new, old, errors| check_immutable(new, old, "spec.selector", errors),
    check_status: |new, _, _, errors| status::check_deployment(new, errors),
    warnings: |object, old| workload_warnings(object, old, "spec.template"),
    pod_spec: "spec.template.spec",
    ..Strategy::PLAIN
};

pub(crate) static REPLICA_SET: Strategy = Strategy {
    status: Some(|| json!({"replicas": 0})),
    generation: true,
    own_defaults: |object| {
        if let Some(spec) = object.at_mut("spec") {
            template_defaults(spec);
        }
    },
    check: |object, errors| check_workload(object, "replica set", errors),
    check_update: |new, old, errors| check_immutable(new, old, "spec.selector", errors),
    check_status: |new, _, _, errors| status::check_replicas(new, errors),
    warnings: |object, old| workload_warnings(object, old, "spec.template"),
    pod_spec: "spec.template.spec",
    ..Strategy::PLAIN
};

pub(crate) static REPLICATION_CONTROLLER: Strategy = Strategy {
    storage_path: Some("controllers"),
    orphans: true,
    status: Some(|| json!({"replicas": 0})),
    generation: true,
    own_defaults: |object| {
        let labels = object.at("spec.template.metadata.labels").clone();
        if labels.as_object().is_some_and(|l| !l.is_empty()) {
            for path in ["spec.selector", "metadata.labels"] {
                if object.blank(path) {
                    object.set(path, labels.clone());
                }
            }
        }
        object.set_default("spec.replicas", 1);
        if let Some(spec) = object.at_mut("spec") {
            template_defaults(spec);
        }
    },
    check: |object, errors| {
        let (spec, path) = (object.at("spec"), Path::new("spec"));
        check_not_negative(spec, "replicas", &path, errors);
        check_not_negative(spec, "minReadySeconds", &path, errors);
        let selector = path.child("selector");
        if spec.blank("selector") {
            errors.push(FieldError::required(&selector, ""));
        }
        // This selector is a plain map, so invalid labels in it are no error by themselves.
        let labels = spec.at("template.metadata.labels");
        if spec.pairs("selector").any(|(key, value)| labels.get(key) != Some(value)) {
            let path = path.child("template").child("metadata").child("labels");
            let detail = "`selector` does not match template `labels`";
            let found = if labels.is_null() { json!({}) } else { labels.clone() };
            errors.push(FieldError::invalid(&path, found, detail));
        }
        check_pod_template(spec, "ReplicationController", None, &path, errors);
    },
    check_status: |new, _, _, errors| status::check_replicas(new, errors),
    selectable: &[REPLICAS],
    warnings: |object, old| workload_warnings(object, old, "spec.template"),
    pod_spec: "spec.template.spec",
    ..Strategy::PLAIN
};

pub(crate) static STATEFUL_SET: Strategy = Strategy {
    name: NameRule::Label,
    status: Some(|| json!({"replicas": 0, "availableReplicas": 0})),
    generation: true,
    own_defaults: |object| {
        let Some(spec) = object.at_mut("spec") else { return };
        template_defaults(spec);
        if spec.blank("updateStrategy.type") {
            spec.set("updateStrategy.type", "RollingUpdate");
            spec.set_default("updateStrategy.rollingUpdate", json!({}));
        }
        // As upstream: a strategy with a type gets no `rollingUpdate` default.
        let rolls = spec.text("updateStrategy.type") == "RollingUpdate";
        if rolls && spec.has("updateStrategy.rollingUpdate") {
            spec.set_default("updateStrategy.rollingUpdate.partition", 0);
        }
        for claim in spec.items_mut("volumeClaimTemplates") {
            claim.set("apiVersion", "v1");
            claim.set("kind", "PersistentVolumeClaim");
            claim.set_default("status.phase", "Pending");
        }
    },
    own_create: |set, _| drop_max_unavailable(set, &Value::Null),
    own_update: |new, old, _| drop_max_unavailable(new, old),
    check: check_stateful_set,
    check_create: check_new_stateful_set,
    check_update: check_stateful_set_update,
    check_status: |new, _, _, errors| status::check_stateful_set(new, errors),
    warnings: stateful_set_warnings,
    pod_spec: "spec.template.spec",
    ..Strategy::PLAIN
};

pub(crate) static DAEMON_SET: Strategy = Strategy {
    status: Some(
        || json!({"currentNumberScheduled": 0, "desiredNumberScheduled": 0, "numberMisscheduled": 0, "numberReady": 0}),
    ),
    generation: true,
    own_defaults: |object| {
        let Some(spec) = object.at_mut("spec") else { return };
        template_defaults(spec);
        if spec.text("updateStrategy.type") == "RollingUpdate" {
            spec.set_default("updateStrategy.rollingUpdate.maxUnavailable", 1);
            spec.set_default("updateStrategy.rollingUpdate.maxSurge", 0);
        }
    },
    own_create: |object, _| set_template_generation(object, 1),
    own_update: |new, old, _| {
        let changed = new.at("spec.template") != old.at("spec.template");
        set_template_generation(new, template_generation(old) + i64::from(changed));
    },
    check: check_daemon_set,
    check_update: |new, old, errors| check_immutable(new, old, "spec.selector", errors),
    check_status: |new, _, _, errors| status::check_daemon_set(new, errors),
    warnings: |object, old| template_warnings(object, old, "spec.template"),
    pod_spec: "spec.template.spec",
    ..Strategy::PLAIN
};

pub(crate) static POD_TEMPLATE: Strategy = Strategy {
    generation: true,
    own_defaults: template_defaults,
    check: |object, errors| {
        check_template(object.at("template"), None, &Path::new("template"), errors);
    },
    warnings: |object, old| template_warnings(object, old, "template"),
    pod_spec: "template.spec",
    ..Strategy::PLAIN
};

pub(crate) static CONTROLLER_REVISION: Strategy = Strategy {
    check: |object, errors| {
        if object.int("revision") < 0 {
            errors.push(at_least_zero(&Path::new("revision"), object.int("revision")));
        }
        if !object.has("data") {
            errors.push(FieldError::required(&Path::new("data"), "data is mandatory"));
        } else if !object.at("data").is_object() {
            let detail = "data must be a valid JSON object";
            errors.push(FieldError::required(&Path::new("data"), detail));
        }
    },
    check_update: |new, old, errors| check_immutable(new, old, "data", errors),
    ..Strategy::PLAIN
};

const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

fn template_generation(object: &Value) -> i64 {
    let annotation = object.at("metadata.annotations").get(TEMPLATE_GENERATION);
    annotation.and_then(Value::as_str).and_then(|text| text.parse().ok()).unwrap_or(1)
}

fn set_template_generation(object: &mut Value, generation: i64) {
    if let Some(annotations) = object.map_mut("metadata.annotations") {
        annotations.insert(TEMPLATE_GENERATION.to_owned(), generation.to_string().into());
    }
}

/// Validates the common fields of workloads with a label selector. `kind` is upstream's word for the workload.
fn check_workload(object: &Value, kind: &str, errors: &mut ErrorList) {
    let (spec, path) = (object.at("spec"), Path::new("spec"));
    for field in ["replicas", "minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"]
    {
        // Upstream does not check this field of StatefulSets.
        if kind != "statefulset" || field != "revisionHistoryLimit" {
            check_not_negative(spec, field, &path, errors);
        }
    }
    let selector = if spec.has("selector") {
        check_selector(spec, &format!("empty selector is invalid for {kind}"), &path, errors)
    } else {
        // Upstream does not require a DaemonSet's selector, but an absent one matches no template.
        if kind != "daemonset" {
            errors.push(FieldError::required(&path.child("selector"), ""));
        }
        let labels = path.child("template").child("metadata").child("labels");
        errors.push(labels_differ(&labels, spec.at("template.metadata.labels")));
        None
    };
    let owner = match kind {
        "statefulset" => "StatefulSet",
        "daemonset" => "DaemonSet",
        _ => "ReplicaSet",
    };
    check_pod_template(spec, owner, selector.as_ref(), &path, errors);
}

fn check_selector(
    spec: &Value,
    empty: &str,
    path: &Path,
    errors: &mut ErrorList,
) -> Option<Selector> {
    let path = path.child("selector");
    let selector: LabelSelector = serde_json::from_value(spec.at("selector").clone()).ok()?;
    if selector.is_empty() {
        errors.push(FieldError::invalid(&path, spec.at("selector").clone(), empty));
    }
    let mut found = selector.validate(&path);
    let usable = found.is_empty();
    errors.append(&mut found);
    if usable { selector.to_selector().ok() } else { None }
}

/// Validates a Pod template. `owner` is the kind in upstream's messages: a Deployment's template is checked as a
/// ReplicaSet's.
fn check_pod_template(
    spec: &Value,
    owner: &str,
    selector: Option<&Selector>,
    path: &Path,
    errors: &mut ErrorList,
) {
    let (template, path) = (spec.at("template"), path.child("template"));
    if template.is_null() {
        errors.push(FieldError::required(&path, ""));
        return;
    }
    check_template(template, selector, &path, errors);
    check_template_restart(template, &["Always"], &path, errors);
    if template.has("spec.activeDeadlineSeconds") {
        let detail = format!("activeDeadlineSeconds in {owner} is not Supported");
        errors.push(FieldError::forbidden(
            &path.child("spec").child("activeDeadlineSeconds"),
            detail,
        ));
    }
}

fn check_rollout(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let (strategy, strategy_path) = (spec.at("strategy"), path.child("strategy"));
    validate_one_of(strategy, "type", &["Recreate", "RollingUpdate"], &strategy_path, errors);
    let rolling = strategy_path.child("rollingUpdate");
    match strategy.text("type") {
        "Recreate" if strategy.has("rollingUpdate") => errors.push(FieldError::forbidden(
            &rolling,
            "may not be specified when strategy `type` is 'Recreate'",
        )),
        "RollingUpdate" => {
            let update = strategy.at("rollingUpdate");
            check_int_or_percent(update, "maxUnavailable", &rolling, errors);
            check_int_or_percent(update, "maxSurge", &rolling, errors);
            if is_zero(update.at("maxUnavailable")) && is_zero(update.at("maxSurge")) {
                errors.push(FieldError::invalid(
                    &rolling.child("maxUnavailable"),
                    update.at("maxUnavailable").clone(),
                    "may not be 0 when `maxSurge` is 0",
                ));
            }
            check_at_most_all(update, "maxUnavailable", &rolling, errors);
        }
        _ => {}
    }
    if let Some(deadline) = spec.opt_int("progressDeadlineSeconds")
        && deadline <= spec.int("minReadySeconds")
    {
        errors.push(FieldError::invalid(
            &path.child("progressDeadlineSeconds"),
            deadline,
            "must be greater than minReadySeconds",
        ));
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::String(text) => text.trim_end_matches('%').parse() == Ok(0),
        other => other.as_i64() == Some(0),
    }
}

fn percent(value: &Value) -> Option<i64> {
    value.as_str()?.strip_suffix('%')?.parse().ok()
}

/// Validates a number or a percentage.
pub(super) fn check_int_or_percent(
    object: &Value,
    field: &str,
    path: &Path,
    errors: &mut ErrorList,
) {
    let (value, path) = (object.at(field), path.child(field));
    match value {
        Value::String(_) if percent(value).is_none_or(|p| p < 0) => {
            errors.push(FieldError::invalid(
                &path,
                value.clone(),
                "a valid percent string must be a numeric string followed by an ending '%' (e.g. \
                '1%',  or '93%', regex used for validation is '[0-9]+%')",
            ));
        }
        Value::Number(_) if value.as_i64().is_some_and(|n| n < 0) => {
            errors.push(at_least_zero(&path, value.as_i64().unwrap_or_default()));
        }
        _ => {}
    }
}

fn check_at_most_all(object: &Value, field: &str, path: &Path, errors: &mut ErrorList) {
    let value = object.at(field);
    if percent(value).is_some_and(|p| p > 100) {
        let detail = "must not be greater than 100%";
        errors.push(FieldError::invalid(&path.child(field), value.clone(), detail));
    }
}

/// Returns the set with the template that the controller creates Pods from. Each Pod gets its own host name and
/// subdomain, and a volume for each claim template, which replaces a volume of the same name.
fn with_pod_template(set: &Value) -> Cow<'_, Value> {
    let template = set.at("spec.template.spec");
    let claims = set.items("spec.volumeClaimTemplates");
    if claims.is_empty() && template.blank("hostname") && template.blank("subdomain") {
        return Cow::Borrowed(set);
    }
    let mut defaulted = set.clone();
    let Some(spec) = defaulted.at_mut("spec.template.spec") else { return Cow::Borrowed(set) };
    spec.set("hostname", Value::Null);
    spec.set("subdomain", Value::Null);
    let (mut volumes, mut names): (Vec<Value>, HashSet<&str>) = Default::default();
    for claim in claims {
        let name = claim.name();
        if names.insert(name) {
            let source = json!({"claimName": name});
            volumes.push(json!({"name": name, "persistentVolumeClaim": source}));
        }
    }
    let declared =
        spec.items("volumes").iter().filter(|volume| !names.contains(volume.text("name")));
    volumes.extend(declared.cloned());
    if !volumes.is_empty() {
        spec.set("volumes", volumes);
    }
    Cow::Owned(defaulted)
}

/// Removes `maxUnavailable` of a StatefulSet, unless the old one has it: its gate `MaxUnavailableStatefulSet` is off.
fn drop_max_unavailable(set: &mut Value, old: &Value) {
    const FIELD: &str = "spec.updateStrategy.rollingUpdate.maxUnavailable";
    if !old.has(FIELD) {
        set.remove(FIELD);
    }
}

/// Validates the immutable fields of a new StatefulSet. Updates skip them, because an earlier release may have accepted
/// them.
fn check_new_stateful_set(object: &Value, errors: &mut ErrorList) {
    let (spec, path) = (object.at("spec"), Path::new("spec"));
    let service = spec.text("serviceName");
    if !service.is_empty() {
        for message in validation::dns1123_label(service) {
            errors.push(FieldError::invalid(&path.child("serviceName"), service, message));
        }
    }
    for (i, claim) in spec.items("volumeClaimTemplates").iter().enumerate() {
        let path = path.child("volumeClaimTemplates").index(i).child("spec");
        check_volume_claim_spec(claim.at("spec"), &path, errors);
    }
}

fn check_stateful_set(object: &Value, errors: &mut ErrorList) {
    let (spec, path) = (object.at("spec"), Path::new("spec"));
    check_workload(&with_pod_template(object), "statefulset", errors);
    check_not_negative(spec.at("ordinals"), "start", &path.child("ordinals"), errors);
    if !["OrderedReady", "Parallel"].contains(&spec.text("podManagementPolicy")) {
        let detail = "must be 'OrderedReady' or 'Parallel'";
        let policy = spec.text("podManagementPolicy");
        errors.push(FieldError::invalid(&path.child("podManagementPolicy"), policy, detail));
    }
    let strategy = path.child("updateStrategy");
    validate_one_of(
        spec.at("updateStrategy"),
        "type",
        &["RollingUpdate", "OnDelete"],
        &strategy,
        errors,
    );
    let rolling = spec.at("updateStrategy.rollingUpdate");
    let rolling_path = strategy.child("rollingUpdate");
    if spec.text("updateStrategy.type") == "OnDelete" && !rolling.is_null() {
        errors.push(FieldError::invalid(
            &rolling_path,
            rolling.clone(),
            "only allowed for updateStrategy 'RollingUpdate'",
        ));
    }
    check_not_negative(rolling, "partition", &rolling_path, errors);
    if rolling.has("maxUnavailable") {
        check_int_or_percent(rolling, "maxUnavailable", &rolling_path, errors);
        if is_zero(rolling.at("maxUnavailable")) {
            errors.push(FieldError::invalid(
                &rolling_path.child("maxUnavailable"),
                rolling.at("maxUnavailable").clone(),
                "cannot be 0",
            ));
        }
    }
    let retention = spec.at("persistentVolumeClaimRetentionPolicy");
    for field in ["whenDeleted", "whenScaled"] {
        let path = path.child("persistentVolumeClaimRetentionPolicy");
        validate_optional_one_of(retention, field, &["Retain", "Delete"], &path, errors);
    }
}

fn stateful_set_warnings(object: &Value, old: Option<&Value>) -> Warnings {
    let mut found = template_warnings(object, old, "spec.template");
    for (i, claim) in object.items("spec.volumeClaimTemplates").iter().enumerate() {
        let path = Path::new("spec").child("volumeClaimTemplates").index(i);
        let path = if old.is_some() { path.child("Spec") } else { path };
        found.extend(warnings::claim(claim.at("spec"), &path));
    }
    if object.int("spec.revisionHistoryLimit") < 0 {
        found.push(
            "spec.revisionHistoryLimit: a negative value retains all historical revisions; \
            a value >= 0 is recommended"
                .to_owned(),
        );
    }
    found
}

fn check_stateful_set_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let mut allowed = new.clone();
    for field in [
        "replicas",
        "template",
        "updateStrategy",
        "minReadySeconds",
        "ordinals",
        "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy",
    ] {
        allowed.keep(old, &format!("spec.{field}"));
    }
    if allowed.at("spec") != old.at("spec") {
        errors.push(FieldError::forbidden(
            &Path::new("spec"),
            "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', \
            'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' \
            and 'minReadySeconds' are forbidden",
        ));
    }
}

fn check_daemon_set(object: &Value, errors: &mut ErrorList) {
    let (spec, path) = (object.at("spec"), Path::new("spec"));
    check_workload(object, "daemonset", errors);
    let (strategy, path) = (spec.at("updateStrategy"), path.child("updateStrategy"));
    validate_one_of(strategy, "type", &["RollingUpdate", "OnDelete"], &path, errors);
    if strategy.text("type") != "RollingUpdate" {
        return;
    }
    let (rolling, path) = (strategy.at("rollingUpdate"), path.child("rollingUpdate"));
    for field in ["maxUnavailable", "maxSurge"] {
        check_int_or_percent(rolling, field, &path, errors);
        check_at_most_all(rolling, field, &path, errors);
    }
    let (unavailable, surge) = (rolling.at("maxUnavailable"), rolling.at("maxSurge"));
    if is_zero(unavailable) == is_zero(surge) {
        let (field, value, detail) = if is_zero(surge) {
            ("maxUnavailable", unavailable, "cannot be 0 when maxSurge is 0")
        } else {
            ("maxSurge", surge, "may not be set when maxUnavailable is non-zero")
        };
        errors.push(FieldError::invalid(&path.child(field), value.clone(), detail));
    }
}
