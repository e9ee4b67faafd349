//! The tasks of `metal serve` in the cluster: approves the certificates of known machines and records when their nodes
//! become Ready.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use api_meta::{Timestamp, Tree as _};
use client::{Change, Client, Informer, ListOptions, Resource, WorkQueue};
use netboot::{
    machines::{Event, Inventory, Machine, Outcome, Stage},
    matchbox::{Store, TokenMaker},
};
use rt::Tasks;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{approve::Csr, tokens};

/// The delay before a request of an unknown machine is checked again. Its address may be added to the store meanwhile.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// The errors of connecting to the cluster.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("--kubeconfig {}: {source}", path.display())]
    Kubeconfig { path: PathBuf, source: Box<client::KubeconfigError> },
}

/// The fields of a Node that describe its machine.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Node {
    status: NodeStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NodeStatus {
    conditions: Vec<NodeCondition>,
    node_info: NodeInfo,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodeCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    message: String,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NodeInfo {
    #[serde(rename = "bootID")]
    boot_id: String,
}

impl Node {
    fn ready(&self) -> Option<&NodeCondition> {
        self.status.conditions.iter().find(|condition| condition.kind == "Ready")
    }

    fn is_ready(&self) -> bool {
        self.ready().is_some_and(|condition| condition.status == "True")
    }
}

/// Returns the stages that a change of a Node implies. A heartbeat of the previous boot implies none.
fn stages(old: Option<&Node>, new: &Node) -> Vec<Event> {
    let rebooted = old.is_none_or(|old| old.status.node_info != new.status.node_info);
    let mut events = Vec::new();
    if rebooted && !new.status.node_info.boot_id.is_empty() {
        events.push(Event::new(Stage::Kubelet, Outcome::Succeeded));
    }
    if rebooted || old.is_some_and(Node::is_ready) != new.is_ready() {
        match new.ready() {
            Some(_) if new.is_ready() => {
                events.push(Event::new(Stage::Ready, Outcome::Succeeded));
            }
            Some(ready) if ready.status == "Unknown" || !rebooted => {
                events.push(Event::new(Stage::Ready, Outcome::Failed).detail(&ready.message));
            }
            // The Node has only just registered and becomes Ready later.
            _ => {}
        }
    }
    events
}

/// Returns `true` if an event is about the machine's last boot. While a machine boots, its previous system is silent.
fn is_relevant(machine: Option<&Machine>, event: &Event) -> bool {
    let boots = machine.and_then(Machine::furthest).is_some_and(|stage| stage < Stage::Kubelet);
    !(boots && event.stage == Stage::Ready && event.outcome == Outcome::Failed)
}

/// The cluster that machines join.
pub struct Cluster(Client);

impl Cluster {
    /// Creates a client from a kubeconfig. It sends no request yet.
    pub fn of(kubeconfig: &Path) -> Result<Self, Error> {
        match Client::from_kubeconfig_file(kubeconfig, "windlass-metal") {
            Ok(client) => Ok(Self(client)),
            Err(source) => {
                Err(Error::Kubeconfig { path: kubeconfig.to_owned(), source: source.into() })
            }
        }
    }

    /// Returns the maker of bootstrap tokens. Call it on the runtime that the client will use.
    pub fn token_maker(&self) -> TokenMaker {
        tokens::maker(self.0.clone())
    }

    /// Watches the cluster until shutdown.
    pub fn watch(self, store: Arc<Store>, inventory: Arc<Inventory>, tasks: &Tasks) {
        watch(self.0, store, inventory, tasks);
    }
}

fn watch(client: Client, store: Arc<Store>, inventory: Arc<Inventory>, tasks: &Tasks) {
    let (names, machines) = (store.clone(), inventory.clone());
    let nodes = Informer::<Node>::start(
        &client,
        Resource::NODES,
        ListOptions::default(),
        tasks,
        move |change: Change<'_, Node>| {
            let Some(new) = change.new else { return };
            let events = stages(change.old.map(AsRef::as_ref), new);
            if events.is_empty() {
                return;
            }
            if let Some(machine) = names.machine_of(change.key) {
                let record = machines.machine(&machine);
                let relevant =
                    events.into_iter().filter(|event| is_relevant(record.as_ref(), event));
                relevant.for_each(|event| machines.record(&machine, event));
            }
        },
    );
    let queue = WorkQueue::<String>::default();
    let add = queue.clone();
    let requests = Informer::<Csr>::start(
        &client,
        Resource::CERTIFICATE_SIGNING_REQUESTS,
        ListOptions::default(),
        tasks,
        move |change: Change<'_, Csr>| {
            if change.new.is_some_and(|csr| csr.is_pending_machine_request()) {
                add.add(change.key.to_owned());
            }
        },
    );
    let approver = Arc::new(Approver {
        client,
        store,
        inventory,
        queue: queue.clone(),
        requests,
        _nodes: nodes,
    });
    queue.run(tasks, "approve machines' certificates", 1, move |key| {
        let approver = approver.clone();
        async move {
            let result = approver.process(&key).await;
            if let Err(error) = &result {
                tracing::warn!(request = key, %error, "approving a machine's certificate");
            }
            result.is_ok()
        }
    });
}

struct Approver {
    client: Client,
    store: Arc<Store>,
    inventory: Arc<Inventory>,
    queue: WorkQueue<String>,
    requests: Informer<Csr>,
    /// The informer, which records events as long as it exists.
    _nodes: Informer<Node>,
}

impl Approver {
    async fn process(&self, key: &str) -> Result<(), client::Error> {
        let Some(csr) = self.requests.get(key).filter(|csr| csr.is_pending_machine_request())
        else {
            return Ok(());
        };
        let node = match csr.node() {
            Ok(node) => node,
            Err(error) => {
                tracing::warn!(request = key, %error, "denied the certificate request of a machine");
                return self.decide(key, "Denied", "NotANode", &error.to_string()).await;
            }
        };
        // The groups are read from files.
        let (store, name) = (self.store.clone(), node.clone());
        let owner = tokio::task::spawn_blocking(move || store.machine_of(&name)).await;
        let Ok(Some(machine)) = owner else {
            tracing::warn!(
                request = key,
                node,
                "no group in the store has a machine for this node; the request stays pending"
            );
            self.queue.add_after(key.to_owned(), RETRY_DELAY);
            return Ok(());
        };
        let user = &csr.spec.username;
        if let Some(error) = tokens::find_mismatch(&self.client, user, &machine).await? {
            tracing::warn!(request = key, node, %error, "denied the certificate request of a machine");
            return self.decide(key, "Denied", "NotItsBoot", &error.to_string()).await;
        }
        let message = format!(
            "Machine {machine} has this node name in the store, and its last boot made the request."
        );
        self.decide(key, "Approved", "KnownMachine", &message).await?;
        tracing::info!(request = key, node, machine, "approved a machine's certificate");
        self.inventory.record(&machine, Event::new(Stage::Kubelet, Outcome::Started));
        Ok(())
    }

    async fn decide(
        &self,
        name: &str,
        kind: &str,
        reason: &str,
        message: &str,
    ) -> Result<(), client::Error> {
        let resource = &Resource::CERTIFICATE_SIGNING_REQUESTS;
        let mut csr: Value = self.client.get(resource, "", name).await?;
        let now = Timestamp::from(rt::now()).to_string();
        let condition = json!({
            "type": kind, "status": "True", "reason": reason, "message": message,
            "lastUpdateTime": now, "lastTransitionTime": now,
        });
        match csr.at_mut(&["status", "conditions"]).and_then(Value::as_array_mut) {
            Some(conditions) => conditions.push(condition),
            None => csr.put(&["status", "conditions"], json!([condition])),
        }
        let _: Value = self.client.update_subresource(resource, "", name, "approval", &csr).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
