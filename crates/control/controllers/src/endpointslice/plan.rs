//! Plans the changes of a Service's slices.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use api_meta::{IntOrString, ObjectMeta, Tree as _};
use serde_json::{Value, json};

use super::{
    hints::{self, Preference, Unbalanced, Zones},
    service::labels_for,
    slice::{Endpoint, EndpointConditions, Slice, SlicePort, TargetRef},
};
use crate::views::{Labels, Pod, Service, ServicePort};

/// The nodes' places, as endpoints and their hints need them.
pub(super) struct Topology<'a> {
    /// Returns the zone of a node.
    pub(super) zone: &'a (dyn Fn(&str) -> Option<String> + Sync),
    /// The processors of each zone.
    pub(super) zones: &'a Zones,
}

/// The manager of the slices, in their label.
pub(super) const MANAGER: &str = "endpointslice-controller.k8s.io";

#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// The number of endpoints in a slice (`--max-endpoints-per-slice`).
    max_endpoints: usize,
    pub(crate) create: Vec<Value>,
    pub(crate) update: Vec<(String, Value)>,
    pub(crate) delete: Vec<ObjectMeta>,
    /// The outcome of the proportional allocation by address family; empty if the Service does not request it.
    pub(super) balance: BTreeMap<String, Result<(), Unbalanced>>,
}

/// Address family and ports; endpoints of one group share slices.
type Group = (String, Vec<SlicePort>);

/// Plans the writes that bring the slices in line with the Pods.
pub(super) fn plan(
    service: &Service,
    pods: &[Arc<Pod>],
    slices: &[Arc<Slice>],
    topology: &Topology<'_>,
    max_endpoints: usize,
) -> Plan {
    let families = families(service);
    let mut desired: BTreeMap<Group, Vec<Endpoint>> = BTreeMap::new();
    for pod in pods {
        if pod.is_finished() || pod.status.pod_ip.as_deref().unwrap_or("").is_empty() {
            continue;
        }
        let ports = ports(service, pod);
        for family in &families {
            if let Some(endpoint) = endpoint(service, pod, family, topology.zone) {
                desired.entry((family.clone(), ports.clone())).or_default().push(endpoint);
            }
        }
    }
    let balance = add_hints(service, &families, &mut desired, topology.zones);
    let mut plan = Plan { balance, max_endpoints, ..Plan::default() };
    let mut grouped: BTreeMap<Group, Vec<&Arc<Slice>>> = BTreeMap::new();
    for slice in slices {
        let mut ports = slice.ports.clone();
        ports.sort();
        grouped.entry((slice.address_type.clone(), ports)).or_default().push(slice);
    }
    // A Service without endpoints keeps one empty slice of each family.
    for family in &families {
        if !desired.keys().any(|(f, _)| f == family) {
            desired.insert((family.clone(), Vec::new()), Vec::new());
        }
    }
    for (group, endpoints) in desired {
        let existing = grouped.remove(&group).unwrap_or_default();
        fill(service, &group, endpoints, existing, &mut plan);
    }
    // Reuse the remaining slices, whose ports or families are obsolete, before creating new ones.
    for slice in grouped.into_values().flatten() {
        match plan.create.pop() {
            Some(new) if slice.address_type == new["addressType"] => {
                plan.update.push((slice.metadata.name.clone(), renewed(slice, new)));
            }
            new => {
                plan.create.extend(new);
                plan.delete.push(slice.metadata.clone());
            }
        }
    }
    plan
}

/// Adds the hints that the Service requests.
fn add_hints(
    service: &Service,
    families: &[String],
    desired: &mut BTreeMap<Group, Vec<Endpoint>>,
    zones: &Zones,
) -> BTreeMap<String, Result<(), Unbalanced>> {
    let preference = Preference::of(service);
    if preference == Preference::Proportional {
        let allocated = families.iter().map(|family| {
            let own = desired.iter_mut().filter(|((of, _), _)| of == family);
            let mut endpoints: Vec<_> = own.flat_map(|(_, endpoints)| endpoints).collect();
            (family.clone(), hints::allocate(&mut endpoints, zones))
        });
        return allocated.collect();
    }
    if preference != Preference::None {
        let node = preference == Preference::SameNode;
        for endpoint in desired.values_mut().flatten() {
            endpoint.hints = hints::own_place(endpoint, node);
        }
    }
    BTreeMap::new()
}

fn renewed(slice: &Slice, mut object: Value) -> Value {
    object.put(&["metadata", "name"], json!(slice.metadata.name));
    object.put(&["metadata", "resourceVersion"], json!(slice.metadata.resource_version));
    object.put(&["metadata", "uid"], json!(slice.metadata.uid));
    if let Some(meta) = object.at_mut(&["metadata"]).and_then(Value::as_object_mut) {
        meta.remove("generateName");
    }
    object
}

/// Distributes the endpoints of one group: existing ones keep their slice, new ones fill free space.
fn fill(
    service: &Service,
    group: &Group,
    desired: Vec<Endpoint>,
    existing: Vec<&Arc<Slice>>,
    plan: &mut Plan,
) {
    let identity =
        |e: &Endpoint| (e.target_ref.as_ref().map(|t| t.uid.clone()), e.addresses.clone());
    let mut left: BTreeMap<_, _> = desired.into_iter().map(|e| (identity(&e), e)).collect();
    let mut retained: Vec<(&Arc<Slice>, Vec<Endpoint>)> = existing
        .into_iter()
        .map(|slice| {
            let stay = slice.endpoints.iter().filter_map(|old| left.remove(&identity(old)));
            (slice, stay.collect())
        })
        .collect();
    // Fill the slices that change anyway first, the fullest first.
    let mut rest: Vec<_> = left.into_values().collect();
    let changed = |(slice, endpoints): &(&Arc<Slice>, Vec<Endpoint>)| slice.endpoints != *endpoints;
    retained
        .sort_by_key(|slice| (std::cmp::Reverse(changed(slice)), std::cmp::Reverse(slice.1.len())));
    for (_, endpoints) in &mut retained {
        let room = plan.max_endpoints.saturating_sub(endpoints.len());
        endpoints.extend(rest.drain(..room.min(rest.len())));
    }
    let mut total = 0;
    for (slice, endpoints) in retained {
        if endpoints.is_empty() && (total > 0 || !last(group)) {
            plan.delete.push(slice.metadata.clone());
            continue;
        }
        total += 1;
        let object = object(service, group, &endpoints);
        if slice.endpoints != endpoints || !has_labels(slice, &object) {
            plan.update.push((slice.metadata.name.clone(), renewed(slice, object)));
        }
    }
    while !rest.is_empty() || total == 0 {
        let some: Vec<_> = rest.drain(..rest.len().min(plan.max_endpoints)).collect();
        if some.is_empty() && !last(group) {
            break;
        }
        plan.create.push(object(service, group, &some));
        total += 1;
    }
}

/// Reports whether this is the group of a Service without endpoints.
fn last(group: &Group) -> bool {
    group.1.is_empty()
}

fn has_labels(slice: &Slice, object: &Value) -> bool {
    let labels: Labels =
        serde_json::from_value(object.at("metadata.labels").clone()).unwrap_or_default();
    slice.metadata.labels == labels
}

fn object(service: &Service, (family, ports): &Group, endpoints: &[Endpoint]) -> Value {
    let name = &service.metadata.name;
    let own = [
        ("kubernetes.io/service-name", name.as_str()),
        ("endpointslice.kubernetes.io/managed-by", MANAGER),
    ];
    json!({
        "metadata": {
            "generateName": format!("{name}-"),
            "namespace": service.metadata.namespace,
            "labels": labels_for(service, &own),
            "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": name,
                "uid": service.metadata.uid, "controller": true, "blockOwnerDeletion": true}],
        },
        "addressType": family,
        "ports": ports,
        "endpoints": endpoints,
    })
}

fn families(service: &Service) -> Vec<String> {
    let families_of_spec = service.spec.ip_families.clone();
    if !families_of_spec.is_empty() {
        return families_of_spec;
    }
    let v6 = service.spec.cluster_ip.as_deref().is_some_and(|ip| ip.contains(':'));
    vec![if v6 { "IPv6" } else { "IPv4" }.to_owned()]
}

/// Resolves the Service's ports for this Pod; a named port that the Pod does not have is left out.
pub(super) fn ports(service: &Service, pod: &Pod) -> Vec<SlicePort> {
    let mut ports: Vec<_> = service
        .spec
        .ports
        .iter()
        .filter_map(|port| {
            Some(SlicePort {
                name: port.name.clone().unwrap_or_default(),
                port: Some(target(port, pod)?),
                protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
                app_protocol: port.app_protocol.clone(),
            })
        })
        .collect();
    ports.sort();
    ports
}

fn target(port: &ServicePort, pod: &Pod) -> Option<i32> {
    match &port.target_port {
        None => Some(port.port),
        Some(IntOrString::Int(0)) => Some(port.port),
        Some(IntOrString::Int(number)) => Some(*number),
        Some(IntOrString::String(name)) => {
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            let sidecars = pod
                .spec
                .init_containers
                .iter()
                .filter(|c| c.restart_policy.as_deref() == Some("Always"));
            let mut all = pod.spec.containers.iter().chain(sidecars).flat_map(|c| &c.ports);
            let named = all.find(|p| {
                p.name.as_deref() == Some(name)
                    && p.protocol.as_deref().unwrap_or("TCP") == protocol
            });
            named.map(|p| p.container_port)
        }
    }
}

fn endpoint(
    service: &Service,
    pod: &Pod,
    family: &str,
    zone: &dyn Fn(&str) -> Option<String>,
) -> Option<Endpoint> {
    let fits = |ip: &&str| ip.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6() == (family == "IPv6"));
    let address = pod.ips().find(fits)?;
    let serving = pod.is_ready();
    let terminating = pod.metadata.terminating();
    let ready = service.spec.publish_not_ready_addresses || (serving && !terminating);
    // A hostname in a headless Service's domain, as DNS serves it.
    let named = pod.spec.subdomain.as_deref() == Some(service.metadata.name.as_str());
    let node = Some(pod.node().to_owned()).filter(|node| !node.is_empty());
    Some(Endpoint {
        addresses: vec![address.to_owned()],
        conditions: EndpointConditions { ready, serving, terminating },
        hostname: pod.spec.hostname.clone().filter(|name| named && !name.is_empty()),
        target_ref: Some(TargetRef {
            kind: "Pod".into(),
            namespace: pod.metadata.namespace.clone(),
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
        }),
        zone: node.as_deref().and_then(zone),
        node_name: node,
        hints: None,
    })
}

#[cfg(test)]
mod tests;
