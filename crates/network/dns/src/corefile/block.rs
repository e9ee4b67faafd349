//! A server block.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use hickory_proto::rr::Name;

use crate::{chain::Chain, options::KubernetesOptions, plugin::Forward};

/// A server block.
#[derive(Clone, Debug, Default)]
pub(crate) struct Block {
    /// The zones that the block answers for; the root zone covers all names.
    pub zones: Vec<Name>,
    /// The port to listen on.
    pub port: u16,
    /// The addresses to listen on; empty for all.
    pub bind: Vec<IpAddr>,
    /// The cluster's zone, if the plugin `kubernetes` is used.
    pub kubernetes: Option<Arc<KubernetesOptions>>,
    /// `true` if Pods are watched, which `pods verified` and `autopath @kubernetes` need.
    pub needs_pods: bool,
    /// The health check, if the plugin `health` is used.
    pub health: Option<Health>,
    /// The address of `/ready`, which reports whether the cluster's objects are loaded.
    pub ready: Option<SocketAddr>,
    /// The address of `/metrics`.
    pub prometheus: Option<SocketAddr>,
    /// The interval between two reads of the Corefile.
    pub reload: Option<Duration>,
    /// The timeouts of TCP connections.
    pub timeouts: Timeouts,
    /// `true` if forwarding loops are detected and stopped.
    pub loops: bool,
    /// The warnings about settings without effect.
    pub ignored: Vec<String>,
    /// The plugins `forward`, which the loop detection probes.
    pub(crate) forwards: Vec<Arc<Forward>>,
    /// `true` if zone transfers are answered.
    pub(crate) transfers: bool,
    /// `true` if queries of other classes than IN are answered.
    pub(crate) any_class: bool,
    /// The plugins in the order of their work.
    pub(crate) chain: Chain,
}

/// The plugin `health`: `/health` responds as long as the process runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Health {
    /// The address to listen on.
    pub address: SocketAddr,
    /// The time for which queries are still answered after a shutdown starts.
    pub lameduck: Duration,
}

/// The plugin `timeouts`: the limits of TCP connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timeouts {
    /// The time for reading a query once it has begun.
    pub read: Duration,
    /// The time for writing an answer.
    pub write: Duration,
    /// The time between two queries.
    pub idle: Duration,
    /// The number of queries on one connection.
    pub queries: usize,
}

impl Default for Timeouts {
    fn default() -> Self {
        let ten = Duration::from_secs(10);
        Self { read: ten, write: ten, idle: ten, queries: usize::MAX }
    }
}
