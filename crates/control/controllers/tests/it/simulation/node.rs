//! Simulated nodes: what their machines run, their kubelets, and the attacher of their volumes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use client::{
    Client, DeleteOptions, Error, Informer, ListOptions, PatchKind, PatchTarget, Preconditions,
    Resource,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::ledger::Violations;

/// The interval between lease renewals.
const RENEWAL: Duration = Duration::from_secs(10);
/// The claim of a ReadWriteOnce volume that an attacher attaches.
pub(crate) const DISK: &str = "disk";
/// The claim of a ReadWriteOncePod volume.
pub(crate) const ALONE: &str = "alone";
/// The CSI driver of all volumes.
pub(crate) const DRIVER: &str = "sim.csi";
/// The name of the volume of [`DISK`] in the status of Nodes.
const ATTACHED: &str = "kubernetes.io/csi/sim.csi^disk";
const FINALIZER: &str = "external-attacher/sim-csi";

/// The containers and volumes of all machines, whatever the API says.
pub(crate) struct Hosts {
    state: Mutex<State>,
    violations: Violations,
}

#[derive(Default)]
struct State {
    /// The Pods whose containers run, by UID.
    running: BTreeMap<String, RunningPod>,
    /// The machines to which the disk is attached.
    attached: BTreeSet<String>,
    /// The number of addresses given to Pods.
    addresses: u32,
}

struct RunningPod {
    node: String,
    key: String,
    claims: Vec<String>,
    address: String,
}

impl Hosts {
    pub(crate) fn new(violations: Violations) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), violations })
    }

    /// Starts a Pod's containers.
    fn start(&self, node: &str, pod: &Value) {
        let mut state = self.state.lock();
        let (key, claims) = (key(pod), claims(pod));
        for other in state.running.values() {
            let shared = claims.iter().find(|claim| other.claims.contains(claim));
            let fault = match shared.map(String::as_str) {
                Some(DISK) if other.node != node => "uses its volume",
                Some(ALONE) => "uses its volume",
                _ if other.key == key => "has its name",
                _ => continue,
            };
            let (other, on) = (&other.key, &other.node);
            self.violations.report(format!("{key} starts on {node} while {other} on {on} {fault}"));
        }
        if claims.iter().any(|claim| claim == DISK) && !state.attached.contains(node) {
            self.violations.report(format!("{key} starts on {node} without its volume"));
        }
        state.addresses += 1;
        let address = format!("10.1.{}.{}", state.addresses / 250, state.addresses % 250 + 1);
        let running = RunningPod { node: node.to_owned(), key, claims, address };
        state.running.insert(uid(pod).to_owned(), running);
    }

    fn stop(&self, uid: &str) {
        self.state.lock().running.remove(uid);
    }

    /// Ends all containers of a machine.
    pub(crate) fn crash(&self, node: &str) {
        self.state.lock().running.retain(|_, pod| pod.node != node);
    }

    fn address(&self, uid: &str) -> Option<String> {
        self.state.lock().running.get(uid).map(|pod| pod.address.clone())
    }

    /// Returns the UIDs of the Pods that run on a machine.
    fn on(&self, node: &str) -> Vec<String> {
        let state = self.state.lock();
        let there = state.running.iter().filter(|(_, pod)| pod.node == node);
        there.map(|(uid, _)| uid.clone()).collect()
    }

    /// Returns the UIDs of all running Pods.
    pub(crate) fn running(&self) -> BTreeSet<String> {
        self.state.lock().running.keys().cloned().collect()
    }

    fn uses_disk(&self, node: &str) -> bool {
        let state = self.state.lock();
        state.running.values().any(|pod| pod.node == node && pod.claims.iter().any(|c| c == DISK))
    }

    fn attach(&self, node: &str) {
        let mut state = self.state.lock();
        state.attached.insert(node.to_owned());
        if state.attached.len() > 1 {
            self.violations.report(format!("the disk is attached to {:?}", state.attached));
        }
    }

    fn detach(&self, node: &str) {
        if self.uses_disk(node) {
            self.violations.report(format!("the disk is detached from {node} while in use"));
        }
        self.state.lock().attached.remove(node);
    }
}

pub(crate) fn uid(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap_or_default()
}

fn key(pod: &Value) -> String {
    let part = |name: &str| pod["metadata"][name].as_str().unwrap_or_default().to_owned();
    format!("{}/{}", part("namespace"), part("name"))
}

fn claims(pod: &Value) -> Vec<String> {
    let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    let names = volumes.filter_map(|v| v["persistentVolumeClaim"]["claimName"].as_str());
    names.map(str::to_owned).collect()
}

pub(crate) fn terminates(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// Reports whether a Pod has succeeded or failed.
pub(crate) fn is_over(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

fn is_ready(pod: &Value) -> bool {
    let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|c| c["type"] == "Ready" && c["status"] == "True")
}

fn of<'a>(object: &'a Value, subresource: &'a str) -> PatchTarget<'a> {
    let part = |name: &str| object["metadata"][name].as_str().unwrap_or_default();
    PatchTarget { namespace: part("namespace"), name: part("name"), subresource }
}

/// Waits between two rounds of a loop.
async fn pause() {
    sleep(Duration::from_millis(rt::random_in(400..1600))).await;
}

/// The kubelet of a node.
#[derive(Clone)]
pub(crate) struct Kubelet {
    pub(crate) node: &'static str,
    pub(crate) client: Client,
    pub(crate) hosts: Arc<Hosts>,
}

impl Kubelet {
    /// Runs Pods and sends heartbeats until the tasks end.
    pub(crate) async fn run(self, tasks: rt::Tasks) -> Result<(), Error> {
        tasks.spawn_until_shutdown("heartbeats", self.clone().heartbeats());
        let options = ListOptions::fields(&format!("spec.nodeName={}", self.node));
        let pods = Informer::<Value>::start(&self.client, Resource::PODS, options, &tasks, |_| {});
        pods.synced().await;
        let mut in_use = None;
        loop {
            let all = pods.list();
            let known: BTreeSet<&str> = all.iter().map(|pod| uid(pod)).collect();
            for gone in self.hosts.on(self.node).iter().filter(|uid| !known.contains(&***uid)) {
                self.hosts.stop(gone);
            }
            let wanted = |pod: &Value| {
                claims(pod).iter().any(|claim| claim == DISK) && !terminates(pod) && !is_over(pod)
            };
            let uses = self.hosts.uses_disk(self.node) || all.iter().any(|pod| wanted(pod));
            if in_use != Some(uses) {
                in_use = self.report_use(uses).await.ok().map(|()| uses);
            }
            for pod in &all {
                // The next round tries a failed step again.
                let _ = self.tend(pod, in_use == Some(true)).await;
            }
            pause().await;
        }
    }

    async fn heartbeats(self) {
        let (name, client) = (self.node, &self.client);
        loop {
            let now = api_meta::Timestamp::from(rt::now());
            let lease = json!({"metadata": {"name": name, "namespace": "kube-node-lease"},
                "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now.micros()}});
            let at = of(&lease, "");
            let renewed =
                client.patch::<Value>(&Resource::LEASES, at, PatchKind::Merge, &lease).await;
            if renewed.is_err() {
                let _ = client.create::<_, Value>(&Resource::LEASES, at.namespace, &lease).await;
            }
            let room = json!({"cpu": "8", "memory": "16Gi", "pods": "110"});
            let ready = json!([{"type": "Ready", "status": "True", "reason": "KubeletReady"}]);
            let status = json!({"capacity": room, "allocatable": room, "conditions": ready});
            let _ = self.patch_node(PatchKind::Strategic, status).await;
            sleep(RENEWAL).await;
        }
    }

    async fn patch_node(&self, kind: PatchKind<'_>, status: Value) -> Result<Value, Error> {
        let at = PatchTarget { namespace: "", name: self.node, subresource: "status" };
        self.client.patch(&Resource::NODES, at, kind, &json!({"status": status})).await
    }

    async fn report_use(&self, uses: bool) -> Result<(), Error> {
        let names: &[&str] = if uses { &[ATTACHED] } else { &[] };
        self.patch_node(PatchKind::Merge, json!({"volumesInUse": names})).await.map(drop)
    }

    /// Takes the next step of a Pod's life. `reported` is `true` if the Node's status has the disk in use.
    async fn tend(&self, pod: &Value, reported: bool) -> Result<(), Error> {
        let running = self.hosts.address(uid(pod));
        if terminates(pod) {
            self.hosts.stop(uid(pod));
            let only = Preconditions { uid: Some(uid(pod).to_owned()), resource_version: None };
            let now = DeleteOptions {
                grace_period_seconds: Some(0),
                preconditions: Some(only),
                ..DeleteOptions::default()
            };
            let PatchTarget { namespace, name, .. } = of(pod, "");
            return self.client.delete(&Resource::PODS, namespace, name, &now).await;
        }
        if is_over(pod) {
            self.hosts.stop(uid(pod));
            return Ok(());
        }
        let Some(address) = running else {
            if claims(pod).iter().all(|claim| claim != DISK) || self.has_disk(reported).await? {
                self.hosts.start(self.node, pod);
            }
            return Ok(());
        };
        let phase = pod["status"]["phase"].as_str();
        let phase = match phase {
            Some("Running") if pod["spec"]["restartPolicy"] == "Never" => "Succeeded",
            // A machine that was restarted has given the Pod another address. While the node could not be reached, a
            // controller has set the Pod's readiness to false.
            Some("Running") if pod["status"]["podIP"] == address && is_ready(pod) => return Ok(()),
            _ => "Running",
        };
        let ready = if phase == "Running" { "True" } else { "False" };
        let now = api_meta::Timestamp::from(rt::now()).to_seconds();
        let patch = json!({"metadata": {"uid": uid(pod)}, "status": {
            "phase": phase, "podIP": address, "podIPs": [{"ip": address}, {"$patch": "replace"}],
            "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": now}]}});
        let at = of(pod, "status");
        self.client.patch::<Value>(&Resource::PODS, at, PatchKind::Strategic, &patch).await?;
        Ok(())
    }

    /// Reports whether the disk is attached. It may be detached until the Node's status says that it is in use, so
    /// that is reported first.
    async fn has_disk(&self, reported: bool) -> Result<bool, Error> {
        if !reported {
            return Ok(false);
        }
        let node: Value = self.client.get(&Resource::NODES, "", self.node).await?;
        let attached = node["status"]["volumesAttached"].as_array();
        Ok(attached.is_some_and(|all| all.iter().any(|volume| volume["name"] == ATTACHED)))
    }
}

/// Attaches and detaches volumes as the external attacher of a CSI driver does.
pub(crate) async fn attach_volumes(client: Client, hosts: Arc<Hosts>) {
    loop {
        let all =
            client.list::<Value>(&Resource::VOLUME_ATTACHMENTS, "", &Default::default()).await;
        for attachment in all.map(|list| list.items).unwrap_or_default() {
            let _ = attach(&client, &hosts, &attachment).await;
        }
        pause().await;
    }
}

async fn attach(client: &Client, hosts: &Hosts, attachment: &Value) -> Result<(), Error> {
    let node = attachment["spec"]["nodeName"].as_str().unwrap_or_default();
    let finalizers = attachment["metadata"]["finalizers"].as_array();
    let claimed = finalizers.is_some_and(|all| all.iter().any(|f| f == FINALIZER));
    let set_finalizers = async |names: &[&str]| {
        let patch = json!({"metadata": {"uid": uid(attachment), "finalizers": names}});
        let (all, at) = (&Resource::VOLUME_ATTACHMENTS, of(attachment, ""));
        client.patch::<Value>(all, at, PatchKind::Merge, &patch).await.map(drop)
    };
    match (terminates(attachment), claimed) {
        (true, true) => {
            hosts.detach(node);
            set_finalizers(&[]).await
        }
        (true, false) => Ok(()),
        (false, false) => set_finalizers(&[FINALIZER]).await,
        (false, true) if attachment["status"]["attached"] == true => Ok(()),
        (false, true) => {
            hosts.attach(node);
            let patch = json!({"metadata": {"uid": uid(attachment)}, "status": {"attached": true}});
            let (all, at) = (&Resource::VOLUME_ATTACHMENTS, of(attachment, "status"));
            client.patch::<Value>(all, at, PatchKind::Merge, &patch).await.map(drop)
        }
    }
}
