//! Server blocks and the options of their plugins.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use hickory_proto::rr::Name;

/// A server block.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Block {
    /// The zones that the block answers for; the root zone covers all names.
    pub zones: Vec<Name>,
    /// The port to listen on.
    pub port: u16,
    /// The addresses to listen on; empty for all.
    pub bind: Vec<IpAddr>,
    /// The cluster's zone, if the plugin `kubernetes` is used.
    pub kubernetes: Option<KubernetesOptions>,
    /// Static names, if the plugin `hosts` is used.
    pub hosts: Option<HostsOptions>,
    /// The servers to forward to, by zone.
    pub forward: Vec<ForwardOptions>,
    /// The cache for forwarded queries, if the plugin `cache` is used.
    pub cache: Option<CacheOptions>,
    /// The health check, if the plugin `health` is used.
    pub health: Option<Health>,
    /// The address of `/ready`, which reports whether the cluster's objects are loaded.
    pub ready: Option<SocketAddr>,
    /// The address of `/metrics`.
    pub prometheus: Option<SocketAddr>,
    /// The interval between two reads of the Corefile.
    pub reload: Option<Duration>,
    /// `true` if errors are logged.
    pub errors: bool,
    /// `true` if every query is logged.
    pub log: bool,
    /// `true` if forwarding loops are detected and stopped.
    pub loops: bool,
    /// `true` if the addresses in an answer are shuffled.
    pub shuffle: bool,
    /// The warnings about settings without effect.
    pub ignored: Vec<String>,
}

/// The plugin `health`: `/health` responds as long as the process runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// The address to listen on.
    pub address: SocketAddr,
    /// The time for which queries are still answered after a shutdown starts.
    pub lameduck: Duration,
}

/// The handling of names such as `1-2-3-4.NAMESPACE.pod.ZONE`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodMode {
    /// These names do not exist.
    #[default]
    Disabled,
    /// Every address has a record.
    Insecure,
    /// Only addresses of existing Pods have records.
    Verified,
}

/// The plugin `kubernetes`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KubernetesOptions {
    /// The zones, including reverse zones.
    pub zones: Vec<Name>,
    /// The handling of Pod records.
    pub pods: PodMode,
    /// The TTL of all records, in seconds.
    pub ttl: u32,
    /// The zones whose unknown names go to the next plugin; empty for all, `None` for no zone.
    pub fallthrough: Option<Vec<Name>>,
    /// `true` if endpoints without a hostname are named after their Pods.
    pub endpoint_pod_names: bool,
    /// The kubeconfig; `None` for the Pod's own service account.
    pub kubeconfig: Option<PathBuf>,
}

/// The plugin `forward`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ForwardOptions {
    /// The zone whose names are forwarded, except for those in `except`.
    pub from: Name,
    /// Addresses of servers, or files in the format of resolv.conf.
    pub to: Vec<String>,
    /// Zones that are not forwarded.
    pub except: Vec<Name>,
    /// The largest number of concurrent queries; 0 for the server's own limit.
    pub max_concurrent: usize,
    /// The number of consecutive failures after which a server is skipped for a while; 0 for never.
    pub max_fails: u32,
    /// `true` to try the servers in order, `false` to start with a random one.
    pub sequential: bool,
    /// `true` to always use TCP.
    pub force_tcp: bool,
}

/// The plugin `cache`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheOptions {
    /// The longest TTL of positive answers, in seconds.
    pub success: u32,
    /// The longest TTL of negative answers, in seconds.
    pub denial: u32,
    /// The number of cached responses.
    pub capacity: usize,
}

/// The plugin `hosts`: a file like `/etc/hosts`, and lines of the Corefile.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostsOptions {
    /// The file, if any.
    pub file: Option<PathBuf>,
    /// The names in the Corefile, with their addresses.
    pub entries: Vec<(Name, IpAddr)>,
    /// The TTL, in seconds.
    pub ttl: u32,
    /// `true` if unknown names go to the next plugin.
    pub fallthrough: bool,
}
