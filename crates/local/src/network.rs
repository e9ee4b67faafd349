//! A node's Pod network: the CNI plugin's configuration, ways to other nodes' Pods, and NetworkPolicies.

use std::sync::Arc;

use client::{Client, Informer, ListOptions, Resource};
use podnet::Overlay;
use serde::Deserialize;
use telemetry::Recorder;
use tokio::sync::watch;

use crate::{Cluster, Error};

/// What the agent's Pod network is known to the API server by.
pub(crate) const KUBECONFIG: &str = "network.conf";

/// Starts what keeps the Pod network up. `client` is the node's own.
pub(crate) fn start(
    cluster: &Cluster,
    client: &Client,
    tasks: &rt::Tasks,
    recorder: &Recorder,
) -> Result<(), Error> {
    follow_pod_cidr(cluster, client, tasks, recorder.clone());
    let kubeconfig = cluster.layout().kubeconfig(KUBECONFIG);
    let client = Client::from_kubeconfig_file(&kubeconfig, "windlass-network")?;
    let net = netlink::Kernel::open().map_err(|e| Error::Other(e.to_string()))?;
    let settings = podnet::Settings {
        node: cluster.settings.node_name.clone(),
        overlay: Overlay { device: tunnel(cluster), mtu: 0 },
        always_tunnel: false,
    };
    let running = tasks.clone();
    tasks.essential("Pod network", async move {
        podnet::run(settings, client, Arc::new(net), &running).await;
    });
    Ok(())
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

#[derive(Deserialize)]
struct Node {
    #[serde(default)]
    spec: NodeSpec,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeSpec {
    #[serde(rename = "podCIDRs")]
    pod_cidrs: Vec<String>,
}

/// Writes the Pod network's configuration once the node has its range: only then can Pods get addresses, and
/// containerd says that the network is ready when it finds the file.
fn follow_pod_cidr(cluster: &Cluster, client: &Client, tasks: &rt::Tasks, recorder: Recorder) {
    let (ranges, mut changed) = watch::channel(Vec::<String>::new());
    let options = ListOptions::fields(&format!("metadata.name={}", cluster.settings.node_name));
    let informer =
        Informer::<Node>::start(client, Resource::NODES, options, tasks, move |change| {
            if let Some(node) = change.new {
                ranges.send_if_modified(|ranges| {
                    let differs = *ranges != node.spec.pod_cidrs;
                    ranges.clone_from(&node.spec.pod_cidrs);
                    differs
                });
            }
        });
    let cluster = cluster.clone();
    tasks.spawn_until_shutdown("Pod range", async move {
        let _informer = informer;
        while changed.changed().await.is_ok() {
            let ranges = changed.borrow_and_update().clone();
            let mut step = recorder.begin("set up the Pod network");
            step.waited_for("the node's Pod range").written(cluster.cni_conf());
            match install(&cluster, &ranges) {
                Ok(_) => drop(step.done()),
                Err(error) => {
                    tracing::error!(%error, "setting up the Pod network");
                    step.failed(error);
                }
            }
        }
    });
}

fn install(cluster: &Cluster, ranges: &[String]) -> Result<bool, Error> {
    let parse = |text: &String| {
        text.parse().map_err(|_| Error::Other(format!("the node's Pod range {text} is no CIDR")))
    };
    let network = cni::Network {
        name: cluster.name.clone(),
        bridge: cluster.bridge(),
        subnets: ranges.iter().map(parse).collect::<Result<_, _>>()?,
        cluster_cidrs: vec![parse(&cluster.settings.pod_cidr)?],
        mtu: 0,
        data_dir: cluster.cni_data(),
    };
    Ok(cni::install(&cluster.cni_conf(), &cluster.cni_bin(), &cluster.binary(), &network)?)
}
