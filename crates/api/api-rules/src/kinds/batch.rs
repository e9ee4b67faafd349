//! Rules of Jobs and CronJobs.

use std::collections::HashSet;

use api_meta::{ErrorList, FieldError, LabelSelector, Path, Tree as _, Warnings, Zone, validation};
use serde_json::{Value, json};

use super::{indexes::count_indexes, status};
use crate::{
    cron::Schedule,
    fields::{
        FieldRule,
        Rule::{IsOneOf, IsText, Required, Unique},
        validate_one_of, validate_optional_one_of,
    },
    meta::{at_least_zero, check_immutable, check_not_negative},
    pod::{check_template, check_template_restart, template_defaults, workload_warnings},
    strategy::Strategy,
};

const UID_LABEL: &str = "batch.kubernetes.io/controller-uid";
const NAME_LABEL: &str = "batch.kubernetes.io/job-name";

pub(crate) static JOB: Strategy = Strategy {
    orphans: true,
    status: Some(|| json!({})),
    generation: true,
    own_defaults: |job| {
        let Some(spec) = job.at_mut("spec") else { return };
        template_defaults(spec);
        if !spec.has("completions") && !spec.has("parallelism") {
            spec.set("completions", 1);
        }
        spec.set_default("parallelism", 1);
        let limit = if spec.has("backoffLimitPerIndex") { i64::from(i32::MAX) } else { 6 };
        spec.set_default("backoffLimit", limit);
        spec.set_default("completionMode", "NonIndexed");
        spec.set_default("suspend", false);
        spec.set_default("manualSelector", false);
        let replacement =
            if spec.has("podFailurePolicy") { "Failed" } else { "TerminatingOrFailed" };
        spec.set_default("podReplacementPolicy", replacement);
    },
    own_create: |job, _| {
        if !job.flag("spec.manualSelector") {
            generate_selector(job);
        }
        copy_labels(job);
    },
    own_update: |new, _, _| copy_labels(new),
    check: check_job,
    check_create: |job, errors| check_generated(job, &Value::Null, errors),
    check_update: check_job_update,
    check_status: |new, old, _, errors| status::check_job(new, old, errors),
    selectable: &[("status.successful", |job| job.int("status.succeeded").to_string())],
    warnings: |job, old| job_warnings(job, old, "spec"),
    pod_spec: "spec.template.spec",
    ..Strategy::PLAIN
};

pub(crate) static CRON_JOB: Strategy = Strategy {
    status: Some(|| json!({})),
    generation: true,
    own_defaults: |cron| {
        if let Some(spec) = cron.at_mut("spec.jobTemplate.spec") {
            template_defaults(spec);
        }
    },
    check: check_cron_job,
    warnings: |cron, old| {
        let mut found = job_warnings(cron, old, "spec.jobTemplate.spec");
        if old.is_some() && cron.text("spec.schedule").contains("TZ") {
            found.push(
                "cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see \
                https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more \
                details"
                    .to_owned(),
            );
        }
        found
    },
    pod_spec: "spec.jobTemplate.spec.template.spec",
    ..Strategy::PLAIN
};

/// Returns the warnings for a Job or CronJob with its Job spec at `path`.
fn job_warnings(object: &Value, old: Option<&Value>, path: &str) -> Warnings {
    let mut found = workload_warnings(object, old, &format!("{path}.template"));
    let spec = object.at(path);
    let many = spec.int("completions") > 100_000 && spec.int("parallelism") > 10_000;
    if spec.text("completionMode") == "Indexed" && many {
        found.push(format!(
            "{path}: In Indexed Jobs with a number of completions higher than 10^5 \
            and a parallelism higher than 10^4, Kubernetes might not be able to track \
            completedIndexes when a big number of indexes fail"
        ));
    }
    found
}

/// Copies the template's labels to a Job without labels.
fn copy_labels(job: &mut Value) {
    if job.blank("metadata.labels") && !job.blank("spec.template.metadata.labels") {
        let labels = job.at("spec.template.metadata.labels").clone();
        job.set("metadata.labels", labels);
    }
}

/// Labels the Job's Pods with the Job's uid and selects them by it, so that no other Job matches them.
fn generate_selector(job: &mut Value) {
    let (uid, name) = (job.at("metadata.uid").clone(), job.at("metadata.name").clone());
    if let Some(labels) = job.map_mut("spec.template.metadata.labels") {
        for (label, value) in
            [(UID_LABEL, &uid), ("controller-uid", &uid), (NAME_LABEL, &name), ("job-name", &name)]
        {
            labels.entry(label).or_insert_with(|| value.clone());
        }
    }
    if let Some(labels) = job.map_mut("spec.selector.matchLabels") {
        labels.entry(UID_LABEL).or_insert(uid);
    }
}

/// Reports generated labels of the template and a generated selector that a client changed. A Job of an old release
/// has fewer labels: those that the old Job lacks are not required.
fn check_generated(job: &Value, old: &Value, errors: &mut ErrorList) {
    const LABELS: &str = "spec.template.metadata.labels";
    if job.flag("spec.manualSelector") {
        return;
    }
    let (uid, name) = (job.uid(), job.name());
    for (label, want) in
        [(UID_LABEL, uid), ("controller-uid", uid), (NAME_LABEL, name), ("job-name", name)]
    {
        if !old.is_null() && old.at(LABELS).get(label).is_none() {
            continue;
        }
        let (path, detail) = (Path::new(LABELS).key(label), format!("must be '{want}'"));
        match job.at(LABELS).get(label) {
            None => errors.push(FieldError::required(&path, detail)),
            Some(found) if found.as_str() != Some(want) => {
                errors.push(FieldError::invalid(&path, found.clone(), detail));
            }
            Some(_) => {}
        }
    }
    let selector = job.at("spec.selector");
    let labels = selector.at("matchLabels");
    let by = if labels.get(UID_LABEL).is_some() { UID_LABEL } else { "controller-uid" };
    if *labels != json!({by: uid}) || !selector.blank("matchExpressions") {
        let detail = "`selector` not auto-generated";
        errors.push(FieldError::invalid(&Path::new("spec.selector"), selector.clone(), detail));
    }
}

fn check_job(job: &Value, errors: &mut ErrorList) {
    let (spec, path) = (job.at("spec"), Path::new("spec"));
    if spec.text("completionMode") == "Indexed" && spec.has("completions") {
        // Pods are named by their index, and the name is also the host name.
        let last = (spec.int("completions") - 1).max(0);
        let pod = format!("{}-{last}", job.name());
        if !validation::dns1123_label(&pod).is_empty() {
            let detail = format!("will not able to create pod with invalid DNS label: {pod}");
            let name = job.name();
            errors.push(FieldError::invalid(&Path::new("metadata").child("name"), name, detail));
        }
    }
    if let Some(by) = spec.at("managedBy").as_str() {
        let path = path.child("managedBy");
        match by {
            "" => errors.push(FieldError::required(&path, "")),
            by => {
                for message in validation::domain_prefixed_path(by) {
                    errors.push(FieldError::invalid(&path, by, message));
                }
                if by.len() > 63 {
                    errors.push(FieldError::too_long(&path, 63));
                }
            }
        }
    }
    let selector = if spec.has("selector") {
        serde_json::from_value::<LabelSelector>(spec.at("selector").clone()).ok()
    } else {
        errors.push(FieldError::required(&path.child("selector"), ""));
        None
    };
    if let Some(selector) = &selector {
        errors.append(&mut selector.validate(&path.child("selector")));
    }
    check_job_spec(spec, selector.and_then(|s| s.to_selector().ok()).as_ref(), &path, errors);
}

fn check_job_spec(
    spec: &Value,
    selector: Option<&api_meta::Selector>,
    path: &Path,
    errors: &mut ErrorList,
) {
    for field in [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ] {
        check_not_negative(spec, field, path, errors);
    }
    validate_optional_one_of(spec, "completionMode", &["Indexed", "NonIndexed"], path, errors);
    let replacements = if spec.has("podFailurePolicy") {
        &["Failed"][..]
    } else {
        &["Failed", "TerminatingOrFailed"]
    };
    validate_optional_one_of(spec, "podReplacementPolicy", replacements, path, errors);
    crate::fields::check(spec, JOB_SPEC, path, errors);
    check_indexes(spec, path, errors);
    check_failure_policy(spec, path, errors);
    if spec.text("completionMode") == "Indexed" {
        if !spec.has("completions") {
            let detail = "when completion mode is Indexed";
            errors.push(FieldError::required(&path.child("completions"), detail));
        }
        let parallelism = spec.int("parallelism");
        if parallelism > MAX_INDEXED_PARALLELISM {
            let detail = format!(
                "must be less than or equal to {MAX_INDEXED_PARALLELISM} when completion mode is Indexed"
            );
            errors.push(FieldError::invalid(&path.child("parallelism"), parallelism, detail));
        }
    }
    for field in ["backoffLimitPerIndex", "successPolicy"] {
        if spec.has(field) && spec.text("completionMode") != "Indexed" {
            let (found, detail) = (spec.at(field).clone(), "requires indexed completion mode");
            errors.push(FieldError::invalid(&path.child(field), found, detail));
        }
    }
    let template = path.child("template");
    check_template(spec.at("template"), selector, &template, errors);
    let restart = template.child("spec").child("restartPolicy");
    match spec.text("template.spec.restartPolicy") {
        "" | "Always" => {
            let detail = "valid values: \"OnFailure\", \"Never\"";
            errors.push(FieldError::required(&restart, detail));
        }
        _ => {
            let allowed = ["OnFailure", "Never"];
            check_template_restart(spec.at("template"), &allowed, &template, errors);
        }
    }
    if spec.has("podFailurePolicy") && spec.text("template.spec.restartPolicy") != "Never" {
        let path = template.child("spec").child("restartPolicy");
        let detail = "only \"Never\" is supported when podFailurePolicy is specified";
        errors.push(FieldError::invalid(&path, spec.text("template.spec.restartPolicy"), detail));
    }
}

/// The maximum number of Pods of an indexed Job that run at the same time.
const MAX_INDEXED_PARALLELISM: i64 = 100_000;

const JOB_SPEC: &[FieldRule] = &[
    ("podFailurePolicy.rules[].onPodConditions[].type", IsText(validation::qualified_name)),
    ("podFailurePolicy.rules[].onPodConditions[].status", IsOneOf(&["False", "True", "Unknown"])),
    ("podFailurePolicy.rules[].onExitCodes.values", Unique),
    (
        "successPolicy.rules",
        Required("at least one rules must be specified when the successPolicy is specified"),
    ),
];

/// Validates the fields that count indexes against the number of completions.
fn check_indexes(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let completions = spec.int("completions");
    if let Some(limit) = spec.opt_int("maxFailedIndexes") {
        if limit > completions {
            let detail = "must be less than or equal to completions";
            errors.push(FieldError::invalid(&path.child("maxFailedIndexes"), limit, detail));
        }
        if !spec.has("backoffLimitPerIndex") {
            let detail = "when maxFailedIndexes is specified";
            errors.push(FieldError::required(&path.child("backoffLimitPerIndex"), detail));
        }
    }
    for (i, rule) in spec.items("successPolicy.rules").iter().enumerate() {
        let path = path.child("successPolicy").child("rules").index(i);
        let indexes = rule.at("succeededIndexes").as_str();
        if indexes.is_none() && !rule.has("succeededCount") {
            let detail = "at least one of succeededCount or succeededIndexes must be specified";
            errors.push(FieldError::required(&path, detail));
        }
        let mut most = completions;
        if let Some(text) = indexes {
            match count_indexes(text, completions) {
                Ok(count) => most = count,
                Err(error) => {
                    let detail = format!("error parsing succeededIndexes: {error}");
                    errors.push(FieldError::invalid(&path.child("succeededIndexes"), text, detail));
                }
            }
        }
        let Some(count) = rule.opt_int("succeededCount") else { continue };
        let path = path.child("succeededCount");
        if count < 0 {
            errors.push(at_least_zero(&path, count));
        }
        if count > most {
            let detail = match indexes {
                Some(_) => format!(
                    "must be less than or equal to {most} (the number of indexes in the specified \
                    succeededIndexes field)"
                ),
                None => format!(
                    "must be less than or equal to {most} (the number of specified completions)"
                ),
            };
            errors.push(FieldError::invalid(&path, count, detail));
        }
    }
}

fn check_failure_policy(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let containers: HashSet<&str> = ["containers", "initContainers"]
        .iter()
        .flat_map(|list| spec.items(&format!("template.spec.{list}")))
        .map(|container| container.text("name"))
        .collect();
    for (i, rule) in spec.items("podFailurePolicy.rules").iter().enumerate() {
        let path = path.child("podFailurePolicy").child("rules").index(i);
        validate_go_enum(
            rule,
            "action",
            &["Count", "FailIndex", "FailJob", "Ignore"],
            &path,
            errors,
        );
        if rule.text("action") == "FailIndex" && !spec.has("backoffLimitPerIndex") {
            let detail = "requires the backoffLimitPerIndex to be set";
            errors.push(FieldError::invalid(&path.child("action"), "FailIndex", detail));
        }
        let (codes, codes_path) = (rule.at("onExitCodes"), path.child("onExitCodes"));
        if !codes.is_null() {
            if let Some(name) = codes.at("containerName").as_str()
                && !containers.contains(name)
            {
                let detail =
                    "must be one of the container or initContainer names in the pod template";
                errors.push(FieldError::invalid(&codes_path.child("containerName"), name, detail));
            }
            validate_go_enum(codes, "operator", &["In", "NotIn"], &codes_path, errors);
            let (values, path) = (codes.items("values"), codes_path.child("values"));
            if values.is_empty() {
                let detail = "at least one value is required";
                errors.push(FieldError::invalid(&path, codes.at("values").clone(), detail));
            }
            if values.iter().any(|v| *v == 0) && codes.text("operator") == "In" {
                let at = values.iter().position(|v| *v == 0).unwrap_or_default();
                let detail = "must not be 0 for the In operator";
                errors.push(FieldError::invalid(&path.index(at), 0, detail));
            }
            if !values.iter().map(Value::as_i64).is_sorted() {
                let found = codes.at("values").clone();
                errors.push(FieldError::invalid(&path, found, "must be ordered"));
            }
        }
        let conditions = !rule.blank("onPodConditions");
        if codes.is_null() != conditions {
            let detail = if conditions {
                "specifying both OnExitCodes and OnPodConditions is not supported"
            } else {
                "specifying one of OnExitCodes and OnPodConditions is required"
            };
            errors.push(FieldError { value: None, ..FieldError::invalid(&path, "", detail) });
        }
    }
}

/// Validates an enum field whose absence upstream reports with a Go-formatted list.
fn validate_go_enum(
    object: &Value,
    field: &str,
    allowed: &[&str],
    path: &Path,
    errors: &mut ErrorList,
) {
    if object.blank(field) {
        let list: Vec<String> = allowed.iter().map(|word| format!("{word:?}")).collect();
        let detail = format!("valid values: [{}]", list.join(" "));
        errors.push(FieldError::required(&path.child(field), detail));
    } else {
        validate_one_of(object, field, allowed, path, errors);
    }
}

fn check_job_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    check_generated(new, old, errors);
    for field in [
        "spec.selector",
        "spec.completionMode",
        "spec.podFailurePolicy",
        "spec.backoffLimitPerIndex",
        "spec.managedBy",
        "spec.successPolicy",
    ] {
        check_immutable(new, old, field, errors);
    }
    let elastic = new.text("spec.completionMode") == "Indexed"
        && new.at("spec.completions") == new.at("spec.parallelism");
    if !elastic {
        check_immutable(new, old, "spec.completions", errors);
    }
    // A queue may set the placement and the resources of a suspended Job whose Pods are gone.
    let mut allowed = new.clone();
    if old.flag("spec.suspend") && old.int("status.active") == 0 {
        for field in ["nodeSelector", "affinity", "tolerations", "schedulingGates"] {
            allowed.keep(old, &format!("spec.template.spec.{field}"));
        }
        for field in ["labels", "annotations"] {
            allowed.keep(old, &format!("spec.template.metadata.{field}"));
        }
        for list in ["containers", "initContainers"] {
            let list = format!("spec.template.spec.{list}");
            for (container, old) in allowed.items_mut(&list).zip(old.items(&list)) {
                container.keep(old, "resources.requests");
                container.keep(old, "resources.limits");
            }
        }
    }
    check_immutable(&allowed, old, "spec.template", errors);
}

fn check_cron_job(cron: &Value, errors: &mut ErrorList) {
    let (spec, path) = (cron.at("spec"), Path::new("spec"));
    let schedule = spec.text("schedule");
    let schedule_path = path.child("schedule");
    if schedule.is_empty() {
        errors.push(FieldError::required(&schedule_path, ""));
    } else if schedule.contains("TZ") {
        errors.push(FieldError::invalid(
            &schedule_path,
            schedule,
            "cannot use TZ or CRON_TZ in schedule, use timeZone field instead",
        ));
    } else if let Err(error) = Schedule::parse(schedule, Zone::UTC) {
        errors.push(FieldError::invalid(&schedule_path, schedule, error.to_string()));
    }
    for field in ["startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit"]
    {
        check_not_negative(spec, field, &path, errors);
    }
    validate_one_of(spec, "concurrencyPolicy", &["Allow", "Forbid", "Replace"], &path, errors);
    if let Some(zone) = spec.at("timeZone").as_str() {
        check_time_zone(zone, &path.child("timeZone"), errors);
    }
    let template = path.child("jobTemplate").child("spec");
    check_job_spec(spec.at("jobTemplate.spec"), None, &template, errors);
    if cron.name().len() > 52 {
        errors.push(FieldError::invalid(
            &Path::new("metadata").child("name"),
            cron.name(),
            "must be no more than 52 characters",
        ));
    }
}

/// Validates a time zone name. `Local` would mean a different zone on each machine.
fn check_time_zone(zone: &str, path: &Path, errors: &mut ErrorList) {
    let detail = if zone.is_empty() {
        "timeZone must be nil or non-empty string".to_owned()
    } else if zone.to_lowercase().contains("local") {
        "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"
            .to_owned()
    } else if Zone::named(zone).is_none() {
        format!("unknown time zone {zone}")
    } else {
        return;
    };
    errors.push(FieldError::invalid(path, zone, detail));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::kinds::{
        strategy,
        tests::{errors, made, updated},
    };

    #[test]
    fn changes_resources_of_suspended_job_without_pods() {
        let job = |suspend: bool, active: i64| {
            let template = json!({"spec": {"restartPolicy": "Never", "containers":
                [{"name": "c", "image": "nginx", "resources": {"requests": {"cpu": "1"}}}]}});
            let mut job =
                made("batch", "jobs", json!({"spec": {"suspend": suspend, "template": template}}));
            job["status"] = json!({"active": active, "startTime": "2026-01-01T00:00:00Z"});
            job
        };
        let resize = |job: &mut serde_json::Value| {
            let resources = &mut job["spec"]["template"]["spec"]["containers"][0]["resources"];
            *resources = json!({"requests": {"cpu": "2", "example.com/gpu": "1"}, "limits": {"example.com/gpu": "1"}});
            job["spec"]["suspend"] = json!(false);
        };
        let jobs = strategy("batch", "jobs");
        let (resized, refused) = updated(jobs, &job(true, 0), resize);
        assert_eq!(refused, "[]");
        let resources = &resized["spec"]["template"]["spec"]["containers"][0]["resources"];
        assert_eq!(resources["requests"]["cpu"], "2");
        for job in [job(true, 1), job(false, 0)] {
            let (_, refused) = updated(jobs, &job, resize);
            assert!(refused.contains("spec.template: Invalid value"), "{refused}");
        }
        let renamed = |job: &mut serde_json::Value| {
            job["spec"]["template"]["spec"]["containers"][0]["image"] = json!("other");
        };
        let (_, refused) = updated(jobs, &job(true, 0), renamed);
        assert!(refused.contains("field is immutable"), "{refused}");
    }

    #[test]
    fn rejects_local_time_zone() {
        let of = |zone: &str| {
            let cron = json!({"spec": {"schedule": "0 3 * * *", "timeZone": zone, "jobTemplate": {"spec": {"template":
                {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "nginx"}]}}}}}});
            errors("batch", "cronjobs", cron)
        };
        for zone in ["UTC", "Europe/Paris", "Etc/GMT+3"] {
            assert_eq!(of(zone), "[]", "{zone}");
        }
        for (zone, cause) in [
            ("", "timeZone must be nil or non-empty string"),
            (
                "Local",
                "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones",
            ),
            ("Europe/Nowhere", "unknown time zone Europe/Nowhere"),
        ] {
            assert_eq!(of(zone), format!("spec.timeZone: Invalid value: {zone:?}: {cause}"));
        }
    }
}
