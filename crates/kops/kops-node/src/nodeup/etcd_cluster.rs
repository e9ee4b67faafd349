//! The etcd clusters of control planes: the main one, and one for events.

use api_config::kubeadm::Arg;
use api_meta::Tree as _;
use bootstrap_core::{
    constants::{ETCD_CLIENT_PORT, ETCD_PEER_PORT},
    net,
};
use kops_store::{ETCD, EVENTS};
use serde_json::Value;

use crate::error::Error;

/// An etcd cluster of control planes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EtcdCluster {
    pub(super) name: &'static str,
    pub(super) client_port: u16,
    pub(super) peer_port: u16,
    /// The port of metrics and health, on the loopback address.
    metrics_port: u16,
    /// The prefix of the names of its members.
    prefix: &'static str,
}

/// The cluster of all objects, except events if there is a cluster for them. Its ports are kubeadm's.
pub(super) const MAIN: EtcdCluster = EtcdCluster {
    name: ETCD,
    client_port: ETCD_CLIENT_PORT,
    peer_port: ETCD_PEER_PORT,
    metrics_port: 2381,
    prefix: "etcd",
};
/// The cluster of events. Its ports are upstream's.
const OF_EVENTS: EtcdCluster = EtcdCluster {
    name: EVENTS,
    client_port: 4002,
    peer_port: 2381,
    metrics_port: 2382,
    prefix: "etcd-events",
};

impl EtcdCluster {
    /// Returns the etcd clusters that a node configuration names, the main one first.
    pub(super) fn all_of(config: &Value) -> Result<Vec<Self>, Error> {
        let names: Vec<_> = config.texts("EtcdClusterNames").collect();
        let unknown = names.iter().find(|name| ![ETCD, EVENTS].contains(name));
        if let Some(name) = unknown {
            return Err(Error::EtcdCluster { name: (*name).to_owned() });
        }
        let events = names.contains(&EVENTS).then_some(OF_EVENTS);
        Ok(std::iter::once(MAIN).chain(events).collect())
    }

    pub(super) fn member_name(&self, address: &str) -> String {
        format!("{}-{address}", self.prefix)
    }

    pub(super) fn url(&self, address: &str, port: u16) -> String {
        format!("https://{}", net::join_host_port(address, port))
    }

    /// Returns the flags with the URLs of a member, which differ from those of `init` if this is not the main cluster.
    pub(super) fn urls(&self, address: &str) -> Vec<Arg> {
        if *self == MAIN {
            return Vec::new();
        }
        let loopback = if address.contains(':') { "::1" } else { "127.0.0.1" };
        let (client, peer) =
            (self.url(address, self.client_port), self.url(address, self.peer_port));
        let own = self.url(loopback, self.client_port);
        let metrics = net::join_host_port(loopback, self.metrics_port);
        vec![
            Arg::new("advertise-client-urls", client.clone()),
            Arg::new("initial-advertise-peer-urls", peer.clone()),
            Arg::new("listen-client-urls", format!("{own},{client}")),
            Arg::new("listen-metrics-urls", format!("http://{metrics}")),
            Arg::new("listen-peer-urls", peer),
        ]
    }
}
