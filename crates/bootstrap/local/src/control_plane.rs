//! The control plane process: API server, controllers and scheduler around one embedded store.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use api_meta::UserInfo;
use apiserver::{ApiServer, Config, FeatureGates, FrontProxy, ProxyClient, TokenKeys};
use bootstrap_core::constants;
use client::Client;
use diagnostics::component_metrics;
use encryption::Encryption;
use telemetry::{Recorder, metrics::Metrics};

use crate::{
    cluster::{self, Cluster, encryption_file},
    error::Error,
};

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
    let config = api_config(&cluster)?;
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
    let encryption = encryption(&cluster, tasks).await?;
    let config = Config { encryption: Some(encryption.clone()), ..config };
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

/// Loads the encryption at rest, and follows its file.
async fn encryption(cluster: &Cluster, tasks: &rt::Tasks) -> Result<Arc<Encryption>, Error> {
    let path = encryption_file(&cluster.root);
    if !path.exists() {
        return Ok(Arc::new(Encryption::none()));
    }
    let clock = Arc::new(rt::SystemClock);
    let loaded = Arc::new(Encryption::load(path.clone(), true, tasks.clone(), clock).await?);
    let followed = loaded.clone();
    tasks.keep("encryption configuration", move || {
        followed.clone().follow(path.clone(), encryption::POLL)
    });
    Ok(loaded)
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
    let config = scheduler::Config {
        metrics: component_metrics(&FeatureGates::default()),
        ..scheduler::Config::default()
    };
    let client = api.client(user("system:kube-scheduler"), component);
    let resources = config.resources.clone();
    let text = Arc::new(move || resources.text());
    let settings = diagnostics::Settings {
        page: Some(diagnostics::Page { path: "/metrics/resources", text }),
        configuration: config.configz(),
        ..pages(cluster, component, constants::SCHEDULER_PORT, &client, &config.metrics)
    };
    diagnostics::serve(settings, tasks).await?;
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
    let pki = cluster.layout().certificates;
    let read = |name: &str| {
        let path = pki.join(name);
        std::fs::read_to_string(&path).map_err(Error::file("reading", path))
    };
    let ca = read("ca.crt")?;
    // The last two serve nodes that join.
    let enabled = ["*", "bootstrap-signer-controller", "token-cleaner-controller"];
    let config = controllers::Config {
        controllers: enabled.map(str::to_owned).into(),
        cluster_name: cluster.name.clone(),
        cluster_cidrs: split_ranges(&cluster.settings.pod_cidr),
        service_cidrs: split_ranges(&cluster.settings.service_cidr),
        allocate_node_cidrs: true,
        root_ca: Some(ca.clone()),
        signing: Some((ca, read("ca.key")?)),
        metrics: component_metrics(&FeatureGates::default()),
        ..controllers::Config::default()
    };
    let reviewer = api.client(user(controllers::SHARED_IDENTITY), component);
    let port = constants::CONTROLLER_MANAGER_PORT;
    let settings = diagnostics::Settings {
        configuration: config.configz(),
        ..pages(cluster, component, port, &reviewer, &config.metrics)
    };
    diagnostics::serve(settings, tasks).await?;
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

fn split_ranges(ranges: &str) -> Vec<String> {
    ranges.split(',').map(str::to_owned).collect()
}

fn api_config(cluster: &Cluster) -> Result<Config, Error> {
    let settings = &cluster.settings;
    let pki = cluster.layout().certificates;
    let file = |name: &str| pki.join(name);
    let headers = |name: &str| vec![name.to_owned()];
    let any = match settings.address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    Ok(Config {
        bind: SocketAddr::new(any, settings.api_port),
        advertise: settings.address,
        shares_store: false,
        service_cidrs: cluster::ranges(&settings.service_cidr)?,
        node_ports: (30_000, 32_767),
        allow_privileged: true,
        event_ttl: Duration::from_secs(3600),
        compaction_interval: Duration::from_secs(300),
        tls_certificate: file("apiserver.crt"),
        tls_key: file("apiserver.key"),
        self_signed: false,
        client_ca: Some(file("ca.crt")),
        token_keys: TokenKeys::Files { signing: file("sa.key"), verifying: vec![file("sa.pub")] },
        service_account_issuers: vec![format!(
            "https://kubernetes.default.svc.{}",
            settings.dns_domain
        )],
        encryption: None,
        audit: apiserver::AuditOptions::default(),
        token_auth_file: None,
        extend_token_expiration: true,
        jwks_uri: None,
        max_token_expiration: None,
        egress: apiserver::Egress::default(),
        serving: apiserver::ServingOptions::default(),
        features: FeatureGates::default(),
        runtime_config: apiserver::flags::RuntimeConfig::default(),
        api_audiences: Vec::new(),
        kubelet_client: Some((
            file("apiserver-kubelet-client.crt"),
            file("apiserver-kubelet-client.key"),
        )),
        kubelet_ca: Some(file("ca.crt")),
        front_proxy: Some(FrontProxy {
            ca: file("front-proxy-ca.crt"),
            allowed_names: vec!["front-proxy-client".to_owned()],
            username_headers: headers("X-Remote-User"),
            uid_headers: headers("X-Remote-Uid"),
            group_headers: headers("X-Remote-Group"),
            extra_prefixes: headers("X-Remote-Extra-"),
        }),
        proxy_client: Some(ProxyClient {
            certificate: file("front-proxy-client.crt"),
            key: file("front-proxy-client.key"),
        }),
        authentication: apiserver::AuthenticationOptions::default(),
        authorization: apiserver::AuthorizationOptions::default(),
        anonymous: true,
        bootstrap_tokens: true,
        enable_admission: cluster::ADMISSION_PLUGINS.map(str::to_owned).into(),
        disable_admission: Vec::new(),
        admission_file: None,
        seats: Config::SEATS,
        request_timeout: Config::REQUEST_TIMEOUT,
        processor_time: Config::PROCESSOR_TIME,
        tracing: None,
    })
}
