//! The fields of API objects that the plans read. Everything else is dropped when an object is decoded, so
//! that an informer's copy stays small.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use serde::Deserialize;

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Meta {
    pub name: Arc<str>,
    pub namespace: Arc<str>,
    pub labels: BTreeMap<String, String>,
    #[serde(rename = "deletionTimestamp")]
    pub deletion_timestamp: Option<Box<str>>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Service {
    pub metadata: Meta,
    pub spec: ServiceSpec,
    pub status: ServiceStatus,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceSpec {
    #[serde(rename = "type")]
    pub kind: ServiceType,
    #[serde(rename = "clusterIP")]
    pub cluster_ip: String,
    #[serde(rename = "clusterIPs")]
    pub cluster_ips: Vec<String>,
    #[serde(rename = "externalIPs")]
    pub external_ips: Vec<String>,
    pub external_name: String,
    pub ports: Vec<ServicePort>,
    pub session_affinity: Affinity,
    pub session_affinity_config: AffinityConfig,
    pub internal_traffic_policy: TrafficPolicy,
    pub external_traffic_policy: TrafficPolicy,
    pub health_check_node_port: u16,
    pub load_balancer_source_ranges: Vec<String>,
    pub publish_not_ready_addresses: bool,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub enum ServiceType {
    #[default]
    #[serde(alias = "")]
    ClusterIP,
    NodePort,
    LoadBalancer,
    ExternalName,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub enum Affinity {
    #[default]
    #[serde(alias = "")]
    None,
    ClientIP,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct AffinityConfig {
    #[serde(rename = "clientIP")]
    pub client_ip: AffinityTimeout,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct AffinityTimeout {
    pub timeout_seconds: u32,
}

impl Default for AffinityTimeout {
    fn default() -> Self {
        Self { timeout_seconds: 10_800 }
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub enum TrafficPolicy {
    #[default]
    #[serde(alias = "")]
    Cluster,
    Local,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct ServicePort {
    pub name: Arc<str>,
    pub protocol: Protocol,
    pub port: u16,
    pub node_port: u16,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    #[default]
    #[serde(alias = "")]
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    /// The name in nftables, in SRV records and in chain names.
    pub fn lower(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        }
    }

    /// IANA's number.
    pub fn number(self) -> u8 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Sctp => 132,
        }
    }
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceStatus {
    pub load_balancer: LoadBalancer,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct LoadBalancer {
    pub ingress: Vec<Ingress>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct Ingress {
    pub ip: String,
    pub hostname: String,
    /// `Proxy` means that the balancer itself must see the traffic, so the node must not short-circuit it.
    pub ip_mode: String,
}

/// Both lists of a slice are required fields, which Go's encoder writes as `null` when they are empty.
fn null_is_empty<'de, D, T>(from: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct EndpointSlice {
    pub metadata: Meta,
    pub address_type: AddressType,
    #[serde(deserialize_with = "null_is_empty")]
    pub endpoints: Vec<SliceEndpoint>,
    #[serde(deserialize_with = "null_is_empty")]
    pub ports: Vec<EndpointPort>,
}

impl EndpointSlice {
    pub const SERVICE_NAME: &'static str = "kubernetes.io/service-name";

    /// The Service that the slice belongs to, in the slice's own namespace.
    pub fn service(&self) -> Option<&str> {
        self.metadata.labels.get(Self::SERVICE_NAME).map(String::as_str)
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub enum AddressType {
    #[default]
    IPv4,
    IPv6,
    #[serde(rename = "FQDN")]
    Fqdn,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct SliceEndpoint {
    pub addresses: Vec<String>,
    pub conditions: Conditions,
    pub hostname: Option<Box<str>>,
    pub node_name: Option<Arc<str>>,
    pub hints: Option<Box<Hints>>,
    pub target_ref: Option<Box<TargetRef>>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct TargetRef {
    pub kind: Box<str>,
    pub name: Box<str>,
}

/// Absent conditions mean ready, serving as ready, not terminating.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Conditions {
    ready: Option<bool>,
    serving: Option<bool>,
    terminating: Option<bool>,
}

impl Conditions {
    pub fn new(ready: bool, serving: bool, terminating: bool) -> Self {
        Self { ready: Some(ready), serving: Some(serving), terminating: Some(terminating) }
    }

    pub fn ready(self) -> bool {
        self.ready.unwrap_or(true)
    }

    pub fn serving(self) -> bool {
        self.serving.unwrap_or(self.ready())
    }

    pub fn terminating(self) -> bool {
        self.terminating.unwrap_or(false)
    }
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct Hints {
    pub for_zones: Vec<Hint>,
    pub for_nodes: Vec<Hint>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Hint {
    pub name: String,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct EndpointPort {
    pub name: Option<Arc<str>>,
    pub protocol: Protocol,
    pub port: Option<u16>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Node {
    pub metadata: Meta,
    pub spec: NodeSpec,
    pub status: NodeStatus,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct NodeSpec {
    #[serde(rename = "podCIDR")]
    pub pod_cidr: String,
    #[serde(rename = "podCIDRs")]
    pub pod_cidrs: Vec<String>,
    pub taints: Vec<Taint>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Taint {
    pub key: String,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct NodeStatus {
    pub addresses: Vec<NodeAddress>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct NodeAddress {
    #[serde(rename = "type")]
    pub kind: String,
    pub address: String,
}

impl Node {
    /// Whether the node is about to be removed, so that balancers should send new traffic elsewhere.
    pub fn is_leaving(&self) -> bool {
        // Cluster Autoscaler's mark.
        let marked = |taint: &Taint| taint.key == "ToBeDeletedByClusterAutoscaler";
        self.metadata.deletion_timestamp.is_some() || self.spec.taints.iter().any(marked)
    }

    pub fn zone(&self) -> Option<&str> {
        self.metadata.labels.get("topology.kubernetes.io/zone").map(String::as_str)
    }

    /// The node's addresses in the order that the kubelet reported them; `InternalIP`s come first.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let of = |kind: &'static str| {
            self.status.addresses.iter().filter(move |address| address.kind == kind)
        };
        let known = of("InternalIP").chain(of("ExternalIP"));
        known.filter_map(|address| address.address.parse().ok()).collect()
    }
}

/// A cluster-wide range of Service addresses (`networking.k8s.io/v1`).
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct ServiceCidr {
    pub metadata: Meta,
    pub spec: ServiceCidrSpec,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct ServiceCidrSpec {
    pub cidrs: Vec<String>,
}
