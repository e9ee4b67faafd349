use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use client::Client;

use crate::{
    chain::Context,
    cluster::{Cluster, ClusterError},
    corefile::{self, Block, Timeouts},
    directive::{CorefileError, Directive},
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

/// An error that prevents the start of the DNS server or ends it.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("reading the Corefile {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{}: {source}", path.display())]
    Corefile { path: PathBuf, source: CorefileError },
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error("listening on {address} for {purpose}: {source}; is another DNS server running?")]
    Listen { address: SocketAddr, purpose: &'static str, source: std::io::Error },
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
    let cluster = Cluster::new(options.kubeconfig.clone(), client, own.clone());
    cluster.follow(&blocks)?;
    let synced = cluster.clone();
    let context = Context::new(
        cluster.index.clone(),
        Arc::new(move || synced.is_synced()),
        metrics.clone(),
        own.clone(),
    );
    let current = CurrentResolver::new(Resolver::new(blocks.clone(), context.clone()));
    listen_for_queries(&blocks, &current, &metrics, &own).await?;
    listen_for_observers(&blocks, &cluster, &metrics, &own).await?;
    let maintained = current.clone();
    own.keep("upkeep of the plugins", move || maintained.clone().maintain());
    if let Some(interval) = blocks.iter().filter_map(|block| block.reload).min() {
        let reload = Reload { options, lines, interval, current, cluster, context };
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
        let cluster = cluster.clone();
        let page = move || {
            if cluster.is_synced() {
                (200, "OK".to_owned())
            } else {
                (503, "kubernetes".to_owned())
            }
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
    cluster: Cluster,
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
            if let Err(error) = self.cluster.follow(&blocks) {
                tracing::error!(%error, "the changed Corefile is not used");
                continue;
            }
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
