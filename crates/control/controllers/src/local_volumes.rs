//! Provisions local volumes of a node for claims, expands them, and deletes them with the claims
//! (local-volume-provisioner-controller).
//!
//! It is the provisioner `windlass.local/volumes`. The node's kubelet creates the volume when a Pod first mounts it.
//! To remove it, the controller sets an annotation of the Node, and the kubelet answers there.

mod expansion;
mod plan;

use std::sync::Arc;

use api_meta::{ObjectMeta, Tree as _};
use client::{
    DeleteOptions, Error, Index, NotFoundExt as _, PatchKind, PatchTarget, Resource, WorkQueue,
};
use serde_json::{Value, json};

use crate::{
    context::{Context, synced},
    pods::OwnerOf,
    shared::Watched,
    views::{Node, PersistentVolume, StorageClass, VolumeClaim},
};
use expansion::Expansion;
use plan::{FINALIZER, Provisioning, REMOVE, Reclaim};

const CLAIMS: Resource = Resource::PERSISTENT_VOLUME_CLAIMS;
const VOLUMES: Resource = Resource::PERSISTENT_VOLUMES;

struct Provisioner {
    context: Context,
    claims: Watched<VolumeClaim>,
    volumes: Watched<PersistentVolume>,
    classes: Watched<StorageClass>,
    nodes: Watched<Node>,
    /// Nodes by the volumes whose directories they have to remove.
    removing: Index<Node>,
}

pub(crate) fn start(context: Context) {
    let queue = WorkQueue::default();
    let nodes = context.watch::<Node>(Resource::NODES);
    let own = Arc::new(Provisioner {
        removing: nodes
            .index("volume to remove", |node| removals(node).map(str::to_owned).collect()),
        nodes,
        claims: context.watch(CLAIMS),
        volumes: context.watch(VOLUMES),
        classes: context.watch(Resource::STORAGE_CLASSES),
        context: context.clone(),
    });
    // The keys of claims have a namespace; the names of volumes and of requested removals have none.
    own.claims.on_key(&queue);
    own.volumes.on_key(&queue);
    let add = queue.clone();
    own.volumes.on(move |change| {
        let claim = change.new.and_then(|volume| volume.spec.claim_ref.as_ref());
        claim.into_iter().for_each(|claim| add.add(claim.key()));
    });
    let add = queue.clone();
    own.nodes.on(move |change| {
        change.new.into_iter().flat_map(|node| removals(node)).for_each(|v| add.add(v.to_owned()));
    });
    let waits =
        vec![synced(&own.claims), synced(&own.volumes), synced(&own.classes), synced(&own.nodes)];
    context.run(&queue, 2, waits, (own, queue.clone()), |(own, queue), key| async move {
        if key.contains('/') {
            own.provision(&key).await?;
            own.expand(&key).await
        } else {
            own.reclaim(&key, &queue).await
        }
    });
}

/// Returns the volumes whose directories a node has to remove.
fn removals(node: &Node) -> impl Iterator<Item = &str> {
    node.metadata.annotations.keys().filter_map(|key| key.strip_prefix(REMOVE))
}

impl Provisioner {
    async fn provision(&self, key: &str) -> Result<(), Error> {
        let Some(claim) = self.claims.get(key) else { return Ok(()) };
        let class = self.classes.get(claim.class().unwrap_or_default());
        let node = claim.metadata.annotations.get(plan::SELECTED_NODE);
        let node = node.and_then(|name| self.nodes.get(name));
        let object = OwnerOf::new(CLAIMS, &claim.metadata).object();
        let single = self.nodes.len() == 1;
        match plan::provision(&claim, class.as_deref(), node.as_deref(), single) {
            Provisioning::Nothing => Ok(()),
            Provisioning::Volume(volume) => {
                if let Some(node) = node.filter(|node| !plan::is_labelled(node)) {
                    self.label(&node.metadata.name).await?;
                }
                let created = self.context.client.create::<_, Value>(&VOLUMES, "", &volume).await;
                match created {
                    // From an earlier attempt: the name contains the claim's uid.
                    Err(error) if error.is_already_exists() => Ok(()),
                    Err(error) => {
                        let message = format!("failed to provision volume: {error}");
                        self.context.events.warning(object, "ProvisioningFailed", message);
                        Err(error)
                    }
                    Ok(_) => {
                        let name = volume.name();
                        let limited = class.as_deref().is_some_and(plan::limits_size);
                        let note = if limited { "" } else { "; its size is not limited" };
                        let message = format!("Successfully provisioned volume {name}{note}");
                        self.context.events.normal(object, "ProvisioningSucceeded", message);
                        Ok(())
                    }
                }
            }
            Provisioning::Refused { message, reschedules } => {
                self.context.events.warning(object, "ProvisioningFailed", message);
                if !reschedules {
                    return Ok(());
                }
                let change = json!({"metadata": {"annotations": {plan::SELECTED_NODE: null}}});
                self.context.merge_by_update(&CLAIMS, &claim.metadata, "", &change).await.map(drop)
            }
        }
    }

    /// Expands the volume of a claim that requests more, as far as the node is not needed. Each change of the claim or
    /// the volume leads to the next step.
    async fn expand(&self, key: &str) -> Result<(), Error> {
        let Some(claim) = self.claims.get(key) else { return Ok(()) };
        let Some(volume) = self.volumes.get(&claim.spec.volume_name) else { return Ok(()) };
        let object = OwnerOf::new(CLAIMS, &claim.metadata).object();
        let events = &self.context.events;
        match expansion::expand(&claim, &volume, self.context.now()) {
            Expansion::Nothing => Ok(()),
            Expansion::Refused(message) => {
                events.warning(object, "VolumeResizeFailed", message);
                Ok(())
            }
            Expansion::Volume(change) => {
                let name = &volume.metadata.name;
                let message = format!("External resizer is resizing volume {name}");
                events.normal(object, "Resizing", message);
                let meta = &volume.metadata;
                self.context.merge_by_update(&VOLUMES, meta, "", &change).await.map(drop)
            }
            Expansion::Claim(change) => {
                let meta = &claim.metadata;
                self.context.merge_by_update(&CLAIMS, meta, "status", &change).await?;
                let message = "Require file system resize of volume on node";
                events.normal(object, "FileSystemResizeRequired", message);
                Ok(())
            }
        }
    }

    async fn reclaim(&self, name: &str, queue: &WorkQueue<String>) -> Result<(), Error> {
        let volume = self.volumes.get(name);
        let Some(volume) = volume else { return self.forget(name).await };
        let node = plan::node_of(&volume).and_then(|name| self.nodes.get(name));
        match plan::reclaim(&volume, node.as_deref()) {
            Reclaim::Nothing => Ok(()),
            Reclaim::RequestRemoval(node) => {
                self.annotate(&node, name, json!(plan::REMOVAL_REQUESTED)).await
            }
            Reclaim::Failed { node, message } => {
                let object = OwnerOf::new(VOLUMES, &volume.metadata).object();
                self.context.events.warning(object, "VolumeFailedDelete", message);
                if let Some(node) = node {
                    self.annotate(&node, name, json!(plan::REMOVAL_REQUESTED)).await?;
                }
                queue.add_after(name.to_owned(), plan::AGAIN);
                Ok(())
            }
            Reclaim::Delete => self.delete(&volume.metadata).await,
        }
    }

    /// Removes the annotation of a completed removal after the volume is deleted.
    async fn forget(&self, name: &str) -> Result<(), Error> {
        let nodes = self.removing.get(name);
        let key = format!("{REMOVE}{name}");
        let is_removed = |node: &&Arc<Node>| {
            node.metadata.annotations.get(&key).is_some_and(|value| value == plan::REMOVED)
        };
        let Some(node) = nodes.iter().find(is_removed) else { return Ok(()) };
        // The informer may not have the volume yet.
        let there: Option<Value> = self.context.client.get(&VOLUMES, "", name).await.or_none()?;
        match there {
            Some(_) => Ok(()),
            None => self.annotate(&node.metadata.name, name, Value::Null).await,
        }
    }

    async fn annotate(&self, node: &str, volume: &str, value: Value) -> Result<(), Error> {
        self.patch(node, json!({"annotations": {format!("{REMOVE}{volume}"): value}})).await
    }

    /// Sets the label of a Node that the volumes on it require.
    async fn label(&self, node: &str) -> Result<(), Error> {
        self.patch(node, json!({"labels": {plan::NODE: node}})).await
    }

    async fn patch(&self, node: &str, metadata: Value) -> Result<(), Error> {
        let at = PatchTarget { namespace: "", name: node, subresource: "" };
        let patch = json!({ "metadata": metadata });
        let client = &self.context.client;
        client.patch::<Value>(&Resource::NODES, at, PatchKind::Merge, &patch).await.map(drop)
    }

    /// Deletes the volume after its directory.
    async fn delete(&self, meta: &ObjectMeta) -> Result<(), Error> {
        if !meta.terminating() {
            let options = DeleteOptions {
                preconditions: Some(client::Preconditions {
                    uid: Some(meta.uid.clone()),
                    resource_version: None,
                }),
                ..DeleteOptions::default()
            };
            let deleted = self.context.client.delete(&VOLUMES, "", &meta.name, &options).await;
            return deleted.or_none().map(drop);
        }
        let left: Vec<_> = meta.finalizers.iter().filter(|f| *f != FINALIZER).collect();
        let change = json!({"metadata": {"finalizers": left}});
        let written = self.context.merge_by_update(&VOLUMES, meta, "", &change).await;
        written.or_none().map(drop)
    }
}
