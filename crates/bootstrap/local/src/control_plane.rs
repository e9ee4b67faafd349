//! The control plane process: API server, controllers and scheduler around one embedded store.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use api_meta::UserInfo;
use apiserver::{ApiServer, FeatureGates, TokenKeys};
use bootstrap_core::constants;
use client::Client;
use diagnostics::component_metrics;
use encryption::Encryption;
use telemetry::{Recorder, metrics::Metrics};

use crate::{cluster::Cluster, configure, error::Error};

/// Runs the control plane until shutdown.
pub async fn run(cluster: Cluster, tasks: &rt::Tasks) -> Result<(), Error> {
    let recorder = Recorder::new(&cluster.root, "control-plane");
    let directory = cluster.store();
    std::fs::create_dir_all(&directory).map_err(Error::file("creating", &directory))?;
    let mut step = recorder.begin("open the store");
    step.read(&directory);
    let opened = tokio::task::spawn_blocking(move || {
        store::embedded::Embedded::open(&directory, store::embedded::Options::default())
    });
    let store =
        opened.await.map_err(|source| Error::Task { operation: "opening the store", source })??;
    step.done();
    let mut step = recorder.begin("start the API server");
    let flags = configure::api_server(&cluster)?;
    flags.ignored.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
    let mut config = flags.config()?;
    let keys = [&config.tls_certificate, &config.tls_key];
    let token_keys: Vec<_> = match &config.token_keys {
        TokenKeys::Files { signing, verifying } => {
            std::iter::once(signing).chain(verifying).collect()
        }
        TokenKeys::External(_) => Vec::new(),
    };
    let client_certificate = config.kubelet_client.iter().map(|(certificate, _)| certificate);
    let certificates = config.client_ca.iter().chain(client_certificate).chain(token_keys);
    keys.into_iter().chain(certificates).for_each(|file| {
        step.read(file);
    });
    let encryption = load_encryption(&flags, tasks).await?;
    config.encryption = Some(encryption.clone());
    let store = apiserver::encrypted(Arc::new(store), encryption);
    if let Some((every, keep)) = cluster.settings.snapshots {
        let every = Duration::from_secs(every.max(1));
        let schedule = store::Schedule { directory: cluster.root.join("snapshots"), every, keep };
        let saved = store.clone();
        tasks.keep("snapshots", move || {
            schedule.clone().follow(saved.clone(), apiserver::KEYSPACE, Arc::new(rt::SystemClock))
        });
    }
    let api = apiserver::start(config, store, tasks).await?;
    step.done();
    start_controllers(&cluster, &api, tasks).await?;
    let watched = cluster.clone();
    tasks.keep("supervisor's watch", move || crate::supervisor::watch_supervisor(watched.clone()));
    start_scheduler(&cluster, &api, tasks).await?;
    tasks.shutdown().stopping().await;
    api.wind_down().await;
    Ok(())
}

/// Loads the configuration of encryption at rest. Without one, encrypted values are not read as objects.
pub async fn load_encryption(
    flags: &apiserver::flags::Args,
    tasks: &rt::Tasks,
) -> Result<Arc<Encryption>, Error> {
    let Some(path) = flags.encryption_provider_config.clone() else {
        return Ok(Arc::new(Encryption::none()));
    };
    let reload = flags.encryption_provider_config_automatic_reload;
    let clock = Arc::new(rt::SystemClock);
    let loaded = Encryption::load(path.clone(), reload, tasks.clone(), clock).await?;
    let encryption = Arc::new(loaded);
    if reload {
        let followed = encryption.clone();
        tasks.keep("encryption configuration", move || {
            followed.clone().follow(path.clone(), encryption::POLL)
        });
    }
    Ok(encryption)
}

fn user(name: &str) -> UserInfo {
    UserInfo::new(name, &["system:authenticated"])
}

/// Returns the settings of a component's pages, which are served on loopback only. The component's own identity reviews
/// their clients.
fn pages(
    cluster: &Cluster,
    component: &'static str,
    port: u16,
    reviewer: &Client,
    metrics: &Metrics,
) -> diagnostics::Settings {
    let loopback = match cluster.settings.address {
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    diagnostics::Settings {
        component,
        address: SocketAddr::new(loopback, port),
        identity: None,
        tls: diagnostics::TlsPolicy::default(),
        client_ca: Some(cluster.layout().certificates.join("ca.crt")),
        authentication: Some(reviewer.clone()),
        authorization: Some(reviewer.clone()),
        metrics: metrics.clone(),
        features: FeatureGates::default(),
        page: None,
        configuration: serde_json::Value::Null,
    }
}

async fn start_scheduler(
    cluster: &Cluster,
    api: &ApiServer,
    tasks: &rt::Tasks,
) -> Result<(), Error> {
    let component = "kube-scheduler";
    // A long decision must not delay requests and controllers. The pages wait for it, too.
    let tasks = tasks.on_own_threads(component);
    let flags = configure::scheduler(cluster)?;
    let features = flags.features.gates()?;
    let config = scheduler::Config {
        metrics: component_metrics(&features),
        leader_election: false,
        ..flags.args.config(features.clone())?
    };
    let client = api.client(user("system:kube-scheduler"), component);
    let resources = config.resources.clone();
    let text = Arc::new(move || resources.text());
    let settings = diagnostics::Settings {
        page: Some(diagnostics::Page { path: "/metrics/resources", text }),
        configuration: config.configz(),
        features,
        ..pages(cluster, component, constants::SCHEDULER_PORT, &client, &config.metrics)
    };
    diagnostics::serve(settings, &tasks).await?;
    let scheduling = tasks.clone();
    tasks.essential(component, async move {
        // There is no leader election here, so no lease can be lost.
        let _ended = scheduler::run(config, client, &scheduling).await;
    });
    Ok(())
}

/// Starts the controllers. Each writes under its own service account; shared informers use the controller manager's
/// identity.
async fn start_controllers(
    cluster: &Cluster,
    api: &ApiServer,
    tasks: &rt::Tasks,
) -> Result<(), Error> {
    let component = "kube-controller-manager";
    // A long plan of a controller must not delay requests.
    let tasks = tasks.on_own_threads(component);
    let flags = configure::controller_manager(cluster)?;
    flags.ignored.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
    let features = flags.features.gates()?;
    let config = controllers::Config {
        leader_election: false,
        metrics: component_metrics(&features),
        ..flags.config()?
    };
    let reviewer = api.client(user(controllers::SHARED_IDENTITY), component);
    let port = constants::CONTROLLER_MANAGER_PORT;
    let settings = diagnostics::Settings {
        configuration: config.configz(),
        features,
        ..pages(cluster, component, port, &reviewer, &config.metrics)
    };
    diagnostics::serve(settings, &tasks).await?;
    let api = api.clone();
    let clients = move |name: &str| {
        let identity = match name {
            controllers::SHARED_IDENTITY => user(name),
            account => UserInfo::service_account("kube-system", account),
        };
        api.client(identity, &format!("kube-controller-manager/{name}"))
    };
    let running = tasks.clone();
    tasks.essential(component, async move {
        // There is no leader election here, so no lease can be lost.
        let _ended = controllers::run(config, clients, &running).await;
    });
    Ok(())
}
