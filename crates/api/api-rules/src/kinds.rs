//! The registry of strategies. Each kind or family of kinds has a file. See [`strategy`].

mod admission;
mod authorization;
mod autoscaling;
mod batch;
mod certificates;
mod config;
mod coordination;
mod core;
mod crd;
#[cfg(test)]
mod cves;
mod event;
mod flowcontrol;
mod indexes;
mod networking;
mod node;
mod pod_certificates;
mod pod_groups;
mod policies;
mod policy;
mod resource;
mod resource_pools;
mod resource_slices;
mod scheduling;
pub mod service;
mod status;
mod storage;
mod storage_migration;
#[cfg(test)]
mod tests;
mod trust_bundle;
mod workloads;

use crate::{pod, strategy::Strategy};
pub use crd::{CLEANUP, PartPaths, api_approval};

/// Returns the strategy of a built-in resource by its plural name. Custom kinds have [`Strategy::custom`].
pub fn strategy(group: &str, resource: &str) -> &'static Strategy {
    static PLAIN: Strategy = Strategy::PLAIN;
    match (group, resource) {
        ("", "componentstatuses") => &core::COMPONENT_STATUS,
        ("", "configmaps") => &config::CONFIG_MAP,
        ("", "endpoints") => &networking::ENDPOINTS,
        ("" | "events.k8s.io", "events") => &core::EVENT,
        ("", "limitranges") => &policy::LIMIT_RANGE,
        ("", "namespaces") => &core::NAMESPACE,
        ("", "nodes") => &node::NODE,
        ("", "persistentvolumeclaims") => &storage::CLAIM,
        ("", "persistentvolumes") => &storage::VOLUME,
        ("", "pods") => &pod::POD,
        ("", "podtemplates") => &workloads::POD_TEMPLATE,
        ("", "replicationcontrollers") => &workloads::REPLICATION_CONTROLLER,
        ("", "resourcequotas") => &policy::RESOURCE_QUOTA,
        ("", "secrets") => &config::SECRET,
        ("", "serviceaccounts") => &core::SERVICE_ACCOUNT,
        ("", "services") => &service::SERVICE,
        ("admissionregistration.k8s.io", "mutatingwebhookconfigurations") => &admission::MUTATING,
        ("admissionregistration.k8s.io", "validatingwebhookconfigurations") => {
            &admission::VALIDATING
        }
        ("admissionregistration.k8s.io", "validatingadmissionpolicies") => &policies::VALIDATING,
        ("admissionregistration.k8s.io", "mutatingadmissionpolicies") => &policies::MUTATING,
        ("admissionregistration.k8s.io", "validatingadmissionpolicybindings") => {
            &policies::VALIDATING_BINDING
        }
        ("admissionregistration.k8s.io", _) => &policies::MUTATING_BINDING,
        ("apiextensions.k8s.io", "customresourcedefinitions") => &crd::CUSTOM_RESOURCE_DEFINITION,
        ("apiregistration.k8s.io", "apiservices") => &crd::API_SERVICE,
        ("apps", "controllerrevisions") => &workloads::CONTROLLER_REVISION,
        ("apps", "daemonsets") => &workloads::DAEMON_SET,
        ("apps", "deployments") => &workloads::DEPLOYMENT,
        ("apps", "replicasets") => &workloads::REPLICA_SET,
        ("apps", "statefulsets") => &workloads::STATEFUL_SET,
        ("autoscaling", "horizontalpodautoscalers") => &autoscaling::AUTOSCALER,
        ("batch", "cronjobs") => &batch::CRON_JOB,
        ("batch", "jobs") => &batch::JOB,
        ("certificates.k8s.io", "certificatesigningrequests") => &certificates::REQUEST,
        ("certificates.k8s.io", "clustertrustbundles") => &trust_bundle::CLUSTER_TRUST_BUNDLE,
        ("certificates.k8s.io", "podcertificaterequests") => &pod_certificates::REQUEST,
        ("coordination.k8s.io", "leasecandidates") => &coordination::LEASE_CANDIDATE,
        ("coordination.k8s.io", "leases") => &coordination::LEASE,
        ("discovery.k8s.io", "endpointslices") => &networking::ENDPOINT_SLICE,
        ("flowcontrol.apiserver.k8s.io", "flowschemas") => &flowcontrol::FLOW_SCHEMA,
        ("flowcontrol.apiserver.k8s.io", _) => &flowcontrol::PRIORITY_LEVEL,
        ("networking.k8s.io", "ingressclasses") => &networking::INGRESS_CLASS,
        ("networking.k8s.io", "ingresses") => &networking::INGRESS,
        ("networking.k8s.io", "ipaddresses") => &networking::IP_ADDRESS,
        ("networking.k8s.io", "networkpolicies") => &networking::NETWORK_POLICY,
        ("networking.k8s.io", "servicecidrs") => &networking::SERVICE_CIDR,
        ("node.k8s.io", "runtimeclasses") => &node::RUNTIME_CLASS,
        ("policy", "poddisruptionbudgets") => &policy::DISRUPTION_BUDGET,
        ("rbac.authorization.k8s.io", "roles" | "clusterroles") => &authorization::ROLE,
        ("rbac.authorization.k8s.io", _) => &authorization::BINDING,
        ("resource.k8s.io", "deviceclasses") => &resource::DEVICE_CLASS,
        ("resource.k8s.io", "resourceclaims") => &resource::CLAIM,
        ("resource.k8s.io", "resourceslices") => &resource_slices::RESOURCE_SLICE,
        ("resource.k8s.io", "resourceclaimtemplates") => &resource::CLAIM_TEMPLATE,
        ("resource.k8s.io", "devicetaintrules") => &resource::TAINT_RULE,
        ("resource.k8s.io", "resourcepoolstatusrequests") => &resource_pools::STATUS_REQUEST,
        ("scheduling.k8s.io", "podgroups") => &pod_groups::POD_GROUP,
        ("scheduling.k8s.io", "priorityclasses") => &scheduling::PRIORITY_CLASS,
        ("scheduling.k8s.io", "workloads") => &pod_groups::WORKLOAD,
        ("storage.k8s.io", "csidrivers") => &storage::CSI_DRIVER,
        ("storage.k8s.io", "csinodes") => &storage::CSI_NODE,
        ("storage.k8s.io", "csistoragecapacities") => &storage::CAPACITY,
        ("storage.k8s.io", "storageclasses") => &storage::STORAGE_CLASS,
        ("storage.k8s.io", "volumeattachments") => &storage::ATTACHMENT,
        ("storage.k8s.io", "volumeattributesclasses") => &storage::ATTRIBUTES_CLASS,
        ("storagemigration.k8s.io", "storageversionmigrations") => {
            &storage_migration::STORAGE_VERSION_MIGRATION
        }
        _ => &PLAIN,
    }
}
