//! The Metrics API of `up`: a server in the first node's agent, which several control planes share.

use std::net::SocketAddr;

use bootstrap_core::{Layout, addons};
use client::{Client, Resource};
use serde_json::Value;

use crate::{Cluster, Error};

/// As whom it asks, among the cluster's kubeconfigs.
pub(crate) const KUBECONFIG: &str = "metrics-server.conf";
/// Beside the kubelet's port, which is 10250.
pub(crate) const PORT: u16 = 10251;

const API_SERVICES: Resource =
    Resource::constant("apiregistration.k8s.io", "v1", "apiservices", "APIService", false);

/// Where it listens: API servers do not go to an APIService on loopback.
pub(crate) fn address(cluster: &Cluster) -> SocketAddr {
    SocketAddr::new(cluster.settings.address, PORT)
}

pub(crate) async fn start(cluster: &Cluster, tasks: &rt::Tasks) -> Result<(), Error> {
    let layout = Layout::under(cluster.home());
    let kubeconfig = layout.kubeconfig(KUBECONFIG);
    if !kubeconfig.exists() {
        // The cluster is of an earlier version, and gets it when it is started anew.
        tracing::warn!(path = %kubeconfig.display(), "no Metrics API without its kubeconfig");
        return Ok(());
    }
    let config = metrics_server::Config {
        address: address(cluster),
        kubeconfig,
        front_proxy_ca: layout.certificates.join("front-proxy-ca.crt"),
        front_proxy_name: "front-proxy-client".to_owned(),
    };
    metrics_server::start(config, tasks)
        .await
        .map_err(|e| Error::Other(format!("the Metrics API: {e}")))
}

/// Makes the APIService unless there is one, whoever's it is.
pub(crate) async fn register(client: &Client) -> Result<(), Error> {
    match client.create::<_, Value>(&API_SERVICES, "", &addons::metrics::api_service()).await {
        Err(error) if !error.is_already_exists() => Err(error.into()),
        _ => Ok(()),
    }
}
