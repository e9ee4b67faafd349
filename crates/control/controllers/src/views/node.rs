//! Nodes.

use std::{collections::BTreeSet, net::IpAddr};

use api_meta::{ObjectMeta, Quantity, exact_list, null_default};
use serde::Deserialize;

use super::{condition::Condition, taint::Taint};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Node {
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: NodeSpec,
    pub(crate) status: NodeStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct NodeSpec {
    #[serde(rename = "podCIDR")]
    pub(crate) pod_cidr: Option<String>,
    #[serde(rename = "podCIDRs", deserialize_with = "exact_list")]
    pub(crate) pod_cidrs: Vec<String>,
    pub(crate) unschedulable: bool,
    #[serde(deserialize_with = "exact_list")]
    pub(crate) taints: Vec<Taint>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct NodeStatus {
    #[serde(deserialize_with = "null_default")]
    pub(crate) allocatable: Allocatable,
    #[serde(deserialize_with = "exact_list")]
    pub(crate) conditions: Vec<Condition>,
    #[serde(deserialize_with = "exact_list")]
    pub(crate) volumes_attached: Vec<AttachedVolume>,
    #[serde(deserialize_with = "exact_list")]
    pub(crate) volumes_in_use: Vec<String>,
    #[serde(deserialize_with = "exact_list")]
    pub(crate) addresses: Vec<NodeAddress>,
    pub(crate) daemon_endpoints: DaemonEndpoints,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct NodeAddress {
    pub(crate) r#type: String,
    pub(crate) address: String,
}

/// The ports of the node's daemons.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct DaemonEndpoints {
    pub(crate) kubelet_endpoint: DaemonEndpoint,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct DaemonEndpoint {
    pub(crate) port: u16,
}

/// The allocatable resources that controllers read.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Allocatable {
    pub(crate) cpu: Option<Quantity>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct AttachedVolume {
    pub(crate) name: String,
}

impl Node {
    /// Reports whether an administrator declared by a taint that nothing runs on the node any more.
    pub(crate) fn is_tainted_out_of_service(&self) -> bool {
        self.spec.taints.iter().any(|taint| taint.key == "node.kubernetes.io/out-of-service")
    }
}

impl NodeStatus {
    /// Returns the node's internal addresses.
    pub(crate) fn internal_ips(&self) -> impl Iterator<Item = IpAddr> {
        let internal = self.addresses.iter().filter(|address| address.r#type == "InternalIP");
        internal.filter_map(|address| address.address.parse().ok())
    }

    pub(crate) fn attached(&self) -> BTreeSet<String> {
        self.volumes_attached.iter().map(|volume| volume.name.clone()).collect()
    }
}
