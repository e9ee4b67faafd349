//! A cluster in one thread and in simulated time: API server, controllers, scheduler, nodes and clients.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use api_meta::UserInfo;
use client::{Client, Error, Resource};
use futures_util::{FutureExt as _, future::BoxFuture};
use parking_lot::Mutex;
use serde_json::{Value, json};
use testkit::{Link, Machine, Network, RealApi};
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};

use super::{
    ledger::{LAG, Ledger, Violations},
    node::{DRIVER, Hosts, Kubelet, attach_volumes},
};

pub(crate) const NODES: [&str; 3] = ["n1", "n2", "n3"];
/// The interval at which a test checks a condition.
const CHECK: Duration = Duration::from_secs(2);

/// A component that a supervisor restarts, and its connection to the API server.
pub(crate) struct Process {
    pub(crate) name: &'static str,
    pub(crate) link: Arc<Link>,
    killed: Arc<Notify>,
}

impl Process {
    /// Kills the process. It is started again within seconds.
    pub(crate) fn kill(&self) {
        self.killed.notify_one();
    }
}

pub(crate) struct World {
    pub(crate) machine: Machine,
    pub(crate) network: Arc<Network>,
    pub(crate) ledger: Arc<Mutex<Ledger>>,
    pub(crate) violations: Violations,
    pub(crate) hosts: Arc<Hosts>,
    pub(crate) processes: Vec<Process>,
    pub(crate) user: Client,
    pub(crate) tasks: rt::Tasks,
    /// The owner of clients that end before the rest.
    pub(crate) clients: rt::Tasks,
    pub(crate) simulation: rt::Simulation,
    api: Option<RealApi>,
    begun: Instant,
}

/// The end of a server's process.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Death {
    /// The process is killed; the kernel writes what is not synced, or a later loss of power loses it.
    Kill,
    /// The machine loses power.
    PowerLoss,
}

fn administrator() -> UserInfo {
    UserInfo::new("admin", &["system:masters", "system:authenticated"])
}

impl World {
    /// Starts a cluster. `leaders` is the number of controller managers that contend for their lease.
    pub(crate) async fn start(
        simulation: rt::Simulation,
        machine: Machine,
        leaders: usize,
    ) -> Self {
        let violations = Violations::default();
        let tasks = rt::Tasks::new(rt::Shutdown::new());
        let network = Arc::new(Network::default());
        let mut world = Self {
            user: network.client(&Arc::default(), administrator(), "user"),
            ledger: Arc::new(Mutex::new(Ledger::new(violations.clone()))),
            hosts: Hosts::new(violations.clone()),
            clients: rt::Tasks::new(tasks.shutdown().child()),
            tasks,
            processes: Vec::new(),
            begun: Instant::now(),
            api: None,
            machine,
            network,
            violations,
            simulation,
        };
        world.start_server().await;
        world.create_nodes().await;
        world.start_components(leaders);
        world
    }

    pub(crate) async fn start_server(&mut self) {
        let api = RealApi::simulated(&self.machine).await.expect("the API server starts");
        let resumed = self.ledger.lock().resume(&*api.store()).now_or_never();
        resumed.expect("the store answers without waiting");
        self.network.connect(api.server());
        self.api = Some(api);
    }

    /// Ends the server's process at this instant.
    pub(crate) async fn stop_server(&mut self, death: Death) {
        let Some(api) = self.api.take() else { return };
        self.machine.disk.cut_power();
        self.network.disconnect();
        self.ledger.lock().close();
        // What is left of the process can neither write nor answer.
        api.stop().await;
        self.machine.disk = match death {
            Death::Kill => self.machine.disk.after_kill(),
            Death::PowerLoss => self.machine.disk.after_power_loss(rt::random()),
        };
    }

    async fn create_nodes(&self) {
        for name in NODES {
            let managed = json!({"volumes.kubernetes.io/controller-managed-attach-detach": "true"});
            let node = json!({"metadata": {"name": name, "annotations": managed}});
            self.create(&Resource::NODES, node).await;
            let drivers = json!([{"name": DRIVER, "nodeID": name, "topologyKeys": null}]);
            let node = json!({"metadata": {"name": name}, "spec": {"drivers": drivers}});
            self.create(&Resource::CSI_NODES, node).await;
        }
    }

    fn start_components(&mut self, leaders: usize) {
        let owner = self.tasks.clone();
        for name in ["controllers-a", "controllers-b"].into_iter().take(leaders) {
            let (network, elects) = (self.network.clone(), leaders > 1);
            self.supervise(&owner, name, move |link, tasks| {
                let (network, link) = (network.clone(), link.clone());
                let clients = move |name: &str| {
                    let user = match name {
                        controllers::SHARED_IDENTITY => {
                            UserInfo::new(name, &["system:authenticated"])
                        }
                        account => UserInfo::service_account("kube-system", account),
                    };
                    network.client(&link, user, name)
                };
                let config = controllers::Config {
                    leader_election: elects,
                    // A node that is cut off may still write to its volumes.
                    disable_force_detach: true,
                    ..controllers::Config::default()
                };
                Box::pin(async move { controllers::run(config, clients, &tasks).await })
            });
        }
        let network = self.network.clone();
        self.supervise(&owner, "scheduler", move |link, tasks| {
            let user = UserInfo::new("system:kube-scheduler", &["system:authenticated"]);
            let client = network.client(link, user, "kube-scheduler");
            let config = scheduler::Config { seed: rt::random(), ..Default::default() };
            Box::pin(async move { scheduler::run(config, client, &tasks).await })
        });
        for node in NODES {
            let (network, hosts) = (self.network.clone(), self.hosts.clone());
            self.supervise(&owner, node, move |link, tasks| {
                let client = network.client(link, administrator(), node);
                Box::pin(Kubelet { node, client, hosts: hosts.clone() }.run(tasks))
            });
        }
        let (network, hosts) = (self.network.clone(), self.hosts.clone());
        self.supervise(&owner, "attacher", move |link, tasks| {
            let client = network.client(link, administrator(), "attacher");
            tasks.spawn_until_shutdown("attacher", attach_volumes(client, hosts.clone()));
            until_stopped(tasks)
        });
        let ledger = self.ledger.clone();
        self.tasks.spawn_until_shutdown("ledger", async move {
            loop {
                ledger.lock().read();
                sleep(LAG).await;
            }
        });
    }

    /// Runs a component, and starts it again after it was killed or has failed.
    pub(crate) fn supervise(
        &mut self,
        owner: &rt::Tasks,
        name: &'static str,
        run: impl Fn(&Arc<Link>, rt::Tasks) -> BoxFuture<'static, Result<(), Error>>
        + Send
        + Sync
        + 'static,
    ) {
        let (link, killed) = (Arc::<Link>::default(), Arc::<Notify>::default());
        let (own_link, signal, parent) = (link.clone(), killed.clone(), owner.shutdown().clone());
        owner.spawn_until_shutdown(name, async move {
            loop {
                let tasks = rt::Tasks::new(parent.child());
                tokio::select! {
                    () = signal.notified() => {}
                    _ = run(&own_link, tasks.clone()) => {}
                }
                tasks.drain(Duration::from_secs(1)).await;
                sleep(Duration::from_millis(rt::random_in(100..3000))).await;
            }
        });
        self.processes.push(Process { name, link, killed });
    }

    /// Returns the links of a process.
    pub(crate) fn link(&self, name: &str) -> &Arc<Link> {
        let process = self.processes.iter().find(|process| process.name == name);
        &process.expect("a process of the simulation").link
    }

    pub(crate) fn seconds(&self) -> u64 {
        self.begun.elapsed().as_secs()
    }

    /// Panics if a promise was broken.
    pub(crate) fn check(&self) {
        let found = self.violations.found();
        assert!(found.is_empty(), "{found:#?}; last changes {:#?}", self.last_changes());
    }

    fn last_changes(&self) -> Vec<String> {
        let ledger = self.ledger.lock();
        ledger.trace[ledger.trace.len().saturating_sub(40)..].to_vec()
    }

    /// Waits for the condition for at most `most` seconds of simulated time, and returns the seconds it took.
    pub(crate) async fn until<F: Future<Output = bool>>(
        &self,
        what: &str,
        most: u64,
        condition: impl Fn() -> F,
    ) -> u64 {
        let begun = self.seconds();
        while !condition().await {
            self.check();
            if self.seconds() - begun >= most {
                panic!(
                    "not within {most} seconds: {what}; last changes {:#?}",
                    self.last_changes()
                );
            }
            sleep(CHECK).await;
        }
        self.seconds() - begun
    }

    pub(crate) async fn create(&self, resource: &Resource, object: Value) -> Value {
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
        self.user.create(resource, &namespace, &object).await.unwrap()
    }

    /// Returns an object of the namespace `default`, or null.
    pub(crate) async fn get(&self, resource: &Resource, name: &str) -> Value {
        let namespace = if resource.namespaced { "default" } else { "" };
        self.user.get(resource, namespace, name).await.unwrap_or_default()
    }

    pub(crate) async fn list(&self, resource: &Resource) -> Vec<Value> {
        let namespace = if resource.namespaced { "default" } else { "" };
        let list = self.user.list(resource, namespace, &Default::default()).await;
        list.map(|list| list.items).unwrap_or_default()
    }

    /// Stops everything and returns the trace.
    pub(crate) async fn stop(mut self) -> Vec<String> {
        let left = self.tasks.drain(Duration::from_secs(5)).await;
        assert!(left.unfinished.is_empty(), "{left:?}");
        if let Some(api) = self.api.take() {
            let left = api.stop().await;
            assert!(left.unfinished.is_empty(), "{left:?}");
        }
        self.check();
        std::mem::take(&mut self.ledger.lock().trace)
    }
}

/// Waits until the tasks of a component must end.
pub(crate) fn until_stopped(tasks: rt::Tasks) -> BoxFuture<'static, Result<(), Error>> {
    Box::pin(async move {
        tasks.shutdown().stopping().await;
        Ok(())
    })
}

/// Runs a scenario on one thread in simulated time, with a seed.
pub(crate) fn simulate<T>(seed: u64, scenario: impl AsyncFnOnce(rt::Simulation) -> T) -> T {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.unwrap().block_on(async {
        let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        scenario(rt::Simulation::begin(seed, start)).await
    })
}
