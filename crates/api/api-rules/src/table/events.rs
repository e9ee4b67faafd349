//! The table of Events, for core/v1 and events.k8s.io/v1.

use api_meta::{Timestamp, Tree as _};
use serde_json::{Value, json};

use super::{
    column::{Column, Table, name, text},
    format,
};

pub(super) static EVENTS: Table = Table {
    columns: &[
        text("Last Seen"),
        text("Type"),
        text("Reason"),
        text("Object"),
        text("Subobject").wide(),
        text("Source").wide(),
        text("Message"),
        text("First Seen").wide(),
        text("Count").wide(),
        Column::of("Name", "string", "name").wide(),
    ],
    cells,
};

fn cells(event: &Value, now: Timestamp) -> Vec<Value> {
    let pick = |a: &'static str, b: &'static str| if event.blank(a) { b } else { a };
    let about = event.at(pick("regarding", "involvedObject"));
    let kind = about.text("kind").to_lowercase();
    let target = match about.text("name") {
        "" => kind,
        name => format!("{kind}/{name}"),
    };
    let first = first_seen(event, now);
    let last = event.text(pick("deprecatedLastTimestamp", "lastTimestamp"));
    let series = event.text("series.lastObservedTime");
    let last = match (series, last) {
        ("", "") => first.clone(),
        ("", last) => format::since(last, now),
        (series, _) => format::since(series, now),
    };
    let count = [event.int("series.count"), event.int(pick("deprecatedCount", "count"))];
    let count = count.into_iter().find(|c| *c != 0).unwrap_or(1);
    let message = event.text(pick("note", "message")).trim();
    vec![
        json!(last),
        json!(event.text("type")),
        json!(event.text("reason")),
        json!(target),
        json!(about.text("fieldPath")),
        json!(source(event)),
        json!(message),
        json!(first),
        json!(count.to_string()),
        name(event),
    ]
}

fn first_seen(event: &Value, now: Timestamp) -> String {
    let times = ["deprecatedFirstTimestamp", "firstTimestamp", "eventTime"];
    let time = times.into_iter().map(|field| event.text(field)).find(|t| !t.is_empty());
    format::since(time.unwrap_or_default(), now)
}

/// Returns the reporting component and host of the Event.
fn source(event: &Value) -> String {
    let holder = if event.has("deprecatedSource") { "deprecatedSource" } else { "source" };
    let source = event.at(holder);
    let reporters = [
        source.text("component"),
        event.text("reportingController"),
        event.text("reportingComponent"),
    ];
    let hosts = [source.text("host"), event.text("reportingInstance")];
    let first = |list: &[&str]| {
        list.iter().find(|t| !t.is_empty()).map(|t| (*t).to_owned()).unwrap_or_default()
    };
    let (reporter, host) = (first(&reporters), first(&hosts));
    if host.is_empty() { reporter } else { format!("{reporter}, {host}") }
}
