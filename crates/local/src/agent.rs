//! A node's process: kubelet, service proxy, and the Pod network's configuration.

use std::sync::Arc;

use client::{Client, Informer, ListOptions, Resource};
use serde::Deserialize;
use telemetry::Recorder;
use tokio::sync::watch;

use crate::{Cluster, Error};

/// Runs until shutdown.
pub async fn run(cluster: Cluster, tasks: &rt::Tasks) -> Result<(), Error> {
    let recorder = Recorder::new(&cluster.root, "agent");
    let layout = cluster.layout();
    let kubeconfig = layout.kubeconfig("kubelet.conf");
    let client = Client::from_kubeconfig_file(&kubeconfig, "kubelet/v1.36.2 (windlass)")?;
    follow_pod_cidr(&cluster, &client, tasks, recorder.clone());
    start_proxy(&cluster, tasks)?;
    tasks.spawn_until_shutdown("supervisor's watch", crate::supervisor::mind(cluster.clone()));
    let args = kubelet::Args {
        config: Some(layout.kubelet_config()),
        kubeconfig: Some(layout.kubeconfig("kubelet.conf")),
        hostname_override: Some(cluster.settings.node_name.clone()),
        node_ip: vec![cluster.settings.address.to_string()],
        root_dir: layout.kubelet.clone(),
        ..kubelet::Args::default()
    };
    let config = kubelet::Config::from_args(&args)?;
    let step = recorder.begin("start the kubelet");
    step.done();
    kubelet::run(config, Some(client), tasks).await?;
    Ok(())
}

fn start_proxy(cluster: &Cluster, tasks: &rt::Tasks) -> Result<(), Error> {
    let layout = cluster.layout();
    let kubeconfig = layout.kubeconfig("kube-proxy.conf");
    let client = Client::from_kubeconfig_file(&kubeconfig, "kube-proxy/v1.36.2 (windlass)")?;
    let mut config = api_config::KubeProxyConfiguration::new();
    config.cluster_cidr.clone_from(&cluster.settings.pod_cidr);
    config.hostname_override.clone_from(&cluster.settings.node_name);
    let (settings, warnings) = proxy::Settings::new(&config, &cluster.settings.node_name)
        .map_err(|e| Error::Other(e.to_string()))?;
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let net = netlink::Kernel::open().map_err(|e| Error::Other(e.to_string()))?;
    let running = tasks.clone();
    tasks.essential("kube-proxy", async move {
        if let Err(error) = proxy::run(settings, client, Arc::new(net), &running).await {
            tracing::error!(%error, "the service proxy ended");
        }
    });
    Ok(())
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
    tasks.spawn_until_shutdown("Pod network", async move {
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
