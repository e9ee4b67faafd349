//! Follows nodes and NetworkPolicies and writes routes and rules.

use std::{future::Future, sync::Arc, time::Duration};

use client::{Change, Client, Informer, ListOptions, Resource};
use net_core::{
    Family,
    api::Node,
    overlay,
    policy::{
        self, Snapshot,
        api::{Namespace, Namespaces, NetworkPolicy, Pod},
    },
};
use netlink::{Net, Route, TableWriter};
use tokio::sync::Notify;

use crate::overlay::{Overlay, OverlayError};

/// The settings of a node's Pod network.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The name of this node.
    pub node: String,
    /// The settings of the tunnel.
    pub overlay: Overlay,
    /// `true` if packets use the tunnel even to nodes on the same link.
    pub always_tunnel: bool,
}

/// The interval between two checks that routes and rules are still installed.
const PERIOD: Duration = Duration::from_secs(30);
/// The delay before rules are written, because Pods change in bursts.
const BURST: Duration = Duration::from_millis(20);

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Follows nodes and NetworkPolicies until `tasks` shuts down. The client must be allowed to list and watch nodes,
/// namespaces, Pods and NetworkPolicies.
pub async fn run(settings: Settings, client: Client, net: Arc<dyn Net>, tasks: &rt::Tasks) {
    let routes = Routes::start(&settings, &client, net.clone(), tasks);
    let policies = Policies::start(&settings, &client, net, tasks);
    let both = async { tokio::join!(routes.follow(), policies.follow()) };
    let _ = tasks.shutdown().unless_stopping(both).await;
}

/// Returns an informer's handler that notifies `changed`.
fn wake<P: PartialEq>(changed: &Arc<Notify>) -> impl Fn(Change<'_, P>) + Send + Sync + 'static {
    let changed = changed.clone();
    move |change| {
        if change.old != change.new {
            changed.notify_one();
        }
    }
}

/// Does `work` after every change and every period. Failures are retried with a backoff.
async fn repeat<F: Future<Output = Result<(), Failure>>>(
    subject: &str,
    changed: &Notify,
    mut work: impl FnMut() -> F,
) {
    let mut backoff = rt::Backoff::new(Duration::from_millis(500), PERIOD);
    loop {
        match work().await {
            Ok(()) => {
                backoff.reset();
                let _ = tokio::time::timeout(PERIOD, changed.notified()).await;
            }
            Err(error) => {
                let error = rt::with_causes(&*error);
                tracing::error!(subject, %error, "the Pod network is not up to date");
                tokio::time::sleep(backoff.next(0.0)).await;
            }
        }
    }
}

struct Routes {
    settings: Settings,
    net: Arc<dyn Net>,
    nodes: Informer<Node>,
    changed: Arc<Notify>,
}

impl Routes {
    fn start(settings: &Settings, client: &Client, net: Arc<dyn Net>, tasks: &rt::Tasks) -> Self {
        let changed = Arc::new(Notify::new());
        let nodes =
            Informer::start(client, Resource::NODES, ListOptions::default(), tasks, wake(&changed));
        Self { settings: settings.clone(), net, nodes, changed }
    }

    async fn follow(&self) {
        self.nodes.synced().await;
        let work = || async {
            let (settings, net, nodes) =
                (self.settings.clone(), self.net.clone(), self.nodes.list());
            let changes =
                tokio::task::spawn_blocking(move || route(&settings, &*net, &nodes)).await??;
            if changes > 0 {
                tracing::info!(changes, "routes to other nodes are up to date");
            }
            Ok(())
        };
        repeat("routes to other nodes", &self.changed, work).await;
    }
}

fn route(settings: &Settings, net: &dyn Net, nodes: &[Arc<Node>]) -> Result<usize, OverlayError> {
    let mut connected: Vec<_> = net.addresses()?.into_iter().map(|address| address.cidr).collect();
    // Destinations on a link without one of our addresses have a route without a gateway.
    let on_link = |route: &Route| route.gateway.is_none() && route.destination.prefix > 0;
    connected.extend(net.routes()?.into_iter().filter(on_link).map(|route| route.destination));
    let config =
        overlay::Config { node: settings.node.clone(), always_tunnel: settings.always_tunnel };
    let plan = overlay::plan(&config, nodes.iter().map(AsRef::as_ref), &connected);
    settings.overlay.apply(net, &plan)
}

struct Policies {
    node: String,
    net: Arc<dyn Net>,
    client: Client,
    tasks: rt::Tasks,
    policies: Informer<NetworkPolicy>,
    changed: Arc<Notify>,
}

impl Policies {
    fn start(settings: &Settings, client: &Client, net: Arc<dyn Net>, tasks: &rt::Tasks) -> Self {
        let changed = Arc::new(Notify::new());
        let resource = Resource::NETWORK_POLICIES;
        let policies =
            Informer::start(client, resource, ListOptions::default(), tasks, wake(&changed));
        Self {
            node: settings.node.clone(),
            net,
            client: client.clone(),
            tasks: tasks.clone(),
            policies,
            changed,
        }
    }

    async fn follow(&self) {
        self.policies.synced().await;
        // Following all Pods is expensive, so wait until the cluster has a policy.
        while self.policies.is_empty() && !self.has_table() {
            self.changed.notified().await;
        }
        let all = ListOptions::default;
        let pods = Informer::<Pod>::start(
            &self.client,
            Resource::PODS,
            all(),
            &self.tasks,
            wake(&self.changed),
        );
        let namespaces = Informer::<Namespace>::start(
            &self.client,
            Resource::NAMESPACES,
            all(),
            &self.tasks,
            wake(&self.changed),
        );
        pods.synced().await;
        namespaces.synced().await;
        let writers = tokio::sync::Mutex::new(<[TableWriter; 2]>::default());
        let work = || async {
            tokio::time::sleep(BURST).await;
            let state = State {
                node: self.node.clone(),
                pods: pods.list(),
                policies: self.policies.list(),
                namespaces: namespaces.list(),
            };
            let net = self.net.clone();
            // A failed write clears the known state, which is then read from the kernel.
            let mut held = writers.lock().await;
            let mut own = std::mem::take(&mut *held);
            let (own, result) = tokio::task::spawn_blocking(move || {
                let result = state.write(&*net, &mut own);
                (own, result)
            })
            .await?;
            *held = own;
            result
        };
        repeat("NetworkPolicies", &self.changed, work).await;
    }

    /// Reports whether rules of an earlier run must be updated or removed.
    fn has_table(&self) -> bool {
        Family::ALL.iter().any(|family| self.net.has_table(*family, policy::TABLE).unwrap_or(true))
    }
}

struct State {
    node: String,
    pods: Vec<Arc<Pod>>,
    policies: Vec<Arc<NetworkPolicy>>,
    namespaces: Vec<Arc<Namespace>>,
}

impl State {
    fn write(&self, net: &dyn Net, writers: &mut [TableWriter; 2]) -> Result<(), Failure> {
        let labels = |namespace: &Arc<Namespace>| {
            (namespace.metadata.name.clone(), namespace.metadata.labels.clone())
        };
        let namespaces: Namespaces = self.namespaces.iter().map(labels).collect();
        let snapshot = Snapshot {
            node: &self.node,
            pods: self.pods.iter().map(AsRef::as_ref).collect(),
            namespaces: &namespaces,
            policies: self.policies.iter().map(AsRef::as_ref).collect(),
        };
        for (writer, family) in writers.iter_mut().zip(Family::ALL) {
            let policy::Rules { table, exceeded } = policy::plan(family, &snapshot);
            for namespace in exceeded {
                tracing::warn!(
                    %namespace, family = family.nft(),
                    "the NetworkPolicies of the namespace have too many rules for a node: its Pods accept no more than \
                     the first ones allow; use fewer or simpler policies"
                );
            }
            // A family without isolated Pods needs no table.
            let needed = table.chains.keys().any(|chain| chain.starts_with("pod-"));
            writer.check(net)?;
            let written = writer.write(net, table, needed)?;
            if written.transactions > 0 {
                tracing::debug!(
                    operations = written.operations,
                    family = family.nft(),
                    "rules of NetworkPolicies are up to date"
                );
            }
        }
        Ok(())
    }
}
