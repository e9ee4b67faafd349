//! The inputs for the manifests of one machine.

use api_config::kubeadm::{ApiEndpoint, ClusterConfiguration};

use crate::Layout;

/// The inputs for one machine's manifests.
#[derive(Clone, Debug)]
pub struct Machine<'a> {
    /// The cluster's configuration.
    pub cluster: &'a ClusterConfiguration,
    /// The address of this machine's API server.
    pub local: &'a ApiEndpoint,
    /// The name of the Node.
    pub node_name: &'a str,
    /// The paths of the node's files.
    pub layout: &'a Layout,
    /// The [`CA_DIRECTORIES`] that exist on the host.
    pub ca_directories: &'a [String],
    /// The machine's proxy settings as `(NAME, value)`, which components also need.
    pub proxy_env: &'a [(String, String)],
    /// `false` if the CA's key is kept elsewhere (external CA mode), so that the controller manager cannot sign.
    pub has_ca_key: bool,
    /// The etcd members to join, this one included; empty for the first member.
    pub etcd_members: &'a [EtcdMember],
}

impl<'a> Machine<'a> {
    /// Returns the inputs for a machine without CA directories and proxies, with the CA's key, for the first member of
    /// etcd.
    pub fn new(
        cluster: &'a ClusterConfiguration,
        local: &'a ApiEndpoint,
        node_name: &'a str,
        layout: &'a Layout,
    ) -> Self {
        Self {
            cluster,
            local,
            node_name,
            layout,
            ca_directories: &[],
            proxy_env: &[],
            has_ca_key: true,
            etcd_members: &[],
        }
    }
}

/// The directories in which distributions keep trusted certificates.
pub const CA_DIRECTORIES: [&str; 5] = [
    "/etc/pki/ca-trust",
    "/etc/pki/tls/certs",
    "/etc/ca-certificates",
    "/usr/share/ca-certificates",
    "/usr/local/share/ca-certificates",
];

/// A member in etcd's member list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdMember {
    /// The name of the member.
    pub name: String,
    /// The peer URL.
    pub peer_url: String,
}
