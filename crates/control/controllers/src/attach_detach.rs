//! Attaches CSI volumes and iSCSI disks to the nodes of the Pods that use them, and detaches them from other nodes
//! (persistentvolume-attach-detach-controller).
//!
//! A CSI driver's external attacher does the work. This controller creates and deletes VolumeAttachments and writes
//! `volumesAttached` in each Node's status. It never detaches a volume that a healthy node reports as in use.

mod direct;
mod disk;
mod plan;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use api_meta::{ObjectMeta, null_default};
use client::{
    Change, DeleteOptions, Error, Index, NotFoundExt as _, PatchKind, PatchTarget, Preconditions,
    Resource, WorkQueue,
};
use parking_lot::{Mutex, MutexGuard};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    context::{Context, synced},
    indexes::by_claim,
    pods::OwnerOf,
    shared::Watched,
    views::{CsiVolume, Node, PersistentVolume, Pod, VolumeClaim, is_true},
};
use direct::DirectDisks;
use disk::{Disk, ISCSI, is_attachment_name};
use plan::{Attachment, NodeState, Step, many_nodes, plan};

const VOLUMES: Resource = Resource::PERSISTENT_VOLUMES;
const ATTACHMENTS: Resource = Resource::VOLUME_ATTACHMENTS;

/// The annotation of a Node whose kubelet leaves attaching to this controller.
const MANAGED: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
/// The prefix of queue keys that name nodes; no volume's name contains a slash.
const NODE: &str = "node/";

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct VolumeAttachment {
    metadata: ObjectMeta,
    spec: AttachmentSpec,
    status: AttachmentStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AttachmentSpec {
    attacher: String,
    node_name: String,
    source: AttachmentSource,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AttachmentSource {
    #[serde(deserialize_with = "null_default")]
    persistent_volume_name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AttachmentStatus {
    attached: bool,
    attach_error: Option<Message>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Message {
    message: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct CsiDriver {
    metadata: ObjectMeta,
    spec: DriverSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DriverSpec {
    attach_required: Option<bool>,
}

impl From<&VolumeAttachment> for Attachment {
    fn from(of: &VolumeAttachment) -> Self {
        Self {
            name: of.metadata.name.clone(),
            uid: of.metadata.uid.clone(),
            node: of.spec.node_name.clone(),
            terminating: of.metadata.terminating(),
        }
    }
}

struct Attacher {
    context: Context,
    volumes: Watched<PersistentVolume>,
    claims: Watched<VolumeClaim>,
    /// Indexed by the keys of their claims.
    pods: Index<Pod>,
    nodes: Watched<Node>,
    drivers: Watched<CsiDriver>,
    /// VolumeAttachments by volume name.
    of_volume: Index<VolumeAttachment>,
    on_node: Index<VolumeAttachment>,
    queue: WorkQueue<String>,
    memory: Mutex<Memory>,
}

#[derive(Default)]
struct Memory {
    /// The time at which a volume was first due for detaching, by volume and node.
    since: HashMap<(String, String), Instant>,
    /// The VolumeAttachments that are about to be deleted: uid to node name. They are left out of the node's
    /// `volumesAttached`, so that its kubelet does not start to use the volumes.
    detaching: HashMap<String, String>,
    direct: DirectDisks,
    /// Pairs of volume and node for which the Multi-Attach Event was recorded.
    refused: BTreeSet<(String, String)>,
}

pub(crate) fn start(context: Context) {
    let queue = WorkQueue::default();
    let attachments = context.watch::<VolumeAttachment>(ATTACHMENTS);
    let pods = context.watch::<Pod>(Resource::PODS);
    let attacher = Arc::new(Attacher {
        volumes: context.watch(VOLUMES),
        claims: context.watch(Resource::PERSISTENT_VOLUME_CLAIMS),
        pods: by_claim(&pods),
        nodes: context.watch(Resource::NODES),
        drivers: context.watch(Resource::CSI_DRIVERS),
        of_volume: attachments
            .index("volume", |of| vec![of.spec.source.persistent_volume_name.clone()]),
        on_node: attachments.index("node", |of| vec![of.spec.node_name.clone()]),
        queue: queue.clone(),
        memory: Mutex::default(),
        context: context.clone(),
    });
    attacher.follow(&pods, &attachments);
    let waits = vec![
        synced(&attacher.volumes),
        synced(&attacher.claims),
        synced(&attacher.nodes),
        synced(&attacher.drivers),
        synced(&attachments),
        synced(&pods),
    ];
    // One worker: changes of a volume's attachments and of a Node's status must not overtake each other.
    context.run(&queue, 1, waits, attacher, |attacher, key| async move {
        match key.strip_prefix(NODE) {
            Some(node) => attacher.reconcile_node(node).await,
            None => attacher.reconcile(&key).await,
        }
    });
}

fn of_node(name: &str) -> String {
    format!("{NODE}{name}")
}

/// Reports whether a change of a Node affects the attachment of volumes.
fn concerns(change: &Change<'_, Node>) -> bool {
    let facts = |node: &Arc<Node>| {
        (
            is_true(&node.status.conditions, "Ready"),
            node.is_tainted_out_of_service(),
            node.metadata.annotations.get(MANAGED).cloned(),
            node.status.volumes_in_use.clone(),
            node.status.attached(),
        )
    };
    change.old.map(facts) != change.new.map(facts)
}

impl Attacher {
    fn follow(self: &Arc<Self>, pods: &Watched<Pod>, attachments: &Watched<VolumeAttachment>) {
        self.volumes.on_key_if(&self.queue, |change| {
            change.old.or(change.new).is_some_and(|volume| Disk::of(volume).is_some())
        });
        let add = self.queue.clone();
        self.claims.on(move |change| {
            let claims = change.old.into_iter().chain(change.new);
            let named = claims.map(|claim| claim.spec.volume_name.clone());
            named.filter(|name| !name.is_empty()).for_each(|name| add.add(name));
        });
        let (add, claims) = (self.queue.clone(), self.claims.clone());
        pods.on(move |change| {
            let facts = |pod: &Arc<Pod>| (pod.node().to_owned(), pod.is_finished());
            if change.old.map(facts) == change.new.map(facts) {
                return;
            }
            let keys = change.old.or(change.new).map(|pod| pod.claim_keys()).unwrap_or_default();
            let bound = keys.iter().filter_map(|key| claims.get(key));
            bound.for_each(|claim| add.add(claim.spec.volume_name.clone()));
        });
        let (add, on_node) = (self.queue.clone(), self.on_node.clone());
        self.nodes.on(move |change| {
            if concerns(change) {
                add.add(of_node(change.key));
                let attachments = on_node.get(change.key);
                attachments
                    .iter()
                    .for_each(|of| add.add(of.spec.source.persistent_volume_name.clone()));
            }
        });
        let (add, volumes) = (self.queue.clone(), self.volumes.clone());
        self.drivers.on(move |change| {
            let of = |volume: &&Arc<PersistentVolume>| {
                volume.spec.csi.as_ref().is_some_and(|csi| csi.driver == change.key)
            };
            volumes.list().iter().filter(of).for_each(|v| add.add(v.metadata.name.clone()));
        });
        let own = Arc::downgrade(self);
        attachments.on(move |change| {
            let Some(own) = own.upgrade() else { return };
            own.record_attach_events(change);
            let Some(attachment) = change.new.or(change.old) else { return };
            own.queue.add(attachment.spec.source.persistent_volume_name.clone());
            own.queue.add(of_node(&attachment.spec.node_name));
        });
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock()
    }

    /// Records an Event on the volume's Pods when an attachment succeeds or fails.
    fn record_attach_events(&self, change: &Change<'_, VolumeAttachment>) {
        let (Some(old), Some(new)) = (change.old, change.new) else { return };
        let (volume, node) = (&new.spec.source.persistent_volume_name, &new.spec.node_name);
        let failed = new.status.attach_error.as_ref().filter(|_| !new.status.attached);
        let pods = || self.volumes.get(volume).map(|v| self.pods_of(&v)).unwrap_or_default();
        let on_node = |pod: &&Arc<Pod>| pod.node() == node;
        if new.status.attached && !old.status.attached {
            let text = format!("AttachVolume.Attach succeeded for volume {volume:?} ");
            for pod in pods().iter().filter(on_node) {
                let object = OwnerOf::new(Resource::PODS, &pod.metadata).object();
                self.context.events.normal(object, "SuccessfulAttachVolume", text.clone());
            }
        } else if let Some(error) = failed.filter(|e| old.status.attach_error.as_ref() != Some(e)) {
            let text =
                format!("AttachVolume.Attach failed for volume {volume:?} : {}", error.message);
            pods().iter().filter(on_node).for_each(|pod| self.warn(pod, text.clone()));
        }
    }

    fn warn(&self, pod: &Pod, text: String) {
        let object = OwnerOf::new(Resource::PODS, &pod.metadata).object();
        self.context.events.warning(object, "FailedAttachVolume", text);
    }

    /// Returns the scheduled Pods that use a volume through its bound claim.
    fn pods_of(&self, volume: &PersistentVolume) -> Vec<Arc<Pod>> {
        let Some(reference) = &volume.spec.claim_ref else { return Vec::new() };
        let claim = self.claims.get(&reference.key());
        let bound = claim.filter(|claim| {
            reference.names(&claim.metadata) && claim.spec.volume_name == volume.metadata.name
        });
        let pods = bound.map(|_| self.pods.get(&reference.key())).unwrap_or_default();
        pods.into_iter().filter(|pod| !pod.node().is_empty() && !pod.is_finished()).collect()
    }

    fn is_attachable(&self, csi: &CsiVolume) -> bool {
        let driver = self.drivers.get(&csi.driver);
        driver.and_then(|driver| driver.spec.attach_required) != Some(false)
    }

    /// Returns the Pods that use the volume, by node name.
    fn desired(
        &self,
        volume: &PersistentVolume,
        disk: Disk<'_>,
    ) -> BTreeMap<String, Vec<Arc<Pod>>> {
        let mut desired: BTreeMap<String, Vec<Arc<Pod>>> = BTreeMap::new();
        if matches!(disk, Disk::Csi(csi) if !self.is_attachable(csi)) {
            return desired;
        }
        for pod in self.pods_of(volume) {
            let node = self.nodes.get(pod.node());
            let managed = |node: Arc<Node>| {
                node.metadata.annotations.get(MANAGED).is_some_and(|value| value == "true")
            };
            if node.is_some_and(managed) {
                desired.entry(pod.node().to_owned()).or_default().push(pod);
            }
        }
        desired
    }

    async fn reconcile_node(&self, name: &str) -> Result<(), Error> {
        let direct: Vec<String> =
            self.memory().direct.on_node(name).map(|(volume, _)| volume.clone()).collect();
        direct.into_iter().for_each(|volume| self.queue.add(volume));
        self.write_node_status(name).await
    }

    async fn reconcile(&self, name: &str) -> Result<(), Error> {
        let Some(volume) = self.volumes.get(name) else {
            let nodes = self.memory().direct.forget(name);
            nodes.iter().for_each(|node| self.queue.add(of_node(node)));
            return self.detach_orphans(name).await;
        };
        let Some(disk) = Disk::of(&volume) else { return Ok(()) };
        let desired = self.desired(&volume, disk);
        let attachments = self.attachments(name, disk);
        let now = Instant::now();
        self.memory().since.retain(|(of, node), _| {
            of != name || attachments.iter().any(|a| a.node == *node) && !desired.contains_key(node)
        });
        let state = |node: &str| self.state(node, disk, name, now);
        let many = many_nodes(&volume.spec.access_modes);
        let force = !self.context.config.disable_force_detach;
        for step in plan(many, &desired, &attachments, state, force) {
            match step {
                Step::Wait { retry_after, .. } if retry_after > Duration::ZERO => {
                    self.queue.add_after(name.to_owned(), retry_after);
                }
                Step::Wait { .. } => {}
                Step::Detach { attachment, safely } => match disk {
                    Disk::Csi(csi) => self.detach(&attachment, csi, safely).await?,
                    Disk::Iscsi(_) => {
                        self.detach_direct(name, disk, &attachment.node, safely).await?;
                    }
                },
                Step::Attach { node } => match disk {
                    Disk::Csi(csi) => self.attach(&volume, csi, &node).await?,
                    Disk::Iscsi(_) => self.attach_direct(name, &node, &desired).await?,
                },
                Step::Refuse { node } => self.refuse(name, &node, &desired),
            }
        }
        Ok(())
    }

    /// Returns the nodes that a volume is attached to.
    fn attachments(&self, name: &str, disk: Disk<'_>) -> Vec<Attachment> {
        let Disk::Csi(csi) = disk else {
            let unique = disk.unique_name();
            if !self.memory().direct.contains(name) {
                // The Nodes are read without the lock.
                let nodes = self.nodes.list().into_iter();
                let own = nodes.filter(|node| node.status.attached().contains(&unique));
                let recorded = own.map(|node| node.metadata.name.clone()).collect();
                self.memory().direct.insert(name, &unique, recorded);
            }
            let nodes = self.memory().direct.nodes(name).into_iter();
            return nodes.map(|node| Attachment { node, ..Attachment::default() }).collect();
        };
        let items = self.of_volume.get(name);
        let own = items.iter().filter(|of| of.metadata.name == csi.attachment(&of.spec.node_name));
        own.map(|of| Attachment::from(&**of)).collect()
    }

    /// Detaches a volume whose PersistentVolume is deleted. A provisioner deletes a volume as soon as its claim is
    /// gone, which may be before the last node reports that it has unmounted the volume.
    async fn detach_orphans(&self, name: &str) -> Result<(), Error> {
        let orphans = self.of_volume.get(name);
        self.memory().since.retain(|(of, node), _| {
            of != name || orphans.iter().any(|orphan| orphan.spec.node_name == *node)
        });
        for orphan in orphans.iter().filter(|orphan| is_attachment_name(&orphan.metadata.name)) {
            let AttachmentSpec { attacher, node_name, .. } = &orphan.spec;
            let client = &self.context.client;
            let node: Option<Node> = client.get(&Resource::NODES, "", node_name).await.or_none()?;
            let used = node.map(|node| node.status.volumes_in_use).unwrap_or_default();
            let csi = CsiVolume::in_use(&used, attacher, node_name, &orphan.metadata.name);
            let csi = csi
                .unwrap_or_else(|| CsiVolume { driver: attacher.clone(), ..CsiVolume::default() });
            let now = Instant::now();
            let state = |node: &str| self.state(node, Disk::Csi(&csi), name, now);
            let desired = BTreeMap::<String, ()>::new();
            let force = !self.context.config.disable_force_detach;
            for step in plan(true, &desired, &[Attachment::from(&**orphan)], state, force) {
                match step {
                    Step::Detach { attachment, safely } => {
                        self.detach(&attachment, &csi, safely).await?;
                    }
                    Step::Wait { retry_after, .. } if retry_after > Duration::ZERO => {
                        self.queue.add_after(name.to_owned(), retry_after);
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Lets a node use a disk that it connects to itself.
    async fn attach_direct(
        &self,
        volume: &str,
        node: &str,
        desired: &BTreeMap<String, Vec<Arc<Pod>>>,
    ) -> Result<(), Error> {
        self.memory().refused.remove(&(volume.to_owned(), node.to_owned()));
        self.set_direct(volume, node, true).await?;
        let text = format!("AttachVolume.Attach succeeded for volume {volume:?} ");
        for pod in desired.get(node).into_iter().flatten() {
            let object = OwnerOf::new(Resource::PODS, &pod.metadata).object();
            self.context.events.normal(object, "SuccessfulAttachVolume", text.clone());
        }
        Ok(())
    }

    /// Removes a disk from the Node's status, unless its kubelet has begun to use it.
    async fn detach_direct(
        &self,
        volume: &str,
        disk: Disk<'_>,
        node: &str,
        safely: bool,
    ) -> Result<(), Error> {
        self.set_direct(volume, node, false).await?;
        if safely && self.is_in_use(node, &disk.unique_name()).await? {
            return self.set_direct(volume, node, true).await;
        }
        // Another node may wait for the disk.
        self.queue.add(volume.to_owned());
        Ok(())
    }

    async fn set_direct(&self, volume: &str, node: &str, may_use: bool) -> Result<(), Error> {
        self.memory().direct.set(volume, node, may_use);
        let written = self.write_node_status(node).await;
        if written.is_err() {
            self.memory().direct.set(volume, node, !may_use);
        }
        written
    }

    /// Reads whether a node uses a volume. The kubelet may have mounted it before the Node's status changed.
    async fn is_in_use(&self, node: &str, unique: &str) -> Result<bool, Error> {
        let node: Option<Node> =
            self.context.client.get(&Resource::NODES, "", node).await.or_none()?;
        Ok(node.is_some_and(|node| node.status.volumes_in_use.iter().any(|name| name == unique)))
    }

    fn state(&self, node: &str, disk: Disk<'_>, volume: &str, now: Instant) -> NodeState {
        let mut memory = self.memory();
        let since = *memory.since.entry((volume.to_owned(), node.to_owned())).or_insert(now);
        // A deleted node uses nothing.
        let Some(node) = self.nodes.get(node) else { return NodeState::default() };
        NodeState {
            in_use: node.status.volumes_in_use.contains(&disk.unique_name()),
            healthy: is_true(&node.status.conditions, "Ready"),
            out_of_service: node.is_tainted_out_of_service(),
            waited: now.duration_since(since),
        }
    }

    async fn attach(
        &self,
        volume: &PersistentVolume,
        csi: &CsiVolume,
        node: &str,
    ) -> Result<(), Error> {
        let name = &volume.metadata.name;
        self.memory().refused.remove(&(name.clone(), node.to_owned()));
        let attachment = json!({
            "metadata": {"name": csi.attachment(node)},
            "spec": {
                "attacher": csi.driver,
                "nodeName": node,
                "source": {"persistentVolumeName": name},
            },
        });
        match self.context.client.create::<_, Value>(&ATTACHMENTS, "", &attachment).await {
            Err(error) if error.is_already_exists() => Ok(()),
            other => other.map(drop),
        }
    }

    /// Removes the volume from the Node's status, then deletes the VolumeAttachment.
    async fn detach(
        &self,
        attachment: &Attachment,
        csi: &CsiVolume,
        safely: bool,
    ) -> Result<(), Error> {
        let (uid, node) = (attachment.uid.clone(), attachment.node.clone());
        self.memory().detaching.insert(uid, node);
        let done = self.detach_from_node(attachment, csi, safely).await;
        if !matches!(done, Ok(true)) {
            self.memory().detaching.remove(&attachment.uid);
            self.queue.add(of_node(&attachment.node));
        }
        done.map(drop)
    }

    async fn detach_from_node(
        &self,
        attachment: &Attachment,
        csi: &CsiVolume,
        safely: bool,
    ) -> Result<bool, Error> {
        let Attachment { name, uid, node, .. } = attachment;
        self.write_node_status(node).await?;
        if safely && self.is_in_use(node, &csi.unique_name()).await? {
            return Ok(false);
        }
        let preconditions = Some(Preconditions { uid: Some(uid.clone()), resource_version: None });
        let options = DeleteOptions { preconditions, ..DeleteOptions::default() };
        let deleted = self.context.client.delete(&ATTACHMENTS, "", name, &options).await;
        deleted.or_none().map(|_| true)
    }

    /// Writes `status.volumesAttached` of a Node.
    async fn write_node_status(&self, name: &str) -> Result<(), Error> {
        let Some(node) = self.nodes.get(name) else { return Ok(()) };
        let attachments = self.on_node.get(name);
        let mut recorded = self.recorded_disks(&node);
        let attached: BTreeSet<String> = {
            let mut memory = self.memory();
            memory.detaching.retain(|uid, node| {
                node != name || attachments.iter().any(|of| of.metadata.uid == *uid)
            });
            let here = attachments.iter().filter(|of| {
                let is_detaching =
                    of.metadata.terminating() || memory.detaching.contains_key(&of.metadata.uid);
                of.status.attached && !is_detaching
            });
            let volume = |of: &Arc<VolumeAttachment>| {
                let volume = self.volumes.get(&of.spec.source.persistent_volume_name)?;
                Some(volume.spec.csi.as_ref()?.unique_name())
            };
            let direct = memory.direct.on_node(name).map(|(_, unique)| unique.clone());
            // After a start, disks stay attached until their volumes are reconciled.
            for known in memory.direct.names() {
                recorded.remove(known);
            }
            here.filter_map(volume).chain(direct).chain(recorded).collect()
        };
        if node.status.attached() == attached {
            return Ok(());
        }
        let list: Vec<Value> =
            attached.iter().map(|name| json!({"name": name, "devicePath": ""})).collect();
        let list = if list.is_empty() { Value::Null } else { json!(list) };
        let at = PatchTarget { namespace: "", name, subresource: "status" };
        let patch = json!({"status": {"volumesAttached": list}});
        let client = &self.context.client;
        let patched = client.patch::<Value>(&Resource::NODES, at, PatchKind::Merge, &patch).await;
        patched.or_none().map(drop)
    }

    /// Returns the iSCSI disks of existing volumes that a Node's status lists. A kubelet can write any names there.
    fn recorded_disks(&self, node: &Node) -> BTreeSet<String> {
        let mut names = node.status.attached();
        names.retain(|name| name.starts_with(ISCSI));
        if names.is_empty() {
            return names;
        }
        let volumes = self.volumes.list();
        let disks = volumes.iter().filter_map(|volume| Disk::of(volume));
        let iscsi = disks.filter(|disk| matches!(disk, Disk::Iscsi(_)));
        let existing: BTreeSet<String> = iscsi.map(Disk::unique_name).collect();
        names.intersection(&existing).cloned().collect()
    }

    fn refuse(&self, volume: &str, node: &str, desired: &BTreeMap<String, Vec<Arc<Pod>>>) {
        if !self.memory().refused.insert((volume.to_owned(), node.to_owned())) {
            return;
        }
        let others: Vec<&str> = desired
            .iter()
            .filter(|(other, _)| *other != node)
            .flat_map(|(_, pods)| pods.iter().map(|pod| pod.metadata.name.as_str()))
            .collect();
        let why = if others.is_empty() {
            "Volume is already exclusively attached to one node and can't be attached to another"
                .to_owned()
        } else {
            format!("Volume is already used by pod(s) {}", others.join(", "))
        };
        for pod in desired.get(node).into_iter().flatten() {
            self.warn(pod, format!("Multi-Attach error for volume {volume:?} {why}"));
        }
    }
}

#[cfg(test)]
mod tests;
