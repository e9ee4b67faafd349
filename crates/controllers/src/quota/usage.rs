//! What one object counts for under one limit, and whether a quota's scopes take it in.

use api_meta::{Quantity, QuantityFormat};
use serde_json::Value;

fn number(n: i64) -> Quantity {
    Quantity::new(n, QuantityFormat::DecimalSi)
}

fn quantity(value: &Value) -> Option<Quantity> {
    serde_json::from_value(value.clone()).ok()
}

pub(super) fn of(limit: &str, plural: &str, object: &Value) -> Option<Quantity> {
    if limit.starts_with("count/") {
        return Some(number(1));
    }
    match plural {
        "pods" => pod(limit, object),
        "services" => service(limit, object),
        "persistentvolumeclaims" => claim(limit, object),
        _ => Some(number(1)),
    }
}

fn pod(limit: &str, pod: &Value) -> Option<Quantity> {
    if ended(pod) {
        return None;
    }
    if limit == "pods" {
        return Some(number(1));
    }
    let (field, resource) = match limit.split_once('.') {
        Some((field @ ("requests" | "limits"), resource)) => (field, resource),
        _ => ("requests", limit),
    };
    Some(pod_total(&pod["spec"], field, resource))
}

fn ended(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

/// Init containers run one after another beside the sidecars before them; the rest runs at once.
fn pod_total(spec: &Value, field: &str, resource: &str) -> Quantity {
    let zero = number(0);
    let asked = |holder: &Value| quantity(&holder["resources"][field][resource]).unwrap_or(zero);
    let overhead = quantity(&spec["overhead"][resource]).unwrap_or(zero);
    if let Some(whole) = quantity(&spec["resources"][field][resource]) {
        return whole + overhead;
    }
    let list = |name: &str| spec[name].as_array().cloned().unwrap_or_default();
    let (mut running, mut peak) = (zero, zero);
    for init in list("initContainers") {
        if init["restartPolicy"] == "Always" {
            running += asked(&init);
            peak = peak.max(running);
        } else {
            peak = peak.max(running + asked(&init));
        }
    }
    for container in list("containers") {
        running += asked(&container);
    }
    running.max(peak) + overhead
}

fn service(limit: &str, service: &Value) -> Option<Quantity> {
    let spec = &service["spec"];
    let kind = spec["type"].as_str().unwrap_or("ClusterIP");
    let ports = spec["ports"].as_array().cloned().unwrap_or_default();
    match limit {
        "services.loadbalancers" => (kind == "LoadBalancer").then(|| number(1)),
        "services.nodeports" => {
            let given = |port: &&Value| port["nodePort"].as_i64().unwrap_or(0) != 0;
            match kind {
                "LoadBalancer" if spec["allocateLoadBalancerNodePorts"] == false => {
                    Some(number(ports.iter().filter(given).count() as i64))
                }
                "NodePort" | "LoadBalancer" => Some(number(ports.len() as i64)),
                _ => None,
            }
        }
        _ => Some(number(1)),
    }
}

fn claim(limit: &str, claim: &Value) -> Option<Quantity> {
    let beta = &claim["metadata"]["annotations"]["volume.beta.kubernetes.io/storage-class"];
    let class = beta.as_str().or(claim["spec"]["storageClassName"].as_str()).unwrap_or("");
    let limit = match limit.split_once(".storageclass.storage.k8s.io/") {
        Some((wanted, _)) if wanted != class => return None,
        Some((_, limit)) => limit,
        None => limit,
    };
    if limit == "persistentvolumeclaims" {
        return Some(number(1));
    }
    let asked = quantity(&claim["spec"]["resources"]["requests"]["storage"])?;
    // A claim that is being grown counts for the most of what it asked for and was given.
    let given = quantity(&claim["status"]["allocatedResources"]["storage"]);
    Some(given.map_or(asked, |given| given.max(asked)))
}

/// Only Pods have scopes: a quota with scopes counts nothing else.
pub(super) fn in_scope(scopes: &[String], selector: &Value, plural: &str, object: &Value) -> bool {
    let terms = selector["matchExpressions"].as_array();
    if scopes.is_empty() && terms.is_none_or(Vec::is_empty) {
        return true;
    }
    plural == "pods"
        && scopes.iter().all(|scope| matches(scope, "Exists", &[], object))
        && terms.into_iter().flatten().all(|term| {
            let values = term["values"].as_array().cloned().unwrap_or_default();
            let text = |field: &str| term[field].as_str().unwrap_or("").to_owned();
            matches(&text("scopeName"), &text("operator"), &values, object)
        })
}

fn matches(scope: &str, operator: &str, values: &[Value], pod: &Value) -> bool {
    let spec = &pod["spec"];
    let terminating = spec["activeDeadlineSeconds"].as_i64().is_some_and(|seconds| seconds >= 0);
    match scope {
        "Terminating" => terminating,
        "NotTerminating" => !terminating,
        "BestEffort" => best_effort(spec),
        "NotBestEffort" => !best_effort(spec),
        "CrossNamespacePodAffinity" => crosses_namespaces(spec),
        "PriorityClass" => {
            let class = spec["priorityClassName"].as_str().unwrap_or("");
            let listed = values.iter().any(|value| value == class);
            match operator {
                "In" => listed,
                "NotIn" => !listed,
                "DoesNotExist" => class.is_empty(),
                _ => !class.is_empty(),
            }
        }
        _ => false,
    }
}

fn best_effort(spec: &Value) -> bool {
    let asks = |holder: &Value| {
        ["requests", "limits"].iter().any(|field| {
            ["cpu", "memory"].iter().any(|resource| {
                quantity(&holder["resources"][*field][*resource])
                    .is_some_and(|amount| !amount.is_zero())
            })
        })
    };
    let lists = ["containers", "initContainers"].iter().filter_map(|list| spec[*list].as_array());
    !asks(spec) && !lists.flatten().any(asks)
}

/// Whether an affinity term names namespaces, by which a Pod can keep others' from being placed.
fn crosses_namespaces(spec: &Value) -> bool {
    let crosses = |term: &Value| {
        term["namespaces"].as_array().is_some_and(|names| !names.is_empty())
            || term["namespaceSelector"].is_object()
    };
    ["podAffinity", "podAntiAffinity"].iter().any(|kind| {
        let affinity = &spec["affinity"][*kind];
        let list = |name: &str| affinity[name].as_array().cloned().unwrap_or_default();
        list("requiredDuringSchedulingIgnoredDuringExecution").iter().any(crosses)
            || list("preferredDuringSchedulingIgnoredDuringExecution")
                .iter()
                .any(|t| crosses(&t["podAffinityTerm"]))
    })
}
