//! The fields of API objects that the plans read. Everything else is dropped when an object is decoded, so
//! that an informer's copy stays small.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use api_meta::null_default;
use serde::Deserialize;

/// What the plans read of any object's metadata.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Meta {
    pub name: Arc<str>,
    pub namespace: Arc<str>,
    pub labels: BTreeMap<String, String>,
    #[serde(rename = "deletionTimestamp")]
    pub deletion_timestamp: Option<Box<str>>,
}

/// A Service, as the proxy's plan and DNS read it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Service {
    pub metadata: Meta,
    pub spec: ServiceSpec,
    pub status: ServiceStatus,
}

/// What a Service asks for. Missing strings and lists are empty, and ports that are not set are 0.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceSpec {
    #[serde(rename = "type")]
    pub kind: ServiceType,
    /// `None` for a headless Service.
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
    /// Where load balancers ask each node for local endpoints; 0 where they do not.
    pub health_check_node_port: u16,
    pub load_balancer_source_ranges: Vec<String>,
    pub publish_not_ready_addresses: bool,
}

/// How far a Service reaches; an API server leaves `ClusterIP` out for none but its oldest objects.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub enum ServiceType {
    #[default]
    #[serde(alias = "")]
    ClusterIP,
    NodePort,
    LoadBalancer,
    /// A DNS alias: there is nothing for a proxy to do.
    ExternalName,
}

/// Whether a client keeps its endpoint.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub enum Affinity {
    #[default]
    #[serde(alias = "")]
    None,
    /// By the client's address.
    ClientIP,
}

/// How long a client keeps it, wrapped as the API has it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct AffinityConfig {
    #[serde(rename = "clientIP")]
    pub client_ip: AffinityTimeout,
}

/// The time since the client's last connection, in seconds; three hours where it is not set.
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

/// Which nodes' endpoints traffic may go to.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub enum TrafficPolicy {
    /// Any node's.
    #[default]
    #[serde(alias = "")]
    Cluster,
    /// Those on the node that the traffic has come to, and none where it has none.
    Local,
}

/// One port of a Service; its endpoints have a port of the same name.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct ServicePort {
    pub name: Arc<str>,
    pub protocol: Protocol,
    pub port: u16,
    pub node_port: u16,
}

/// A transport protocol; the API's is upper case and TCP where it is not set.
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

/// Only what load balancers have written there is read.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceStatus {
    pub load_balancer: LoadBalancer,
}

/// The addresses that a load balancer has given to the Service.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct LoadBalancer {
    pub ingress: Vec<Ingress>,
}

/// One such address: an IP address, or a name that DNS has to say.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct Ingress {
    pub ip: String,
    pub hostname: String,
    /// `Proxy` means that the balancer itself must see the traffic, so the node must not short-circuit it.
    pub ip_mode: String,
}

/// Some endpoints of a Service, of one family, with the ports that they share.
/// Both lists are required fields, which Go's encoder writes as `null` when they are empty.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct EndpointSlice {
    pub metadata: Meta,
    pub address_type: AddressType,
    #[serde(deserialize_with = "null_default")]
    pub endpoints: Vec<SliceEndpoint>,
    #[serde(deserialize_with = "null_default")]
    pub ports: Vec<EndpointPort>,
}

impl EndpointSlice {
    /// The label that names the slice's Service.
    pub(crate) const SERVICE_NAME: &'static str = "kubernetes.io/service-name";

    /// The Service that the slice belongs to, in the slice's own namespace.
    pub fn service(&self) -> Option<&str> {
        self.metadata.labels.get(Self::SERVICE_NAME).map(String::as_str)
    }
}

/// What the slice's addresses are. Nothing can be routed to those of `FQDN`, which are names.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub enum AddressType {
    #[default]
    IPv4,
    IPv6,
    #[serde(rename = "FQDN")]
    Fqdn,
}

/// One endpoint; its addresses mean the same, and the first is used.
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

/// The object behind an endpoint; its name is the endpoint's where DNS is told to take Pods' names.
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
    /// Conditions that are all said outright.
    pub fn new(ready: bool, serving: bool, terminating: bool) -> Self {
        Self { ready: Some(ready), serving: Some(serving), terminating: Some(terminating) }
    }

    /// New connections may come. A slice that does not say means yes.
    pub fn ready(self) -> bool {
        self.ready.unwrap_or(true)
    }

    /// It still answers, even if it is ending. A slice that does not say means what it says of readiness.
    pub fn serving(self) -> bool {
        self.serving.unwrap_or(self.ready())
    }

    /// It is on its way out; used only where no endpoint is ready.
    pub fn terminating(self) -> bool {
        self.terminating.unwrap_or(false)
    }
}

/// Where traffic to an endpoint should come from (topology-aware routing); none is from everywhere.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct Hints {
    pub for_zones: Vec<Hint>,
    pub for_nodes: Vec<Hint>,
}

/// A zone's or a node's name.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Hint {
    pub name: String,
}

/// A port of a slice's endpoints. Without a number it is nothing that a proxy can serve.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct EndpointPort {
    pub name: Option<Arc<str>>,
    pub protocol: Protocol,
    pub port: Option<u16>,
}

/// A node: what the ways to its Pods depend on.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Node {
    pub metadata: Meta,
    pub spec: NodeSpec,
    pub status: NodeStatus,
}

/// A node's Pod ranges, in CIDR form, the primary family's first.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct NodeSpec {
    #[serde(rename = "podCIDR")]
    pub pod_cidr: String,
    #[serde(rename = "podCIDRs")]
    pub pod_cidrs: Vec<String>,
    pub taints: Vec<Taint>,
}

/// Of a taint its key alone is read, to see a node that is going.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Taint {
    pub key: String,
}

/// The addresses and the port that the kubelet reports.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeStatus {
    pub addresses: Vec<NodeAddress>,
    pub daemon_endpoints: DaemonEndpoints,
}

/// The ports of the node's daemons.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct DaemonEndpoints {
    pub kubelet_endpoint: DaemonEndpoint,
}

/// The port of one daemon; 0 where it is not said.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct DaemonEndpoint {
    #[serde(rename = "Port")]
    pub port: u16,
}

/// An address and its type (`InternalIP`, `ExternalIP`, `Hostname`).
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

    /// The zone that hints of endpoints compare with, from the well-known label.
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

/// One or two ranges in CIDR form.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct ServiceCidrSpec {
    pub cidrs: Vec<String>,
}
