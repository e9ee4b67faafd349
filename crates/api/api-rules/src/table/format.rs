//! Formats cells as upstream prints them.

use api_meta::{Timestamp, Tree as _, human_duration};
use serde_json::Value;

/// Returns the time that has passed since `time`.
pub(super) fn since(time: &str, now: Timestamp) -> String {
    match time.parse::<Timestamp>() {
        Ok(time) => human_duration(now.since(time)),
        Err(_) => "<unknown>".to_owned(),
    }
}

/// Returns a string, or `missing` for an empty one.
pub(super) fn or(text: &str, missing: &str) -> String {
    if text.is_empty() { missing } else { text }.to_owned()
}

/// Formats a number or string as upstream prints it, or returns `missing` for null.
pub(super) fn format_scalar(value: &Value, missing: &str) -> String {
    match value {
        Value::Null => missing.to_owned(),
        Value::String(text) => or(text, missing),
        other => other.to_string(),
    }
}

/// Formats labels as `a=b,c=d`.
pub(super) fn labels(map: &Value) -> String {
    let pairs = map.as_object().into_iter().flatten();
    let pairs: Vec<String> =
        pairs.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect();
    or(&pairs.join(","), "<none>")
}

/// Formats a LabelSelector in the syntax of command line flags.
pub(super) fn selector(selector: &Value) -> String {
    if selector.is_null() {
        return "<none>".to_owned();
    }
    match serde_json::from_value::<api_meta::LabelSelector>(selector.clone()) {
        Ok(parsed) => match parsed.to_selector() {
            Ok(selector) => or(&selector.to_string(), "<none>"),
            Err(_) => "<error>".to_owned(),
        },
        Err(_) => "<error>".to_owned(),
    }
}

/// Returns the names and the images of a Pod template's containers.
pub(super) fn containers(template: &Value) -> [String; 2] {
    ["name", "image"].map(|field| {
        let list: Vec<&str> =
            template.items("spec.containers").iter().map(|c| c.text(field)).collect();
        list.join(",")
    })
}

/// Joins up to three strings, and adds the number of the others.
pub(super) fn few(list: &[String], missing: &str) -> String {
    join_few(list.iter().cloned(), list.len(), missing)
}

/// Joins the strings of an iterator over `count` strings like [`few`]. Only the first three are computed.
pub(super) fn join_few(texts: impl Iterator<Item = String>, count: usize, missing: &str) -> String {
    const MAX: usize = 3;
    let shown = texts.take(MAX).collect::<Vec<_>>().join(",");
    match count {
        0 => missing.to_owned(),
        n if n > MAX => format!("{shown} + {} more...", n - MAX),
        _ => shown,
    }
}

/// Formats access modes, such as `RWO,ROX`.
pub(super) fn access_modes(modes: &[Value]) -> String {
    const SHORT: [(&str, &str); 4] = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let short: Vec<&str> = SHORT
        .iter()
        .filter(|(long, _)| modes.iter().any(|m| m == long))
        .map(|(_, short)| *short)
        .collect();
    short.join(",")
}

/// Returns the addresses of a load balancer.
pub(super) fn balancer(object: &Value) -> String {
    let list: Vec<&str> = object
        .items("status.loadBalancer.ingress")
        .iter()
        .map(|i| if i.blank("ip") { i.text("hostname") } else { i.text("ip") })
        .filter(|text| !text.is_empty())
        .collect();
    list.join(",")
}
