//! The controls of the Pod Security Standards, each a function that says what a Pod does against it.

mod baseline;
mod restricted;

use std::collections::BTreeSet;

use api_meta::{Tree as _, go_quote};
use serde_json::Value;

pub(super) use baseline::BASELINE;
pub(super) use restricted::RESTRICTED;

/// What is wrong, in general and in this Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Violation {
    pub(in super::super) reason: String,
    pub(in super::super) detail: String,
}

pub(super) struct Check {
    pub(super) name: &'static str,
    /// The minor version that brought it.
    pub(super) since: u32,
    /// The check of a lesser level that this one makes needless.
    pub(super) replaces: Option<&'static str>,
    /// Judges a Pod (its `spec` and annotations) as of a minor version.
    pub(super) find: fn(&Value, u32) -> Option<Violation>,
}

fn violation(reason: impl Into<String>, detail: impl Into<String>) -> Option<Violation> {
    Some(Violation { reason: reason.into(), detail: detail.into() })
}

/// All containers, of every kind.
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

/// `container "a"`, or `containers "a", "b"`.
fn those(names: &[&str]) -> String {
    format!("{} {}", plural("container", "containers", names.len()), quoted(names))
}

/// Who sets something: the Pod, its containers, or both; empty when nobody does.
fn setters(pod: bool, names: &[&str]) -> String {
    match (pod, names.is_empty()) {
        (false, true) => String::new(),
        (true, true) => "pod".into(),
        (false, false) => those(names),
        (true, false) => format!("pod and {}", those(names)),
    }
}

/// The values at a pointer that are not among those allowed: of the Pod and of its containers.
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
    (setters(of_pod.is_some(), &names), values)
}
