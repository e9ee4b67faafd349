//! The command line: upstream's flags, those with an effect and those that are only accepted.

use std::{net::SocketAddr, path::PathBuf};

use api_config::{
    FeatureGateFlags, FeatureGates, GoDuration, GoFlag as _, KubeProxyConfiguration,
    known::{self, Field, Flag, KnownFlags},
};

use crate::error::ConfigError;

/// Runs kube-proxy, which programs the node's Service rules
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Args {
    /// A KubeProxyConfiguration file. Other flags except --hostname-override are then ignored, as upstream does
    #[arg(long)]
    pub config: Option<PathBuf>,
    /// Kubeconfig file with the address and credentials of the API server
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// The name of this node, if it differs from the machine's
    #[arg(long, default_value = "")]
    pub hostname_override: String,
    /// Remove the rules and exit
    #[arg(long)]
    pub cleanup: bool,
    /// The Pod CIDRs of the cluster, by which local traffic is detected
    #[arg(long, default_value = "")]
    pub cluster_cidr: String,
    /// The address of /healthz
    #[arg(long, default_value = "0.0.0.0:10256")]
    pub healthz_bind_address: String,
    /// The address of /metrics
    #[arg(long, default_value = "127.0.0.1:10249")]
    pub metrics_bind_address: String,
    /// iptables, nftables (the default) or ipvs, which is implemented by nftables rules
    #[arg(long, default_value = "")]
    pub proxy_mode: String,
    /// Masquerade all traffic to Services
    #[arg(long)]
    pub masquerade_all: bool,
    /// The bit of the packet mark that requests masquerading
    #[arg(long)]
    pub iptables_masquerade_bit: Option<i32>,
    /// Serve node ports on 127.0.0.1 too (not in nftables mode)
    #[arg(long, go_bool())]
    pub iptables_localhost_nodeports: Option<bool>,
    /// The interval between two checks that the rules are still installed
    #[arg(long)]
    pub iptables_sync_period: Option<GoDuration>,
    /// The longest time for which changes are collected
    #[arg(long)]
    pub iptables_min_sync_period: Option<GoDuration>,
    /// The detection of local traffic: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix
    #[arg(long, default_value = "")]
    pub detect_local_mode: String,
    /// The bridge of local Pods, for BridgeInterface
    #[arg(long, default_value = "")]
    pub pod_bridge_interface: String,
    /// The name prefix of local Pods' interfaces, for InterfaceNamePrefix
    #[arg(long, default_value = "")]
    pub pod_interface_name_prefix: String,
    /// The CIDRs of the addresses that accept node ports, or "primary"
    #[arg(long, value_delimiter = ',')]
    pub nodeport_addresses: Vec<String>,
    /// The maximum number of tracked connections per core; 0 leaves the kernel's limit
    #[arg(long)]
    pub conntrack_max_per_core: Option<i32>,
    /// The minimum of the maximum number of tracked connections
    #[arg(long)]
    pub conntrack_min: Option<i32>,
    /// The timeout of idle established TCP connections; 0 leaves the kernel's
    #[arg(long)]
    pub conntrack_tcp_timeout_established: Option<GoDuration>,
    /// The timeout of TCP connections in CLOSE_WAIT; 0 leaves the kernel's
    #[arg(long)]
    pub conntrack_tcp_timeout_close_wait: Option<GoDuration>,
    /// Accept packets outside the TCP window
    #[arg(long)]
    pub conntrack_tcp_be_liberal: bool,
    /// The timeout of UDP entries with a single packet; 0 leaves the kernel's
    #[arg(long)]
    pub conntrack_udp_timeout: Option<GoDuration>,
    /// The timeout of UDP streams; 0 leaves the kernel's
    #[arg(long)]
    pub conntrack_udp_timeout_stream: Option<GoDuration>,
    /// The flag of feature gates, which the file replaces
    #[command(flatten)]
    pub features: FeatureGateFlags,
    /// Flags that are accepted without effect
    #[command(flatten)]
    pub ignored: KnownFlags<Tables>,
}

impl Args {
    /// Returns the configuration from the file or from the flags, and the warnings to show.
    pub fn configuration(&self) -> Result<(KubeProxyConfiguration, Vec<String>), ConfigError> {
        let mut warnings = self.ignored.warnings();
        let mut config = match &self.config {
            None => self.as_configuration(),
            Some(path) => {
                let failed = |reason: String| ConfigError::File { path: path.clone(), reason };
                let text =
                    std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
                let mut value =
                    api_config::yaml::parse(&text).map_err(|error| failed(error.to_string()))?;
                if let Some(whole) = value.as_object_mut() {
                    warnings.extend(known::take_ignored(whole, WITHOUT_EFFECT));
                }
                let decoded = KubeProxyConfiguration::from_value(value)
                    .map_err(|error| failed(error.to_string()))?;
                warnings.extend(decoded.warning());
                decoded.value
            }
        };
        let gates = match &self.config {
            None => self.features.gates()?,
            Some(_) => {
                FeatureGates::of(config.feature_gates.iter().map(|(name, on)| (&**name, *on)))?
            }
        };
        warnings.extend(gates.warnings());
        let set = gates.set_gates().map(|(name, on)| (name.to_owned(), on));
        config.feature_gates = set.collect();
        if !self.hostname_override.is_empty() {
            config.hostname_override = self.hostname_override.clone();
        }
        if let Some(kubeconfig) = &self.kubeconfig {
            config.client_connection.kubeconfig = kubeconfig.display().to_string();
        }
        Ok((config, warnings))
    }

    fn as_configuration(&self) -> KubeProxyConfiguration {
        let mut config = KubeProxyConfiguration::new();
        config.cluster_cidr = self.cluster_cidr.clone();
        config.healthz_bind_address = self.healthz_bind_address.clone();
        config.metrics_bind_address = self.metrics_bind_address.clone();
        config.mode = self.proxy_mode.clone();
        // The flags are older than the modes and apply to all of them.
        config.nftables.masquerade_all = self.masquerade_all;
        config.nftables.masquerade_bit = self.iptables_masquerade_bit;
        config.nftables.sync_period = self.iptables_sync_period.unwrap_or_default();
        config.nftables.min_sync_period = self.iptables_min_sync_period.unwrap_or_default();
        let shared = &config.nftables;
        config.iptables = api_config::proxy::Iptables {
            masquerade_all: shared.masquerade_all,
            masquerade_bit: shared.masquerade_bit,
            sync_period: shared.sync_period,
            min_sync_period: shared.min_sync_period,
            localhost_node_ports: self.iptables_localhost_nodeports,
        };
        config.conntrack = api_config::proxy::Conntrack {
            max_per_core: self.conntrack_max_per_core,
            min: self.conntrack_min,
            tcp_established_timeout: self.conntrack_tcp_timeout_established,
            tcp_close_wait_timeout: self.conntrack_tcp_timeout_close_wait,
            tcp_be_liberal: self.conntrack_tcp_be_liberal,
            udp_timeout: self.conntrack_udp_timeout.unwrap_or_default(),
            udp_stream_timeout: self.conntrack_udp_timeout_stream.unwrap_or_default(),
        };
        config.detect_local_mode = self.detect_local_mode.clone();
        config.detect_local.bridge_interface = self.pod_bridge_interface.clone();
        config.detect_local.interface_name_prefix = self.pod_interface_name_prefix.clone();
        config.node_port_addresses =
            Some(self.nodeport_addresses.clone()).filter(|list| !list.is_empty());
        config
    }
}

const NO_PORTS: &str = "node ports listen nowhere: rules answer at nodePortAddresses";
const NO_IPVS: &str = "rules are never IPVS'";
const HARD_FAIL: &str = "an address that cannot be bound is always an error";
const NO_RESYNC: &str = "informers are not resynchronised";
const OOM_SCORE: &str = "the service manager sets it";

/// Fields of the file that are accepted without effect, each with the reason why that is harmless.
const WITHOUT_EFFECT: &[Field] = &[
    ("bindAddress", NO_PORTS),
    ("bindAddressHardFail", HARD_FAIL),
    ("configSyncPeriod", NO_RESYNC),
    ("enableProfiling", "there is no Go profiler here"),
    ("ipvs", NO_IPVS),
    ("logging", "logging is set for all of Windlass"),
    ("oomScoreAdj", OOM_SCORE),
    ("portRange", "upstream ignores it too"),
    ("showHiddenMetricsForVersion", "there are no hidden metrics"),
    ("windowsRunAsService", "this is not Windows"),
    ("winkernel", "this is not Windows"),
];

/// Upstream's flags that are accepted without effect: name, whether it takes a value, and why that is harmless.
const IGNORED: &[Flag] = &[
    ("bind-address", true, NO_PORTS),
    ("bind-address-hard-fail", false, HARD_FAIL),
    ("boot-id-file", true, "the machine is not identified"),
    ("config-sync-period", true, NO_RESYNC),
    ("healthz-port", true, "upstream ignores it too; use --healthz-bind-address"),
    ("init-only", false, "there is no initialisation that needs more privileges than running"),
    ("ipvs-exclude-cidrs", true, NO_IPVS),
    ("ipvs-min-sync-period", true, NO_IPVS),
    ("ipvs-scheduler", true, NO_IPVS),
    ("ipvs-strict-arp", false, NO_IPVS),
    ("ipvs-sync-period", true, NO_IPVS),
    ("ipvs-tcp-timeout", true, NO_IPVS),
    ("ipvs-tcpfin-timeout", true, NO_IPVS),
    ("ipvs-udp-timeout", true, NO_IPVS),
    ("kube-api-burst", true, "a proxy only watches, which needs no rate limit"),
    ("kube-api-content-type", true, "JSON is what the informers decode"),
    ("kube-api-qps", true, "a proxy only watches, which needs no rate limit"),
    ("machine-id-file", true, "the machine is not identified"),
    ("master", true, "the API server is the kubeconfig's"),
    ("metrics-port", true, "upstream ignores it too; use --metrics-bind-address"),
    ("oom-score-adj", true, OOM_SCORE),
    ("proxy-port-range", true, "upstream ignores it too"),
];

/// Lists the [`IGNORED`] flags.
#[derive(Clone, Debug, Default)]
pub struct Tables;

impl known::Tables for Tables {
    const TABLES: &'static [&'static [Flag]] = &[IGNORED, known::COMMON];
}

/// Parses an address to listen on. As upstream, a bare IP gets the default port, and an empty text is the default.
pub(crate) fn listen_address(text: &str, default: SocketAddr) -> Result<SocketAddr, ConfigError> {
    if text.is_empty() {
        return Ok(default);
    }
    let whole = text.parse().ok();
    let bare = || text.parse().ok().map(|ip| SocketAddr::new(ip, default.port()));
    whole.or_else(bare).ok_or_else(|| ConfigError::Value {
        field: "bind address",
        value: text.to_owned(),
        expected: "IP:PORT",
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    type Cli = api_config::CommandLine<Args>;

    #[test]
    fn applies_ignores_or_rejects_flags() {
        let cli = Cli::try_parse_from([
            "kube-proxy",
            "--cluster-cidr=10.1.0.0/16",
            "--masquerade-all",
            "--ipvs-scheduler=rr",
            "--profiling=true",
            "--bind-address-hard-fail",
        ])
        .unwrap();
        let (config, warnings) = cli.args.configuration().unwrap();
        assert_eq!(
            (config.cluster_cidr.as_str(), config.nftables.masquerade_all),
            ("10.1.0.0/16", true)
        );
        let named: Vec<_> =
            warnings.iter().filter_map(|warning| warning.split(' ').next()).collect();
        assert_eq!(named, ["--bind-address-hard-fail", "--ipvs-scheduler", "--profiling"]);
        assert!(Cli::try_parse_from(["kube-proxy", "--no-such-flag"]).is_err());
    }

    #[test]
    fn rejects_unknown_feature_gates_of_flag_and_file() {
        let flag = Cli::try_parse_from(["kube-proxy", "--feature-gates=NoSuchGate=true"]).unwrap();
        let words = "unrecognized feature gate: NoSuchGate";
        assert_eq!(flag.args.configuration().unwrap_err().to_string(), words);
        let file = std::env::temp_dir().join(format!("proxy-gates-{}", std::process::id()));
        let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
            featureGates: {NoSuchGate: true}\n";
        std::fs::write(&file, text).unwrap();
        let config = format!("--config={}", file.display());
        let cli = Cli::try_parse_from(["kube-proxy", &config]).unwrap();
        let error = cli.args.configuration().unwrap_err().to_string();
        std::fs::remove_file(&file).unwrap();
        assert_eq!(error, words);
    }
}
