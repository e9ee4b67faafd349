//! The Metrics API of `up`: a server in the first node's agent, which serves all control planes.

use std::net::SocketAddr;

use bootstrap_core::{Layout, addons};
use client::{Client, Resource};
use serde_json::Value;

use crate::{cluster::Cluster, error::Error};

/// The kubeconfig with the server's identity.
pub(crate) const KUBECONFIG: &str = "metrics-server.conf";
/// The port, next to the kubelet's 10250.
pub(crate) const PORT: u16 = 10251;

const API_SERVICES: Resource =
    Resource::constant("apiregistration.k8s.io", "v1", "apiservices", "APIService", false);

/// Returns the address of the server. API servers refuse APIServices on loopback.
pub(crate) fn address(cluster: &Cluster) -> SocketAddr {
    SocketAddr::new(cluster.settings.address, PORT)
}

pub(crate) async fn start(cluster: &Cluster, tasks: &rt::Tasks) -> Result<(), Error> {
    let layout = Layout::under(cluster.home());
    let kubeconfig = layout.kubeconfig(KUBECONFIG);
    if !kubeconfig.exists() {
        // A cluster of an earlier version gets the kubeconfig at its next start.
        tracing::warn!(path = %kubeconfig.display(), "the Metrics API does not run, because its kubeconfig is \
             missing; run `windlass down --keep-data` and `windlass up`");
        return Ok(());
    }
    let config = metrics_server::Config {
        address: address(cluster),
        kubeconfig,
        front_proxy_ca: layout.certificates.join("front-proxy-ca.crt"),
        front_proxy_name: "front-proxy-client".to_owned(),
    };
    Ok(metrics_server::start(config, tasks).await?)
}

/// Creates the APIService unless one exists, which may be another server's.
pub(crate) async fn register(client: &Client) -> Result<(), Error> {
    match client.create::<_, Value>(&API_SERVICES, "", &addons::metrics::api_service()).await {
        Err(error) if !error.is_already_exists() => Err(error.into()),
        _ => Ok(()),
    }
}
