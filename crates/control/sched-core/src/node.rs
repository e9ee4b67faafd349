//! A node, compiled for scheduling, with the Pods on it.

use std::sync::Arc;

use serde::{Deserialize, Deserializer};

use crate::{
    host_port::HostPort,
    labels::Labels,
    pod::Pod,
    resources::Resources,
    sym::Sym,
    taints::{Effect, Taint},
    view::NodeView,
};

/// The data of a node that every scheduling attempt reads, stored apart from the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hot {
    /// Allocatable processor, in thousandths of a core.
    pub cpu: i64,
    /// Allocatable memory, in bytes.
    pub memory: i64,
    /// Allocatable ephemeral storage, in bytes.
    pub ephemeral: i64,
    /// The largest number of Pods.
    pub pods: i64,
    /// Processor that the node's Pods request, in thousandths.
    pub used_cpu: i64,
    /// Memory that the node's Pods request, in bytes.
    pub used_memory: i64,
    /// Ephemeral storage that the node's Pods request, in bytes.
    pub used_ephemeral: i64,
    /// The number of Pods on the node.
    pub used_pods: i64,
    /// Requested processor for scores, in thousandths. A Pod without a request counts with upstream's default.
    pub scored_cpu: i64,
    /// Requested memory for scores, in bytes, with the same default rule.
    pub scored_memory: i64,
    /// `true` if the slot holds an existing node. Pods may be bound to a node that is deleted or not seen yet.
    pub live: bool,
    /// `true` if the node is cordoned.
    pub unschedulable: bool,
    /// `true` if the node has taints; without any, they are not checked.
    pub tainted: bool,
}

/// A node: its seldom changing description, and the Pods on it.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// The node's name.
    pub name: Arc<str>,
    pub(crate) symbol: Sym,
    pub(crate) labels: Labels,
    /// The label values that are integers, for `Gt` and `Lt`.
    pub(crate) numbers: Box<[(Sym, i64)]>,
    pub(crate) taints: Vec<Taint>,
    pub(crate) unschedulable: bool,
    /// Images with their sizes in bytes, sorted by name.
    pub(crate) images: Vec<(Sym, i64)>,
    pub(crate) declared_features: Vec<Box<str>>,
    pub(crate) allocatable: Resources,
    pub(crate) max_pods: i64,
    pub(crate) used_extended: Resources,
    pub(crate) ports: Vec<HostPort>,
    pub(crate) pods: Vec<Arc<Pod>>,
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        NodeView::deserialize(deserializer).map(|view| Node::new(&view))
    }
}

impl Node {
    /// Compiles a node. It has no Pods yet.
    pub fn new(view: &NodeView) -> Self {
        let labels = &view.metadata.labels;
        let numbers = labels.iter().filter_map(|(k, v)| Some((Sym::of(k), v.parse().ok()?)));
        let taints = view.spec.taints.iter().filter_map(|t| {
            let value = t.value.as_deref().unwrap_or("");
            Some(Taint {
                key: Sym::of(&t.key),
                value: Sym::of(value),
                number: value.parse().ok(),
                effect: Effect::parse(&t.effect)?,
            })
        });
        let images = view.status.images.iter();
        let mut images: Vec<_> =
            images.flat_map(|i| i.names.iter().map(|n| (Sym::of_image(n), i.size_bytes))).collect();
        images.sort_unstable();
        images.dedup_by_key(|image| image.0);
        Self {
            name: view.metadata.name.clone(),
            symbol: Sym::of(&view.metadata.name),
            labels: Labels::from_map(labels),
            numbers: numbers.collect(),
            taints: taints.collect(),
            unschedulable: view.spec.unschedulable == Some(true),
            images,
            declared_features: view.status.declared_features.clone(),
            allocatable: Resources::from_map(&view.status.allocatable),
            max_pods: view.status.allocatable.get("pods").map_or(0, |q| q.value()),
            ..Self::default()
        }
    }

    pub(crate) fn number(&self, key: Sym) -> Option<i64> {
        self.numbers.iter().find(|n| n.0 == key).map(|n| n.1)
    }

    pub(crate) fn image(&self, name: Sym) -> Option<i64> {
        self.images.binary_search_by_key(&name, |i| i.0).ok().map(|at| self.images[at].1)
    }

    /// Returns `true` if both describe the same node for scheduling; heartbeats and conditions are ignored.
    pub fn describes_same(&self, other: &Node) -> bool {
        self.labels == other.labels
            && self.taints == other.taints
            && self.unschedulable == other.unschedulable
            && self.images == other.images
            && self.declared_features == other.declared_features
            && self.allocatable == other.allocatable
            && self.max_pods == other.max_pods
    }
}
