//! The agent process of a node: kubelet, service proxy and Pod network.

use std::{path::PathBuf, sync::Arc};

use bootstrap_core::{Layout, addons};
use client::Client;
use telemetry::Recorder;

use crate::{cluster::Cluster, error::Error, load_balancer, metrics, network, paths};

/// Runs the agent until shutdown.
pub async fn run(cluster: Cluster, tasks: &rt::Tasks) -> Result<(), Error> {
    let recorder = Recorder::new(cluster.home(), "agent");
    let layout = cluster.layout();
    let args = kubelet::Args {
        config: Some(layout.kubelet_config()),
        kubeconfig: Some(layout.kubeconfig("kubelet.conf")),
        bootstrap_kubeconfig: Some(layout.kubeconfig("bootstrap-kubelet.conf")),
        hostname_override: Some(cluster.settings.node_name.clone()),
        node_ip: vec![cluster.settings.address.to_string()],
        root_dir: kubelet_directory(&cluster),
        // The kubeconfig names this directory, and is also read on the host.
        cert_dir: Some(layout.kubelet.join("pki")),
        ..kubelet::Args::default()
    };
    // A node that has just joined has only a bootstrap token, with which it requests its certificate.
    kubelet::enroll(&args, tasks).await?;
    if tasks.shutdown().is_stopping() {
        return Ok(());
    }
    let kubeconfig = layout.kubeconfig("kubelet.conf");
    let client = Client::from_kubeconfig_file(&kubeconfig, &version::user_agent("kubelet"))?;
    network::start(&cluster, &client, tasks, &recorder)?;
    start_proxy(&cluster, tasks)?;
    start_announcements(&cluster, tasks)?;
    if !cluster.is_member() {
        // The node can run Pods without the Metrics API.
        if let Err(error) = metrics::start(&cluster, tasks).await {
            tracing::error!(%error, "cannot serve the Metrics API");
        }
        let watched = cluster.clone();
        tasks.keep("supervisor's watch", move || {
            crate::supervisor::watch_supervisor(watched.clone())
        });
    }
    let mut step = recorder
        .begin(format!("read the configuration of {}'s kubelet", cluster.settings.node_name));
    args.config.iter().chain(&args.kubeconfig).for_each(|file| {
        step.read(file);
    });
    let config = kubelet::Config::from_args(&args)?;
    step.done();
    if cluster.is_member() {
        // The supervisor renews the first node's certificate.
        let renewing = client.clone();
        tasks.keep("kubelet client certificate", move || {
            kubelet::keep_enrolled(args.clone(), renewing.clone(), Arc::new(rt::SystemClock))
        });
    }
    kubelet::run(config, Some(client), tasks).await?;
    Ok(())
}

/// Returns the kubelet's directory as drivers of volumes see it. A holder of an earlier version has not mounted it.
fn kubelet_directory(node: &Cluster) -> PathBuf {
    if paths::are_mounted(node) { paths::KUBELET.into() } else { node.layout().kubelet }
}

/// Announces the addresses of LoadBalancer Services if they come from ranges.
fn start_announcements(cluster: &Cluster, tasks: &rt::Tasks) -> Result<(), Error> {
    let ranges = cluster.settings.config.load_balancer.cidrs()?;
    if ranges.is_empty() {
        return Ok(());
    }
    let settings = vip::SpeakerSettings {
        node: cluster.settings.node_name.clone(),
        ranges,
        reserved: Vec::new(),
        namespace: addons::load_balancer::NAMESPACE.to_owned(),
        // Only this host is connected to other networks than the link between the nodes.
        beside: (!cluster.is_member()).then_some(cluster.settings.address),
    };
    let kubeconfig = Layout::under(cluster.home()).kubeconfig(network::KUBECONFIG);
    load_balancer::start(settings, &kubeconfig, tasks)
}

/// Returns the ports of this host that lead to node ports.
fn published(cluster: &Cluster) -> Vec<net_core::plan::PublishedPort> {
    let publish = cluster.settings.config.publish.iter();
    publish
        .map(|published| net_core::plan::PublishedPort {
            protocol: published.protocol,
            port: published.port,
            node_port: published.node_port,
        })
        .collect()
}

fn start_proxy(cluster: &Cluster, tasks: &rt::Tasks) -> Result<(), Error> {
    let kubeconfig = Layout::under(cluster.home()).kubeconfig("kube-proxy.conf");
    let client = Client::from_kubeconfig_file(&kubeconfig, &version::user_agent("kube-proxy"))?;
    let mut config = api_config::KubeProxyConfiguration::new();
    config.client_connection.kubeconfig = kubeconfig.display().to_string();
    config.cluster_cidr.clone_from(&cluster.settings.pod_cidr);
    config.hostname_override.clone_from(&cluster.settings.node_name);
    let config = cluster.settings.config.kube_proxy_over(config)?;
    let (mut settings, warnings) = proxy::Settings::new(&config, &cluster.settings.node_name)?;
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    settings.cluster = cluster.bridge();
    if !cluster.is_member() {
        settings.published = published(cluster);
    }
    let net = netlink::Kernel::open()?;
    let running = tasks.clone();
    tasks.essential("kube-proxy", async move {
        if let Err(error) = proxy::run(settings, client, Arc::new(net), &running).await {
            tracing::error!(%error, "the service proxy ended");
        }
    });
    Ok(())
}
