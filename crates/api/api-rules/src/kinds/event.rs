//! Validation of Events. Core Events without an `eventTime` have few rules; those with one follow the rules of
//! events.k8s.io. Through events.k8s.io, only the series of an Event is mutable. Errors use the field names of core/v1.

use api_meta::{ErrorList, FieldError, Path, Tree as _, is_zero, validation};
use serde_json::Value;

const NEW_GROUP: &str = "events.k8s.io/v1";

/// The names of a field as `(core/v1, events.k8s.io/v1)`.
type Spelling = (&'static str, &'static str);

const COUNT: Spelling = ("count", "deprecatedCount");
const CONTROLLER: Spelling = ("reportingComponent", "reportingController");
const FIRST: Spelling = ("firstTimestamp", "deprecatedFirstTimestamp");
const LAST: Spelling = ("lastTimestamp", "deprecatedLastTimestamp");
const MESSAGE: Spelling = ("message", "note");
const OBJECT: Spelling = ("involvedObject", "regarding");
const SOURCE: Spelling = ("source", "deprecatedSource");

fn is_new_group(event: &Value) -> bool {
    event["apiVersion"] == NEW_GROUP
}

fn field(event: &Value, (core, new): Spelling) -> &Value {
    event.at(if is_new_group(event) { new } else { core })
}

pub(super) fn check_create(event: &Value, errors: &mut ErrorList) {
    check_namespace(event, errors);
    let time = Path::new("eventTime");
    if !is_zero(event.at("eventTime")) {
        check_new(event, errors);
    } else if is_new_group(event) {
        errors.push(FieldError::required(&time, ""));
        return;
    }
    if !is_new_group(event) {
        return;
    }
    for message in validation::dns1123_subdomain(event.name()) {
        errors.push(FieldError::invalid(
            &Path::new("metadata").child("name"),
            event.name(),
            message,
        ));
    }
    check_series(event, errors);
    let unset =
        [("firstTimestamp", FIRST), ("lastTimestamp", LAST), ("count", COUNT), ("source", SOURCE)];
    for (name, spelling) in unset {
        if !is_zero(field(event, spelling)) {
            errors.push(FieldError::invalid(&Path::new(name), "", "needs to be unset"));
        }
    }
}

/// Validates the namespace. An Event belongs to the namespace of its object. For a cluster-scoped object it belongs to
/// `default` or `kube-system`.
fn check_namespace(event: &Value, errors: &mut ErrorList) {
    let of_object = field(event, OBJECT).text("namespace");
    let namespace = event.namespace();
    let is_new = !is_zero(event.at("eventTime"));
    let fits = match of_object {
        "" if is_new => matches!(namespace, "default" | "kube-system"),
        "" => matches!(namespace, "default" | "kube-system" | ""),
        // The new rules do not restrict the namespace of an Event for a namespaced object.
        _ if is_new => true,
        other => other == namespace,
    };
    if !fits {
        let path = Path::new("involvedObject").child("namespace");
        errors.push(FieldError::invalid(&path, of_object, "does not match event.namespace"));
    }
}

/// Validates an Event by the rules of events.k8s.io.
fn check_new(event: &Value, errors: &mut ErrorList) {
    let name = if is_new_group(event) { "reportingController" } else { "reportingComponent" };
    let (path, controller) =
        (Path::new(name), field(event, CONTROLLER).as_str().unwrap_or_default());
    if controller.is_empty() {
        errors.push(FieldError::required(&path, ""));
    }
    for problem in validation::qualified_name(controller) {
        errors.push(FieldError::invalid(&path, controller, problem));
    }
    for (name, most) in [("reportingInstance", 128), ("action", 128), ("reason", 128)] {
        let text = event.text(name);
        if text.is_empty() {
            errors.push(FieldError::required(&Path::new(name), ""));
        }
        check_length(text, most, name, errors);
    }
    check_length(field(event, MESSAGE).as_str().unwrap_or_default(), 1024, "message", errors);
    let kind = event.text("type");
    // Upstream does not check the type of an Event of core/v1.
    if is_new_group(event) && !matches!(kind, "Normal" | "Warning") {
        errors.push(FieldError::invalid(
            &Path::new("type"),
            "",
            format!("has invalid value: {kind}"),
        ));
    }
}

fn check_length(text: &str, most: usize, name: &str, errors: &mut ErrorList) {
    if text.len() > most {
        let detail = format!("can have at most {most} characters");
        errors.push(FieldError::invalid(&Path::new(name), "", detail));
    }
}

fn check_series(event: &Value, errors: &mut ErrorList) {
    let (series, path) = (event.at("series"), Path::new("series"));
    if series.is_null() {
        return;
    }
    if series.int("count") < 2 {
        errors.push(FieldError::invalid(&path.child("count"), "", "should be at least 2"));
    }
    if is_zero(series.at("lastObservedTime")) {
        errors.push(FieldError::required(&path.child("lastObservedTime"), ""));
    }
}

pub(super) fn check_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    if !is_new_group(new) {
        check_namespace(new, errors);
        if !is_zero(new.at("eventTime")) {
            check_new(new, errors);
        }
        return;
    }
    if !is_zero(new.at("eventTime")) && is_zero(old.at("eventTime")) {
        check_new(new, errors);
    }
    if new.at("series") != old.at("series") {
        check_series(new, errors);
    }
    let same = |name: &'static str| (name, (name, name));
    let fixed = [
        ("involvedObject", OBJECT),
        same("reason"),
        ("message", MESSAGE),
        ("source", SOURCE),
        ("firstTimestamp", FIRST),
        ("lastTimestamp", LAST),
        ("count", COUNT),
        same("type"),
        same("eventTime"),
        same("action"),
        same("related"),
        ("reportingController", CONTROLLER),
        same("reportingInstance"),
    ];
    for (name, spelling) in fixed {
        let (now, before) = (field(new, spelling), field(old, spelling));
        if now != before && !(is_zero(now) && is_zero(before)) {
            let shown = if now.is_object() { with_go_field_names(now) } else { now.clone() };
            errors.push(FieldError::invalid(&Path::new(name), shown, "field is immutable"));
        }
    }
}

/// Returns the value with the names of Go's fields, as upstream's messages show it.
fn with_go_field_names(value: &Value) -> Value {
    let name = |name: &str| match name {
        "uid" => "UID".to_owned(),
        "apiVersion" => "APIVersion".to_owned(),
        other => {
            let mut letters = other.chars();
            letters.next().map(|c| c.to_ascii_uppercase()).into_iter().chain(letters).collect()
        }
    };
    let fields = value.as_object().into_iter().flatten();
    Value::Object(fields.map(|(k, v)| (name(k), v.clone())).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(change: Value) -> Value {
        let mut event = json!({"apiVersion": NEW_GROUP, "metadata": {"name": "e", "namespace": "n"}, "regarding": {"namespace": "n"},
            "reason": "R", "note": "m", "type": "Normal", "eventTime": "2026-01-01T00:00:00.000000Z", "action": "A",
            "reportingController": "a.b/c", "reportingInstance": "i", "deprecatedSource": {}});
        for (name, value) in change.as_object().into_iter().flatten() {
            event[name] = value.clone();
        }
        event
    }

    fn fields(errors: &ErrorList) -> Vec<&str> {
        errors.iter().map(|error| error.field.as_str()).collect()
    }

    #[test]
    fn requires_reporter_time_and_action_of_new_events() {
        let cases = [
            (json!({}), vec![]),
            (json!({"metadata": {"name": "E", "namespace": "n"}}), vec!["metadata.name"]),
            (json!({"eventTime": null}), vec!["eventTime"]),
            (json!({"reason": ""}), vec!["reason"]),
            (json!({"type": "Foo"}), vec!["type"]),
            (json!({"action": "a".repeat(129)}), vec!["action"]),
            (json!({"note": "a".repeat(1025)}), vec!["message"]),
            (json!({"reportingInstance": null}), vec!["reportingInstance"]),
            (json!({"series": {"count": 1}}), vec!["series.count", "series.lastObservedTime"]),
            (json!({"deprecatedCount": 3}), vec!["count"]),
            (json!({"deprecatedSource": {"component": "x"}}), vec!["source"]),
            (json!({"regarding": {"namespace": "other"}}), vec![]),
            (json!({"regarding": {"kind": "Node"}}), vec!["involvedObject.namespace"]),
        ];
        for (change, want) in cases {
            let mut errors = ErrorList::new();
            check_create(&event(change.clone()), &mut errors);
            assert_eq!(fields(&errors), want, "{change}");
        }
    }

    #[test]
    fn accepts_old_events_with_few_fields() {
        let old = |namespace: &str| json!({"apiVersion": "v1", "metadata": {"namespace": "n"}, "involvedObject": {"namespace": namespace}});
        for (event, want) in [(old("n"), vec![]), (old("o"), vec!["involvedObject.namespace"])] {
            let mut errors = ErrorList::new();
            check_create(&event, &mut errors);
            assert_eq!(fields(&errors), want);
        }
    }

    #[test]
    fn applies_new_rules_to_events_with_event_time() {
        let old = json!({"apiVersion": "v1", "metadata": {"namespace": "n"}, "involvedObject": {"namespace": "n"},
            "reason": "R", "type": "Normal", "reportingComponent": "c", "reportingInstance": "i"});
        let mut new = old.clone();
        new["eventTime"] = json!("2026-01-01T00:00:00.000000Z");
        let mut errors = ErrorList::new();
        check_update(&new, &old, &mut errors);
        assert_eq!(fields(&errors), ["action"]);
    }

    #[test]
    fn limits_messages_of_core_events_with_event_time() {
        let event = |length: usize| {
            json!({"apiVersion": "v1", "metadata": {"namespace": "n"}, "involvedObject": {"namespace": "n"},
                "eventTime": "2026-01-01T00:00:00.000000Z", "reason": "R", "action": "A", "type": "Normal",
                "reportingComponent": "c", "reportingInstance": "i", "message": "m".repeat(length)})
        };
        for (length, want) in [(1024, vec![]), (1025, vec!["message"])] {
            let mut errors = ErrorList::new();
            check_create(&event(length), &mut errors);
            assert_eq!(fields(&errors), want);
        }
    }

    #[test]
    fn allows_only_series_of_new_event_to_change() {
        let series = json!({"count": 2, "lastObservedTime": "2026-01-01T00:00:00.000000Z"});
        let cases = [
            (json!({"series": series}), vec![]),
            (json!({"note": "other"}), vec!["message"]),
            (json!({"regarding": {"namespace": "n", "name": "x"}}), vec!["involvedObject"]),
            (json!({"type": "Warning", "action": "B"}), vec!["type", "action"]),
            (json!({"deprecatedCount": 1}), vec!["count"]),
        ];
        for (change, want) in cases {
            let mut errors = ErrorList::new();
            check_update(&event(change.clone()), &event(json!({})), &mut errors);
            assert_eq!(fields(&errors), want, "{change}");
        }
    }
}
