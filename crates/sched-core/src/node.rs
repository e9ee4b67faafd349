use std::sync::Arc;

use serde::{Deserialize, Deserializer};

use crate::{
    labels::Labels,
    nodeaffinity::{Effect, Taint, node_labels},
    pod::{HostPort, Pod, image_symbol},
    resources::Resources,
    sym::Sym,
    view::NodeView,
};

/// What is looked at on every node for every Pod, kept together and apart from the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hot {
    /// What the node has to give: thousandths of a processor, bytes, and a number of Pods.
    pub cpu: i64,
    pub memory: i64,
    pub ephemeral: i64,
    pub pods: i64,
    /// What the Pods on it ask for, in the same units.
    pub used_cpu: i64,
    pub used_memory: i64,
    pub used_ephemeral: i64,
    pub used_pods: i64,
    /// What they count for in scores: those that ask for nothing count for upstream's small amounts.
    pub scored_cpu: i64,
    pub scored_memory: i64,
    /// The slot holds a node that exists; Pods may be bound to one that is gone or not yet seen.
    pub live: bool,
    pub unschedulable: bool,
    /// Whether it has any taint: most nodes have none, and then none is looked at.
    pub tainted: bool,
}

/// A node: the part of its description that seldom changes, and the Pods on it.
#[derive(Clone, Debug, Default)]
pub struct Node {
    pub name: Arc<str>,
    pub(crate) symbol: Sym,
    pub(crate) labels: Labels,
    pub(crate) numbers: Box<[(Sym, i64)]>,
    pub(crate) taints: Vec<Taint>,
    pub(crate) unschedulable: bool,
    /// Images by name, with their sizes; sorted.
    pub(crate) images: Vec<(Sym, i64)>,
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
    /// Compiles a node for comparisons by symbols; no Pods are on it yet.
    pub fn new(view: &NodeView) -> Self {
        let (labels, numbers) = node_labels(&view.metadata.labels);
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
            images.flat_map(|i| i.names.iter().map(|n| (image_symbol(n), i.size_bytes))).collect();
        images.sort_unstable();
        images.dedup_by_key(|image| image.0);
        Self {
            name: view.metadata.name.clone(),
            symbol: Sym::of(&view.metadata.name),
            labels,
            numbers,
            taints: taints.collect(),
            unschedulable: view.spec.unschedulable == Some(true),
            images,
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

    /// Whether an update matters; heartbeats and conditions do not.
    pub fn describes_same(&self, other: &Node) -> bool {
        self.labels == other.labels
            && self.taints == other.taints
            && self.unschedulable == other.unschedulable
            && self.images == other.images
            && self.allocatable == other.allocatable
            && self.max_pods == other.max_pods
    }
}
