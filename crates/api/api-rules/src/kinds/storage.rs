//! Rules of volumes, claims, classes and CSI objects.

use std::collections::HashSet;

use api_meta::{ErrorList, FieldError, Path, Quantity, Tree as _, Warnings, validation};
use serde_json::{Value, json};

use super::status;
use crate::{
    fields::{
        Rule::{
            Amount, IsText, Named, Required, Selector, Text, TextIfAny, Unique, UniqueBy, Within,
        },
        validate_one_of, validate_optional_one_of,
    },
    meta::{check_immutable, immutable},
    pod::{OLD_VOLUMES, check_volume_claim_spec, check_volume_source, validate_node_selector},
    strategy::Strategy,
    warnings,
};

pub(crate) static CLAIM: Strategy = Strategy {
    status: Some(|| json!({"phase": "Pending"})),
    own_defaults: |claim| claim.set_default("status.phase", "Pending"),
    own_create: |claim, _| {
        drop_disallowed_sources(claim);
        match_sources(claim);
    },
    own_update: |claim, _, _| match_sources(claim),
    check: |claim, errors| {
        check_volume_claim_spec(claim.at("spec"), &Path::new("spec"), errors);
    },
    fields: &[("spec.volumeAttributesClassName", TextIfAny(validation::dns1123_subdomain))],
    check_update: check_claim_update,
    check_status: |new, _, _, errors| status::check_claim(new, errors),
    warnings: |claim, _| {
        let old = claim
            .at("metadata.annotations")
            .get(BETA_CLASS)
            .map(|_| format!("metadata.annotations[{BETA_CLASS}]: {OLD_CLASS}"));
        let mut found = Warnings::from_iter(old);
        found.extend(warnings::claim(claim.at("spec"), &Path::new("spec")));
        found
    },
    ..Strategy::PLAIN
};

/// Drops a `dataSource` that is neither a claim nor a snapshot, and a `dataSourceRef` to another namespace, whose
/// feature gate (CrossNamespaceVolumeDataSource) is off.
fn drop_disallowed_sources(claim: &mut Value) {
    let source = claim.at("spec.dataSource");
    let is_allowed = matches!(
        (source.text("apiGroup"), source.text("kind")),
        ("", "PersistentVolumeClaim") | ("snapshot.storage.k8s.io", "VolumeSnapshot")
    );
    if !is_allowed {
        claim.remove("spec.dataSource");
    }
    if !claim.blank("spec.dataSourceRef.namespace") {
        claim.remove("spec.dataSourceRef");
    }
}

/// Sets both fields of a claim's source if one can express the other. `dataSource` cannot name another namespace.
fn match_sources(claim: &mut Value) {
    if !claim.has("spec.dataSourceRef") {
        copy_field(claim, "spec.dataSource", "spec.dataSourceRef");
    } else if !claim.has("spec.dataSource") && claim.blank("spec.dataSourceRef.namespace") {
        copy_field(claim, "spec.dataSourceRef", "spec.dataSource");
    }
}

/// Copies a field to another unless it is null.
fn copy_field(object: &mut Value, from: &str, to: &str) {
    let value = object.at(from).clone();
    if !value.is_null() {
        object.set(to, value);
    }
}

fn check_claim_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let class = |claim: &Value| claim.at("metadata.annotations").get(BETA_CLASS).cloned();
    if let Some(before) = class(old)
        && class(new).as_ref() != Some(&before)
    {
        let path = Path::new("metadata").child("annotations").child(BETA_CLASS);
        errors.push(immutable(&path, &class(new).unwrap_or_else(|| "".into())));
    }
    let mut allowed = new.clone();
    let path = Path::new("spec");
    // The binder sets the volume, and a default class may still be set.
    for field in ["spec.volumeName", "spec.storageClassName"] {
        if old.blank(field) {
            allowed.keep(old, field);
        }
    }
    allowed.keep(old, "spec.volumeAttributesClassName");
    let size = |claim: &Value| {
        let text = claim.text("spec.resources.requests.storage").to_owned();
        Quantity::parse(&text).ok()
    };
    if old.text("status.phase") == "Bound" {
        allowed.keep(old, "spec.resources.requests");
        let capacity = Quantity::parse(old.text("status.capacity.storage")).ok();
        if size(new) < size(old) && size(new) <= capacity {
            errors.push(FieldError::forbidden(
                &path.child("resources").child("requests").child("storage"),
                "field can not be less than status.capacity",
            ));
        }
    }
    if allowed.at("spec") != old.at("spec") {
        errors.push(FieldError::forbidden(
            &path,
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims",
        ));
    }
}

pub(crate) static VOLUME: Strategy = Strategy {
    status: Some(|| json!({"phase": "Pending"})),
    own_create: |volume, now| volume.set("status.lastPhaseTransitionTime", now),
    own_status: |new, old, now| {
        if new.at("status.phase") != old.at("status.phase") {
            new.set("status.lastPhaseTransitionTime", now);
        }
    },
    check: check_volume,
    check_update: |new, old, errors| {
        check_immutable(new, old, "spec.volumeMode", errors);
        if old.has("spec.nodeAffinity")
            && new.at("spec.nodeAffinity") != old.at("spec.nodeAffinity")
        {
            // Upstream reports this path, which is not the field's own.
            let detail = "field is immutable, except for updating from beta label to GA";
            let found = new.at("spec.nodeAffinity").clone();
            errors.push(FieldError::invalid(&Path::new("nodeAffinity"), found, detail));
        }
        if source(new.at("spec")).map(|(_, s)| s) != source(old.at("spec")).map(|(_, s)| s) {
            errors.push(FieldError::forbidden(
                &Path::new("spec.persistentvolumesource"),
                "spec.persistentvolumesource is immutable after creation",
            ));
        }
    },
    warnings: volume_warnings,
    ..Strategy::PLAIN
};

const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
const OLD_CLASS: &str = "deprecated since v1.8; use \"storageClassName\" attribute instead";
const BETA_OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";
const OLD_OPTIONS: &str = "deprecated since v1.31; use \"mountOptions\" attribute instead";

fn volume_warnings(volume: &Value, _: Option<&Value>) -> Warnings {
    let mut found = Warnings::new();
    for (key, words) in [(BETA_CLASS, OLD_CLASS), (BETA_OPTIONS, OLD_OPTIONS)] {
        if volume.at("metadata.annotations").get(key).is_some() {
            found.push(format!("metadata.annotations[{key}]: {words}"));
        }
    }
    let (spec, path) = (volume.at("spec"), Path::new("spec"));
    if spec.text("persistentVolumeReclaimPolicy") == "Recycle" {
        found.push(
            "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. \
            Instead, the recommended approach is to use dynamic provisioning."
                .to_owned(),
        );
    }
    let terms = path.child("nodeAffinity").child("required").child("nodeSelectorTerms");
    for (i, term) in spec.items("nodeAffinity.required.nodeSelectorTerms").iter().enumerate() {
        found.extend(warnings::selector_term(term, false, &terms.index(i)));
    }
    // Upstream does not warn about these two drivers, which are removed as well.
    let deprecated = OLD_VOLUMES.iter().filter(|(kind, _)| !matches!(*kind, "flocker" | "quobyte"));
    for (kind, words) in deprecated.filter(|(kind, _)| spec.has(kind)) {
        found.push(format!("spec.{kind}: {words}"));
    }
    found
}

/// The fields of a PersistentVolume's spec that are not its source.
const NOT_SOURCES: [&str; 9] = [
    "accessModes",
    "capacity",
    "claimRef",
    "mountOptions",
    "nodeAffinity",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "volumeAttributesClassName",
    "volumeMode",
];

fn source(spec: &Value) -> Option<(&String, &Value)> {
    spec.pairs("").find(|(name, _)| !NOT_SOURCES.contains(&name.as_str()))
}

fn check_volume(volume: &Value, errors: &mut ErrorList) {
    let (spec, path) = (volume.at("spec"), Path::new("spec"));
    check_access_modes(spec, &path, errors);
    let capacity = path.child("capacity");
    if spec.blank("capacity") {
        errors.push(FieldError::required(&capacity, ""));
    } else if spec.at("capacity").get("storage").is_none() || spec.pairs("capacity").count() > 1 {
        let found = spec.at("capacity").clone();
        errors.push(FieldError::not_supported(&capacity, found, &["storage"]));
    } else if Quantity::parse(spec.text("capacity.storage"))
        .is_ok_and(|size| size.is_zero() || size.is_negative())
    {
        let (path, size) = (capacity.key("storage"), spec.text("capacity.storage"));
        errors.push(FieldError::invalid(&path, size, "must be greater than zero"));
    }
    let class = spec.text("storageClassName");
    if !class.is_empty() {
        for message in validation::dns1123_subdomain(class) {
            errors.push(FieldError::invalid(&path.child("storageClassName"), class, message));
        }
    }
    let policies = ["Delete", "Recycle", "Retain"];
    validate_optional_one_of(spec, "persistentVolumeReclaimPolicy", &policies, &path, errors);
    validate_optional_one_of(spec, "volumeMode", &["Block", "Filesystem"], &path, errors);
    if spec.has("nodeAffinity") {
        let path = path.child("nodeAffinity").child("required");
        if !spec.has("nodeAffinity.required") {
            let detail = "must specify required node constraints";
            errors.push(FieldError::required(&path, detail));
        }
        if spec.has("nodeAffinity.required") {
            validate_node_selector(spec.at("nodeAffinity.required"), &path, errors);
        }
    }
    check_source(spec, &path, errors);
    if spec.has("local") && !spec.has("nodeAffinity") {
        let path = Path::new("metadata").child("annotations");
        errors.push(FieldError::required(&path, "Local volume requires node affinity"));
    }
}

fn check_access_modes(spec: &Value, path: &Path, errors: &mut ErrorList) {
    const MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
    if spec.blank("accessModes") {
        errors.push(FieldError::required(&path.child("accessModes"), ""));
    }
    for mode in spec.texts("accessModes") {
        if !MODES.contains(&mode) {
            errors.push(FieldError::not_supported(&path.child("accessModes"), mode, &MODES));
        }
    }
}

/// Validates that a volume has one valid source.
fn check_source(spec: &Value, path: &Path, errors: &mut ErrorList) {
    match source(spec) {
        None => errors.push(FieldError::required(path, "must specify a volume type")),
        Some((kind, source)) => {
            check_volume_source(kind, source, &path.child(kind), errors);
            if kind == "csi" && source.blank("volumeHandle") {
                let path = path.child(kind).child("volumeHandle");
                errors.push(FieldError::required(&path, ""));
            }
        }
    }
    let others = spec.pairs("").filter(|(name, _)| !NOT_SOURCES.contains(&name.as_str()));
    for (kind, _) in others.skip(1) {
        let detail = "may not specify more than 1 volume type";
        errors.push(FieldError::forbidden(&path.child(kind), detail));
    }
}

pub(crate) static STORAGE_CLASS: Strategy = Strategy {
    check: |class, errors| {
        if class.blank("provisioner") {
            errors.push(FieldError::required(&Path::new("provisioner"), "class.Provisioner"));
        } else {
            for message in validation::qualified_name(&class.text("provisioner").to_lowercase()) {
                let path = Path::new("provisioner");
                errors.push(FieldError::invalid(&path, class.text("provisioner"), message));
            }
        }
        let root = Path::new("");
        if !class.blank("reclaimPolicy") {
            validate_one_of(class, "reclaimPolicy", &["Delete", "Retain"], &root, errors);
        }
        validate_one_of(
            class,
            "volumeBindingMode",
            &["Immediate", "WaitForFirstConsumer"],
            &root,
            errors,
        );
        let mut seen = HashSet::new();
        for (i, term) in class.items("allowedTopologies").iter().enumerate() {
            let path = root.child("allowedTopologies").index(i).child("matchLabelExpressions");
            let is_repeated = !seen.insert(term.at("matchLabelExpressions"));
            if term.blank("matchLabelExpressions") || is_repeated {
                errors.push(FieldError::duplicate(&path, ""));
            }
        }
    },
    fields: &[
        ("allowedTopologies[].matchLabelExpressions", UniqueBy("key")),
        ("allowedTopologies[].matchLabelExpressions[].key", IsText(validation::qualified_name)),
        ("allowedTopologies[].matchLabelExpressions[].values", Required("")),
        ("allowedTopologies[].matchLabelExpressions[].values", Unique),
    ],
    check_update: |new, old, errors| {
        for field in ["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"] {
            check_immutable(new, old, field, errors);
        }
    },
    warnings: |class, _| {
        let mut found = Warnings::new();
        for (i, topology) in class.items("allowedTopologies").iter().enumerate() {
            let path = Path::new("allowedTopologies").index(i).child("matchLabelExpressions");
            for (j, expression) in topology.items("matchLabelExpressions").iter().enumerate() {
                let path = path.index(j).child("key");
                let old = warnings::node_label(expression.text("key"));
                found.extend(old.map(|words| format!("{path}: {words}")));
            }
        }
        found
    },
    ..Strategy::PLAIN
};

pub(crate) static ATTRIBUTES_CLASS: Strategy = Strategy {
    check: |class, errors| {
        let name = class.text("driverName").to_lowercase();
        if name.is_empty() {
            errors.push(FieldError::required(&Path::new("driverName"), ""));
        } else {
            for message in validation::qualified_name(&name) {
                errors.push(FieldError::invalid(&Path::new("driverName"), name.as_str(), message));
            }
        }
        check_parameters(class, errors);
    },
    fields: &[("parameters", Required("must contain at least one key/value pair"))],
    check_update: |new, old, errors| {
        for field in ["driverName", "parameters"] {
            if new.at(field) != old.at(field) {
                let detail = format!("updates to {field} are forbidden.");
                errors.push(FieldError::forbidden(&Path::new(field), detail));
            }
        }
    },
    ..Strategy::PLAIN
};

/// Bounds the parameters that a driver gets.
fn check_parameters(class: &Value, errors: &mut ErrorList) {
    const MAX_COUNT: usize = 512;
    const MAX_SIZE: usize = 256 << 10;
    let path = Path::new("parameters");
    if class.pairs("parameters").count() > MAX_COUNT {
        errors.push(FieldError::too_long(&path, MAX_COUNT));
        return;
    }
    let mut size = 0;
    for (name, value) in class.pairs("parameters") {
        size += name.len() + value.as_str().map_or(0, str::len);
        if name.is_empty() {
            errors.push(FieldError::invalid(&path, "", "field can not be empty."));
        }
    }
    if size > MAX_SIZE {
        errors.push(FieldError::too_long(&path, MAX_SIZE));
    }
}

/// Removes a field whose gate (`VolumeLimitScaling`) is off, unless the old driver has it.
fn drop_scaling(new: &mut Value, old: Option<&Value>) {
    const FIELD: &str = "spec.preventPodSchedulingIfMissing";
    if !old.is_some_and(|old| old.has(FIELD)) {
        new.remove(FIELD);
    }
}

pub(crate) static CSI_DRIVER: Strategy = Strategy {
    check: |driver, errors| {
        let path = Path::new("spec");
        let policies = ["File", "None", "ReadWriteOnceWithFSType"];
        validate_optional_one_of(driver.at("spec"), "fsGroupPolicy", &policies, &path, errors);
        for mode in driver.items("spec.volumeLifecycleModes") {
            let modes = ["Persistent", "Ephemeral"];
            let mode = mode.as_str().unwrap_or_default();
            if !modes.contains(&mode) {
                let path = path.child("volumeLifecycleModes");
                errors.push(FieldError::not_supported(&path, mode, &modes));
            }
        }
        let in_secrets = driver.flag("spec.serviceAccountTokenInSecrets");
        if in_secrets && driver.blank("spec.tokenRequests") {
            let path = path.child("serviceAccountTokenInSecrets");
            let detail = "serviceAccountTokenInSecrets is set but no tokenRequests are specified";
            errors.push(FieldError::invalid(&path, true, detail));
        }
    },
    own_create: |driver, _| drop_scaling(driver, None),
    own_update: |new, old, _| drop_scaling(new, Some(old)),
    fields: &[
        ("spec.tokenRequests", UniqueBy("audience")),
        (
            "spec.tokenRequests[].expirationSeconds",
            Within(600, i64::MAX, "may not specify a duration less than 10 minutes"),
        ),
        (
            "spec.tokenRequests[].expirationSeconds",
            Within(i64::MIN, 1 << 32, "may not specify a duration larger than 2^32 seconds"),
        ),
        (
            "spec.nodeAllocatableUpdatePeriodSeconds",
            Within(10, i64::MAX, "must be greater than or equal to 10 seconds"),
        ),
    ],
    check_update: |new, old, errors| {
        for field in ["spec.attachRequired", "spec.volumeLifecycleModes"] {
            check_immutable(new, old, field, errors);
        }
    },
    unconditional_update: false,
    warnings: |driver, old| {
        let tokens = driver.at("spec.tokenRequests");
        let new = old.is_none_or(|old| old.at("spec.tokenRequests") != tokens);
        let applies = new && !tokens.blank("") && !driver.has("spec.serviceAccountTokenInSecrets");
        applies
            .then_some(
                "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI \
                driver, set to true to prevent possible logging of tokens in volume attributes",
            )
            .into_iter()
            .collect()
    },
    ..Strategy::PLAIN
};

pub(crate) static CSI_NODE: Strategy = Strategy {
    check: |node, errors| {
        for (i, driver) in node.items("spec.drivers").iter().enumerate() {
            let path = Path::new("spec").child("drivers").index(i);
            let id = driver.text("nodeID");
            if id.is_empty() {
                errors.push(FieldError::required(&path.child("nodeID"), ""));
            } else if id.len() > 256 {
                let detail = "must be 256 characters or less";
                errors.push(FieldError::invalid(&path.child("nodeID"), id, detail));
            }
            let mut seen = HashSet::new();
            for key in driver.items("topologyKeys") {
                let text = key.as_str().unwrap_or_default();
                if !seen.insert(key) {
                    errors.push(FieldError::duplicate(&path, text));
                }
                if text.is_empty() {
                    errors.push(FieldError::required(&path, ""));
                }
                for message in validation::qualified_name(text) {
                    errors.push(FieldError::invalid(&path, text, message));
                }
            }
        }
    },
    fields: &[
        ("spec.drivers", UniqueBy("name")),
        ("spec.drivers[].name", Named(driver_name)),
        (
            "spec.drivers[].allocatable.count",
            Within(0, i64::MAX, "must be greater than or equal to 0"),
        ),
    ],
    unconditional_update: false,
    ..Strategy::PLAIN
};

/// Validates the name of a driver, in lower case.
fn driver_name(name: &str) -> Vec<String> {
    validation::dns1123_subdomain(&name.to_lowercase())
}

/// Validates the spec of a volume that no PersistentVolume has: only access modes, a CSI source and few other fields.
fn check_inline_volume(spec: &Value, path: &Path, errors: &mut ErrorList) {
    for field in
        ["capacity", "claimRef", "storageClassName"].iter().filter(|field| !spec.blank(**field))
    {
        let detail = "may not be specified in the context of inline volumes";
        errors.push(FieldError::forbidden(&path.child(field), detail));
    }
    if !spec.has("csi") {
        let detail = "has to be specified in the context of inline volumes";
        errors.push(FieldError::required(&path.child("csi"), detail));
    }
    check_access_modes(spec, path, errors);
    check_source(spec, path, errors);
}

pub(crate) static ATTACHMENT: Strategy = Strategy {
    status: Some(|| json!({"attached": false})),
    check: |attachment, errors| {
        let spec = attachment.at("spec");
        if spec.has("source.persistentVolumeName") == spec.has("source.inlineVolumeSpec")
            || spec.at("source.persistentVolumeName") == ""
        {
            let detail = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
            errors.push(FieldError::required(&Path::new("spec").child("source"), detail));
        }
        if spec.has("source.inlineVolumeSpec") {
            let path = Path::new("spec").child("source").child("inlineVolumeSpec");
            check_inline_volume(spec.at("source.inlineVolumeSpec"), &path, errors);
        }
    },
    fields: &[
        ("spec.attacher", Named(driver_name)),
        ("spec.nodeName", Named(validation::dns1123_subdomain)),
        ("spec.source.persistentVolumeName", Text(validation::dns1123_subdomain)),
    ],
    check_update: |new, old, errors| {
        if new.at("spec") != old.at("spec") {
            let detail = "field is immutable";
            errors.push(FieldError::invalid(&Path::new("spec"), new.at("spec").clone(), detail));
        }
    },
    unconditional_update: false,
    ..Strategy::PLAIN
};

pub(crate) static CAPACITY: Strategy = Strategy {
    check_update: |new, old, errors| {
        for field in ["nodeTopology", "storageClassName"] {
            check_immutable(new, old, field, errors);
        }
    },
    fields: &[
        ("nodeTopology", Selector),
        ("storageClassName", IsText(validation::dns1123_subdomain)),
        ("capacity", Amount),
    ],
    unconditional_update: false,
    warnings: |capacity, _| {
        let (topology, path) = (capacity.at("nodeTopology"), Path::new("nodeTopology"));
        let mut found = Warnings::from_iter(warnings::selector_term(topology, false, &path));
        for (label, _) in topology.pairs("matchLabels") {
            let path = path.child("matchLabels").child(label);
            found.extend(warnings::node_label(label).map(|words| format!("{path}: {words}")));
        }
        found
    },
    ..Strategy::PLAIN
};

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::kinds::{
        strategy,
        tests::{made, updated},
    };

    #[test]
    fn keeps_both_fields_of_allowed_sources_and_drops_others() {
        let source =
            |group: &str, kind: &str| json!({"apiGroup": group, "kind": kind, "name": "x"});
        let stored = |more: Value| {
            let mut spec = json!({"accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "2Gi"}}});
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let claim = made("", "persistentvolumeclaims", json!({ "spec": spec }));
            (claim["spec"]["dataSource"].clone(), claim["spec"]["dataSourceRef"].clone())
        };
        let snapshot = source("snapshot.storage.k8s.io", "VolumeSnapshot");
        let populator = source("example.com", "Backup");
        let both = |source: &Value| (source.clone(), source.clone());
        assert_eq!(stored(json!({"dataSource": snapshot})), both(&snapshot));
        assert_eq!(stored(json!({"dataSourceRef": snapshot})), both(&snapshot));
        assert_eq!(stored(json!({"dataSourceRef": populator})), both(&populator));
        assert_eq!(stored(json!({"dataSource": populator})), (Value::Null, Value::Null));
        let mut foreign = snapshot.clone();
        foreign["namespace"] = json!("other");
        assert_eq!(stored(json!({"dataSourceRef": foreign})), (Value::Null, Value::Null));
    }

    #[test]
    fn rejects_shrinking_of_claims() {
        let claims = strategy("", "persistentvolumeclaims");
        let mut old = made(
            "",
            "persistentvolumeclaims",
            json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}}}),
        );
        let grow: fn(&mut Value) = |o| o["spec"]["resources"]["requests"]["storage"] = json!("3Gi");
        assert!(updated(claims, &old, grow).1.contains("spec is immutable after creation"));
        old["status"] = json!({"phase": "Bound", "capacity": {"storage": "2Gi"}});
        assert_eq!(updated(claims, &old, grow).1, "[]");
        let shrink: fn(&mut Value) =
            |o| o["spec"]["resources"]["requests"]["storage"] = json!("1Gi");
        assert!(
            updated(claims, &old, shrink).1.contains("field can not be less than status.capacity")
        );
        assert_eq!(updated(claims, &old, |o| o["spec"]["volumeName"] = json!("v")).1, "[]");
    }
}
