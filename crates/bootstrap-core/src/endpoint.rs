//! Where clients reach the API server.

use api_config::kubeadm::{ApiEndpoint, ClusterConfiguration};

use crate::{constants::API_SERVER_PORT, net};

fn port_of(local: &ApiEndpoint) -> u16 {
    u16::try_from(local.bind_port).ok().filter(|p| *p > 0).unwrap_or(API_SERVER_PORT)
}

/// The URL of this machine's own API server.
pub fn local_url(local: &ApiEndpoint) -> String {
    format!("https://{}", net::join_host_port(&local.advertise_address, port_of(local)))
}

/// The URL that stays when control planes come and go: `controlPlaneEndpoint`, or this machine's without one.
pub fn stable_url(cluster: &ClusterConfiguration, local: &ApiEndpoint) -> String {
    format!("https://{}", stable_host_port(cluster, local))
}

/// As [`stable_url`], without its scheme, as `join` takes it.
pub fn stable_host_port(cluster: &ClusterConfiguration, local: &ApiEndpoint) -> String {
    match net::split_host_port(&cluster.control_plane_endpoint) {
        Some((host, port)) => net::join_host_port(&host, port.unwrap_or_else(|| port_of(local))),
        None => net::join_host_port(&local.advertise_address, port_of(local)),
    }
}
