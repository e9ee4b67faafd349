//! The questions by which the supervisor finds out that a process does not answer any more.

use std::{net::SocketAddr, sync::Arc};

use client::{Client, ClientTls, HttpTransport};

use crate::{Cluster, process::Role};

/// Asks a process for its health. An error means that the process must be restarted. A role without such a question, and
/// a node that is cut off, count as healthy.
pub(crate) async fn ask(role: Role, cluster: &Cluster) -> Result<(), String> {
    let settings = &cluster.settings;
    match role {
        // As kubeadm's liveness probe: the answer must be good.
        Role::ControlPlane => get(settings.address, settings.api_port, "/livez").await,
        // The kubelet's server refuses strangers, which is an answer too. Its own view of its health is of the container
        // runtime, which a restart of the kubelet does not mend.
        // A node that is cut off cannot be asked, and its processes are well all the same.
        Role::Agent if cluster.is_cut() => Ok(()),
        Role::Agent => match get(settings.address, settings.kubelet_port, "/healthz").await {
            Err(client::Error::Api { .. }) => Ok(()),
            answer => answer,
        },
        Role::Supervisor | Role::Holder | Role::Containerd | Role::Balancer => Ok(()),
    }
    .map_err(|error| error.to_string())
}

/// Asks this machine's own process, on a connection of its own, before and besides any trust.
async fn get(address: std::net::IpAddr, port: u16, path: &str) -> Result<(), client::Error> {
    let server = format!("https://{}", SocketAddr::new(address, port));
    let transport = HttpTransport::http1(&server, ClientTls::anyone())?;
    let client = Client::new(Arc::new(transport), "windlass supervisor");
    client.call(http::Method::GET, path, "", bytes::Bytes::new()).await.map(drop)
}
