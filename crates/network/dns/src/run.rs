use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use api_config::Kubeconfig;
use client::{Client, ClientTls, HttpTransport, Informer, ListOptions, Resource, TlsFiles};
use net_core::{
    api::{EndpointSlice, Service},
    policy::api::Namespace,
};

use crate::{
    chain::Context,
    corefile::{self, Block, Timeouts},
    directive::{CorefileError, Directive},
    index::{Index, Pod},
    observe::{self, Metrics},
    options::ApiServer,
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
    #[error("reading the kubeconfig: {0}")]
    Config(#[from] api_config::Error),
}

/// An error that prevents the start of the DNS server or ends it.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("reading the Corefile {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{}: {source}", path.display())]
    Corefile { path: PathBuf, source: CorefileError },
    #[error(
        "the Corefile names several API servers, but this server uses one; name the same in all server blocks"
    )]
    ApiServers,
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
    let (lines, blocks) = load(&options)?;
    let lameduck =
        blocks.iter().filter_map(|block| block.health.as_ref()).map(|health| health.lameduck).max();
    // Queries are still answered during the shutdown, until Service rules no longer lead to this server.
    let own = rt::Tasks::new(rt::Shutdown::new());
    let metrics = Arc::new(Metrics::default());
    let cluster = Cluster::start(&options, &blocks, client, &own)?;
    let context = Context::new(
        cluster.index.clone(),
        cluster.is_synced.clone(),
        metrics.clone(),
        own.clone(),
    );
    let current = CurrentResolver::new(Resolver::new(blocks.clone(), context.clone()));
    listen_for_queries(&blocks, &current, &metrics, &own).await?;
    listen_for_observers(&blocks, &cluster, &metrics, &own).await?;
    let maintained = current.clone();
    own.keep("upkeep of the plugins", move || maintained.clone().maintain());
    if let Some(interval) = blocks.iter().filter_map(|block| block.reload).min() {
        let reload = Reload { options, lines, interval, current, context };
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

fn load(options: &Options) -> Result<(Vec<Directive>, Vec<Block>), RunError> {
    let lines = read(options)?;
    let blocks = build(options, &lines)?;
    Ok((lines, blocks))
}

/// Reads the lines of the Corefile and of its imports.
fn read(options: &Options) -> Result<Vec<Directive>, RunError> {
    let path = || options.corefile.clone();
    let text = std::fs::read_to_string(&options.corefile)
        .map_err(|source| RunError::Read { path: path(), source })?;
    let folder = options.corefile.parent().unwrap_or(Path::new("."));
    corefile::read(&text, folder).map_err(|source| RunError::Corefile { path: path(), source })
}

fn build(options: &Options, lines: &[Directive]) -> Result<Vec<Block>, RunError> {
    let path = || options.corefile.clone();
    let blocks = corefile::build(lines, options.port)
        .map_err(|source| RunError::Corefile { path: path(), source })?;
    for warning in blocks.iter().flat_map(|block| &block.ignored) {
        tracing::warn!("{warning}");
    }
    Ok(blocks)
}

/// The cluster's objects, kept up to date by informers.
#[derive(Clone)]
struct Cluster {
    index: Arc<RwLock<Index>>,
    is_synced: Arc<dyn Fn() -> bool + Send + Sync>,
}

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
        if kubernetes.iter().any(|other| other.api != kubernetes[0].api) {
            return Err(RunError::ApiServers);
        }
        let client = match client {
            Some(client) => client,
            None => connect(&kubernetes[0].api, options.kubeconfig.as_deref())?,
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
                let labels = event.new.map(|namespace| namespace.metadata.labels.clone());
                change(&|index| index.set_namespace(event.key, labels.clone()));
            },
        );
        let needs_pods = blocks.iter().any(|block| block.needs_pods);
        let change = write(&index);
        let pods = needs_pods.then(|| {
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
}

const USER_AGENT: &str = "coredns";
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Creates a client of the Corefile's API server, of a kubeconfig's, or as the Pod's service account.
fn connect(server: &ApiServer, kubeconfig: Option<&Path>) -> Result<Client, ConnectError> {
    match (server, kubeconfig) {
        (ApiServer::Kubeconfig { path, context: Some(context) }, _) => {
            let config = Kubeconfig { current_context: context.clone(), ..Kubeconfig::load(path)? };
            Ok(Client::from_kubeconfig(&config, USER_AGENT)?)
        }
        (ApiServer::Kubeconfig { path, context: None }, _) => {
            Ok(Client::from_kubeconfig_file(path, USER_AGENT)?)
        }
        (ApiServer::Endpoint { url, tls }, _) => {
            let [certificate, key, ca] =
                tls.clone().map_or([None, None, None], |files| files.map(Some));
            let files = TlsFiles { ca, certificate, key, ..TlsFiles::default() };
            let has_tls = url.starts_with("https://");
            let tls = if has_tls { ClientTls::from_files(files)? } else { ClientTls::anyone() };
            Ok(Client::new(Arc::new(HttpTransport::new(url, tls, None)?), USER_AGENT))
        }
        (ApiServer::Default, Some(path)) => Ok(Client::from_kubeconfig_file(path, USER_AGENT)?),
        (ApiServer::Default, None) => connect_as_pod(),
    }
}

fn connect_as_pod() -> Result<Client, ConnectError> {
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
        let timeouts = timeouts(blocks, port);
        let queries = server::tcp(tcp, timeouts, current.clone(), metrics.clone(), tasks.clone());
        tasks.essential("dns over tcp", queries);
    }
    Ok(())
}

/// Returns the limits of the connections to a port: those of the first server block that sets some.
fn timeouts(blocks: &[Block], port: u16) -> Timeouts {
    let on_port = blocks.iter().filter(|block| block.port == port).map(|block| block.timeouts);
    on_port.into_iter().find(|timeouts| *timeouts != Timeouts::default()).unwrap_or_default()
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

/// The periodic read of the Corefile.
#[derive(Clone)]
struct Reload {
    options: Options,
    /// The lines in use, with those of imported files.
    lines: Vec<Directive>,
    interval: Duration,
    current: CurrentResolver,
    context: Context,
}

impl Reload {
    /// Applies a changed Corefile if it is valid. The bound sockets stay.
    async fn run(mut self) {
        loop {
            tokio::time::sleep(self.interval).await;
            let changed = match read(&self.options) {
                Ok(lines) if lines == self.lines => continue,
                Ok(lines) => build(&self.options, &lines).map(|blocks| (lines, blocks)),
                Err(error) => Err(error),
            };
            let (lines, blocks) = match changed {
                Ok(changed) => changed,
                Err(error) => {
                    tracing::error!(%error, "the changed Corefile is invalid and is not used");
                    continue;
                }
            };
            self.lines = lines;
            if addresses(self.current.get().blocks()) != addresses(&blocks) {
                tracing::warn!(
                    "the Corefile's ports or addresses changed: restart to listen there"
                );
            }
            self.current.set(Resolver::new(blocks, self.context.clone()));
            tracing::info!("the changed Corefile is in use");
        }
    }
}
