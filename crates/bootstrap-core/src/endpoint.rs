//! Where clients reach the API server.

use api_config::{
    kubeadm::{ApiEndpoint, ClusterConfiguration},
    kubeconfig::Cluster,
};

use crate::{constants::API_SERVER_PORT, net};

fn port_of(local: &ApiEndpoint) -> u16 {
    u16::try_from(local.bind_port).ok().filter(|p| *p > 0).unwrap_or(API_SERVER_PORT)
}

/// The URL of this machine's own API server.
pub fn local_url(local: &ApiEndpoint) -> String {
    format!("https://{}", local_host_port(local))
}

/// As [`local_url`], without its scheme.
pub fn local_host_port(local: &ApiEndpoint) -> String {
    net::join_host_port(&local.advertise_address, port_of(local))
}

/// The URL that stays when control planes come and go: `controlPlaneEndpoint`, or this machine's without one.
pub fn stable_url(cluster: &ClusterConfiguration, local: &ApiEndpoint) -> String {
    format!("https://{}", stable_host_port(cluster, local))
}

/// As [`stable_url`], without its scheme, as `join` takes it.
pub fn stable_host_port(cluster: &ClusterConfiguration, local: &ApiEndpoint) -> String {
    match net::split_host_port(&cluster.control_plane_endpoint) {
        Some((host, port)) => net::join_host_port(&host, port.unwrap_or_else(|| port_of(local))),
        None => local_host_port(local),
    }
}

/// The name that every API server's certificate has, whatever its addresses.
pub const SERVER_NAME: &str = "kubernetes";

/// Where a node's own components find the API: the node's balancer if the cluster has them, else the stable URL.
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
