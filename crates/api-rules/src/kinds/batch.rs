//! Jobs and CronJobs.

use api_meta::{ErrorList, FieldError, LabelSelector, Path};
use serde_json::{Value, json};

use crate::{
    look::{Look, default, keep, put, slot},
    meta::{check_immutable, check_not_negative},
    pod::{
        check_template, check_template_restart, none_or_one_of, one_of, template_defaults,
        template_warnings,
    },
    strategy::Strategy,
};

const UID_LABEL: &str = "batch.kubernetes.io/controller-uid";
const NAME_LABEL: &str = "batch.kubernetes.io/job-name";

pub(crate) static JOB: Strategy = Strategy {
    status: Some(|| json!({})),
    generation: true,
    own_defaults: |job| {
        let Some(spec) = slot(job, "spec") else { return };
        template_defaults(spec);
        if !spec.has("completions") && !spec.has("parallelism") {
            put(spec, "completions", 1);
        }
        default(spec, "parallelism", 1);
        let limit = if spec.has("backoffLimitPerIndex") { i64::from(i32::MAX) } else { 6 };
        default(spec, "backoffLimit", limit);
        default(spec, "completionMode", "NonIndexed");
        default(spec, "suspend", false);
        default(spec, "manualSelector", false);
        let replacement =
            if spec.has("podFailurePolicy") { "Failed" } else { "TerminatingOrFailed" };
        default(spec, "podReplacementPolicy", replacement);
        copy_labels(job);
    },
    own_create: |job, _| {
        if !job.flag("spec.manualSelector") {
            generate_selector(job);
        }
        copy_labels(job);
    },
    check: check_job,
    check_create: |job, errors| {
        let uid = job.text("metadata.uid");
        let label = job.at("spec.template.metadata.labels").get(UID_LABEL);
        if !job.flag("spec.manualSelector") && label.and_then(Value::as_str) != Some(uid) {
            let path = Path::new("spec.template.metadata.labels").key(UID_LABEL);
            errors.push(FieldError::invalid(
                &path,
                label.cloned().unwrap_or_default(),
                format!("must be '{uid}'"),
            ));
        }
    },
    check_update: check_job_update,
    selectable: &[("status.successful", |job| job.int("status.succeeded").to_string())],
    warnings: |object| template_warnings(object, "spec.template"),
    ..Strategy::PLAIN
};

pub(crate) static CRON_JOB: Strategy = Strategy {
    status: Some(|| json!({})),
    generation: true,
    own_defaults: |cron| {
        if let Some(spec) = slot(cron, "spec.jobTemplate.spec") {
            template_defaults(spec);
        }
    },
    check: check_cron_job,
    warnings: |object| template_warnings(object, "spec.jobTemplate.spec.template"),
    ..Strategy::PLAIN
};

/// A Job without labels has its template's.
fn copy_labels(job: &mut Value) {
    if job.blank("metadata.labels") && !job.blank("spec.template.metadata.labels") {
        let labels = job.at("spec.template.metadata.labels").clone();
        put(job, "metadata.labels", labels);
    }
}

/// Marks the Job's Pods by its uid, so that no other Job can mistake them for its own.
fn generate_selector(job: &mut Value) {
    let (uid, name) = (job.at("metadata.uid").clone(), job.at("metadata.name").clone());
    if let Some(labels) = crate::look::map_mut(job, "spec.template.metadata.labels") {
        for (label, value) in
            [(UID_LABEL, &uid), ("controller-uid", &uid), (NAME_LABEL, &name), ("job-name", &name)]
        {
            labels.entry(label).or_insert_with(|| value.clone());
        }
    }
    if let Some(labels) = crate::look::map_mut(job, "spec.selector.matchLabels") {
        labels.entry(UID_LABEL).or_insert(uid);
    }
}

fn check_job(job: &Value, errors: &mut ErrorList) {
    let (spec, path) = (job.at("spec"), Path::new("spec"));
    let selector = match spec.has("selector") {
        true => serde_json::from_value::<LabelSelector>(spec.at("selector").clone()).ok(),
        false => {
            errors.push(FieldError::required(&path.child("selector"), ""));
            None
        }
    };
    if let Some(selector) = &selector {
        errors.extend(selector.validate(&path.child("selector")));
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
    none_or_one_of(spec, "completionMode", &["Indexed", "NonIndexed"], path, errors);
    none_or_one_of(spec, "podReplacementPolicy", &["Failed", "TerminatingOrFailed"], path, errors);
    if spec.text("completionMode") == "Indexed" && !spec.has("completions") {
        let detail = "when completion mode is Indexed";
        errors.push(FieldError::required(&path.child("completions"), detail));
    }
    if spec.has("backoffLimitPerIndex") && spec.text("completionMode") != "Indexed" {
        errors.push(FieldError::invalid(
            &path.child("backoffLimitPerIndex"),
            spec.at("backoffLimitPerIndex").clone(),
            "requires indexed completion mode",
        ));
    }
    let template = path.child("template");
    check_template(spec.at("template"), selector, &template, errors);
    check_template_restart(spec.at("template"), &["OnFailure", "Never"], &template, errors);
    if spec.has("podFailurePolicy") && spec.text("template.spec.restartPolicy") != "Never" {
        let path = template.child("spec").child("restartPolicy");
        let detail = "only \"Never\" is supported when podFailurePolicy is specified";
        errors.push(FieldError::invalid(&path, spec.text("template.spec.restartPolicy"), detail));
    }
}

fn check_job_update(new: &Value, old: &Value, errors: &mut ErrorList) {
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
    // While a Job is suspended, and has never started, a queue may still say where its Pods go.
    let mut allowed = new.clone();
    if old.flag("spec.suspend") && old.blank("status.startTime") {
        for field in ["nodeSelector", "affinity", "tolerations", "schedulingGates"] {
            keep(&mut allowed, old, &format!("spec.template.spec.{field}"));
        }
        for field in ["labels", "annotations"] {
            keep(&mut allowed, old, &format!("spec.template.metadata.{field}"));
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
    } else if let Err(detail) = check_schedule(schedule) {
        errors.push(FieldError::invalid(&schedule_path, schedule, detail));
    }
    for field in ["startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit"]
    {
        check_not_negative(spec, field, &path, errors);
    }
    one_of(spec, "concurrencyPolicy", &["Allow", "Forbid", "Replace"], &path, errors);
    let template = path.child("jobTemplate").child("spec");
    check_job_spec(spec.at("jobTemplate.spec"), None, &template, errors);
    if cron.text("metadata.name").len() > 52 {
        errors.push(FieldError::invalid(
            &Path::new("metadata").child("name"),
            cron.text("metadata.name"),
            "must be no more than 52 characters",
        ));
    }
}

/// Checks a cron schedule: five fields, or one of the named ones.
fn check_schedule(schedule: &str) -> Result<(), String> {
    const NAMED: [&str; 7] =
        ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];
    if NAMED.contains(&schedule) || schedule.starts_with("@every ") {
        return Ok(());
    }
    if schedule.starts_with('@') {
        return Err(format!("unrecognized descriptor: {schedule}"));
    }
    let fields: Vec<&str> = schedule.split_whitespace().collect();
    if fields.len() != 5 {
        return Err(format!(
            "expected exactly 5 fields, found {}: [{}]",
            fields.len(),
            fields.join(" ")
        ));
    }
    let bounds = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 6)];
    let names: [&[&str]; 5] = [&[], &[], &[], &MONTHS, &DAYS];
    fields.iter().zip(bounds).zip(names).try_for_each(|((field, bounds), names)| {
        field.split(',').try_for_each(|part| check_range(part, bounds, names))
    })
}

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// Checks one part of a field: `*`, `5`, `1-5`, each perhaps with `/step`.
fn check_range(part: &str, (low, high): (u32, u32), names: &[&str]) -> Result<(), String> {
    let (range, step) = part.split_once('/').map_or((part, None), |(r, s)| (r, Some(s)));
    let number = |text: &str| -> Result<u32, String> {
        let named = names.iter().position(|n| n.eq_ignore_ascii_case(text));
        match named {
            Some(i) => Ok(i as u32 + low),
            None => text.parse().map_err(|_| {
                format!("failed to parse int from {text}: strconv.Atoi: parsing {text:?}: invalid syntax")
            }),
        }
    };
    if let Some(step) = step
        && number(step)? == 0
    {
        return Err(format!("step of range should be a positive number: {part}"));
    }
    if matches!(range, "*" | "?") {
        return Ok(());
    }
    let (first, last) = match range.split_once('-') {
        Some((a, b)) => (number(a)?, number(b)?),
        None => (number(range)?, if step.is_some() { high } else { number(range)? }),
    };
    if first < low {
        Err(format!("beginning of range ({first}) below minimum ({low}): {part}"))
    } else if last > high {
        Err(format!("end of range ({last}) above maximum ({high}): {part}"))
    } else if first > last {
        Err(format!("beginning of range ({first}) beyond end of range ({last}): {part}"))
    } else {
        Ok(())
    }
}
