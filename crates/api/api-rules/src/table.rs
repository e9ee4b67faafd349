//! Tables: the columns and cells that `kubectl get` shows for each kind.
//!
//! A table has its columns and a function that returns an object's cells in the same order. Cells for times show the
//! age at the time of the request.

mod batch;
mod cluster;
mod column;
mod core;
mod events;
mod format;
mod network;
mod pods;
mod security;
mod storage;
#[cfg(test)]
mod tests;
mod workloads;

use std::{collections::HashMap, sync::LazyLock};

use api_meta::Timestamp;
use serde_json::Value;

pub use column::Column;
use column::{AGE, AGED, DEFAULT, NAME, Table};

/// Returns the columns of a resource's table, with their descriptions.
pub fn columns(group: &str, resource: &str) -> Vec<Column> {
    let describe = |column: &Column| {
        let key = format!("{}@{group}/{resource}", column.name);
        let found = DESCRIPTIONS.get(key.as_str()).or_else(|| DESCRIPTIONS.get(column.name));
        Column { description: found.map_or("", String::as_str), ..column.clone() }
    };
    table(group, resource).columns.iter().map(describe).collect()
}

/// Returns the columns name and age of kinds that have no others, such as custom kinds by default.
pub fn name_and_age() -> [Column; 2] {
    let of = |column: &Column| {
        let description = DESCRIPTIONS.get(column.name).map_or("", String::as_str);
        Column { description, ..column.clone() }
    };
    [of(&NAME), of(&AGE)]
}

/// The descriptions of columns, by name, or by name and resource (`Status@/pods`).
static DESCRIPTIONS: LazyLock<HashMap<&str, String>> = LazyLock::new(|| {
    let lines = include_str!("../facts/columns.tsv").lines();
    let line = |line: &'static str| {
        let (name, text) = line.split_once('\t')?;
        Some((name, serde_json::from_str(text).ok()?))
    };
    lines.filter_map(line).collect()
});

/// Returns the cells of an object, one for each column.
pub fn cells(group: &str, resource: &str, object: &Value, now: Timestamp) -> Vec<Value> {
    (table(group, resource).cells)(object, now)
}

fn table(group: &str, resource: &str) -> &'static Table {
    match (group, resource) {
        ("", "componentstatuses") => &core::COMPONENT_STATUSES,
        ("", "configmaps") => &core::CONFIG_MAPS,
        ("", "endpoints") => &network::ENDPOINTS,
        ("" | "events.k8s.io", "events") => &events::EVENTS,
        ("", "namespaces") => &core::NAMESPACES,
        ("", "nodes") => &core::NODES,
        ("", "persistentvolumeclaims") => &storage::CLAIMS,
        ("", "persistentvolumes") => &storage::VOLUMES,
        ("", "pods") => &pods::PODS,
        ("", "podtemplates") => &workloads::POD_TEMPLATES,
        ("", "replicationcontrollers") => &workloads::REPLICATION_CONTROLLERS,
        ("", "resourcequotas") => &core::RESOURCE_QUOTAS,
        ("", "secrets") => &core::SECRETS,
        ("", "serviceaccounts") => &AGED,
        ("", "services") => &network::SERVICES,
        ("admissionregistration.k8s.io", resource) => cluster::admission(resource),
        ("apiregistration.k8s.io", "apiservices") => &cluster::API_SERVICES,
        ("apps", "controllerrevisions") => &workloads::CONTROLLER_REVISIONS,
        ("apps", "daemonsets") => &workloads::DAEMON_SETS,
        ("apps", "deployments") => &workloads::DEPLOYMENTS,
        ("apps", "replicasets") => &workloads::REPLICA_SETS,
        ("apps", "statefulsets") => &workloads::STATEFUL_SETS,
        ("autoscaling", "horizontalpodautoscalers") => &workloads::AUTOSCALERS,
        ("batch", "cronjobs") => &batch::CRON_JOBS,
        ("batch", "jobs") => &batch::JOBS,
        ("certificates.k8s.io", "certificatesigningrequests") => &security::SIGNING_REQUESTS,
        ("certificates.k8s.io", "clustertrustbundles") => &security::TRUST_BUNDLES,
        ("certificates.k8s.io", "podcertificaterequests") => &security::POD_CERTIFICATES,
        ("coordination.k8s.io", "leasecandidates") => &cluster::LEASE_CANDIDATES,
        ("coordination.k8s.io", "leases") => &cluster::LEASES,
        ("discovery.k8s.io", "endpointslices") => &network::ENDPOINT_SLICES,
        ("flowcontrol.apiserver.k8s.io", "flowschemas") => &cluster::FLOW_SCHEMAS,
        ("flowcontrol.apiserver.k8s.io", _) => &cluster::PRIORITY_LEVELS,
        ("networking.k8s.io", "ingressclasses") => &network::INGRESS_CLASSES,
        ("networking.k8s.io", "ingresses") => &network::INGRESSES,
        ("networking.k8s.io", "ipaddresses") => &network::IP_ADDRESSES,
        ("networking.k8s.io", "networkpolicies") => &network::NETWORK_POLICIES,
        ("networking.k8s.io", "servicecidrs") => &network::SERVICE_CIDRS,
        ("node.k8s.io", "runtimeclasses") => &cluster::RUNTIME_CLASSES,
        ("policy", "poddisruptionbudgets") => &workloads::DISRUPTION_BUDGETS,
        ("rbac.authorization.k8s.io", "rolebindings" | "clusterrolebindings") => {
            &security::BINDINGS
        }
        ("resource.k8s.io", "deviceclasses" | "resourceclaimtemplates") => &AGED,
        ("resource.k8s.io", "devicetaintrules") => &cluster::TAINT_RULES,
        ("resource.k8s.io", "resourceclaims") => &cluster::RESOURCE_CLAIMS,
        ("resource.k8s.io", "resourceslices") => &cluster::RESOURCE_SLICES,
        ("scheduling.k8s.io", "podgroups") => &workloads::POD_GROUPS,
        ("scheduling.k8s.io", "priorityclasses") => &cluster::PRIORITY_CLASSES,
        ("scheduling.k8s.io", "workloads") => &AGED,
        ("storage.k8s.io", "csidrivers") => &storage::CSI_DRIVERS,
        ("storage.k8s.io", "csinodes") => &storage::CSI_NODES,
        ("storage.k8s.io", "storageclasses") => &storage::CLASSES,
        ("storage.k8s.io", "volumeattachments") => &storage::ATTACHMENTS,
        ("storage.k8s.io", "volumeattributesclasses") => &storage::ATTRIBUTES_CLASSES,
        _ => &DEFAULT,
    }
}
