//! The fields of API objects that the rules of NetworkPolicies depend on.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use api_meta::{IntOrString, LabelSelector};
use serde::Deserialize;

use crate::{
    Family,
    api::{Meta, Protocol},
};

/// A namespace, whose labels policies select.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Namespace {
    pub metadata: Meta,
}

/// A Pod, as policies select it and as rules name it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Pod {
    pub metadata: Meta,
    pub spec: PodSpec,
    pub status: PodStatus,
}

/// Where a Pod runs, and its named ports.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSpec {
    pub node_name: Arc<str>,
    pub host_network: bool,
    pub containers: Vec<Container>,
    /// Those that restart always serve ports as long as the Pod runs.
    pub init_containers: Vec<Container>,
}

/// A container, of which only the ports are read.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Container {
    pub ports: Vec<ContainerPort>,
}

/// A port that policies may name.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerPort {
    pub name: Box<str>,
    pub container_port: u16,
    pub protocol: Protocol,
}

/// The Pod's addresses, and whether it is over: an ended Pod's address may be another's.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct PodStatus {
    pub phase: Box<str>,
    #[serde(rename = "podIPs")]
    pub pod_ips: Vec<PodIp>,
}

/// One address as text; a Pod has at most one of each family.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct PodIp {
    pub ip: Box<str>,
}

impl Pod {
    /// The Pod's own address; those of the host's network and those that ended have none.
    pub fn address(&self, family: Family) -> Option<IpAddr> {
        if self.spec.host_network || matches!(&*self.status.phase, "Succeeded" | "Failed") {
            return None;
        }
        let mut ips = self.status.pod_ips.iter().filter_map(|ip| ip.ip.parse().ok());
        ips.find(|ip| Family::of(*ip) == family)
    }

    /// The numbers of the ports with a name.
    pub(super) fn named_ports(&self, name: &str, protocol: Protocol) -> impl Iterator<Item = u16> {
        let containers = self.spec.containers.iter().chain(&self.spec.init_containers);
        let ports = containers.flat_map(|container| &container.ports);
        let named = ports.filter(move |port| *port.name == *name && port.protocol == protocol);
        named.map(|port| port.container_port)
    }
}

/// Which traffic some Pods of a namespace may have.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct NetworkPolicy {
    pub metadata: Meta,
    pub spec: PolicySpec,
}

/// What is allowed. Without `policy_types` a policy is of ingress, and of egress where it has rules for it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct PolicySpec {
    pub pod_selector: LabelSelector,
    pub policy_types: Option<Vec<PolicyType>>,
    pub ingress: Vec<Rule>,
    pub egress: Vec<Rule>,
}

/// A direction, as the selected Pod sees it.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub enum PolicyType {
    Ingress,
    Egress,
}

impl PolicySpec {
    /// Whether the policy says anything of a direction. Without types it is of ingress always, and of egress
    /// where it has rules for it.
    pub(super) fn is_of(&self, direction: PolicyType) -> bool {
        match &self.policy_types {
            Some(types) => types.contains(&direction),
            None => direction == PolicyType::Ingress || !self.egress.is_empty(),
        }
    }
}

/// Traffic that is let through: from or to any of the peers, on any of the ports.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Rule {
    /// `from` or `to`; empty is everyone.
    #[serde(alias = "from", alias = "to")]
    pub peers: Vec<Peer>,
    /// Empty is every port.
    pub ports: Vec<Port>,
}

/// Who is meant: Pods and namespaces by labels, or addresses. Without a namespace selector it is the policy's
/// namespace.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct Peer {
    pub pod_selector: Option<LabelSelector>,
    pub namespace_selector: Option<LabelSelector>,
    pub ip_block: Option<IpBlock>,
}

/// A range in CIDR form, less the ranges in `except`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct IpBlock {
    pub cidr: String,
    pub except: Vec<String>,
}

/// A port by number or by the name that the Pod at the receiving end gives it; none is all of the protocol's.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct Port {
    pub protocol: Protocol,
    pub port: Option<IntOrString>,
    /// The last of a range that begins at `port`.
    pub end_port: Option<u16>,
}

/// The labels of namespaces by name.
pub type Namespaces = BTreeMap<Arc<str>, BTreeMap<String, String>>;
