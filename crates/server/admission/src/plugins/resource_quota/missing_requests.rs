//! Checks that containers set the requests and limits that a quota counts.

use std::collections::BTreeMap;

use api_meta::{GroupResource, Tree as _};
use api_rules::amounts::Amounts;
use serde_json::Value;

use crate::request::Request;

/// Describes the requests and limits of `hard` that containers do not set. A quota cannot count them.
pub(super) fn missing_requests(
    request: &Request<'_>,
    pod: &Value,
    hard: &Amounts,
) -> Option<String> {
    if !request.on(&GroupResource::PODS) {
        return None;
    }
    let mut missing: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for name in hard.keys() {
        let (field, resource) = match name.as_str() {
            "cpu" | "memory" | "ephemeral-storage" => ("requests", name.as_str()),
            name => match name.split_once('.') {
                Some((
                    field @ ("requests" | "limits"),
                    resource @ ("cpu" | "memory" | "ephemeral-storage"),
                )) => (field, resource),
                _ => continue,
            },
        };
        let stated = |holder: &Value| holder.has(&["resources", field, resource]);
        // As upstream: ephemeral storage is not mandatory.
        if resource == "ephemeral-storage" || stated(&pod["spec"]) {
            continue;
        }
        for list in ["spec.containers", "spec.initContainers"] {
            for container in pod.items(list).iter().filter(|container| !stated(container)) {
                missing.entry(name).or_default().push(container.text("name").to_owned());
            }
        }
    }
    (!missing.is_empty()).then(|| describe_missing(&missing))
}

/// Formats the missing values by container, as `cpu for: a,b; memory for: a`.
fn describe_missing(missing: &BTreeMap<&str, Vec<String>>) -> String {
    missing
        .iter()
        .map(|(r, names)| format!("{r} for: {}", names.join(",")))
        .collect::<Vec<_>>()
        .join("; ")
}
