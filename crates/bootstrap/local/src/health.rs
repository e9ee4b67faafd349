//! The health checks with which the supervisor detects a process that no longer responds.

use std::{net::SocketAddr, sync::Arc};

use client::{Client, ClientTls, HttpTransport};

use crate::{cluster::Cluster, process::Role};

/// Checks a process's health. After an error, the process must be restarted. A role without a check and a disconnected
/// node count as healthy.
pub(crate) async fn check(role: Role, cluster: &Cluster) -> Result<(), client::Error> {
    let settings = &cluster.settings;
    match role {
        // Like kubeadm's liveness probe, requires a successful response.
        Role::ControlPlane => get(settings.address, settings.api_port, "/livez").await,
        // Any HTTP response counts, as the kubelet's server refuses anonymous requests. The kubelet's health depends on
        // the container runtime, which a restart of the kubelet does not repair.
        // A disconnected node cannot be reached, but its processes are healthy.
        Role::Agent if cluster.is_cut() => Ok(()),
        Role::Agent => match get(settings.address, settings.kubelet_port, "/healthz").await {
            Err(client::Error::Api { .. }) => Ok(()),
            response => response,
        },
        Role::Supervisor
        | Role::Holder
        | Role::Containerd
        | Role::Balancer
        | Role::SimulatedNodes => Ok(()),
    }
}

/// Sends a request on a new connection without verifying the certificate, because the process is on this host.
async fn get(address: std::net::IpAddr, port: u16, path: &str) -> Result<(), client::Error> {
    let server = format!("https://{}", SocketAddr::new(address, port));
    let transport = HttpTransport::http1(&server, ClientTls::anyone())?;
    let client = Client::new(Arc::new(transport), "windlass supervisor");
    client.call(http::Method::GET, path, "", bytes::Bytes::new()).await.map(drop)
}
