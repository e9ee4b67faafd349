//! The fields of API objects that the plans read. Decoding drops all others, which keeps informers small.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use api_meta::null_default;
use serde::Deserialize;

/// The metadata of an object.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Meta {
    /// The object's name.
    pub name: Arc<str>,
    /// The object's namespace; empty for cluster-scoped objects.
    pub namespace: Arc<str>,
    /// The object's labels.
    pub labels: BTreeMap<String, String>,
    /// The deletion time; `None` unless the object is being deleted.
    #[serde(rename = "deletionTimestamp")]
    pub deletion_timestamp: Option<Box<str>>,
}

/// A Service, for the proxy and for DNS.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Service {
    /// The object metadata.
    pub metadata: Meta,
    /// The spec.
    pub spec: ServiceSpec,
    /// The status.
    pub status: ServiceStatus,
}

/// The spec of a Service. Missing strings and lists are empty, and missing ports are 0.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceSpec {
    /// The type of the Service.
    #[serde(rename = "type")]
    pub kind: ServiceType,
    /// The first cluster IP; the string `None` for a headless Service.
    #[serde(rename = "clusterIP")]
    pub cluster_ip: String,
    /// The cluster IPs of all families, the primary one first.
    #[serde(rename = "clusterIPs")]
    pub cluster_ips: Vec<String>,
    /// External IPs, as the Service's author sets them.
    #[serde(rename = "externalIPs")]
    pub external_ips: Vec<String>,
    /// The target of an `ExternalName` Service.
    pub external_name: String,
    /// The ports.
    pub ports: Vec<ServicePort>,
    /// The session affinity.
    pub session_affinity: Affinity,
    /// The timeout of the session affinity.
    pub session_affinity_config: AffinityConfig,
    /// The policy for traffic from Pods and nodes to the cluster IPs.
    pub internal_traffic_policy: TrafficPolicy,
    /// The policy for traffic to node ports, external IPs and load balancer addresses.
    pub external_traffic_policy: TrafficPolicy,
    /// The port on which load balancers check each node for local endpoints; 0 without such a check.
    pub health_check_node_port: u16,
    /// The CIDRs that may use the load balancer's addresses; empty for all.
    pub load_balancer_source_ranges: Vec<String>,
    /// `true` if DNS publishes endpoints that are not ready.
    pub publish_not_ready_addresses: bool,
}

/// The reach of a Service. Only very old objects lack `ClusterIP`.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub enum ServiceType {
    #[default]
    #[serde(alias = "")]
    ClusterIP,
    NodePort,
    LoadBalancer,
    /// A DNS alias, which needs no rules.
    ExternalName,
}

/// The session affinity of a Service.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub enum Affinity {
    #[default]
    #[serde(alias = "")]
    None,
    /// A client address keeps its endpoint.
    ClientIP,
}

/// The settings of the session affinity.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct AffinityConfig {
    /// The settings of affinity by client address.
    #[serde(rename = "clientIP")]
    pub client_ip: AffinityTimeout,
}

/// The time after a client's last connection for which it keeps its endpoint, in seconds. The default is three hours.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct AffinityTimeout {
    /// The timeout in seconds.
    pub timeout_seconds: u32,
}

impl Default for AffinityTimeout {
    fn default() -> Self {
        Self { timeout_seconds: 10_800 }
    }
}

/// The nodes whose endpoints may receive traffic.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub enum TrafficPolicy {
    /// Endpoints of all nodes.
    #[default]
    #[serde(alias = "")]
    Cluster,
    /// Only endpoints of the node that received the traffic; without any, the traffic is dropped.
    Local,
}

/// A port of a Service. Endpoints are matched by the port's name.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct ServicePort {
    /// The name; empty for the only port of a Service.
    pub name: Arc<str>,
    /// The protocol.
    pub protocol: Protocol,
    /// The port of the Service's addresses.
    pub port: u16,
    /// The port on the nodes; 0 for none.
    pub node_port: u16,
}

/// A transport protocol, upper case in the API; TCP by default.
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
    /// Returns the name in nftables, SRV records and chain names.
    pub fn lower(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        }
    }

    /// Returns the IANA protocol number.
    pub fn number(self) -> u8 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Sctp => 132,
        }
    }
}

/// The status of a Service, with only the load balancer's addresses.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceStatus {
    /// The load balancer's addresses.
    pub load_balancer: LoadBalancer,
}

/// The addresses that a load balancer controller gave to the Service.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct LoadBalancer {
    /// The addresses.
    pub ingress: Vec<Ingress>,
}

/// An address of a load balancer: an IP address or a DNS name.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct Ingress {
    /// The IP address; empty if there is only a name.
    pub ip: String,
    /// The DNS name; empty if there is only an IP address.
    pub hostname: String,
    /// `Proxy` if traffic must pass the load balancer, so that the node must not handle the address itself.
    pub ip_mode: String,
}

/// An EndpointSlice: endpoints of one family that share their ports. Go encodes an empty list as `null`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct EndpointSlice {
    /// The object metadata.
    pub metadata: Meta,
    /// The kind of the addresses.
    pub address_type: AddressType,
    /// The endpoints.
    #[serde(deserialize_with = "null_default")]
    pub endpoints: Vec<SliceEndpoint>,
    /// The ports of all endpoints.
    #[serde(deserialize_with = "null_default")]
    pub ports: Vec<EndpointPort>,
}

impl EndpointSlice {
    /// The label that names the slice's Service.
    pub(crate) const SERVICE_NAME: &'static str = "kubernetes.io/service-name";

    /// Returns the name of the slice's Service, in the same namespace.
    pub fn service(&self) -> Option<&str> {
        self.metadata.labels.get(Self::SERVICE_NAME).map(String::as_str)
    }
}

/// The kind of a slice's addresses. `FQDN` addresses are names, which cannot be routed.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub enum AddressType {
    #[default]
    IPv4,
    IPv6,
    #[serde(rename = "FQDN")]
    Fqdn,
}

/// An endpoint. Its addresses are equivalent, and only the first is used.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct SliceEndpoint {
    /// The addresses, as text.
    pub addresses: Vec<String>,
    /// The conditions.
    pub conditions: Conditions,
    /// The endpoint's DNS name within the Service.
    pub hostname: Option<Box<str>>,
    /// The endpoint's node; `None` if unknown.
    pub node_name: Option<Arc<str>>,
    /// The zones and nodes whose traffic the endpoint should get.
    pub hints: Option<Box<Hints>>,
    /// The object behind the endpoint, usually a Pod.
    pub target_ref: Option<Box<TargetRef>>,
}

/// The object behind an endpoint. DNS may use its name for the endpoint.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct TargetRef {
    /// The kind, such as `Pod`.
    pub kind: Box<str>,
    /// The name.
    pub name: Box<str>,
}

/// The conditions of an endpoint. Missing ones mean ready, serving like ready, and not terminating.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Conditions {
    ready: Option<bool>,
    serving: Option<bool>,
    terminating: Option<bool>,
}

impl Conditions {
    /// Creates conditions with all values set.
    pub fn new(ready: bool, serving: bool, terminating: bool) -> Self {
        Self { ready: Some(ready), serving: Some(serving), terminating: Some(terminating) }
    }

    /// Returns `true` if the endpoint accepts new connections. The default is `true`.
    pub fn ready(self) -> bool {
        self.ready.unwrap_or(true)
    }

    /// Returns `true` if the endpoint responds, even while terminating. The default is the value of ready.
    pub fn serving(self) -> bool {
        self.serving.unwrap_or(self.ready())
    }

    /// Returns `true` if the endpoint is terminating. Such endpoints are used only if none is ready.
    pub fn terminating(self) -> bool {
        self.terminating.unwrap_or(false)
    }
}

/// The preferred sources of an endpoint's traffic (topology-aware routing). Empty hints mean no preference.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct Hints {
    /// The preferred zones.
    #[serde(deserialize_with = "null_default")]
    pub for_zones: Vec<Hint>,
    /// The preferred nodes.
    #[serde(deserialize_with = "null_default")]
    pub for_nodes: Vec<Hint>,
}

/// A zone or a node in hints.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Hint {
    /// The name.
    pub name: String,
}

/// A port of a slice's endpoints.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct EndpointPort {
    /// The name of the Service port; `None` or empty for an unnamed one.
    pub name: Option<Arc<str>>,
    /// The protocol.
    pub protocol: Protocol,
    /// The number; a port without a number cannot be served.
    pub port: Option<u16>,
}

/// A node, with the fields that routes to its Pods depend on.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Node {
    /// The object metadata.
    pub metadata: Meta,
    /// The Pod CIDRs and taints.
    pub spec: NodeSpec,
    /// The addresses and daemon ports.
    pub status: NodeStatus,
}

/// The spec of a node.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct NodeSpec {
    /// The Pod CIDR of the primary family; empty if none is allocated.
    #[serde(rename = "podCIDR")]
    pub pod_cidr: String,
    /// The Pod CIDRs, the primary family's first.
    #[serde(rename = "podCIDRs")]
    pub pod_cidrs: Vec<String>,
    /// The taints.
    pub taints: Vec<Taint>,
}

/// The key of a taint, which shows that a node is about to be removed.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Taint {
    /// The taint key.
    pub key: String,
}

/// The addresses and the port that the kubelet reports.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeStatus {
    /// The addresses.
    pub addresses: Vec<NodeAddress>,
    /// The ports of the node's daemons.
    pub daemon_endpoints: DaemonEndpoints,
}

/// The ports of the node's daemons.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct DaemonEndpoints {
    /// The kubelet's port.
    pub kubelet_endpoint: DaemonEndpoint,
}

/// The port of a daemon.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct DaemonEndpoint {
    /// The port; 0 if unknown.
    #[serde(rename = "Port")]
    pub port: u16,
}

/// An address of a node.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct NodeAddress {
    /// The type: `InternalIP`, `ExternalIP` or `Hostname`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The address, as text.
    pub address: String,
}

impl Node {
    /// Returns `true` if the node is about to be removed, so that load balancers should use other nodes.
    pub fn is_leaving(&self) -> bool {
        // The mark of the Cluster Autoscaler.
        let marked = |taint: &Taint| taint.key == "ToBeDeletedByClusterAutoscaler";
        self.metadata.deletion_timestamp.is_some() || self.spec.taints.iter().any(marked)
    }

    /// Returns the zone of the well-known label, for the comparison with endpoint hints.
    pub fn zone(&self) -> Option<&str> {
        self.metadata.labels.get("topology.kubernetes.io/zone").map(String::as_str)
    }

    /// Returns the node's IP addresses in the kubelet's order, with all `InternalIP`s first.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let of = |kind: &'static str| {
            self.status.addresses.iter().filter(move |address| address.kind == kind)
        };
        let addresses = of("InternalIP").chain(of("ExternalIP"));
        addresses.filter_map(|address| address.address.parse().ok()).collect()
    }
}

/// A ServiceCIDR, a cluster-wide range of Service addresses (`networking.k8s.io/v1`).
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct ServiceCidr {
    /// The object metadata.
    pub metadata: Meta,
    /// The ranges.
    pub spec: ServiceCidrSpec,
}

/// The spec of a ServiceCIDR.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct ServiceCidrSpec {
    /// The ranges in CIDR notation, one or two.
    pub cidrs: Vec<String>,
}
