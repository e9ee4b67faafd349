//! The addresses of the API server for clients.

use api_config::{
    kubeadm::{ApiEndpoint, ClusterConfiguration},
    kubeconfig::Cluster,
};

use crate::{constants::API_SERVER_PORT, net};

fn port_of(local: &ApiEndpoint) -> u16 {
    u16::try_from(local.bind_port).ok().filter(|p| *p > 0).unwrap_or(API_SERVER_PORT)
}

/// Returns the URL of this machine's API server.
pub fn local_url(local: &ApiEndpoint) -> String {
    format!("https://{}", local_host_port(local))
}

/// Returns the host and port of [`local_url`].
pub fn local_host_port(local: &ApiEndpoint) -> String {
    net::join_host_port(&local.advertise_address, port_of(local))
}

/// Returns the URL that does not depend on a single control plane: `controlPlaneEndpoint`, or this machine's URL
/// without one.
pub fn stable_url(cluster: &ClusterConfiguration, local: &ApiEndpoint) -> String {
    format!("https://{}", stable_host_port(cluster, local))
}

/// Returns the host and port of [`stable_url`], for `join`.
pub fn stable_host_port(cluster: &ClusterConfiguration, local: &ApiEndpoint) -> String {
    match net::split_host_port(&cluster.control_plane_endpoint) {
        Some((host, port)) => net::join_host_port(&host, port.unwrap_or_else(|| port_of(local))),
        None => local_host_port(local),
    }
}

/// The DNS name in every API server's certificate.
pub const SERVER_NAME: &str = "kubernetes";

/// Returns the API endpoint for a node's own components: the node's load balancer if the cluster has one, else the
/// stable URL.
pub fn of_node(cluster: &ClusterConfiguration, local: &ApiEndpoint) -> Cluster {
    match &cluster.node_balancer {
        Some(balancer) => Cluster {
            server: format!("https://127.0.0.1:{}", balancer.port),
            tls_server_name: SERVER_NAME.to_owned(),
            ..Cluster::default()
        },
        None => Cluster { server: stable_url(cluster, local), ..Cluster::default() },
    }
}
