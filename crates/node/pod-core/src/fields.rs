//! The values of `fieldRef` and `resourceFieldRef`.

use std::{collections::BTreeMap, fmt::Write as _};

use k8s_openapi::{
    api::core::v1::{Container, Pod, ResourceFieldSelector},
    apimachinery::pkg::api::resource::Quantity,
};

use crate::{
    resources::{milli, whole},
    spec::members,
};

/// The facts about a node that a Pod can refer to.
#[derive(Clone, Debug, Default)]
pub struct NodeFacts<'a> {
    /// The name of the Node.
    pub name: &'a str,
    /// The addresses of the node.
    pub host_ips: &'a [String],
    /// The addresses of the Pod.
    pub pod_ips: &'a [String],
    /// The allocatable amounts, which stand for limits that are not set.
    pub allocatable: BTreeMap<String, Quantity>,
}

/// The error of a field or resource without a value. The messages are upstream's.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FieldError {
    #[error("unsupported fieldPath: {0}")]
    UnknownField(String),
    #[error("unsupported container resource: {0}")]
    UnknownResource(String),
    #[error("container {0} not found")]
    UnknownContainer(String),
}

/// Returns the value of a Pod's field for an environment variable or a file.
pub fn field(pod: &Pod, path: &str, node: &NodeFacts<'_>) -> Result<String, FieldError> {
    let meta = &pod.metadata;
    let spec = pod.spec.as_ref();
    if let Some((map, key)) = path.strip_suffix("']").and_then(|p| p.split_once("['")) {
        let map = match map {
            "metadata.labels" => &meta.labels,
            "metadata.annotations" => &meta.annotations,
            _ => return Err(FieldError::UnknownField(path.to_owned())),
        };
        return Ok(map.as_ref().and_then(|m| m.get(key)).cloned().unwrap_or_default());
    }
    Ok(match path {
        "metadata.name" => meta.name.clone().unwrap_or_default(),
        "metadata.namespace" => meta.namespace.clone().unwrap_or_default(),
        "metadata.uid" => meta.uid.clone().unwrap_or_default(),
        "metadata.labels" => format_map(meta.labels.as_ref()),
        "metadata.annotations" => format_map(meta.annotations.as_ref()),
        "spec.nodeName" => {
            spec.and_then(|s| s.node_name.clone()).unwrap_or_else(|| node.name.to_owned())
        }
        "spec.serviceAccountName" => {
            spec.and_then(|s| s.service_account_name.clone()).unwrap_or_default()
        }
        "status.hostIP" => node.host_ips.first().cloned().unwrap_or_default(),
        "status.hostIPs" => node.host_ips.join(","),
        "status.podIP" => node.pod_ips.first().cloned().unwrap_or_default(),
        "status.podIPs" => node.pod_ips.join(","),
        _ => return Err(FieldError::UnknownField(path.to_owned())),
    })
}

/// Formats a map as sorted lines of `key="value"`, quoted as in Go.
fn format_map(map: Option<&BTreeMap<String, String>>) -> String {
    let mut out = String::new();
    for (key, value) in map.into_iter().flatten() {
        let _ = writeln!(out, "{key}={}", api_meta::go_quote(value));
    }
    out.trim_end_matches('\n').to_owned()
}

/// Returns a container's request or limit in units of the divisor, rounded up. A missing limit is the node's
/// allocatable amount.
pub fn resource_field(
    pod: &Pod,
    container: Option<&Container>,
    selector: &ResourceFieldSelector,
    node: &NodeFacts<'_>,
) -> Result<String, FieldError> {
    let named = selector.container_name.as_deref().filter(|n| !n.is_empty());
    let all = members(pod);
    let container = match named {
        Some(name) => all
            .iter()
            .find(|m| m.container.name == name)
            .map(|m| m.container.as_ref())
            .ok_or_else(|| FieldError::UnknownContainer(name.to_owned()))?,
        None => container.ok_or_else(|| FieldError::UnknownContainer(String::new()))?,
    };
    let unknown = || FieldError::UnknownResource(selector.resource.clone());
    let (kind, resource) = selector.resource.split_once('.').ok_or_else(unknown)?;
    let resources = container.resources.as_ref();
    let limits = resources.and_then(|r| r.limits.as_ref()).and_then(|m| m.get(resource));
    let quantity = match kind {
        "limits" => limits.or_else(|| node.allocatable.get(resource)),
        "requests" => {
            resources.and_then(|r| r.requests.as_ref()).and_then(|m| m.get(resource)).or(limits)
        }
        _ => return Err(unknown()),
    };
    let divisor = selector.divisor.as_ref();
    let value = match resource {
        "cpu" => {
            let unit = divisor.map(milli).filter(|&d| d > 0).unwrap_or(1000);
            quantity.map_or(0, milli).div_ceil_by(unit)
        }
        "memory" | "ephemeral-storage" => {
            let unit = divisor.map(whole).filter(|&d| d > 0).unwrap_or(1);
            quantity.map_or(0, whole).div_ceil_by(unit)
        }
        name if name.starts_with("hugepages-") => {
            let unit = divisor.map(whole).filter(|&d| d > 0).unwrap_or(1);
            quantity.map_or(0, whole).div_ceil_by(unit)
        }
        _ => return Err(unknown()),
    };
    Ok(value.to_string())
}

trait DivCeil {
    fn div_ceil_by(self, by: i64) -> i64;
}

impl DivCeil for i64 {
    fn div_ceil_by(self, by: i64) -> i64 {
        self / by + i64::from(self % by > 0)
    }
}
