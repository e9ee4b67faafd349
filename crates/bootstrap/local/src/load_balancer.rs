//! The announcements of LoadBalancer Services' addresses. They run in the agents of `up`, and as Pods on nodes of
//! `init`.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use api_config::kubeadm::ClusterConfiguration;
use bootstrap_core::addons::load_balancer::{self, NAMESPACE, RECORD};
use client::{Client, ListOptions, Resource};
use net_core::{Cidr, api::Node};
use netlink::Kernel;

use crate::{
    addon::AddonTarget,
    cluster::ranges,
    config::{HostNetwork, LoadBalancer},
    error::Error,
};

/// The addresses of LoadBalancer Services of a cluster of `init`
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Command {
    Print(PrintArgs),
    Run(RunArgs),
}

/// Prints the objects of the Pods that announce addresses, for `kubectl apply -f -`
///
/// The ranges are those of the controller manager's flag --load-balancer-ranges in the cluster's configuration.
#[derive(Clone, Debug, clap::Args)]
pub struct PrintArgs {
    /// The kubeconfig of the cluster, whose API endpoint the Pods use, too
    #[arg(long, default_value = "/etc/kubernetes/admin.conf")]
    pub kubeconfig: PathBuf,
}

/// Announces addresses from this node, as the printed objects request
#[derive(Clone, Debug, clap::Args)]
pub struct RunArgs {
    /// The kubeconfig of the API server
    #[arg(long)]
    pub kubeconfig: PathBuf,
    /// This node's name
    #[arg(long)]
    pub node_name: String,
    /// The ranges of the addresses. Other addresses in a Service's status are not announced
    #[arg(long, required = true, value_delimiter = ',')]
    pub ranges: Vec<Cidr>,
}

const USER_AGENT: &str = "windlass-load-balancer";
/// The flag of the controller manager.
const FLAG: &str = "load-balancer-ranges";

/// Prints the objects for the ranges from which the controller manager allocates.
pub async fn print(args: PrintArgs) -> Result<(), Error> {
    let target = AddonTarget::read(&args.kubeconfig).await?;
    let configured = configured_ranges(&target.configuration)?;
    let nodes =
        target.client.list::<Node>(&Resource::NODES, "", &ListOptions::default()).await?.items;
    configured.check(&in_use(&target.configuration, &nodes)?)?;
    let objects = load_balancer::objects(&target.configuration, target.api, &configured.ranges)?;
    print!("{}", api_config::yaml::to_string_all(&objects)?);
    Ok(())
}

/// Returns the ranges in the flags of the controller manager.
fn configured_ranges(configuration: &ClusterConfiguration) -> Result<LoadBalancer, Error> {
    let args = &configuration.controller_manager.extra_args;
    // The last one of several equal flags wins.
    let ranges = args.iter().rfind(|arg| arg.name == FLAG).ok_or(Error::NoLoadBalancerRanges)?;
    Ok(LoadBalancer {
        disabled: false,
        ranges: ranges.value.split(',').map(str::to_owned).collect(),
    })
}

/// Returns the ranges and addresses that a load balancer range must not contain.
fn in_use(configuration: &ClusterConfiguration, nodes: &[Node]) -> Result<HostNetwork, Error> {
    let networking = &configuration.networking;
    let mut owned = Vec::new();
    for (list, owner) in
        [(&networking.pod_subnet, "Pods"), (&networking.service_subnet, "Services")]
    {
        if !list.is_empty() {
            owned.extend(ranges(list)?.into_iter().map(|range| (range, owner)));
        }
    }
    let addresses = nodes.iter().flat_map(Node::addresses);
    let addresses = addresses.map(|address| (address, "the address of a node")).collect();
    Ok(HostNetwork { ranges: owned, addresses })
}

/// Announces the addresses that this node holds, until shutdown.
pub async fn run(args: RunArgs, tasks: &rt::Tasks) -> Result<(), Error> {
    let client = Client::from_kubeconfig_file(&args.kubeconfig, USER_AGENT)?;
    let record = Path::new(RECORD).join("ranges");
    let text: Vec<_> = args.ranges.iter().map(Cidr::to_string).collect();
    std::fs::write(&record, text.join(",")).map_err(Error::file("writing", &record))?;
    let settings = vip::SpeakerSettings {
        node: args.node_name,
        ranges: args.ranges,
        namespace: NAMESPACE.to_owned(),
        // An address in no network of a node needs routes, which may lead to any node.
        beside: None,
    };
    vip::announce(settings, client, Arc::new(Kernel::open()?), tasks).await;
    Ok(())
}

/// Removes the addresses that a killed Pod of the add-on has left on this node, and its record.
pub fn remove() -> Result<(), Error> {
    let record = Path::new(RECORD).join("ranges");
    let Ok(text) = std::fs::read_to_string(&record) else { return Ok(()) };
    vip::remove(&Kernel::open()?, &ranges(&text)?)?;
    std::fs::remove_dir_all(RECORD).map_err(Error::file("removing", RECORD))
}

/// Starts the announcements of an agent's node.
pub(crate) fn start(
    settings: vip::SpeakerSettings,
    kubeconfig: &Path,
    tasks: &rt::Tasks,
) -> Result<(), Error> {
    let client = Client::from_kubeconfig_file(kubeconfig, USER_AGENT)?;
    let net = Arc::new(Kernel::open()?);
    let running = tasks.clone();
    tasks.essential("load balancer addresses", async move {
        vip::announce(settings, client, net, &running).await;
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use api_config::kubeadm::Arg;
    use serde_json::json;

    use super::*;

    fn check(flags: &[(&str, &str)]) -> String {
        let mut configuration = ClusterConfiguration::default();
        configuration.networking.pod_subnet = "10.244.0.0/16,fd00:10:244::/56".to_owned();
        configuration.networking.service_subnet = "10.96.0.0/12".to_owned();
        configuration.controller_manager.extra_args =
            flags.iter().map(|(name, value)| Arg::new(*name, *value)).collect();
        let node =
            json!({"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.3"}]}});
        let nodes = [serde_json::from_value(node).unwrap()];
        let checked = configured_ranges(&configuration).and_then(|ranges| {
            ranges.check(&in_use(&configuration, &nodes)?)?;
            Ok(ranges.ranges.join(" "))
        });
        checked.unwrap_or_else(|error| error.to_string())
    }

    #[test]
    fn prints_only_free_ranges_of_the_controller_manager() {
        let many = vec!["192.0.2.240/28"; 10_000].join(",");
        for (ranges, expected) in [
            ("192.0.2.240/28,2001:db8::/120", "192.0.2.240/28 2001:db8::/120"),
            ("10.244.7.0/24", "overlaps 10.244.0.0/16, the range of Pods"),
            ("fd00:10:244::/64", "the range of Pods"),
            ("10.100.0.0/24", "the range of Services"),
            ("192.0.2.0/28", "contains 192.0.2.3, the address of a node"),
            ("127.0.0.0/8", "unicast"),
            ("$(rm -rf /)", "not a CIDR"),
            ("", "not a CIDR"),
            (&many, "overlaps 192.0.2.240/28, another load balancer range"),
        ] {
            let seen = check(&[("load-balancer-ranges", ranges)]);
            assert!(seen.contains(expected), "{ranges}: {seen}");
        }
        assert!(check(&[("controllers", "*")]).contains("has no load balancer ranges"));
        let twice =
            [("load-balancer-ranges", "nonsense"), ("load-balancer-ranges", "192.0.2.240/28")];
        assert_eq!(check(&twice), "192.0.2.240/28");
    }
}
