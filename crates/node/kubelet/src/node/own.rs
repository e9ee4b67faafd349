//! The Node object of this node, as the API server has it.

use std::{collections::BTreeMap, sync::Arc};

use api_meta::{ObjectMeta, null_default};
use client::{Change, Client, Informer, ListOptions, Resource};
use k8s_openapi::api::core::v1::{NodeCondition, Taint};
use serde::Deserialize;
use tokio::sync::watch;

/// An informer on this node's own object.
pub(crate) struct OwnNode {
    informer: Option<Informer<View>>,
    changed: watch::Receiver<()>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct View {
    metadata: ObjectMeta,
    spec: Spec,
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
#[serde(rename_all = "camelCase")]
struct Status {
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

impl View {
    pub(crate) fn labels(&self) -> &BTreeMap<String, String> {
        &self.metadata.labels
    }

    pub(crate) fn annotations(&self) -> &BTreeMap<String, String> {
        &self.metadata.annotations
    }

    pub(crate) fn conditions(&self) -> &[NodeCondition] {
        &self.status.conditions
    }

    /// Reports whether the Node's status lists a volume as attached and as in use. A volume in use is not detached.
    pub(crate) fn may_use(&self, volume: &str) -> bool {
        self.is_attached(volume) && self.status.volumes_in_use.iter().any(|name| name == volume)
    }

    pub(crate) fn is_attached(&self, volume: &str) -> bool {
        self.status.volumes_attached.iter().any(|attached| attached.name == volume)
    }

    pub(crate) fn taints(&self) -> &[Taint] {
        &self.spec.taints
    }
}

impl OwnNode {
    pub(crate) fn new(client: Option<&Client>, name: &str, tasks: &rt::Tasks) -> Self {
        let options = ListOptions::fields(&format!("metadata.name={name}"));
        let (tell, changed) = watch::channel(());
        let start = |client| {
            let changed = move |_: Change<'_, View>| tell.send_replace(());
            Informer::start(client, Resource::NODES, options, tasks, changed)
        };
        Self { informer: client.map(start), changed }
    }

    /// Returns the object, or `None` before the first list or without an API server.
    pub(crate) fn get(&self) -> Option<Arc<View>> {
        self.informer.as_ref()?.list().pop()
    }

    /// Returns a channel that changes with the object. Changes before the first wait are not missed.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.clone()
    }
}
