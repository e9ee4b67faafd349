//! Runs single components like their upstream counterparts: reads flags and files, creates a client, and calls the
//! component's crate.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use api_config::{
    FeatureGateFlags, FeatureGates, Kubeconfig,
    known::{self, Flag, KnownFlags},
};
use apiserver::{StoreOverride, Stores, UpstreamForm, flags::EtcdOverride};
use client::Client;
use encryption::Encryption;
use store::{Store, embedded::Embedded};

use crate::{
    failure::Failure,
    process::{GRACE, drain},
    serving_flags,
};

fn client(kubeconfig: &Path, agent: &str) -> Result<Client, Failure> {
    Ok(Client::from_kubeconfig_file(kubeconfig, agent)?)
}

pub(crate) async fn coredns(args: dns::Args, tasks: rt::Tasks) -> Result<(), Failure> {
    let options =
        dns::Options { corefile: args.conf, port: args.port, kubeconfig: args.kubeconfig };
    Ok(dns::run(options, None, &tasks).await?)
}

pub(crate) async fn kubelet(args: kubelet::Args, tasks: rt::Tasks) -> Result<(), Failure> {
    kubelet::enroll(&args, &tasks).await?;
    if tasks.shutdown().is_stopping() {
        return Ok(());
    }
    let client = match &args.kubeconfig {
        Some(path) => Some(client(path, &version::user_agent("kubelet"))?),
        None => None,
    };
    let config = kubelet::Config::from_args(&args)?;
    if let Some(client) = client.clone().filter(|_| config.rotate_certificates) {
        tasks.keep("kubelet client certificate", move || {
            kubelet::keep_enrolled(args.clone(), client.clone(), Arc::new(rt::SystemClock))
        });
    }
    Ok(kubelet::run(config, client, &tasks).await?)
}

pub(crate) async fn kube_proxy(args: proxy::Args, tasks: rt::Tasks) -> Result<(), Failure> {
    if args.cleanup {
        proxy::unroute_localhost();
        return Ok(proxy::clean_up(&netlink::Kernel::open()?)?);
    }
    let (config, mut warnings) = args.configuration()?;
    let host = rt::node_name();
    let (settings, more) = proxy::Settings::new(&config, &host)?;
    warnings.extend(more);
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let client = client(
        Path::new(&config.client_connection.kubeconfig),
        &version::user_agent("kube-proxy"),
    )?;
    Ok(proxy::run(settings, client, Arc::new(netlink::Kernel::open()?), &tasks).await?)
}

/// Serves the Kubernetes API, with objects in etcd or in a directory.
pub(crate) async fn kube_apiserver(
    args: &apiserver::flags::Args,
    tasks: rt::Tasks,
) -> Result<(), Failure> {
    let mut config = args.config()?;
    apiserver::check(&config)?;
    log_features(&config.features);
    args.ignored.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
    // The server outlives the signal to stop by the shutdown delay.
    let serving = rt::Tasks::new(rt::Shutdown::new());
    let encryption = local::load_encryption(args, &serving).await?;
    config.encryption = Some(encryption.clone());
    let stores = open_stores(&args.storage, config.egress.etcd.clone(), encryption).await?;
    if let Some(schedule) = args.storage.schedule() {
        let saved = stores.main.clone();
        serving.keep("snapshots", move || {
            schedule.clone().follow(saved.clone(), apiserver::KEYSPACE, Arc::new(rt::SystemClock))
        });
    }
    let starting = apiserver::start(config, stores, &serving);
    let Some(started) = tasks.shutdown().unless_stopping(starting).await else {
        serving.drain(GRACE).await;
        return Ok(());
    };
    let api = started?;
    tokio::select! {
        () = tasks.shutdown().stopping() => api.wind_down().await,
        () = serving.shutdown().stopping() => {}
    }
    drain(&serving, GRACE).await
}

/// Opens the stores that the flags name. etcd may be shared with upstream's API servers; a directory is used by this
/// server alone.
async fn open_stores(
    storage: &apiserver::flags::Storage,
    proxy: Option<client::Proxy>,
    encryption: Arc<Encryption>,
) -> Result<Stores, Failure> {
    if let Some(directory) = storage.store_dir.clone() {
        std::fs::create_dir_all(&directory)
            .map_err(|error| format!("creating {}: {error}", directory.display()))?;
        let open = move || Embedded::open(&directory, store::embedded::Options::default());
        let store = Arc::new(tokio::task::spawn_blocking(open).await??);
        return Ok(apiserver::encrypted(store, encryption).into());
    }
    let identity = storage.etcd_certfile.clone().zip(storage.etcd_keyfile.clone());
    let tls = storage.etcd_cafile.clone().map(|ca| store_etcd::TlsFiles { ca, identity });
    let options = |servers| {
        let options = store_etcd::Options::new(servers, tls.clone());
        store_etcd::Options { proxy: proxy.clone(), ..options }
    };
    let main = open_etcd(options(storage.etcd_servers.clone()), &encryption).await?;
    let main = UpstreamForm::new(main);
    let mut overrides = Vec::new();
    for EtcdOverride { resources, servers } in storage.overrides()? {
        let etcd = open_etcd(options(servers), &encryption).await?;
        overrides.push(StoreOverride { resources, store: Arc::new(main.beside(etcd)) });
    }
    Ok(Stores { main: Arc::new(main), overrides })
}

/// Connects to an etcd. Without waiting, the server would exit while etcd has no quorum, and then be in the kubelet's
/// backoff when etcd is back.
async fn open_etcd(
    options: store_etcd::Options,
    encryption: &Arc<Encryption>,
) -> Result<Arc<dyn Store>, Failure> {
    let etcd = store_etcd::Etcd::connect_patiently(options).await?;
    Ok(apiserver::encrypted(Arc::new(etcd), encryption.clone()))
}

/// Runs the controllers of the control plane
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ControllerManager {
    #[command(flatten)]
    args: controllers::Args,
    #[command(flatten)]
    diagnostics: serving_flags::Args,
}

pub(crate) async fn kube_controller_manager(
    command: &ControllerManager,
    tasks: rt::Tasks,
) -> Result<(), Failure> {
    let args = &command.args;
    let mut config = args.config()?;
    let component = "kube-controller-manager";
    let features = config.features.clone();
    config.metrics = diagnostics::component_metrics(&features);
    log_features(&features);
    args.ignored.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
    let agent = &version::user_agent("kube-controller-manager");
    let accounts =
        controllers::ServiceAccounts::from_kubeconfig(&Kubeconfig::load(&args.kubeconfig)?, agent)?;
    let pages = diagnostics::Settings {
        component,
        address: SocketAddr::new(args.pages.bind_address, args.secure_port),
        identity: command.diagnostics.identity()?,
        tls: command.diagnostics.policy()?,
        client_ca: args.client_ca_file.clone(),
        authentication: optional_client(args.pages.authentication_kubeconfig.as_deref(), agent)?,
        authorization: optional_client(args.pages.authorization_kubeconfig.as_deref(), agent)?,
        metrics: config.metrics.clone(),
        features,
        page: None,
        configuration: config.configz(),
    };
    let running = rt::Tasks::new(tasks.shutdown().child());
    diagnostics::serve(pages, &running).await?;
    // This task renews the lease, so the controllers' computations must not delay it.
    let apart = running.on_own_threads(component);
    let ended = controllers::run(config, move |name| accounts.client(name), &apart).await;
    let drained = drain(&running, args.shutdown_timeout()).await;
    ended.map_err(Failure::from).and(drained)
}

/// Runs the scheduler, which assigns Pods to nodes
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Scheduler {
    #[command(flatten)]
    args: scheduler::Args,
    /// Verifies client certificates of requests for metrics
    #[arg(long)]
    client_ca_file: Option<PathBuf>,
    #[command(flatten)]
    diagnostics: serving_flags::Args,
    #[command(flatten)]
    features: FeatureGateFlags,
    #[command(flatten)]
    refused: KnownFlags<SchedulerRefusedFlags>,
    #[command(flatten)]
    ignored: KnownFlags<SchedulerIgnoredFlags>,
}

/// The table of scheduler flags that prevent the start.
#[derive(Clone, Debug, Default)]
pub(crate) struct SchedulerRefusedFlags;

impl known::Tables for SchedulerRefusedFlags {
    const TABLES: &'static [&'static [Flag]] =
        &[&[("write-config-to", true, "writing the configuration is not implemented")]];
}

/// The tables of scheduler flags that have no effect.
#[derive(Clone, Debug, Default)]
pub(crate) struct SchedulerIgnoredFlags;

impl known::Tables for SchedulerIgnoredFlags {
    const TABLES: &'static [&'static [Flag]] = &[
        &[
            (
                "pod-max-in-unschedulable-pods-duration",
                true,
                "Pods are retried when a relevant object changes",
            ),
            ("requestheader-client-ca-file", true, "front proxies are not trusted"),
        ],
        known::CLIENT,
        known::COMMON,
    ];
}

pub(crate) async fn kube_scheduler(command: &Scheduler, tasks: rt::Tasks) -> Result<(), Failure> {
    let args = &command.args;
    if let Some((flag, reason)) = command.refused.given().next() {
        return Err(format!("--{flag} is not supported: {reason}; start without it").into());
    }
    let features = command.features.gates()?;
    let mut config = args.config(features.clone())?;
    let component = "kube-scheduler";
    config.metrics = diagnostics::component_metrics(&features);
    log_features(&features);
    command.ignored.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
    let kubeconfig = config
        .kubeconfig
        .clone()
        .ok_or("--kubeconfig, or clientConnection.kubeconfig in --config, is required")?;
    let agent = &version::user_agent("kube-scheduler");
    let client = client(&kubeconfig, agent)?;
    let pages = diagnostics::Settings {
        component,
        address: SocketAddr::new(args.pages.bind_address, args.secure_port),
        identity: command.diagnostics.identity()?,
        tls: command.diagnostics.policy()?,
        client_ca: command.client_ca_file.clone(),
        authentication: optional_client(args.pages.authentication_kubeconfig.as_deref(), agent)?,
        authorization: optional_client(args.pages.authorization_kubeconfig.as_deref(), agent)?,
        metrics: config.metrics.clone(),
        features,
        page: Some(resource_page(&config)),
        configuration: config.configz(),
    };
    diagnostics::serve(pages, &tasks).await?;
    Ok(scheduler::run(config, client, &tasks).await?)
}

/// Logs upstream's warnings about feature gates.
fn log_features(features: &FeatureGates) {
    features.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
}

fn resource_page(config: &scheduler::Config) -> diagnostics::Page {
    let resources = config.resources.clone();
    diagnostics::Page { path: "/metrics/resources", text: Arc::new(move || resources.text()) }
}

fn optional_client(kubeconfig: Option<&Path>, agent: &str) -> Result<Option<Client>, Failure> {
    kubeconfig.map(|path| client(path, agent)).transpose()
}
