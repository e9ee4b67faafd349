//! The containers of a Pod: their names in messages, and their forbidden values.

use std::collections::BTreeSet;

use api_meta::{Tree as _, go_quote};
use serde_json::Value;

/// Returns all containers, including init and ephemeral ones.
pub(super) fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    ["spec.initContainers", "spec.containers", "spec.ephemeralContainers"]
        .into_iter()
        .flat_map(move |l| pod.items(l))
}

pub(super) fn name(container: &Value) -> &str {
    container.text("name")
}

pub(super) fn plural<'t>(one: &'t str, many: &'t str, count: usize) -> &'t str {
    if count == 1 { one } else { many }
}

pub(super) fn quoted<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> String {
    names.into_iter().map(|name| go_quote(name.as_ref())).collect::<Vec<_>>().join(", ")
}

/// Formats container names as `container "a"`, or `containers "a", "b"`.
pub(super) fn name_containers(names: &[&str]) -> String {
    format!("{} {}", plural("container", "containers", names.len()), quoted(names))
}

/// Names the parts that set a field: the Pod, its containers, or both. Empty if neither does.
pub(super) fn name_setters(pod: bool, names: &[&str]) -> String {
    match (pod, names.is_empty()) {
        (false, true) => String::new(),
        (true, true) => "pod".into(),
        (false, false) => name_containers(names),
        (true, false) => format!("pod and {}", name_containers(names)),
    }
}

/// Returns the forbidden values at a pointer in the Pod and its containers, and the description of their setters.
pub(super) fn forbidden_values<'p>(
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
