//! The cluster of `init` for which an administrator prints the objects of an add-on.

use std::path::Path;

use api_config::{
    Kubeconfig,
    kubeadm::{ApiEndpoint, ClusterConfiguration},
    kubeconfig::Cluster,
};
use bootstrap_core::{endpoint, objects};
use client::{Client, Resource};
use serde_json::Value;

use crate::error::Error;

/// A cluster of `init`.
pub(crate) struct AddonTarget {
    /// An administrator's client.
    pub(crate) client: Client,
    /// The configuration that `init` stored in the cluster.
    pub(crate) configuration: ClusterConfiguration,
    /// The API endpoint for Pods in the nodes' network.
    pub(crate) api: Cluster,
}

impl AddonTarget {
    /// Reads the cluster of an administrator's kubeconfig.
    pub(crate) async fn read(kubeconfig: &Path) -> Result<Self, Error> {
        let kubeconfig = Kubeconfig::load(kubeconfig)?;
        let client = Client::from_kubeconfig(&kubeconfig, "windlass")?;
        let config_map: Value =
            client.get(&Resource::CONFIG_MAPS, "kube-system", "kubeadm-config").await?;
        let configuration = objects::read_kubeadm_config(&config_map)?;
        let api = match configuration.node_balancer {
            Some(_) => endpoint::of_node(&configuration, &ApiEndpoint::default()),
            None => kubeconfig.current()?.cluster.clone(),
        };
        // A Pod has the CA in its service account volume.
        let api = Cluster { certificate_authority_data: String::new(), ..api };
        Ok(Self { client, configuration, api })
    }
}
