//! Tables of Jobs and CronJobs.

use api_meta::{Timestamp, Tree as _, human_duration};
use serde_json::{Value, json};

use super::{
    column::{AGE, NAME, Table, age, boolean, integer, name, text},
    format,
};
use crate::conditions;

pub(super) static JOBS: Table = Table {
    columns: &[
        NAME,
        text("Status"),
        text("Completions"),
        text("Duration"),
        AGE,
        text("Containers").wide(),
        text("Images").wide(),
        text("Selector").wide(),
    ],
    cells: |job, now| {
        let [containers, images] = format::containers(job.at("spec.template"));
        vec![
            name(job),
            json!(status(job)),
            json!(completions(job)),
            json!(duration(job, now)),
            age(job, now),
            json!(containers),
            json!(images),
            json!(format::selector(job.at("spec.selector"))),
        ]
    },
};

fn status(job: &Value) -> &'static str {
    let has = |kind| conditions::is_true(job, kind);
    if has("Complete") {
        "Complete"
    } else if has("Failed") {
        "Failed"
    } else if job.has("metadata.deletionTimestamp") {
        "Terminating"
    } else if has("Suspended") {
        "Suspended"
    } else if has("FailureTarget") {
        "FailureTarget"
    } else if has("SuccessCriteriaMet") {
        "SuccessCriteriaMet"
    } else {
        "Running"
    }
}

fn completions(job: &Value) -> String {
    let done = job.int("status.succeeded");
    match (job.opt_int("spec.completions"), job.int("spec.parallelism")) {
        (Some(completions), _) => format!("{done}/{completions}"),
        (None, parallel) if parallel > 1 => format!("{done}/1 of {parallel}"),
        (None, _) => format!("{done}/1"),
    }
}

fn duration(job: &Value, now: Timestamp) -> String {
    let Ok(start) = job.text("status.startTime").parse::<Timestamp>() else {
        return String::new();
    };
    let end = job.text("status.completionTime").parse().unwrap_or(now);
    human_duration(end.since(start))
}

pub(super) static CRON_JOBS: Table = Table {
    columns: &[
        NAME,
        text("Schedule"),
        text("Timezone"),
        boolean("Suspend"),
        integer("Active"),
        text("Last Schedule"),
        AGE,
        text("Containers").wide(),
        text("Images").wide(),
        text("Selector").wide(),
    ],
    cells: |cron, now| {
        let [containers, images] = format::containers(cron.at("spec.jobTemplate.spec.template"));
        let last = match cron.text("status.lastScheduleTime") {
            "" => "<none>".to_owned(),
            time => format::since(time, now),
        };
        let suspended = match cron.at("spec.suspend") {
            Value::Bool(true) => "True",
            Value::Bool(false) => "False",
            _ => "<unset>",
        };
        vec![
            name(cron),
            json!(cron.text("spec.schedule")),
            json!(format::or(cron.text("spec.timeZone"), "<none>")),
            json!(suspended),
            json!(cron.items("status.active").len()),
            json!(last),
            age(cron, now),
            json!(containers),
            json!(images),
            json!(format::selector(cron.at("spec.jobTemplate.spec.selector"))),
        ]
    },
};
