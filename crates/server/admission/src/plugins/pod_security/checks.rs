//! The controls of the Pod Security Standards. Each is a function that returns a Pod's violation, if any.

mod baseline;
mod restricted;

use std::collections::BTreeSet;

use api_meta::{Tree as _, go_quote};
use serde_json::Value;

pub(super) use baseline::BASELINE;
pub(super) use restricted::RESTRICTED;

/// A violation: the general reason, and the detail for this Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Violation {
    pub(in super::super) reason: String,
    pub(in super::super) detail: String,
}

pub(super) struct Check {
    pub(super) name: &'static str,
    /// The first minor version with this check.
    pub(super) since: u32,
    /// The check of a lower level that this one replaces.
    pub(super) replaces: Option<&'static str>,
    /// Checks a Pod (its `spec` and annotations) by the rules of a minor version.
    pub(super) find: fn(&Value, u32) -> Option<Violation>,
}

fn violation(reason: impl Into<String>, detail: impl Into<String>) -> Option<Violation> {
    Some(Violation { reason: reason.into(), detail: detail.into() })
}

/// Returns all containers, including init and ephemeral ones.
fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    ["spec.initContainers", "spec.containers", "spec.ephemeralContainers"]
        .into_iter()
        .flat_map(move |l| pod.items(l))
}

fn name(container: &Value) -> &str {
    container.text("name")
}

fn plural<'t>(one: &'t str, many: &'t str, count: usize) -> &'t str {
    if count == 1 { one } else { many }
}

fn quoted<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> String {
    names.into_iter().map(|name| go_quote(name.as_ref())).collect::<Vec<_>>().join(", ")
}

/// Formats container names as `container "a"`, or `containers "a", "b"`.
fn name_containers(names: &[&str]) -> String {
    format!("{} {}", plural("container", "containers", names.len()), quoted(names))
}

/// Names the parts that set a field: the Pod, its containers, or both. Empty if neither does.
fn name_setters(pod: bool, names: &[&str]) -> String {
    match (pod, names.is_empty()) {
        (false, true) => String::new(),
        (true, true) => "pod".into(),
        (false, false) => name_containers(names),
        (true, false) => format!("pod and {}", name_containers(names)),
    }
}

/// Returns the forbidden values at a pointer in the Pod and its containers, and the description of their setters.
fn forbidden_values<'p>(
    pod: &'p Value,
    pointer: &str,
    allowed: fn(&str) -> bool,
) -> (String, BTreeSet<&'p str>) {
    let bad = |value: &'p Value| Some(value.text(pointer)).filter(|v| !v.is_empty() && !allowed(v));
    let of_pod = bad(&pod["spec"]);
    let of_containers: Vec<(&str, &str)> =
        containers(pod).filter_map(|c| Some((name(c), bad(c)?))).collect();
    let names: Vec<&str> = of_containers.iter().map(|(name, _)| *name).collect();
    let values = of_pod.into_iter().chain(of_containers.iter().map(|(_, value)| *value)).collect();
    (name_setters(of_pod.is_some(), &names), values)
}
