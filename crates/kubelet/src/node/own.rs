use std::{collections::BTreeMap, sync::Arc};

use api_meta::ObjectMeta;
use client::{Client, Informer, ListOptions, Resource};
use k8s_openapi::api::core::v1::{NodeCondition, Taint};
use serde::Deserialize;

/// This node's object, as far as it decides which Pods are taken and what there is to report.
pub(crate) struct Own(Option<Informer<View>>);

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct View {
    metadata: ObjectMeta,
    spec: Spec,
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    conditions: Vec<NodeCondition>,
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

    pub(crate) fn taints(&self) -> &[Taint] {
        &self.spec.taints
    }
}

impl Own {
    pub(crate) fn new(client: Option<&Client>, name: &str, tasks: &rt::Tasks) -> Self {
        let options = ListOptions::fields(&format!("metadata.name={name}"));
        Self(client.map(|c| Informer::start(c, Resource::NODES, options, tasks, |_| {})))
    }

    /// `None` before the API has told, or where there is none.
    pub(crate) fn get(&self) -> Option<Arc<View>> {
        self.0.as_ref()?.list().pop()
    }
}
