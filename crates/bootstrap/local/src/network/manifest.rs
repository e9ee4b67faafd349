//! The Pod network as an add-on: prints the objects that an administrator applies to a cluster of `init`.

use std::path::PathBuf;

use api_config::{Kubeconfig, kubeadm::ApiEndpoint, kubeconfig::Cluster};
use bootstrap_core::{
    addons::network::{self, RoutingMode},
    endpoint, objects,
};
use client::{Client, Resource};
use serde_json::Value;

use crate::error::Error;

/// Prints the Pod network's objects for `kubectl apply -f -`
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The kubeconfig of the cluster, whose API endpoint the Pods use, too
    #[arg(long, default_value = "/etc/kubernetes/admin.conf")]
    pub kubeconfig: PathBuf,
    /// Tunnel packets between Pods of different nodes even where a plain route would do
    #[arg(long)]
    pub tunnel: bool,
}

/// Prints the objects, which depend on the configuration that `init` stored in the cluster.
pub async fn print(args: Args) -> Result<(), Error> {
    let kubeconfig = Kubeconfig::load(&args.kubeconfig)?;
    let client = Client::from_kubeconfig_file(&args.kubeconfig, "windlass")?;
    let config_map: Value =
        client.get(&Resource::CONFIG_MAPS, "kube-system", "kubeadm-config").await?;
    let cluster = objects::read_kubeadm_config(&config_map)?;
    if cluster.networking.pod_subnet.is_empty() {
        return Err(Error::NoPodRange);
    }
    let api = match cluster.node_balancer {
        Some(_) => endpoint::of_node(&cluster, &ApiEndpoint::default()),
        None => kubeconfig.current()?.cluster.clone(),
    };
    // A Pod has the CA in its service account volume.
    let api = Cluster { certificate_authority_data: String::new(), ..api };
    let mode = if args.tunnel { RoutingMode::Tunnel } else { RoutingMode::Shortest };
    let objects = network::objects(&cluster, api, mode)?;
    print!("{}", api_config::yaml::to_string_all(&objects)?);
    Ok(())
}
