//! The Node object of this node, as the API server has it.

use std::{collections::BTreeMap, sync::Arc};

use api_meta::{ObjectMeta, null_default};
use client::{Change, Client, Informer, ListOptions, Resource};
use k8s_openapi::{
    api::core::v1::{NodeAddress, NodeCondition, Taint},
    apimachinery::pkg::api::resource::Quantity,
};
use serde::Deserialize;
use tokio::sync::watch;

/// An informer on this node's own object.
pub struct NodeInformer {
    informer: Option<Informer<NodeObject>>,
    changed: watch::Receiver<()>,
}

/// The fields of the Node that the kubelet reads.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeObject {
    metadata: ObjectMeta,
    spec: Spec,
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
#[serde(rename_all = "camelCase")]
struct Status {
    #[serde(deserialize_with = "null_default")]
    addresses: Vec<NodeAddress>,
    #[serde(deserialize_with = "null_default")]
    capacity: BTreeMap<String, Quantity>,
    #[serde(deserialize_with = "null_default")]
    allocatable: BTreeMap<String, Quantity>,
    conditions: Vec<NodeCondition>,
    #[serde(deserialize_with = "null_default")]
    volumes_attached: Vec<AttachedVolume>,
    #[serde(deserialize_with = "null_default")]
    volumes_in_use: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AttachedVolume {
    name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    taints: Vec<Taint>,
}

impl NodeObject {
    /// Returns the Node's UID.
    pub fn uid(&self) -> &str {
        &self.metadata.uid
    }

    /// Returns the Node's labels.
    pub fn labels(&self) -> &BTreeMap<String, String> {
        &self.metadata.labels
    }

    /// Returns the Node's annotations.
    pub fn annotations(&self) -> &BTreeMap<String, String> {
        &self.metadata.annotations
    }

    /// Reports whether the Node's status lists an address.
    pub fn has_addresses(&self) -> bool {
        !self.status.addresses.is_empty()
    }

    /// Returns the capacity in the Node's status, also of resources that other clients have added.
    pub fn capacity(&self) -> &BTreeMap<String, Quantity> {
        &self.status.capacity
    }

    /// Returns the allocatable amounts in the Node's status.
    pub fn allocatable(&self) -> &BTreeMap<String, Quantity> {
        &self.status.allocatable
    }

    /// Returns the conditions of the Node's status.
    pub fn conditions(&self) -> &[NodeCondition] {
        &self.status.conditions
    }

    /// Reports whether the Node's status lists a volume as attached and as in use. A volume in use is not detached.
    pub fn may_use(&self, volume: &str) -> bool {
        self.is_attached(volume) && self.status.volumes_in_use.iter().any(|name| name == volume)
    }

    /// Reports whether the Node's status lists a volume as attached.
    pub fn is_attached(&self, volume: &str) -> bool {
        self.status.volumes_attached.iter().any(|attached| attached.name == volume)
    }

    /// Returns the Node's taints.
    pub fn taints(&self) -> &[Taint] {
        &self.spec.taints
    }
}

impl NodeInformer {
    /// Starts the informer. Without a client, the object is never known.
    pub fn new(client: Option<&Client>, name: &str, tasks: &rt::Tasks) -> Self {
        let options = ListOptions::fields(&format!("metadata.name={name}"));
        let (sender, changed) = watch::channel(());
        let start = |client| {
            let changed = move |_: Change<'_, NodeObject>| sender.send_replace(());
            Informer::start(client, Resource::NODES, options, tasks, changed)
        };
        Self { informer: client.map(start), changed }
    }

    /// Returns the object, or `None` before the first list or without an API server.
    pub fn get(&self) -> Option<Arc<NodeObject>> {
        self.informer.as_ref()?.list().pop()
    }

    /// Returns a channel that changes with the object. Changes before the first wait are not missed.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.clone()
    }
}
