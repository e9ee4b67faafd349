//! The Pod network as an add-on: prints the objects that an administrator applies to a cluster of `init`.

use std::path::PathBuf;

use bootstrap_core::addons::network::{self, RoutingMode};

use crate::{addon::AddonTarget, error::Error};

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
    let target = AddonTarget::read(&args.kubeconfig).await?;
    if target.configuration.networking.pod_subnet.is_empty() {
        return Err(Error::NoPodRange);
    }
    let mode = if args.tunnel { RoutingMode::Tunnel } else { RoutingMode::Shortest };
    let objects = network::objects(&target.configuration, target.api, mode)?;
    print!("{}", api_config::yaml::to_string_all(&objects)?);
    Ok(())
}
