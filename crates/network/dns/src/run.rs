use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use client::{Client, ClientTls, HttpTransport, Informer, ListOptions, Resource, TlsFiles};
use net_core::api::{EndpointSlice, Service};
use serde::Deserialize;

use crate::{
    corefile::{self, Block, CorefileError, PodMode},
    forward::ServerError,
    index::{Index, Pod},
    observe::{self, Metrics},
    resolver::Resolver,
    server::{self, CurrentResolver},
};

/// The options of the server.
#[derive(Clone, Debug)]
pub struct Options {
    /// The path of the Corefile.
    pub corefile: PathBuf,
    /// The port of server blocks without a port.
    pub port: u16,
    /// The kubeconfig outside a Pod, unless the Corefile names one.
    pub kubeconfig: Option<PathBuf>,
}

/// The error of creating a client of the API server.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error(transparent)]
    Kubeconfig(#[from] client::KubeconfigError),
    #[error("{0} is not set, so this is not a Pod; give --kubeconfig")]
    NotAPod(&'static str),
    #[error(transparent)]
    Tls(#[from] client::TlsError),
    #[error(transparent)]
    Transport(#[from] client::Error),
}

/// An error that prevents the start of the DNS server or ends it.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("reading the Corefile {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{}: {source}", path.display())]
    Corefile { path: PathBuf, source: CorefileError },
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error("listening on {address} for {purpose}: {source}; is another DNS server running?")]
    Listen { address: SocketAddr, purpose: &'static str, source: std::io::Error },
    #[error("reaching the API server: {0}")]
    Api(#[from] ConnectError),
    #[error("{0}; start the server again")]
    Ended(rt::MissingTask),
}

/// Serves until `tasks` shuts down, and then for the Corefile's `lameduck` time. Without a `client`, one is created
/// from the kubeconfig or the Pod's service account if the Corefile needs cluster names.
pub async fn run(
    options: Options,
    client: Option<Client>,
    tasks: &rt::Tasks,
) -> Result<(), RunError> {
    let (text, blocks) = load(&options)?;
    let lameduck =
        blocks.iter().filter_map(|block| block.health.as_ref()).map(|health| health.lameduck).max();
    // Queries are still answered during the shutdown, until Service rules no longer lead to this server.
    let own = rt::Tasks::new(rt::Shutdown::new());
    let metrics = Arc::new(Metrics::default());
    let cluster = Cluster::start(&options, &blocks, client, &own)?;
    let current = CurrentResolver::new(cluster.resolver(blocks.clone(), &metrics)?);
    listen_for_queries(&blocks, &current, &metrics, &own).await?;
    listen_for_observers(&blocks, &cluster, &metrics, &own).await?;
    if blocks.iter().any(|block| block.loops) {
        let current = current.clone();
        own.keep("loop probe", move || probe(current.clone()));
    }
    if let Some(interval) = blocks.iter().filter_map(|block| block.reload).min() {
        let reload = Reload { options, text, interval, current, cluster, metrics };
        own.keep("reload", move || reload.clone().run());
    }
    tokio::select! {
        () = tasks.shutdown().stopping() => {}
        () = own.shutdown().stopping() => {}
    }
    if let Some(ended) = own.failure() {
        return Err(RunError::Ended(ended));
    }
    tokio::time::sleep(lameduck.unwrap_or_default()).await;
    let drained = own.drain(Duration::from_secs(5)).await;
    if !drained.unfinished.is_empty() {
        tracing::warn!(unfinished = ?drained.unfinished, "stopped while tasks were still running");
    }
    Ok(())
}

fn load(options: &Options) -> Result<(String, Vec<Block>), RunError> {
    let path = || options.corefile.clone();
    let text = std::fs::read_to_string(&options.corefile)
        .map_err(|source| RunError::Read { path: path(), source })?;
    let blocks = corefile::parse(&text, options.port)
        .map_err(|source| RunError::Corefile { path: path(), source })?;
    for warning in blocks.iter().flat_map(|block| &block.ignored) {
        tracing::warn!("{warning}");
    }
    Ok((text, blocks))
}

/// The cluster's objects, kept up to date by informers.
#[derive(Clone)]
struct Cluster {
    index: Arc<RwLock<Index>>,
    is_synced: Arc<dyn Fn() -> bool + Send + Sync>,
}

/// A namespace without fields; the informer's key is sufficient.
#[derive(Deserialize)]
struct Namespace {}

impl Cluster {
    fn start(
        options: &Options,
        blocks: &[Block],
        client: Option<Client>,
        tasks: &rt::Tasks,
    ) -> Result<Self, RunError> {
        let index = Arc::new(RwLock::new(Index::default()));
        let kubernetes: Vec<_> =
            blocks.iter().filter_map(|block| block.kubernetes.as_ref()).collect();
        if kubernetes.is_empty() {
            return Ok(Self { index, is_synced: Arc::new(|| true) });
        }
        let named = kubernetes.iter().find_map(|kubernetes| kubernetes.kubeconfig.as_deref());
        let client = match client {
            Some(client) => client,
            None => connect(named.or(options.kubeconfig.as_deref()))?,
        };
        let write = |index: &Arc<RwLock<Index>>| {
            let index = index.clone();
            move |change: &dyn Fn(&mut Index)| {
                change(&mut index.write().unwrap_or_else(PoisonError::into_inner))
            }
        };
        let (all, change) = (ListOptions::default, write(&index));
        let services =
            Informer::<Service>::start(&client, Resource::SERVICES, all(), tasks, move |event| {
                change(&|index| index.set_service(event.key, event.new.cloned()));
            });
        let change = write(&index);
        let slices = Informer::<EndpointSlice>::start(
            &client,
            Resource::ENDPOINT_SLICES,
            all(),
            tasks,
            move |event| {
                change(&|index| index.set_slice(event.key, event.old, event.new.cloned()));
            },
        );
        let change = write(&index);
        let namespaces = Informer::<Namespace>::start(
            &client,
            Resource::NAMESPACES,
            all(),
            tasks,
            move |event| {
                change(&|index| index.set_namespace(event.key, event.new.is_some()));
            },
        );
        let verified = kubernetes.iter().any(|kubernetes| kubernetes.pods == PodMode::Verified);
        let change = write(&index);
        let pods = verified.then(|| {
            Informer::<Pod>::start(&client, Resource::PODS, all(), tasks, move |event| {
                change(&|index| {
                    index.set_pod(event.old.map(AsRef::as_ref), event.new.map(AsRef::as_ref))
                });
            })
        });
        let is_synced = move || {
            services.is_synced()
                && slices.is_synced()
                && namespaces.is_synced()
                && pods.as_ref().is_none_or(Informer::is_synced)
        };
        Ok(Self { index, is_synced: Arc::new(is_synced) })
    }

    fn resolver(
        &self,
        blocks: Vec<Block>,
        metrics: &Arc<Metrics>,
    ) -> Result<Resolver, ServerError> {
        let is_synced = self.is_synced.clone();
        Resolver::new(blocks, self.index.clone(), Box::new(move || is_synced()), metrics.clone())
    }
}

const USER_AGENT: &str = "coredns";
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Creates a client from a kubeconfig, or as the Pod's service account.
fn connect(kubeconfig: Option<&Path>) -> Result<Client, ConnectError> {
    if let Some(path) = kubeconfig {
        return Ok(Client::from_kubeconfig_file(path, USER_AGENT)?);
    }
    let variable = |name| std::env::var(name).map_err(|_| ConnectError::NotAPod(name));
    let (host, port) = (variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?);
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    let ca = Some(format!("{ACCOUNT}/ca.crt").into());
    // The CA is reread when it changes and the token for each request, because the kubelet renews both.
    let files = TlsFiles { ca, ..TlsFiles::default() };
    let tls = ClientTls::from_files(files)?;
    let token = || std::fs::read_to_string(format!("{ACCOUNT}/token")).ok();
    let transport =
        HttpTransport::new(&format!("https://{host}:{port}"), tls, Some(Arc::new(token)))?;
    Ok(Client::new(Arc::new(transport), USER_AGENT))
}

async fn listen_for_queries(
    blocks: &[Block],
    current: &CurrentResolver,
    metrics: &Arc<Metrics>,
    tasks: &rt::Tasks,
) -> Result<(), RunError> {
    for (ip, port) in addresses(blocks) {
        let any6 = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        let mut address = SocketAddr::new(ip.unwrap_or(any6), port);
        let mut bound = server::bind(address).await;
        if bound.is_err() && ip.is_none() {
            // A kernel without IPv6.
            address.set_ip(Ipv4Addr::UNSPECIFIED.into());
            bound = server::bind(address).await;
        }
        let (udp, tcp) =
            bound.map_err(|source| RunError::Listen { address, purpose: "DNS", source })?;
        tracing::info!(%address, "serving DNS");
        let queries = server::udp(udp, current.clone(), metrics.clone(), tasks.clone());
        let shutdown = tasks.shutdown().clone();
        tasks.essential("dns over udp", async move {
            let _ = shutdown.unless_stopping(queries).await;
        });
        let queries = server::tcp(tcp, current.clone(), metrics.clone(), tasks.clone());
        tasks.essential("dns over tcp", queries);
    }
    Ok(())
}

/// Returns the addresses to listen on: `None` for all, or those of `bind`, once for each port.
fn addresses(blocks: &[Block]) -> BTreeSet<(Option<IpAddr>, u16)> {
    let of = |block: &Block| -> Vec<(Option<IpAddr>, u16)> {
        if block.bind.is_empty() {
            return vec![(None, block.port)];
        }
        block.bind.iter().map(|ip| (Some(*ip), block.port)).collect()
    };
    let all: BTreeSet<_> = blocks.iter().flat_map(of).collect();
    // A socket for all addresses occupies the port of each address.
    all.iter().filter(|(ip, port)| ip.is_none() || !all.contains(&(None, *port))).copied().collect()
}

async fn listen_for_observers(
    blocks: &[Block],
    cluster: &Cluster,
    metrics: &Arc<Metrics>,
    tasks: &rt::Tasks,
) -> Result<(), RunError> {
    let failed = |address, purpose| move |source| RunError::Listen { address, purpose, source };
    let health: BTreeSet<_> =
        blocks.iter().filter_map(|block| Some(block.health.as_ref()?.address)).collect();
    for address in health {
        let page = || (200, "OK".to_owned());
        observe::listen("/health", address, tasks, page)
            .await
            .map_err(failed(address, "health"))?;
    }
    for address in blocks.iter().filter_map(|block| block.ready).collect::<BTreeSet<_>>() {
        let is_synced = cluster.is_synced.clone();
        let page = move || {
            if is_synced() { (200, "OK".to_owned()) } else { (503, "kubernetes".to_owned()) }
        };
        observe::listen("/ready", address, tasks, page).await.map_err(failed(address, "ready"))?;
    }
    for address in blocks.iter().filter_map(|block| block.prometheus).collect::<BTreeSet<_>>() {
        let metrics = metrics.clone();
        let page = move || (200, metrics.text());
        observe::listen("/metrics", address, tasks, page)
            .await
            .map_err(failed(address, "prometheus"))?;
    }
    Ok(())
}

async fn probe(current: CurrentResolver) {
    loop {
        current.get().probe_for_loops().await;
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
}

/// The periodic read of the Corefile.
#[derive(Clone)]
struct Reload {
    options: Options,
    /// The text in use.
    text: String,
    interval: Duration,
    current: CurrentResolver,
    cluster: Cluster,
    metrics: Arc<Metrics>,
}

impl Reload {
    /// Applies a changed Corefile if it is valid. The bound sockets stay.
    async fn run(mut self) {
        loop {
            tokio::time::sleep(self.interval).await;
            let (new, blocks) = match load(&self.options) {
                Ok((new, _)) if new == self.text => continue,
                Ok(loaded) => loaded,
                Err(error) => {
                    tracing::error!(%error, "the changed Corefile is invalid and is not used");
                    continue;
                }
            };
            self.text = new;
            let before: Vec<Block> = self.current.get().blocks().cloned().collect();
            if addresses(&before) != addresses(&blocks) {
                tracing::warn!(
                    "the Corefile's ports or addresses changed: restart to listen there"
                );
            }
            match self.cluster.resolver(blocks, &self.metrics) {
                Ok(resolver) => {
                    self.current.set(resolver);
                    tracing::info!("the changed Corefile is in use");
                }
                Err(error) => tracing::error!(%error, "the changed Corefile is not used"),
            }
        }
    }
}
