//! The plugins, one to a file.

pub(crate) mod always_pull_images;
pub(crate) mod default_ingress_class;
pub(crate) mod default_storage_class;
pub(crate) mod default_toleration_seconds;
pub(crate) mod deny_service_external_ips;
pub(crate) mod extended_resource_toleration;
pub(crate) mod limit_pod_hard_anti_affinity_topology;
pub(crate) mod limit_ranger;
pub(crate) mod namespace_exists;
pub(crate) mod namespace_lifecycle;
pub(crate) mod node_restriction;
pub(crate) mod owner_references_permission_enforcement;
pub(crate) mod persistent_volume_claim_resize;
pub(crate) mod pod_node_selector;
pub(crate) mod pod_security;
pub(crate) mod pod_toleration_restriction;
pub(crate) mod pod_topology_labels;
pub(crate) mod priority;
pub(crate) mod resource_quota;
pub(crate) mod runtime_class;
pub(crate) mod service_account;
pub(crate) mod signers;
pub(crate) mod storage_object_in_use_protection;
pub(crate) mod taint_nodes_by_condition;
