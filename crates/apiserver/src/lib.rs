//! The API server: one pipeline for every request (authentication, authorisation, admission, registry), one
//! registry for every kind, and a watch cache between it and the store.
//!
//! Invariants:
//! - Nothing but this crate opens the store, and nothing gets to the registry but through the pipeline; a
//!   client in this process skips the socket and TLS only ([`ApiServer::client`]).
//! - A kind is data ([`registry`]): a custom one goes the way of a built-in one.
//! - An object's bytes are made when it is written; gets, lists and watches share them.
//! - A watcher sees every change once and in order, or its stream ends ([`watch_cache`]).

mod alloc;
mod answer;
mod config;
mod documents;
pub mod flags;
#[cfg(test)]
mod fuzzed;
mod handlers;
mod outbound;
mod reconcilers;
mod registry;
mod request;
mod security;
mod server;
mod storage;
mod watch_cache;

use std::{
    net::SocketAddr,
    sync::{Arc, Weak, atomic::Ordering},
    time::{Duration, SystemTime},
};

use api_meta::{Timestamp, UserInfo};
use client::{Client, Transport};
use futures_util::future::BoxFuture;
use http::{Request, Response};
use serve::{Body, Handler};
use store::Store;
use tokio::net::TcpListener;

pub use config::{Config, FrontProxy};
pub use security::SecurityError;
pub use server::health::KUBERNETES_VERSION;
pub use storage::{CARE, UpstreamForm};
pub use watch_cache::follower::HubError;

use crate::{
    alloc::{Allocators, Hints},
    answer::gzip_list,
    reconcilers::{
        api_services, custom_kinds, endpoints, flow_schemas, identity_lease, service_repair,
        startup,
    },
    registry::definition,
    security::Security,
    server::{InProcess, Server},
    server::{health, metrics},
    watch_cache::follower::Hub,
};

/// Why the API server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Security(#[from] SecurityError),
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error(transparent)]
    Admission(#[from] admission::UnknownPlugin),
    #[error("using the kubelet client certificate: {0}")]
    KubeletClient(#[source] client::TlsError),
    #[error("listening on {address}: {source}; is another API server running?")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("using the serving certificate: {0}")]
    Tls(#[from] serve::TlsError),
    #[error("writing the initial objects: {0}")]
    Initial(#[source] client::Error),
}

/// A running API server.
#[derive(Clone)]
pub struct ApiServer {
    server: Arc<Server>,
}

/// The moment of a request, to the second, as the API's times have it.
pub(crate) fn now() -> Timestamp {
    Timestamp::from(SystemTime::now()).to_seconds()
}

/// Loads the store, listens, and writes the initial objects; the server answers from then on.
pub async fn start(
    config: Config,
    store: Arc<dyn Store>,
    tasks: &rt::Tasks,
) -> Result<ApiServer, StartError> {
    let chain = admission::Chain::new(&config.enable_admission, &config.disable_admission)?;
    start_with(config, chain, store, tasks).await
}

/// The same, with an admission chain of the caller's making.
pub async fn start_with(
    mut config: Config,
    chain: admission::Chain,
    store: Arc<dyn Store>,
    tasks: &rt::Tasks,
) -> Result<ApiServer, StartError> {
    let mut observers = Vec::new();
    let security = Security::new(&config, &mut observers)?;
    let hints = Hints::new(&config);
    observers.push(hints.observer());
    // As upstream: a request may wait for its turn for a quarter of its time.
    let gate = flow::Gate::new(config.seats, config.request_timeout / 4);
    observers.push(security::following(gate.clone()));
    let (custom, changes) = custom_kinds::observer();
    observers.push(custom);
    let (addressed, addresses) = service_repair::observer();
    let (levelled, levels) = flow_schemas::observer();
    observers.extend([addressed, levelled]);
    let definitions = definition::configured(&config.runtime_config);
    let hub = Hub::start(store, definitions, observers, tasks).await?;
    security.objects.attach(&hub);
    let (listener, tls) = listen(&mut config, &security).await?;
    let kubelets = handlers::subresource::kubelet::Kubelets::new(&config, tasks)?;
    let server = Arc::new_cyclic(|own| Server {
        allocators: Arc::new(Allocators::new(&config, hub.clone(), own_client(own.clone()), hints)),
        config,
        hub,
        security,
        chain,
        gate,
        metrics: metrics::Metrics::default(),
        readiness: health::Readiness::default(),
        kubelets,
        openapi: documents::openapi::Documents::default(),
        quota_turn: tokio::sync::Mutex::default(),
        blocks: Arc::default(),
    });
    let api = ApiServer { server: server.clone() };
    let client = api.client(system(), "kube-apiserver");
    let left_over = service_repair::first(&server, &client).await;
    service_repair::follow(&server, client.clone(), &addresses, left_over, tasks);
    let definitions = api.client(system(), "custom kinds");
    custom_kinds::follow(server.clone(), definitions, &changes, tasks);
    let limits = serve::Limits::default();
    let serving = serve::serve(listener, Some(tls), limits, server.clone(), tasks.clone());
    tasks.essential("listener", serving);
    let own = server.clone();
    tasks.keep("flow control", move || rebalance(own.clone()));
    startup::run(&server, &client).await.map_err(StartError::Initial)?;
    if server.config.shares_store {
        let present = endpoints::keep(server.clone(), client, tasks.shutdown().clone());
        tasks.spawn("presence", present);
    }
    let own = || api.client(system(), "kube-apiserver");
    flow_schemas::follow(server.clone(), own(), &levels, tasks);
    tasks.spawn_until_shutdown("api services", api_services(server.clone(), own()));
    let (kept, identity) = (server.clone(), own());
    tasks.keep("identity", move || identity_lease::keep(kept.clone(), identity.clone()));
    let kept = server.clone();
    tasks.keep("compressed lists", move || forget(kept.clone()));
    let kept = server.clone();
    tasks.keep("compaction", move || compact(kept.clone()));
    Ok(api)
}

/// Listens where the configuration says, and notes there which port that became.
async fn listen(
    config: &mut Config,
    security: &Security,
) -> Result<(TcpListener, serve::ServerTls), StartError> {
    let tls = serve::ServerTls::from_files(
        &config.tls_certificate,
        &config.tls_key,
        security.client_authorities.clone(),
    )?;
    let address = config.bind;
    let failed = |source| StartError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    config.bind = listener.local_addr().map_err(failed)?;
    Ok((listener, tls))
}

/// The identity under which the server itself writes.
fn system() -> UserInfo {
    UserInfo::new("system:apiserver", &["system:masters", "system:authenticated"])
}

/// Every interval forgets what was superseded before the previous one, in turns with other API servers.
async fn compact(server: Arc<Server>) {
    let mut compactor = store::Compactor::default();
    let mut every =
        tokio::time::interval(server.config.compaction_interval.max(Duration::from_secs(1)));
    loop {
        every.tick().await;
        if let Ok(size) = server.hub.store.size_bytes().await {
            server.hub.size.store(size, Ordering::Relaxed);
        }
        match compactor.step(&*server.hub.store).await {
            Ok(Some(revision)) => server.hub.compacted(revision),
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "compacting the store"),
        }
    }
}

/// Makes the APIServices of the built-in kinds; those of custom kinds come and go with their definitions.
async fn api_services(server: Arc<Server>, client: Client) {
    let mut backoff = rt::Backoff::new(Duration::from_millis(100), Duration::from_secs(30));
    loop {
        let follow = api_services::follow(&server, &client);
        match rt::catch("api services", "all", follow).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => {
                tracing::warn!(%error, "making the APIServices of what is served; trying again")
            }
            Err(rt::Panicked { .. }) => {}
        }
        tokio::time::sleep(backoff.next(0.5)).await;
    }
}

/// Moves seats of flow control to where requests wait, as often as upstream does.
async fn rebalance(server: Arc<Server>) {
    let mut every = tokio::time::interval(Duration::from_secs(10));
    loop {
        every.tick().await;
        server.gate.rebalance();
    }
}

/// Forgets compressed parts of lists that nobody asks for any more.
async fn forget(server: Arc<Server>) {
    let mut every = tokio::time::interval(gzip_list::WANTED);
    loop {
        every.tick().await;
        server.blocks.age();
    }
}

impl ApiServer {
    /// A client in this process, with an identity that it need not prove.
    pub fn client(&self, user: UserInfo, user_agent: &str) -> Client {
        let transport = Local { server: self.server.clone(), user: Arc::new(user) };
        Client::new(Arc::new(transport), user_agent)
    }

    /// Where the server listens.
    pub fn address(&self) -> SocketAddr {
        self.server.config.bind
    }

    /// Makes `/readyz` fail, so that load balancers turn away before the server stops.
    pub fn stopping(&self) {
        self.server.readiness.stopping.store(true, Ordering::Relaxed);
    }
}

/// A client for what the server does in the course of a request. It does not keep the server alive.
fn own_client(server: Weak<Server>) -> Client {
    Client::new(Arc::new(Own { server, user: Arc::new(system()) }), "kube-apiserver")
}

struct Own {
    server: Weak<Server>,
    user: Arc<UserInfo>,
}

impl Transport for Own {
    fn send(&self, request: Request<Body>) -> BoxFuture<'_, Result<Response<Body>, client::Error>> {
        let (server, user) = (self.server.upgrade(), self.user.clone());
        Box::pin(async move {
            let stopped = || client::Error::Transport {
                operation: "asking",
                target: "this server".to_owned(),
                source: "it has stopped".into(),
            };
            Local { server: server.ok_or_else(stopped)?, user }.send(request).await
        })
    }
}

/// The pipeline without a socket.
struct Local {
    server: Arc<Server>,
    user: Arc<UserInfo>,
}

impl Transport for Local {
    fn send(
        &self,
        mut request: Request<Body>,
    ) -> BoxFuture<'_, Result<Response<Body>, client::Error>> {
        request.extensions_mut().insert(InProcess(self.user.clone()));
        Box::pin(async move { Ok(self.server.handle(request).await) })
    }
}
