//! A node's Pod network: the CNI plugin's configuration, ways to other nodes' Pods, and NetworkPolicies. It runs in
//! the agent of `up`'s nodes, and alone, in a Pod, on nodes of `init`'s clusters.

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

use crate::{Cluster, Error, cluster::ranges};
pub use manifest::print;

/// The Pod network of a cluster of `init`
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Command {
    Print(manifest::Args),
    Run(Args),
}

/// What the agent's Pod network is known to the API server by.
pub(crate) const KUBECONFIG: &str = "network.conf";

/// Runs the Pod network of this node, as the printed objects ask for
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// How to reach the API server
    #[arg(long)]
    pub kubeconfig: PathBuf,
    /// This node's name
    #[arg(long)]
    pub node_name: String,
    /// The ranges of all Pods, between which addresses are kept
    #[arg(long, value_delimiter = ',')]
    pub cluster_cidr: Vec<Cidr>,
    /// Tunnel packets between Pods of different nodes even where a plain route would do
    #[arg(long)]
    pub tunnel: bool,
    /// Where the host's files are seen
    #[arg(long, default_value = "/")]
    pub host_root: PathBuf,
}

/// Where the plugin goes, and what it is told.
#[derive(Clone)]
struct Network {
    /// All but the ranges and the size of packets, which follow from the Node.
    plugin: cni::Network,
    conf_dir: PathBuf,
    bin_dir: PathBuf,
    binary: PathBuf,
    /// Whether the runtime sees the binary only in a copy, and the network may be another's.
    guest: bool,
    /// Whether Pods' packets may have to go through a tunnel.
    may_tunnel: bool,
}

/// Starts what keeps the Pod network up. `client` is the node's own.
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
        // Nodes have addresses of one family among themselves, and the other goes through a tunnel.
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
    let net = kernel()?;
    let running = tasks.clone();
    tasks.essential("Pod network", async move {
        podnet::run(settings, client, Arc::new(net), &running).await;
    });
    Ok(())
}

/// How often it is looked whether a node is left to another network still.
const LOOK: Duration = Duration::from_secs(5);
const USER_AGENT: &str = "windlass-network";

fn kernel() -> Result<netlink::Kernel, Error> {
    netlink::Kernel::open().map_err(|e| Error::Other(e.to_string()))
}

/// The Pod network alone, until shutdown.
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
    // Routes and rules of ours would be in the way of another network's.
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
    podnet::run(settings, client, Arc::new(kernel()?), tasks).await;
    Ok(())
}

/// Returns once no other network is configured on this node.
async fn until_alone(conf_dir: &Path) {
    let mut told = None;
    while let Some(path) = cni::foreign_configuration(conf_dir) {
        if told.as_ref() != Some(&path) {
            tracing::warn!(path = %path.display(), "another network is configured here; this node is left to it for as long");
            told = Some(path);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Takes away what the Pod network left in the kernel; the plugin's own is `cni`'s.
pub(crate) fn remove(cluster: &Cluster) {
    let net = netlink::Kernel::open();
    if let Err(error) = net.and_then(|net| podnet::remove(&net, &tunnel(cluster))) {
        tracing::warn!(%error, "removing the Pod network");
    }
}

/// The tunnel's interface.
fn tunnel(cluster: &Cluster) -> String {
    cluster.bridge().replacen("wl-", "wx-", 1)
}

/// What of its Node the plugin's configuration follows from.
#[derive(Clone, Default, PartialEq)]
struct Given {
    ranges: Vec<Cidr>,
    address: Option<IpAddr>,
}

impl Given {
    fn of(node: &Node) -> Self {
        let ranges = node.spec.pod_cidrs.iter().filter_map(|text| text.parse().ok()).collect();
        Self { ranges, address: node.addresses().first().copied() }
    }
}

/// Writes the Pod network's configuration once the node has its range: only then can Pods get addresses, and
/// containerd says that the network is ready when it finds the file.
fn follow_node(
    network: Network,
    node: &str,
    client: &Client,
    tasks: &rt::Tasks,
    recorder: Recorder,
) {
    let (given, mut changed) = watch::channel(Given::default());
    let options = ListOptions::fields(&format!("metadata.name={node}"));
    let informer =
        Informer::<Node>::start(client, Resource::NODES, options, tasks, move |change| {
            if let Some(node) = change.new {
                let new = Given::of(node);
                given.send_if_modified(|given| {
                    let differs = *given != new && !new.ranges.is_empty();
                    if differs {
                        *given = new;
                    }
                    differs
                });
            }
        });
    let node = node.to_owned();
    tasks.spawn_until_shutdown("Pod range", async move {
        let _informer = informer;
        while changed.changed().await.is_ok() {
            let given = changed.borrow_and_update().clone();
            let mut step = recorder.begin(format!("set up the Pod network of {node}"));
            step.waited_for("the node's Pod range").written(network.conf_dir.clone());
            let installed = rt::catch_sync("Pod network", &node, || install(&network, given));
            match installed.map_err(|panicked| Error::Other(panicked.to_string())).flatten() {
                Ok(()) => drop(step.done()),
                Err(error) => {
                    tracing::error!(%error, "setting up the Pod network");
                    step.failed(error);
                }
            }
        }
    });
}

fn install(network: &Network, given: Given) -> Result<(), Error> {
    if network.guest
        && let Some(path) = cni::foreign_configuration(&network.conf_dir)
    {
        tracing::warn!(path = %path.display(), "another network is configured here; the node's Pods are left to it");
        return Ok(());
    }
    let mtu = match given.address {
        Some(address) => podnet::mtu(&kernel()?, address, network.may_tunnel)
            .map_err(|e| Error::Other(e.to_string()))?,
        None => 0,
    };
    let plugin = cni::Network { subnets: given.ranges, mtu, ..network.plugin.clone() };
    let put = if network.guest { cni::install_copy } else { cni::install };
    put(&network.conf_dir, &network.bin_dir, &network.binary, &plugin)?;
    Ok(())
}
