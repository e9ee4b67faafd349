//! The fields of API objects that NetworkPolicy rules depend on.

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
    /// The object metadata.
    pub metadata: Meta,
}

/// A Pod that policies select and rules name.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Pod {
    /// The object metadata.
    pub metadata: Meta,
    /// The node and the named ports.
    pub spec: PodSpec,
    /// The phase and the addresses.
    pub status: PodStatus,
}

/// The spec of a Pod.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSpec {
    /// The Pod's node.
    pub node_name: Arc<str>,
    /// `true` if the Pod uses the host's network.
    pub host_network: bool,
    /// The containers.
    pub containers: Vec<Container>,
    /// The init containers; sidecars among them serve ports while the Pod runs.
    pub init_containers: Vec<Container>,
}

/// The ports of a container.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Container {
    /// The ports.
    pub ports: Vec<ContainerPort>,
}

/// A port that policies may refer to by name.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerPort {
    /// The name.
    pub name: Box<str>,
    /// The number.
    pub container_port: u16,
    /// The protocol.
    pub protocol: Protocol,
}

/// The status of a Pod.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct PodStatus {
    /// The phase. The address of an ended Pod may belong to another one.
    pub phase: Box<str>,
    /// The addresses, at most one of each family.
    #[serde(rename = "podIPs")]
    pub pod_ips: Vec<PodIp>,
}

/// An address of a Pod.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct PodIp {
    /// The address, as text.
    pub ip: Box<str>,
}

impl Pod {
    /// Returns the Pod's own address; `None` for Pods on the host's network and for ended ones.
    pub fn address(&self, family: Family) -> Option<IpAddr> {
        if self.spec.host_network || matches!(&*self.status.phase, "Succeeded" | "Failed") {
            return None;
        }
        let mut ips = self.status.pod_ips.iter().filter_map(|ip| ip.ip.parse().ok());
        ips.find(|ip| Family::of(*ip) == family)
    }

    /// Returns the numbers of the ports with this name.
    pub(super) fn port_numbers(&self, name: &str, protocol: Protocol) -> impl Iterator<Item = u16> {
        let containers = self.spec.containers.iter().chain(&self.spec.init_containers);
        let ports = containers.flat_map(|container| &container.ports);
        let named = ports.filter(move |port| *port.name == *name && port.protocol == protocol);
        named.map(|port| port.container_port)
    }
}

/// The traffic that selected Pods of a namespace may have.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct NetworkPolicy {
    /// The object metadata.
    pub metadata: Meta,
    /// The spec.
    pub spec: PolicySpec,
}

/// The spec of a policy.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct PolicySpec {
    /// The Pods that the policy applies to.
    pub pod_selector: LabelSelector,
    /// The directions. If absent: ingress, and egress if the policy has egress rules.
    pub policy_types: Option<Vec<PolicyType>>,
    /// The allowed incoming traffic.
    pub ingress: Vec<Rule>,
    /// The allowed outgoing traffic.
    pub egress: Vec<Rule>,
}

/// A direction of traffic from the Pod's perspective.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub enum PolicyType {
    Ingress,
    Egress,
}

impl PolicySpec {
    /// Reports whether the policy applies to a direction. The default is ingress, and egress if it has such rules.
    pub(super) fn is_of(&self, direction: PolicyType) -> bool {
        match &self.policy_types {
            Some(types) => types.contains(&direction),
            None => direction == PolicyType::Ingress || !self.egress.is_empty(),
        }
    }
}

/// Allowed traffic: from or to any of the peers, on any of the ports.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Rule {
    /// The peers (`from` or `to`); empty for all.
    #[serde(alias = "from", alias = "to")]
    pub peers: Vec<Peer>,
    /// The ports; empty for all.
    pub ports: Vec<Port>,
}

/// A peer: Pods and namespaces by labels, or an address range.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct Peer {
    /// The Pods; `None` for all Pods of the namespaces.
    pub pod_selector: Option<LabelSelector>,
    /// The namespaces; `None` for the policy's own.
    pub namespace_selector: Option<LabelSelector>,
    /// An address range, instead of selectors.
    pub ip_block: Option<IpBlock>,
}

/// A CIDR without the CIDRs in `except`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct IpBlock {
    /// The range.
    pub cidr: String,
    /// Excluded parts of the range.
    pub except: Vec<String>,
}

/// A port by number, or by the name that the receiving Pod gives it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct Port {
    /// The protocol.
    pub protocol: Protocol,
    /// The port; `None` for all ports of the protocol.
    pub port: Option<IntOrString>,
    /// The last port of a range that starts at `port`.
    pub end_port: Option<u16>,
}

/// The labels of namespaces by name.
pub type Namespaces = BTreeMap<Arc<str>, BTreeMap<String, String>>;
