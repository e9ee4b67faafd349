//! The API server: one request pipeline (authentication, authorization, admission, registry), one registry of all
//! kinds, and a watch cache in front of the store. Start with [`start`]; [`Config`] holds the parsed flags.
//!
//! Not responsible for: controllers (they are clients of this crate), the storage engine (crate `store`) and object
//! schemas (crate `api_schema`).
//!
//! Invariants:
//! - Only this crate opens the store, and every request passes through the pipeline. An in-process client skips only
//!   the socket and TLS ([`ApiServer::client`]).
//! - A kind is data ([`registry`]): custom kinds and built-in kinds share one code path.
//! - An object is encoded once, when it is written. Gets, lists and watches share these bytes.
//! - A watcher receives every change once and in order, or its stream ends ([`watch_cache`]).

mod aggregation;
mod alloc;
mod auditing;
mod clock;
mod config;
mod documents;
pub mod flags;
#[cfg(test)]
mod fuzzed;
mod handlers;
mod outbound;
#[cfg(test)]
mod parse_count_tests;
mod peers;
mod reconcilers;
mod registry;
mod request;
mod response;
mod security;
mod server;
mod storage;
mod watch_cache;

#[cfg(test)]
#[global_allocator]
static ALLOCATOR: fuzz::heap::CountingAllocator = fuzz::heap::CountingAllocator;

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use api_meta::UserInfo;
use client::{Client, ClientMetrics, WorkQueue};
use diagnostics::Slis;
use otlp::Tracer;
use pki::AltName;
use telemetry::metrics::Metrics;
use tokio::net::TcpListener;

pub use admission::DefaultTolerationSeconds;
pub use api_config::FeatureGates;
pub use auditing::AuditError;
pub use config::{
    AuditLogOptions, AuditOptions, AuditWebhookOptions, AuthenticationOptions,
    AuthorizationOptions, Batch as AuditBatch, ComponentAddresses, Config, Egress, EgressError,
    FrontProxy, InFlightLimits, Mode as AuditMode, OidcOptions, PeerOptions, ProxyClient,
    ServingOptions, Throttle as AuditThrottle, TokenKeys, TokenWebhookOptions,
    WebhookMode as AuditWebhookMode,
};
pub use handlers::plugins::AdmissionError;
pub use peers::PeersError;
pub use security::{ExternalSignerError, SecurityError, check};
pub use storage::{KEYSPACE, StoreOverride, Stores, UpstreamForm, encrypted::encrypted};
pub use watch_cache::follower::WatchCacheError;

use crate::{
    aggregation::Aggregation,
    alloc::{Allocators, Hints, Pool},
    auditing::Auditor,
    config::{COORDINATION_GATE, Network},
    handlers::{
        plugins::Plugins, policies::Policies, state::State, steps::Steps, webhooks::Webhooks,
    },
    outbound::{
        backends::{Backends, Identity},
        kubelets::Kubelets,
    },
    peers::Peers,
    reconcilers::{
        api_services, availability, cluster_authentication, compaction, custom_kinds, elections,
        endpoints::EndpointReconciler,
        flow_schemas,
        identity_lease::{self, ServerIdentity},
        legacy_tokens,
        peers::{self as peer_discovery, PeerSync},
        progress::Step,
        service_repair::{self, Repair},
        startup,
    },
    registry::{builtin, cel_metrics::CelMetrics},
    request::Encodings,
    response::gzip_list::{self, Blocks},
    security::{Security, Signing},
    server::{
        checks::Readiness,
        compute::Compute,
        flow_metrics::FlowMetrics,
        health::Instruments,
        in_flight::Places,
        in_process::{InProcessTransport, own_client, system},
        metrics::{RequestMetrics, ServerMetrics, deprecated_apis, watch_lists},
        pipeline::Server,
    },
    storage::encryption_metrics,
    watch_cache::{Snapshot, WatchCache, follower::retry_unreadable, following},
};

/// The error that prevents the API server from starting.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Security(#[from] SecurityError),
    #[error(transparent)]
    Audit(#[from] AuditError),
    #[error(transparent)]
    WatchCache(#[from] WatchCacheError),
    #[error("failed to apply admission: {0}")]
    Admission(#[from] AdmissionError),
    #[error("using the kubelet client certificate: {0}")]
    KubeletClient(#[source] client::TlsError),
    #[error("listening on {address}: {source}; is another API server running?")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("using the serving certificate: {0}")]
    Tls(#[from] serve::TlsError),
    #[error(
        "making a serving certificate: {0}; give --tls-cert-file and --tls-private-key-file, or another --cert-dir"
    )]
    SelfSigned(#[from] pki::Error),
    #[error("starting the export of traces: {0}; correct the endpoint of --tracing-config-file")]
    Tracing(#[from] otlp::EndpointError),
    #[error("forwarding requests to the other API servers of the cluster: {0}")]
    Peers(#[from] PeersError),
    #[error("writing the initial objects: {0}")]
    Initial(#[source] client::Error),
}

/// A running API server.
#[derive(Clone)]
pub struct ApiServer {
    server: Arc<Server>,
    runtime: rt::HomeRuntime,
}

/// Loads the stores, listens, and writes the initial objects. The server answers requests before this function returns.
pub async fn start(
    config: Config,
    stores: impl Into<Stores>,
    tasks: &rt::Tasks,
) -> Result<ApiServer, StartError> {
    let chain = admission_chain(&config)?;
    start_with(config, chain, stores, tasks).await
}

/// Builds the admission chain from the configuration.
pub fn admission_chain(config: &Config) -> Result<admission::Chain, AdmissionError> {
    Plugins::load(config)?.chain(config)
}

/// Starts the server like [`start`], with an admission chain built by the caller.
pub async fn start_with(
    mut config: Config,
    chain: admission::Chain,
    stores: impl Into<Stores>,
    tasks: &rt::Tasks,
) -> Result<ApiServer, StartError> {
    let plugins = Plugins::load(&config)?;
    let image_policy = plugins.image_policy(&chain)?;
    let webhook_users = plugins.webhook_users(&chain)?;
    let gate = gate(&config);
    let instruments = instruments(&config, &gate, tasks)?;
    let metrics = instruments.metrics.clone();
    let mut observers = Vec::new();
    let objects: Arc<Snapshot> = Arc::default();
    let backends = backends(&config, objects.clone());
    let signing = Signing::start(&config, tasks).await?;
    let seen = objects.clone();
    let security =
        Security::new(&config, signing, &mut observers, seen, &backends, &metrics, tasks)?;
    let hints = Hints::new(&config);
    observers.push(hints.observer());
    observers.push(following(gate.clone()));
    let compute = Compute::new(&config, tasks);
    observers.push(following(compute.turns.clone()));
    let webhooks = Arc::new(Webhooks::new(backends.clone(), webhook_users, &metrics));
    observers.push(following(webhooks.clone()));
    let policies = Arc::new(Policies::new(&metrics));
    observers.push(following(policies.clone()));
    let (custom, custom_kinds) = custom_kinds::observer();
    let (addressed, addresses) = service_repair::observer();
    let (levelled, levels) = flow_schemas::observer();
    let definitions = builtin::configured(&config.runtime_config, &config.features);
    let aggregation = Arc::new(Aggregation::new(backends.clone(), &definitions, &metrics));
    observers.push(following(aggregation.clone()));
    // Registered after aggregation, which must process a change first.
    let (available, availabilities) = availability::observer(aggregation.clone());
    let (trusted, trust) = cluster_authentication::observer();
    observers.extend([custom, addressed, levelled, available, trusted]);
    let cache = WatchCache::start(stores, definitions, observers, tasks).await?;
    objects.attach(&cache);
    let (listener, tls) = listen(&mut config, &security).await?;
    let peers = Arc::new(Peers::new(&config, backends.clone(), &metrics)?);
    let kubelets = Kubelets::new(&config).map_err(StartError::KubeletClient)?;
    let encodings = Encodings::of(&config.features);
    let places = config.in_flight.map(Places::new);
    let server = Arc::new_cyclic(|server| {
        let pool = Arc::new(Pool::new(&config, cache.clone(), own_client(server.clone())));
        let state = State {
            allocators: Arc::new(Allocators::new(pool, hints)),
            config,
            cache,
            security,
            steps: Steps::new(&metrics, &chain),
            deprecated: deprecated_apis(&metrics),
            watch_lists: watch_lists(&metrics),
            cel: CelMetrics::new(&metrics),
            chain,
            image_policy,
            policies,
            webhooks,
            backends,
            quota_turn: tokio::sync::Mutex::default(),
            kubelets,
            blocks: Arc::default(),
            pool: compute.pool.clone(),
        };
        Server {
            state: Arc::new(state),
            gate,
            instruments,
            compute,
            openapi: Arc::default(),
            aggregation,
            peers,
            encodings,
            places,
        }
    });
    let api = ApiServer { server, runtime: rt::HomeRuntime::current() };
    let queues = Queues { custom_kinds, addresses, levels, availabilities, trust };
    run(&api, listener, tls, &queues, tasks).await?;
    Ok(api)
}

/// Creates flow control. As upstream, a request waits in its queue for at most a quarter of the request timeout.
fn gate(config: &Config) -> Arc<flow::Gate> {
    flow::Gate::new(config.seats, config.request_timeout / 4)
}

/// Creates the client of webhooks and aggregated servers, with the identity of a proxy.
fn backends(config: &Config, objects: Arc<Snapshot>) -> Arc<Backends> {
    let identity = config
        .proxy_client
        .clone()
        .map(|client| Identity { certificate: client.certificate, key: client.key });
    Backends::new(objects, identity, config.egress.clone())
}

/// Repairs the allocations of Services, serves, writes the initial objects and starts the background loops.
async fn run(
    api: &ApiServer,
    listener: TcpListener,
    tls: serve::ServerTls,
    queues: &Queues,
    tasks: &rt::Tasks,
) -> Result<(), StartError> {
    let server = &api.server;
    let State { config, cache, security, allocators, .. } = &*server.state;
    let measured = ClientMetrics::new(&server.instruments.metrics);
    queues.levels.measure(&measured, "priority_and_fairness_config_queue");
    queues.availabilities.measure(&measured, "AvailableConditionController");
    queues.trust.measure(&measured, "cluster_authentication_trust_controller");
    let new_client = || api.client(system(), "kube-apiserver").measured(&measured);
    let (objects, pool) = (security.objects.clone(), allocators.pool.clone());
    let repair = Arc::new(Repair { cache: cache.clone(), objects, pool });
    let left_over = service_repair::first(&repair).await;
    service_repair::follow(&repair, &queues.addresses, left_over, tasks);
    custom_kinds::follow(server.state.clone(), new_client(), &queues.custom_kinds, tasks);
    let limits = config.serving.limits();
    let serving = serve::serve(listener, Some(tls), limits, server.clone(), tasks.clone());
    tasks.essential("listener", serving);
    let balanced = server.clone();
    tasks.keep("flow control", move || rebalance(balanced.clone()));
    let endpoints = EndpointReconciler::new(config, cache.main().store.clone(), new_client());
    let (objects, progress) = (&*security.objects, &server.instruments.readiness.progress);
    let started = startup::run(config, objects, &endpoints, &new_client(), progress).await;
    started.map_err(StartError::Initial)?;
    if config.shares_store {
        let shutdown = tasks.shutdown().clone();
        tasks.spawn("endpoints of API servers", async move { endpoints.keep(shutdown).await });
    }
    reconcile(server, &new_client, queues, tasks);
    Ok(())
}

/// Creates the metrics, and starts auditing and the export of traces.
fn instruments(
    config: &Config,
    gate: &Arc<flow::Gate>,
    tasks: &rt::Tasks,
) -> Result<Instruments, StartError> {
    let metrics = diagnostics::component_metrics(&config.features);
    if let Some(encryption) = &config.encryption {
        let server = security::metrics::hash(&config.identity());
        encryption_metrics::follow(encryption, &metrics, server);
    }
    let proxy = config.egress.proxy(Network::ControlPlane);
    Ok(Instruments {
        auditor: Auditor::new(&config.audit, proxy, &metrics, tasks)?,
        tracer: tracer(config, &metrics, tasks)?,
        requests: RequestMetrics::new(&metrics),
        flow: FlowMetrics::new(&metrics),
        observed: ServerMetrics::new(&metrics, gate.clone()),
        metrics,
        readiness: Readiness::default(),
        started: rt::now().into(),
        slis: Slis::default(),
    })
}

/// Starts the export of traces, if it is configured.
fn tracer(config: &Config, metrics: &Metrics, tasks: &rt::Tasks) -> Result<Tracer, StartError> {
    let Some(exporter) = &config.tracing else { return Ok(Tracer::default()) };
    let attributes = vec![("service.instance.id", config.identity())];
    Ok(exporter.start(otlp::Resource { service: "apiserver", attributes }, metrics, tasks)?)
}

/// The work queues that observers fill and reconcilers drain.
struct Queues {
    custom_kinds: WorkQueue<String>,
    addresses: WorkQueue<service_repair::Key>,
    levels: WorkQueue<()>,
    availabilities: WorkQueue<String>,
    trust: WorkQueue<()>,
}

/// Starts the background loops that run until shutdown.
fn reconcile(
    server: &Arc<Server>,
    new_client: &dyn Fn() -> Client,
    queues: &Queues,
    tasks: &rt::Tasks,
) {
    let (cache, objects) = (server.state.cache.clone(), server.state.security.objects.clone());
    let config = &server.state.config;
    let (peer_address, interval) = (config.peer_address(), config.compaction_interval);
    let own = ServerIdentity { name: config.identity(), peer_address };
    flow_schemas::follow(objects.clone(), new_client(), &queues.levels, tasks);
    legacy_tokens::follow(new_client(), &server.state.security.used_tokens, tasks);
    let aggregation = &server.aggregation;
    let queue = &queues.availabilities;
    availability::follow(aggregation.clone(), objects.clone(), new_client(), queue, tasks);
    cluster_authentication::follow(server.state.clone(), new_client(), &queues.trust, tasks);
    let (served, known, client) = (cache.clone(), objects.clone(), new_client());
    let progress = server.instruments.readiness.progress.clone();
    let first = progress.clone();
    tasks.spawn_until_shutdown("api services", async move {
        api_services::first(&served, &*known, &client).await;
        first.done(Step::ApiServices);
    });
    if config.peer_authorities().is_some() {
        let (peers, aggregation) = (server.peers.clone(), aggregation.clone());
        let (cache, objects) = (cache.clone(), objects.clone());
        let (sync, progress) =
            (Arc::new(PeerSync { peers, cache, objects, aggregation }), progress.clone());
        tasks.keep("peers", move || peer_discovery::keep(sync.clone(), progress.clone()));
    }
    if config.features.is_enabled(COORDINATION_GATE) {
        elections::follow(config, &cache, objects.clone(), &new_client(), tasks);
        progress.done(Step::Elections);
    }
    let identity = new_client();
    tasks.keep("identity", move || {
        identity_lease::keep(own.clone(), objects.clone(), identity.clone())
    });
    let blocks = server.state.blocks.clone();
    tasks.keep("compressed lists", move || forget(blocks.clone()));
    let loaded = cache.clone();
    tasks.keep("unreadable objects", move || retry_unreadable(loaded.clone()));
    tasks.keep("compaction", move || compaction::keep(cache.clone(), interval));
    progress.done(Step::Loops);
}

/// Binds the listener and stores the chosen port in the configuration.
async fn listen(
    config: &mut Config,
    security: &Security,
) -> Result<(TcpListener, serve::ServerTls), StartError> {
    if config.self_signed {
        let files = (config.tls_certificate.as_path(), config.tls_key.as_path());
        pki::keep_self_signed(files, "kube-apiserver", own_names(config), rt::now())?;
    }
    let default = serve::KeyPairFiles {
        certificate: config.tls_certificate.clone(),
        key: config.tls_key.clone(),
    };
    let (policy, named) = (config.serving.tls.clone(), config.serving.named_certificates.clone());
    let authorities = security.client_authorities.clone();
    let tls = if named.is_empty() {
        let serve::KeyPairFiles { certificate, key } = &default;
        serve::ServerTls::from_files_under(policy, certificate, key, authorities)?
    } else {
        serve::ServerTls::from_named_files(policy, &default, named, authorities)?
    };
    let address = config.bind;
    let failed = |source| StartError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    config.bind = listener.local_addr().map_err(failed)?;
    Ok((listener, tls))
}

/// The DNS names and IP addresses in the self-signed serving certificate.
fn own_names(config: &Config) -> Vec<AltName> {
    let names = ["kubernetes.default.svc", "kubernetes.default", "kubernetes", "localhost"];
    let service = config.service_cidrs.iter().filter_map(|range| range.nth(1));
    let loopback = if config.bind.is_ipv4() {
        IpAddr::from(Ipv4Addr::LOCALHOST)
    } else {
        Ipv6Addr::LOCALHOST.into()
    };
    let addresses = [config.advertise, loopback].into_iter().chain(service);
    names.into_iter().map(AltName::dns).chain(addresses.map(AltName::Ip)).collect()
}

/// Redistributes the seats of flow control among the priority levels, every 10 seconds as upstream.
async fn rebalance(server: Arc<Server>) {
    let mut every = tokio::time::interval(Duration::from_secs(10));
    loop {
        every.tick().await;
        server.gate.rebalance();
        server.compute.turns.rebalance();
    }
}

/// Evicts compressed list blocks that no request has used recently.
async fn forget(blocks: Arc<Blocks>) {
    let mut every = tokio::time::interval(gzip_list::WANTED);
    loop {
        every.tick().await;
        blocks.age();
    }
}

impl ApiServer {
    /// Returns a client that calls the pipeline in this process. Its identity is not authenticated.
    pub fn client(&self, user: UserInfo, user_agent: &str) -> Client {
        let (server, runtime) = (self.server.clone(), self.runtime.clone());
        let transport = InProcessTransport { server, user: Arc::new(user), runtime };
        Client::new(Arc::new(transport), user_agent)
    }

    /// Returns the address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.server.state.config.bind
    }

    /// Prepares the end of the listener, which the caller stops afterwards. `/readyz` fails at once, so that load
    /// balancers send no more requests. Requests are served for the shutdown delay. If configured, new requests are
    /// then rejected with `Retry-After` until the open ones are answered.
    pub async fn wind_down(&self) {
        let (config, instruments) = (&self.server.state.config, &self.server.instruments);
        instruments.readiness.stopping.store(true, Ordering::Relaxed);
        tokio::time::sleep(config.serving.shutdown_delay).await;
        if config.serving.shutdown_retry_after {
            instruments.readiness.refusing.store(true, Ordering::Relaxed);
            let answered = || instruments.requests.unanswered() <= 0.0;
            let all = rt::wait_until(config.request_timeout, Duration::from_millis(50), answered);
            if !all.await {
                tracing::warn!("stopping with unanswered requests");
            }
        }
    }
}
