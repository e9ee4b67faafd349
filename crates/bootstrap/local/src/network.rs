//! A node's Pod network: the CNI plugin's configuration, routes to other nodes' Pods, and NetworkPolicies. It runs in
//! the agents of `up`, and as a Pod on nodes of `init`.

mod manifest;

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bootstrap_core::Layout;
use client::{Client, Informer, ListOptions, Resource};
use net_core::{Cidr, api::Node};
use podnet::Overlay;
use telemetry::Recorder;
use tokio::sync::watch;

use crate::{
    cluster::{Cluster, ranges},
    error::Error,
};
pub use manifest::print;

/// The Pod network of a cluster of `init`
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Command {
    Print(manifest::Args),
    Run(Args),
}

/// The kubeconfig with the identity of the agent's Pod network.
pub(crate) const KUBECONFIG: &str = "network.conf";

/// Runs the Pod network of this node, as the printed objects request
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The kubeconfig of the API server
    #[arg(long)]
    pub kubeconfig: PathBuf,
    /// This node's name
    #[arg(long)]
    pub node_name: String,
    /// The ranges of all Pods; traffic between them keeps its addresses
    #[arg(long, value_delimiter = ',')]
    pub cluster_cidr: Vec<Cidr>,
    /// Tunnel packets between Pods of different nodes even where a plain route would do
    #[arg(long)]
    pub tunnel: bool,
    /// The directory where the host's files are mounted
    #[arg(long, default_value = "/")]
    pub host_root: PathBuf,
}

/// The CNI plugin's settings, and where to install it.
#[derive(Clone)]
struct Network {
    /// The plugin's settings without the ranges and the MTU, which come from the Node.
    plugin: cni::Network,
    conf_dir: PathBuf,
    bin_dir: PathBuf,
    binary: PathBuf,
    /// `true` in a Pod: the runtime needs a copy of the binary, and another network may be in charge.
    guest: bool,
    /// `true` if packets of Pods may need a tunnel.
    may_tunnel: bool,
}

/// Starts the tasks of the Pod network. `client` has the node's identity.
pub(crate) fn start(
    cluster: &Cluster,
    client: &Client,
    tasks: &rt::Tasks,
    recorder: &Recorder,
) -> Result<(), Error> {
    let settings = &cluster.settings;
    let network = Network {
        plugin: cni::Network {
            name: cluster.name.clone(),
            bridge: cluster.bridge(),
            subnets: Vec::new(),
            cluster_cidrs: ranges(&settings.pod_cidr)?,
            mtu: 0,
            data_dir: cluster.cni_data(),
        },
        conf_dir: cluster.cni_conf(),
        bin_dir: cluster.cni_bin(),
        binary: cluster.binary(),
        guest: false,
        // Nodes have addresses of one family on the link, so the other family needs a tunnel.
        may_tunnel: settings.tunnel || settings.pod_cidr.contains(','),
    };
    follow_node(network, &settings.node_name, client, tasks, recorder.clone());
    let kubeconfig = Layout::under(cluster.home()).kubeconfig(KUBECONFIG);
    let client = Client::from_kubeconfig_file(&kubeconfig, USER_AGENT)?;
    let settings = podnet::Settings {
        node: settings.node_name.clone(),
        overlay: Overlay { device: tunnel(cluster), mtu: 0 },
        always_tunnel: settings.tunnel,
    };
    let net = netlink::Kernel::open()?;
    let running = tasks.clone();
    tasks.essential("Pod network", async move {
        podnet::run(settings, client, Arc::new(net), &running).await;
    });
    Ok(())
}

/// The interval between searches for a foreign network configuration.
const LOOK: Duration = Duration::from_secs(5);
const USER_AGENT: &str = "windlass-network";

/// Runs only the Pod network, until shutdown.
pub async fn run(args: Args, tasks: &rt::Tasks) -> Result<(), Error> {
    let own = std::env::current_exe().map_err(Error::file("finding", "/proc/self/exe"))?;
    let network = Network {
        plugin: cni::Network {
            name: "windlass".to_owned(),
            bridge: "wl0".to_owned(),
            subnets: Vec::new(),
            cluster_cidrs: args.cluster_cidr,
            mtu: 0,
            data_dir: "/var/lib/cni".into(),
        },
        conf_dir: args.host_root.join("etc/cni/net.d"),
        bin_dir: args.host_root.join("opt/cni/bin"),
        binary: own,
        guest: true,
        may_tunnel: true,
    };
    // Own routes and rules would conflict with another network's.
    if tasks.shutdown().unless_stopping(until_alone(&network.conf_dir)).await.is_none() {
        return Ok(());
    }
    let client = Client::from_kubeconfig_file(&args.kubeconfig, USER_AGENT)?;
    follow_node(network, &args.node_name, &client, tasks, Recorder::none());
    let settings = podnet::Settings {
        node: args.node_name,
        overlay: Overlay { device: podnet::ADDON_DEVICE.to_owned(), mtu: 0 },
        always_tunnel: args.tunnel,
    };
    podnet::run(settings, client, Arc::new(netlink::Kernel::open()?), tasks).await;
    Ok(())
}

/// Returns once no other network is configured on this node.
async fn until_alone(conf_dir: &Path) {
    let mut logged = None;
    while let Some(path) = cni::foreign_configuration(conf_dir) {
        if logged.as_ref() != Some(&path) {
            tracing::warn!(path = %path.display(), "another network is configured on this node; waiting until its \
                 configuration is removed");
            logged = Some(path);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Removes the Pod network's state in the kernel. The crate `cni` removes the plugin's.
pub(crate) fn remove(cluster: &Cluster) {
    let net = netlink::Kernel::open();
    if let Err(error) = net.and_then(|net| podnet::remove(&net, &tunnel(cluster))) {
        tracing::warn!(%error, "cannot remove the Pod network");
    }
}

/// Returns the name of the tunnel's interface.
fn tunnel(cluster: &Cluster) -> String {
    cluster.bridge().replacen("wl-", "wx-", 1)
}

/// The part of the Node that the plugin's configuration depends on.
#[derive(Clone, Default, PartialEq)]
struct NodeNetwork {
    ranges: Vec<Cidr>,
    address: Option<IpAddr>,
}

impl NodeNetwork {
    fn of(node: &Node) -> Self {
        let ranges = node.spec.pod_cidrs.iter().filter_map(|text| text.parse().ok()).collect();
        Self { ranges, address: node.addresses().first().copied() }
    }
}

/// Writes the CNI configuration once the Node has its Pod range, because Pods get no addresses before. containerd
/// reports the network as ready when it finds the file.
fn follow_node(
    network: Network,
    node: &str,
    client: &Client,
    tasks: &rt::Tasks,
    recorder: Recorder,
) {
    let (networks, mut changed) = watch::channel(NodeNetwork::default());
    let options = ListOptions::fields(&format!("metadata.name={node}"));
    let informer =
        Informer::<Node>::start(client, Resource::NODES, options, tasks, move |change| {
            if let Some(node) = change.new {
                let new = NodeNetwork::of(node);
                networks.send_if_modified(|current| {
                    let differs = *current != new && !new.ranges.is_empty();
                    if differs {
                        *current = new;
                    }
                    differs
                });
            }
        });
    let node = node.to_owned();
    tasks.spawn_until_shutdown("Pod range", async move {
        let _informer = informer;
        while changed.changed().await.is_ok() {
            let node_network = changed.borrow_and_update().clone();
            let mut step = recorder.begin(format!("set up the Pod network of {node}"));
            step.waited_for("the node's Pod range").written(network.conf_dir.clone());
            let installed =
                rt::catch_sync("Pod network", &node, || install(&network, node_network));
            match installed.map_err(Error::from).flatten() {
                Ok(()) => drop(step.done()),
                Err(error) => {
                    tracing::error!(%error, "cannot set up the Pod network");
                    step.failed(error);
                }
            }
        }
    });
}

fn install(network: &Network, node_network: NodeNetwork) -> Result<(), Error> {
    if network.guest
        && let Some(path) = cni::foreign_configuration(&network.conf_dir)
    {
        tracing::warn!(path = %path.display(), "another network is configured on this node and connects its Pods");
        return Ok(());
    }
    let mtu = match node_network.address {
        Some(address) => podnet::mtu(&netlink::Kernel::open()?, address, network.may_tunnel)?,
        None => 0,
    };
    let plugin = cni::Network { subnets: node_network.ranges, mtu, ..network.plugin.clone() };
    let file = if network.guest { cni::PluginFile::Copy } else { cni::PluginFile::Link };
    cni::install(&network.conf_dir, &network.bin_dir, &network.binary, file, &plugin)?;
    Ok(())
}
