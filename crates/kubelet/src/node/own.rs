use std::{collections::BTreeMap, sync::Arc};

use api_meta::{ObjectMeta, null_default};
use client::{Change, Client, Informer, ListOptions, Resource};
use k8s_openapi::api::core::v1::{NodeCondition, Taint};
use serde::Deserialize;
use tokio::sync::watch;

/// This node's object, as far as it decides which Pods are taken and what there is to report.
pub(crate) struct Own {
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
    volumes_attached: Vec<Attached>,
    #[serde(deserialize_with = "null_default")]
    volumes_in_use: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Attached {
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

    /// Whether the API has heard that this node uses a volume, so that it is not detached, and says that it is attached.
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

impl Own {
    pub(crate) fn new(client: Option<&Client>, name: &str, tasks: &rt::Tasks) -> Self {
        let options = ListOptions::fields(&format!("metadata.name={name}"));
        let (tell, changed) = watch::channel(());
        let start = |client| {
            let changed = move |_: Change<'_, View>| tell.send_replace(());
            Informer::start(client, Resource::NODES, options, tasks, changed)
        };
        Self { informer: client.map(start), changed }
    }

    /// `None` before the API has told, or where there is none.
    pub(crate) fn get(&self) -> Option<Arc<View>> {
        self.informer.as_ref()?.list().pop()
    }

    /// Tells of every change; one that is made while nobody waits is told at once.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.clone()
    }
}
