//! Usage of ResourceQuotas by an object. Admission and the quota controller both use this module, so that they agree.

use std::collections::BTreeMap;

use api_meta::{GroupResource, Quantity, QuantityFormat, Tree as _};
use serde_json::Value;

use crate::amounts::{Amounts, Overhead, amounts, pod_total, quantity};

fn count(n: i64) -> Quantity {
    Quantity::new(n, QuantityFormat::DecimalSi)
}

/// Returns an object's usage of all resources that a quota can count.
pub fn usage(resource: &GroupResource, object: &Value) -> Amounts {
    let mut usage = Amounts::from([(format!("count/{resource}"), count(1))]);
    // Resources that quotas could count before `count/` existed.
    let by_name = [
        "configmaps",
        "secrets",
        "services",
        "replicationcontrollers",
        "resourcequotas",
        "persistentvolumeclaims",
        "pods",
    ];
    if resource.group.is_empty() && by_name.contains(&resource.resource.as_ref()) {
        usage.insert(resource.resource.to_string(), count(1));
    }
    if *resource == GroupResource::PODS {
        pod(object, &mut usage);
    } else if *resource == GroupResource::SERVICES {
        service(object, &mut usage);
    } else if *resource == GroupResource::PERSISTENT_VOLUME_CLAIMS {
        claim(object, &mut usage);
    } else if is_resource_claim(resource) {
        for (class, devices) in devices(object) {
            usage.insert(format!("{class}{DEVICES}"), count(devices));
        }
    }
    usage
}

/// The end of the names of resources that count devices of ResourceClaims, after the device class.
pub const DEVICES: &str = ".deviceclass.resource.k8s.io/devices";

/// The number of devices that a request with the allocation mode `All` counts as, because a claim has no more.
const ALL_DEVICES: i64 = 32;

fn is_resource_claim(resource: &GroupResource) -> bool {
    resource.group == "resource.k8s.io" && resource.resource == "resourceclaims"
}

/// Returns the largest number of devices that a ResourceClaim can be allocated, by device class.
fn devices(claim: &Value) -> BTreeMap<&str, i64> {
    let of = |request: &Value| match request.text("allocationMode") {
        "ExactCount" => request.int("count"),
        "All" => ALL_DEVICES,
        _ => 0,
    };
    let mut total: BTreeMap<&str, i64> = BTreeMap::new();
    for request in claim.items("spec.devices.requests") {
        // One of the alternatives is allocated.
        let mut largest: BTreeMap<&str, i64> = BTreeMap::new();
        let exactly = request.get("exactly").into_iter();
        for choice in exactly.chain(request.items("firstAvailable")) {
            let devices = largest.entry(choice.text("deviceClassName")).or_default();
            *devices = of(choice).max(*devices);
        }
        for (class, devices) in largest {
            let sum = total.entry(class).or_default();
            *sum = sum.saturating_add(devices);
        }
    }
    total
}

fn pod(pod: &Value, usage: &mut Amounts) {
    if ["Succeeded", "Failed"].contains(&pod.text("status.phase")) {
        usage.remove("pods");
        return;
    }
    for (resource, amount) in pod_total(pod, "requests", Overhead::Counted) {
        if ["cpu", "memory", "ephemeral-storage"].contains(&resource.as_str())
            || resource.starts_with("hugepages-")
        {
            usage.insert(resource.clone(), amount);
        }
        usage.insert(format!("requests.{resource}"), amount);
    }
    for (resource, amount) in pod_total(pod, "limits", Overhead::Counted) {
        usage.insert(format!("limits.{resource}"), amount);
    }
}

fn service(service: &Value, usage: &mut Amounts) {
    let ports = service.items("spec.ports").len() as i64;
    match service.text("spec.type") {
        "NodePort" => drop(usage.insert("services.nodeports".into(), count(ports))),
        "LoadBalancer" => {
            usage.insert("services.loadbalancers".into(), count(1));
            let node_ports = match service.at("spec.allocateLoadBalancerNodePorts") {
                // Ports may request a node port even so.
                Value::Bool(false) => {
                    let ports = service.items("spec.ports").iter();
                    ports.filter(|port| port.int("nodePort") != 0).count() as i64
                }
                _ => ports,
            };
            usage.insert("services.nodeports".into(), count(node_ports));
        }
        _ => {}
    }
}

fn claim(claim: &Value, usage: &mut Amounts) {
    let class = claim["metadata"]["annotations"]["volume.beta.kubernetes.io/storage-class"]
        .as_str()
        .unwrap_or_else(|| claim.text("spec.storageClassName"));
    let requested = quantity(claim.at("spec.resources.requests.storage"));
    let mut add = |name: &str, amount| {
        usage.insert(name.to_owned(), amount);
        if !class.is_empty() {
            usage.insert(format!("{class}.storageclass.storage.k8s.io/{name}"), amount);
        }
    };
    add("persistentvolumeclaims", count(1));
    if let Some(requested) = requested {
        // A claim that is being resized counts the higher of the requested and the allocated size.
        let allocated = quantity(claim.at("status.allocatedResources.storage"));
        add("requests.storage", allocated.map_or(requested, |allocated| allocated.max(requested)));
    }
}

/// Reports whether an object is in all scopes of a quota. Only Pods and PersistentVolumeClaims have scopes, so a quota
/// with scopes counts no others.
pub fn in_scope(quota: &Value, resource: &GroupResource, object: &Value) -> bool {
    let terms = scope_terms(quota);
    terms.iter().all(|(scope, operator, values)| matches(resource, scope, operator, values, object))
}

/// A requirement on a scope, in a quota or in the configuration of limited resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopeTerm {
    /// The name of the scope.
    pub name: String,
    /// The operator: `In`, `NotIn`, `Exists` or `DoesNotExist`.
    pub operator: String,
    /// The values for `In` and `NotIn`.
    pub values: Vec<String>,
}

impl ScopeTerm {
    /// Reads an item of `matchExpressions` or `matchScopes`.
    pub fn of(term: &Value) -> Self {
        Self {
            name: term.text("scopeName").to_owned(),
            operator: term.text("operator").to_owned(),
            values: term.texts("values").map(str::to_owned).collect(),
        }
    }

    /// Reports whether an object is in the scope.
    pub fn matches(&self, resource: &GroupResource, object: &Value) -> bool {
        let values: Vec<&str> = self.values.iter().map(String::as_str).collect();
        matches(resource, &self.name, &self.operator, &values, object)
    }
}

/// Returns the names of a quota's scopes that an object is in.
pub fn scopes_of<'q>(quota: &'q Value, resource: &GroupResource, object: &Value) -> Vec<&'q str> {
    let mut terms = scope_terms(quota);
    terms.retain(|(scope, operator, values)| matches(resource, scope, operator, values, object));
    terms.into_iter().map(|(scope, ..)| scope).collect()
}

fn matches(
    resource: &GroupResource,
    scope: &str,
    operator: &str,
    values: &[&str],
    object: &Value,
) -> bool {
    if *resource == GroupResource::PODS {
        pod_matches(scope, operator, values, object)
    } else {
        *resource == GroupResource::PERSISTENT_VOLUME_CLAIMS
            && scope == "VolumeAttributesClass"
            && selects(operator, values, &volume_attributes_classes(object))
    }
}

/// Returns the classes of a claim: the requested one, the current one and the target of a change. All count it.
fn volume_attributes_classes(claim: &Value) -> Vec<&str> {
    let fields = [
        "spec.volumeAttributesClassName",
        "status.currentVolumeAttributesClassName",
        "status.modifyVolumeStatus.targetVolumeAttributesClassName",
    ];
    fields.into_iter().map(|field| claim.text(field)).filter(|name| !name.is_empty()).collect()
}

/// Reports whether a selector selects any of the classes that an object names.
fn selects(operator: &str, values: &[&str], names: &[&str]) -> bool {
    match operator {
        "In" => names.iter().any(|name| values.contains(name)),
        "NotIn" => names.is_empty() || names.iter().any(|name| !values.contains(name)),
        "DoesNotExist" => names.is_empty(),
        _ => !names.is_empty(),
    }
}

fn pod_matches(scope: &str, operator: &str, values: &[&str], pod: &Value) -> bool {
    let terminating = pod.opt_int("spec.activeDeadlineSeconds").is_some_and(|seconds| seconds >= 0);
    match scope {
        "Terminating" => terminating,
        "NotTerminating" => !terminating,
        "BestEffort" => is_best_effort(pod),
        "NotBestEffort" => !is_best_effort(pod),
        "CrossNamespacePodAffinity" => has_cross_namespace_affinity(pod),
        "PriorityClass" => {
            let class = Some(pod.text("spec.priorityClassName")).filter(|name| !name.is_empty());
            selects(operator, values, class.as_slice())
        }
        _ => false,
    }
}

fn is_best_effort(pod: &Value) -> bool {
    let states = |holder: &Value| {
        ["resources.requests", "resources.limits"].iter().any(|field| {
            let stated = amounts(holder.at(field));
            ["cpu", "memory"].iter().any(|r| stated.get(*r).is_some_and(|it| !it.is_zero()))
        })
    };
    !states(&pod["spec"])
        && ["spec.containers", "spec.initContainers"]
            .iter()
            .all(|list| !pod.items(list).iter().any(states))
}

/// Reports whether an affinity term names other namespaces, which can block the placement of their Pods.
fn has_cross_namespace_affinity(pod: &Value) -> bool {
    let crosses =
        |term: &Value| !term.items("namespaces").is_empty() || term.has("namespaceSelector");
    ["podAffinity", "podAntiAffinity"].iter().any(|kind| {
        let affinity = &pod["spec"]["affinity"][kind];
        affinity.items("requiredDuringSchedulingIgnoredDuringExecution").iter().any(crosses)
            || affinity
                .items("preferredDuringSchedulingIgnoredDuringExecution")
                .iter()
                .any(|t| crosses(&t["podAffinityTerm"]))
    })
}

/// Returns the scopes of a quota as name, operator and values.
fn scope_terms(quota: &Value) -> Vec<(&str, &str, Vec<&str>)> {
    let plain = quota.texts("spec.scopes").map(|scope| (scope, "Exists", Vec::new()));
    let selected = quota.items("spec.scopeSelector.matchExpressions").iter().map(|term| {
        let values = term.texts("values").collect();
        (term.text("scopeName"), term.text("operator"), values)
    });
    plain.chain(selected).collect()
}
