//! Components run alone, as their upstream peers are: flags and files in, a client, and the component's own crate.

use std::{path::Path, sync::Arc};

use client::{Client, Kubeconfig};

use crate::Failure;

fn client(kubeconfig: &Path, agent: &str) -> Result<Client, Failure> {
    Ok(Client::from_kubeconfig(&Kubeconfig::load(kubeconfig)?, agent)?)
}

pub(crate) async fn coredns(args: dns::Args, tasks: rt::Tasks) -> Result<(), Failure> {
    let options =
        dns::Options { corefile: args.conf, port: args.port, kubeconfig: args.kubeconfig };
    Ok(dns::run(options, None, &tasks).await?)
}

pub(crate) async fn kubelet(args: kubelet::Args, tasks: rt::Tasks) -> Result<(), Failure> {
    let client = match &args.kubeconfig {
        Some(path) => Some(client(path, "kubelet/v1.36.2 (windlass)")?),
        None => None,
    };
    Ok(kubelet::run(kubelet::Config::from_args(&args)?, client, &tasks).await?)
}

pub(crate) async fn kube_proxy(args: proxy::Args, tasks: rt::Tasks) -> Result<(), Failure> {
    let (config, mut warnings) = args.configuration()?;
    let host = nix::unistd::gethostname()?.to_string_lossy().to_lowercase();
    let (settings, more) = proxy::Settings::new(&config, &host)?;
    warnings.extend(more);
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let client =
        client(Path::new(&config.client_connection.kubeconfig), "kube-proxy/v1.36.2 (windlass)")?;
    Ok(proxy::run(settings, client, Arc::new(netlink::Kernel::open()?), &tasks).await?)
}

pub(crate) async fn kube_scheduler(args: scheduler::Args, tasks: rt::Tasks) -> Result<(), Failure> {
    let config = args.config()?;
    let kubeconfig = config
        .kubeconfig
        .clone()
        .ok_or("--kubeconfig, or clientConnection.kubeconfig in --config, is required")?;
    let client = client(&kubeconfig, "kube-scheduler/v1.36.2 (windlass)")?;
    scheduler::run(config, client, &tasks).await;
    Ok(())
}
