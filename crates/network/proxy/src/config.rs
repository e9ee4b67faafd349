//! The settings of a proxy, from flags or a configuration file.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use api_config::{FeatureGates, GoDuration, KubeProxyConfiguration};
use net_core::{
    Cidr,
    api::Node,
    claims::Host,
    plan::{self, LocalTraffic, NodePorts},
};
use netlink::Address;

use crate::{conntrack::Conntrack, error::ConfigError, flags::listen_address};

/// The validated settings of a proxy.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The id of the cluster; see [`plan::Config::cluster`].
    pub cluster: String,
    /// The name of this node.
    pub node: String,
    /// The kubeconfig that names the API server, whose address no Service may take.
    pub kubeconfig: Option<PathBuf>,
    /// The kind of rules to write.
    pub mode: Mode,
    /// The address of `/healthz` and `/livez`.
    pub healthz: SocketAddr,
    /// The address of `/metrics`.
    pub metrics: SocketAddr,
    /// The longest time for which changes are collected.
    pub min_sync_period: Duration,
    /// The interval between two checks that the rules are still installed.
    pub sync_period: Duration,
    /// The ports of this node that lead to node ports.
    pub published: Vec<plan::PublishedPort>,
    masquerade_all: bool,
    masquerade_bit: u8,
    detect: LocalDetection,
    node_ports: NodePortSource,
    pub(crate) conntrack: Conntrack,
    pub(crate) localhost_node_ports: bool,
    pub(crate) features: FeatureGates,
}

/// The kernel interface that rules are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Nftables,
    Iptables,
}

impl Mode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::Nftables => "nftables",
            Mode::Iptables => "iptables",
        }
    }
}

#[derive(Clone, Debug)]
enum LocalDetection {
    Ranges(Vec<Cidr>),
    NodeRanges,
    Bridge(String),
    Prefix(String),
}

#[derive(Clone, Debug)]
enum NodePortSource {
    /// The node's own addresses in the API.
    Primary,
    All,
    /// The addresses of the interfaces in these ranges.
    Within(Vec<Cidr>),
}

impl Settings {
    /// Returns the effective settings as `/configz` shows them, by the field names of KubeProxyConfiguration.
    pub(crate) fn configz(&self) -> serde_json::Value {
        serde_json::json!({"kubeproxy.config.k8s.io": {
            "HostnameOverride": self.node,
            "Mode": self.mode.name(),
            "HealthzBindAddress": self.healthz,
            "MetricsBindAddress": self.metrics,
            "MinSyncPeriod": GoDuration::from(self.min_sync_period),
            "SyncPeriod": GoDuration::from(self.sync_period),
            "MasqueradeAll": self.masquerade_all,
        }})
    }

    /// Validates the configuration; returns it with warnings. `machine` is the default for the node's name.
    pub fn new(
        config: &KubeProxyConfiguration,
        machine: &str,
    ) -> Result<(Self, Vec<String>), ConfigError> {
        let mut warnings = Vec::new();
        let (all, bit, sync, min_sync) = match config.mode.as_str() {
            "nftables" => {
                let section = &config.nftables;
                (
                    section.masquerade_all,
                    section.masquerade_bit,
                    section.sync_period,
                    section.min_sync_period,
                )
            }
            "" | "iptables" | "ipvs" => {
                if config.mode == "ipvs" {
                    let warning = "mode ipvs: rules are written for nftables, with the same effect";
                    warnings.push(warning.to_owned());
                }
                let section = &config.iptables;
                (
                    section.masquerade_all,
                    section.masquerade_bit,
                    section.sync_period,
                    section.min_sync_period,
                )
            }
            other => return Err(value("mode", other, "iptables, ipvs or nftables")),
        };
        let bit = bit.unwrap_or(14);
        let masquerade_bit = u8::try_from(bit).ok().filter(|bit| *bit < 32);
        let node =
            if config.hostname_override.is_empty() { machine } else { &config.hostname_override };
        // Upstream's iptables mode does so by default; its nftables mode never does.
        let localhost_node_ports =
            config.mode != "nftables" && config.iptables.localhost_node_ports.unwrap_or(true);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let settings = Self {
            cluster: String::new(),
            published: Vec::new(),
            kubeconfig: Some(PathBuf::from(&config.client_connection.kubeconfig))
                .filter(|path| !path.as_os_str().is_empty()),
            localhost_node_ports,
            conntrack: Conntrack::new(&config.conntrack, cores),
            features: FeatureGates::of_known(
                config.feature_gates.iter().map(|(name, on)| (&**name, *on)),
            ),
            mode: if config.mode == "iptables" { Mode::Iptables } else { Mode::Nftables },
            node: node.trim().to_lowercase(),
            healthz: listen_address(&config.healthz_bind_address, ([0, 0, 0, 0], 10256).into())?,
            metrics: listen_address(&config.metrics_bind_address, ([127, 0, 0, 1], 10249).into())?,
            min_sync_period: period(min_sync, Duration::from_secs(1)),
            sync_period: period(sync, Duration::from_secs(30)),
            masquerade_all: all,
            masquerade_bit: masquerade_bit
                .ok_or_else(|| value("masqueradeBit", &bit.to_string(), "from 0 to 31"))?,
            detect: LocalDetection::new(config)?,
            node_ports: NodePortSource::new(
                config.node_port_addresses.as_deref().unwrap_or_default(),
                &config.mode,
            )?,
        };
        Ok((settings, warnings))
    }

    /// Returns the plan's configuration for the current state of the node.
    pub(crate) fn plan(
        &self,
        node: Option<&Node>,
        addresses: &[Address],
        service_cidrs: Vec<Cidr>,
    ) -> plan::Config {
        plan::Config {
            cluster: self.cluster.clone(),
            node: self.node.clone(),
            zone: node.and_then(Node::zone).map(str::to_owned),
            masquerade_all: self.masquerade_all,
            masquerade_bit: self.masquerade_bit,
            local: self.detect.local_traffic(node),
            node_ports: self.node_ports.resolve(node, addresses),
            localhost_node_ports: self.localhost_node_ports,
            service_cidrs,
            published: self.published.clone(),
            host: Host::default(),
        }
    }

    /// Reports whether [`Settings::plan`] needs the interfaces' addresses.
    pub(crate) fn needs_addresses(&self) -> bool {
        matches!(self.node_ports, NodePortSource::Within(_))
    }
}

fn value(field: &'static str, value: &str, expected: &'static str) -> ConfigError {
    ConfigError::Value { field, value: value.to_owned(), expected }
}

fn period(configured: GoDuration, default: Duration) -> Duration {
    if configured.is_zero() { default } else { configured.to_std() }
}

fn cidrs(
    field: &'static str,
    texts: impl IntoIterator<Item: AsRef<str>>,
) -> Result<Vec<Cidr>, ConfigError> {
    let texts = texts.into_iter();
    texts
        .map(|text| text.as_ref().trim().parse().map_err(|_| value(field, text.as_ref(), "a CIDR")))
        .collect()
}

impl LocalDetection {
    fn new(config: &KubeProxyConfiguration) -> Result<Self, ConfigError> {
        let text = |field, text: &str, expected| match text {
            "" => Err(value(field, text, expected)),
            text => Ok(text.to_owned()),
        };
        let detect = &config.detect_local;
        Ok(match config.detect_local_mode.as_str() {
            "" | "ClusterCIDR" => {
                let ranges = config.cluster_cidr.split(',').filter(|part| !part.is_empty());
                Self::Ranges(cidrs("clusterCIDR", ranges)?)
            }
            "NodeCIDR" => Self::NodeRanges,
            "BridgeInterface" => Self::Bridge(text(
                "detectLocal.bridgeInterface",
                &detect.bridge_interface,
                "an interface's name",
            )?),
            "InterfaceNamePrefix" => Self::Prefix(text(
                "detectLocal.interfaceNamePrefix",
                &detect.interface_name_prefix,
                "the beginning of interfaces' names",
            )?),
            other => {
                let expected = "ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix";
                return Err(value("detectLocalMode", other, expected));
            }
        })
    }

    fn local_traffic(&self, node: Option<&Node>) -> LocalTraffic {
        match self {
            Self::Ranges(ranges) if ranges.is_empty() => LocalTraffic::Unknown,
            Self::Ranges(ranges) => LocalTraffic::From(ranges.clone()),
            Self::Bridge(name) => LocalTraffic::Bridge(name.clone()),
            Self::Prefix(prefix) => LocalTraffic::InterfacePrefix(prefix.clone()),
            Self::NodeRanges => {
                let texts = node.into_iter().flat_map(|node| {
                    std::iter::once(&node.spec.pod_cidr).chain(&node.spec.pod_cidrs)
                });
                let ranges: Vec<_> = texts.filter_map(|text| text.parse().ok()).collect();
                if ranges.is_empty() { LocalTraffic::Unknown } else { LocalTraffic::From(ranges) }
            }
        }
    }
}

impl NodePortSource {
    /// Parses `nodePortAddresses`. If empty, the nftables mode uses the primary addresses, and the older modes use all.
    fn new(texts: &[String], mode: &str) -> Result<Self, ConfigError> {
        match texts {
            [] if mode == "nftables" => return Ok(Self::Primary),
            [] => return Ok(Self::All),
            [text] if text == "primary" => return Ok(Self::Primary),
            _ => {}
        }
        let ranges = cidrs("nodePortAddresses", texts)?;
        let all = ranges.iter().any(|range| range.prefix == 0);
        Ok(if all { Self::All } else { Self::Within(ranges) })
    }

    fn resolve(&self, node: Option<&Node>, addresses: &[Address]) -> NodePorts {
        let mut ips: Vec<IpAddr> = match self {
            Self::All => return NodePorts::All,
            Self::Primary => node.map(Node::addresses).unwrap_or_default(),
            Self::Within(ranges) => {
                let all = addresses.iter().map(|address| address.cidr.address);
                all.filter(|ip| !ip.is_loopback() && ranges.iter().any(|range| range.contains(*ip)))
                    .collect()
            }
        };
        ips.sort();
        ips.dedup();
        NodePorts::Addresses(ips)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> Node {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "n1", "labels": {"topology.kubernetes.io/zone": "z1"}},
            "spec": {"podCIDR": "10.1.2.0/24", "podCIDRs": ["10.1.2.0/24", "fd01:2::/64"]},
            "status": {"addresses": [{"type": "Hostname", "address": "n1"}, {"type": "InternalIP", "address": "192.0.2.1"}]},
        }))
        .unwrap()
    }

    fn settings(
        change: impl FnOnce(&mut KubeProxyConfiguration),
    ) -> Result<(Settings, Vec<String>), ConfigError> {
        let mut config = KubeProxyConfiguration::new();
        change(&mut config);
        Settings::new(&config, "Machine")
    }

    #[test]
    fn empty_configuration_has_upstream_defaults() {
        let (settings, warnings) = settings(|_| {}).unwrap();
        assert_eq!((settings.node.as_str(), warnings.len()), ("machine", 0));
        assert_eq!(
            (settings.healthz.to_string(), settings.metrics.to_string()),
            ("0.0.0.0:10256".into(), "127.0.0.1:10249".into())
        );
        let plan = settings.plan(Some(&node()), &[], vec![]);
        assert_eq!((plan.zone.as_deref(), plan.masquerade_bit), (Some("z1"), 14));
        assert_eq!(plan.node_ports, NodePorts::All);
        assert_eq!(plan.local, LocalTraffic::Unknown);
    }

    #[test]
    fn node_ports_use_primary_addresses_in_nftables_mode() {
        let primary = NodePorts::Addresses(vec!["192.0.2.1".parse().unwrap()]);
        type Change = fn(&mut KubeProxyConfiguration);
        let cases: [(Change, &NodePorts); 3] = [
            (|config| config.mode = "nftables".into(), &primary),
            (|config| config.node_port_addresses = Some(vec!["primary".into()]), &primary),
            (|config| config.mode = "iptables".into(), &NodePorts::All),
        ];
        for (change, expected) in cases {
            let found = settings(change).unwrap().0.plan(Some(&node()), &[], vec![]).node_ports;
            assert_eq!(found, *expected);
        }
    }

    #[test]
    fn detects_local_traffic_as_configured() {
        type Change = fn(&mut KubeProxyConfiguration);
        let cases: [(Change, LocalTraffic); 4] = [
            (
                |config| config.cluster_cidr = "10.1.0.0/16,fd01::/48".into(),
                LocalTraffic::From(vec![
                    "10.1.0.0/16".parse().unwrap(),
                    "fd01::/48".parse().unwrap(),
                ]),
            ),
            (
                |config| config.detect_local_mode = "NodeCIDR".into(),
                LocalTraffic::From(vec![
                    "10.1.2.0/24".parse().unwrap(),
                    "10.1.2.0/24".parse().unwrap(),
                    "fd01:2::/64".parse().unwrap(),
                ]),
            ),
            (
                |config| {
                    config.detect_local_mode = "BridgeInterface".into();
                    config.detect_local.bridge_interface = "wl0".into();
                },
                LocalTraffic::Bridge("wl0".into()),
            ),
            (
                |config| {
                    config.detect_local_mode = "InterfaceNamePrefix".into();
                    config.detect_local.interface_name_prefix = "veth".into();
                },
                LocalTraffic::InterfacePrefix("veth".into()),
            ),
        ];
        for (change, expected) in cases {
            assert_eq!(
                settings(change).unwrap().0.plan(Some(&node()), &[], vec![]).local,
                expected
            );
        }
    }

    #[test]
    fn rejects_invalid_values_by_field() {
        type Change = fn(&mut KubeProxyConfiguration);
        let cases: [(Change, &str); 6] = [
            (|config| config.mode = "userspace".into(), "mode"),
            (|config| config.cluster_cidr = "10.1.0.0".into(), "clusterCIDR"),
            (|config| config.detect_local_mode = "Guess".into(), "detectLocalMode"),
            (|config| config.detect_local_mode = "BridgeInterface".into(), "bridgeInterface"),
            (|config| config.healthz_bind_address = "nowhere".into(), "bind address"),
            (|config| config.iptables.masquerade_bit = Some(32), "masqueradeBit"),
        ];
        for (change, field) in cases {
            let error = settings(change).unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
        assert_eq!(settings(|config| config.mode = "ipvs".into()).unwrap().1.len(), 1);
    }
}
