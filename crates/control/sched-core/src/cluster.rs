//! The snapshot of nodes and Pods, with counts derived from both.

use std::{collections::HashMap, sync::Arc};

use crate::{
    devices::Devices,
    groups::PodGroups,
    index::NodeIx,
    labels::{Labels, Selector},
    maps::set,
    node::{Hot, Node},
    pod::Pod,
    profile::Profiles,
    sym::{Sym, SymMap},
    term_index::TermIndex,
    terms::Namespaces,
    tracks::{Matcher, Tracks},
    view::{SpreaderKey, SpreaderSelectorView, SpreaderView},
    volumes::Volumes,
};

/// The values of one label on all nodes as small numbers, for counting by topology domain; 0 means "no such label".
#[derive(Default)]
pub(crate) struct Column {
    pub(crate) domain: Vec<u32>,
    numbers: SymMap<u32>,
}

impl Column {
    fn set(&mut self, node: NodeIx, value: Sym) {
        let next = self.numbers.len() as u32 + 1;
        let number =
            if value == Sym::NONE { 0 } else { *self.numbers.entry(value).or_insert(next) };
        if self.domain.len() <= node as usize {
            self.domain.resize(node as usize + 1, 0);
        }
        self.domain[node as usize] = number;
    }

    /// The largest number plus one.
    pub(crate) fn size(&self) -> usize {
        self.numbers.len() + 1
    }
}

/// The scheduler's snapshot: nodes, the Pods on them, and counts derived from both.
#[derive(Default)]
pub struct Cluster {
    pub(crate) hot: Vec<Hot>,
    pub(crate) nodes: Vec<Node>,
    by_name: HashMap<Arc<str>, NodeIx>,
    free: Vec<NodeIx>,
    live: usize,
    placed: HashMap<Arc<str>, (NodeIx, Arc<Pod>)>,
    columns: SymMap<Column>,
    pub(crate) terms: TermIndex,
    pub(crate) tracks: Tracks,
    pub(crate) namespaces: Namespaces,
    /// The number of nodes that have each image.
    pub(crate) image_nodes: SymMap<u32>,
    /// The selectors of Services, by namespace.
    services: SymMap<Vec<(Sym, Selector)>>,
    /// The selectors of Pods' owners, by kind, namespace and name.
    owners: HashMap<(Sym, Sym, Sym), Selector>,
    pub(crate) volumes: Volumes,
    pub(crate) devices: Devices,
    pub(crate) groups: PodGroups,
    pub(crate) profiles: Profiles,
}

impl Cluster {
    /// Creates a cluster without nodes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of nodes.
    pub fn node_count(&self) -> usize {
        self.live
    }

    /// Returns a node by index. The node may be deleted: its slot remains while Pods are on it.
    pub fn node(&self, ix: NodeIx) -> &Node {
        &self.nodes[ix as usize]
    }

    /// Returns the index of an existing node.
    pub(crate) fn find_node(&self, name: &str) -> Option<NodeIx> {
        self.by_name.get(name).copied().filter(|ix| self.hot[*ix as usize].live)
    }

    /// Returns the indices of all existing nodes.
    pub(crate) fn live_nodes(&self) -> impl Iterator<Item = NodeIx> {
        (0..self.hot.len() as NodeIx).filter(|ix| self.hot[*ix as usize].live)
    }

    /// Returns the Pods on a node, including assumed ones.
    pub(crate) fn pods_on(&self, ix: NodeIx) -> &[Arc<Pod>] {
        &self.nodes[ix as usize].pods
    }

    /// Returns the node of a Pod, assumed or bound, by the Pod's uid.
    pub fn placement(&self, uid: &str) -> Option<(NodeIx, &Arc<Pod>)> {
        self.placed.get(uid).map(|(ix, pod)| (*ix, pod))
    }

    /// Returns all Pods with a node, bound or assumed.
    pub(crate) fn pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.placed.values().map(|(_, pod)| pod)
    }

    /// Adds or updates a node. Returns its index and the former node if the update matters.
    pub fn set_node(&mut self, node: Node) -> (NodeIx, Option<Node>) {
        let ix = self.slot(&node.name);
        let at = ix as usize;
        let was_live = self.hot[at].live;
        if was_live && self.nodes[at].describes_same(&node) {
            return (ix, None);
        }
        let relabelled = self.nodes[at].labels != node.labels;
        if relabelled {
            self.each_pod_on(ix, |terms, pod, labels| terms.remove(pod, labels));
        }
        self.count_images(ix, -1);
        let node = Node {
            used_extended: std::mem::take(&mut self.nodes[at].used_extended),
            ports: std::mem::take(&mut self.nodes[at].ports),
            pods: std::mem::take(&mut self.nodes[at].pods),
            ..node
        };
        let hot = &mut self.hot[at];
        hot.cpu = node.allocatable.cpu;
        hot.memory = node.allocatable.memory;
        hot.ephemeral = node.allocatable.ephemeral;
        hot.pods = node.max_pods;
        hot.unschedulable = node.unschedulable;
        hot.tainted = !node.taints.is_empty();
        hot.live = true;
        self.live += usize::from(!was_live);
        let old = std::mem::replace(&mut self.nodes[at], node);
        self.count_images(ix, 1);
        if relabelled {
            self.each_pod_on(ix, |terms, pod, labels| terms.add(pod, labels));
        }
        self.refresh_columns(ix);
        (ix, was_live.then_some(old))
    }

    /// Removes a node. Its Pods keep the slot until they are removed too.
    pub fn remove_node(&mut self, name: &str) {
        let Some(ix) = self.find_node(name) else { return };
        self.count_images(ix, -1);
        let hot = &mut self.hot[ix as usize];
        hot.live = false;
        self.live -= 1;
        self.refresh_columns(ix);
        self.free_if_empty(ix);
    }

    /// Adds a Pod that has a node, bound or assumed, and replaces a former state of the same uid.
    pub fn add_pod(&mut self, pod: Arc<Pod>, node: &Arc<str>) -> NodeIx {
        self.remove_pod(&pod.id.uid);
        let ix = self.slot(node);
        self.placed.insert(pod.id.uid.clone(), (ix, pod.clone()));
        self.place_pod(pod, ix);
        ix
    }

    /// Removes a Pod from its node and returns both; `None` if the Pod had no node.
    pub fn remove_pod(&mut self, uid: &str) -> Option<(NodeIx, Arc<Pod>)> {
        let (ix, pod) = self.placed.remove(uid)?;
        self.unplace_pod(&pod, ix);
        self.free_if_empty(ix);
        Some((ix, pod))
    }

    /// Puts a Pod on a node for a trial, without recording its placement. [`Cluster::unplace_pod`] undoes it.
    pub(crate) fn place_pod(&mut self, pod: Arc<Pod>, ix: NodeIx) {
        self.account(&pod, ix, 1);
        self.tracks.add(&pod, ix, &self.namespaces);
        let node = &mut self.nodes[ix as usize];
        self.terms.add(&pod, &node.labels);
        node.ports.extend_from_slice(&pod.ports);
        self.volumes.add_pod(&pod);
        node.pods.push(pod);
    }

    /// Takes a Pod off a node.
    pub(crate) fn unplace_pod(&mut self, pod: &Arc<Pod>, ix: NodeIx) {
        self.account(pod, ix, -1);
        self.tracks.remove(pod, ix, &self.namespaces);
        let node = &mut self.nodes[ix as usize];
        self.terms.remove(pod, &node.labels);
        for port in &pod.ports {
            if let Some(at) = node.ports.iter().position(|p| p == port) {
                node.ports.swap_remove(at);
            }
        }
        self.volumes.remove_pod(pod);
        if let Some(at) = node.pods.iter().position(|p| p.id.uid == pod.id.uid) {
            node.pods.remove(at);
        }
    }

    fn account(&mut self, pod: &Pod, ix: NodeIx, sign: i64) {
        let hot = &mut self.hot[ix as usize];
        hot.used_cpu += sign * pod.requests.cpu;
        hot.used_memory += sign * pod.requests.memory;
        hot.used_ephemeral += sign * pod.requests.ephemeral;
        hot.used_pods += sign;
        hot.scored_cpu += sign * pod.scored[0];
        hot.scored_memory += sign * pod.scored[1];
        if !pod.requests.extended.is_empty() {
            self.nodes[ix as usize].used_extended.add(&pod.requests, sign);
        }
    }

    /// Sets a namespace's labels, which affinity terms select by; `None` if the namespace is deleted.
    pub fn set_namespace(&mut self, name: &str, labels: Option<Labels>) {
        let key = Sym::of(name);
        let changed = match labels {
            Some(labels) => self.namespaces.insert(key, labels.clone()).as_ref() != Some(&labels),
            None => self.namespaces.remove(&key).is_some(),
        };
        if changed {
            self.tracks.namespace_changed();
        }
    }

    /// Sets the selector of a Service or of an owner of Pods; `None` if it is deleted.
    pub fn set_spreader(&mut self, key: SpreaderKey<'_>, view: Option<&SpreaderView>) {
        let SpreaderKey { kind, namespace, name } = key;
        let (kind_symbol, ns, name) = (Sym::of(kind), Sym::of(namespace), Sym::of(name));
        let selector = view.and_then(|v| v.spec.selector.as_ref()).map(|selector| match selector {
            SpreaderSelectorView::Map(map) => Selector::from_labels(map),
            SpreaderSelectorView::Selector(selector) => Selector::new(selector),
        });
        let selector = selector.filter(|s| !s.is_empty());
        if kind != "Service" {
            set(&mut self.owners, (kind_symbol, ns, name), selector);
            return;
        }
        let services = self.services.entry(ns).or_default();
        services.retain(|service| service.0 != name);
        services.extend(selector.map(|selector| (name, selector)));
        if services.is_empty() {
            self.services.remove(&ns);
        }
    }

    /// Returns the conjunction of the selectors of the Pod's Services and of its owner.
    pub(crate) fn default_selector(&self, pod: &Pod) -> Option<Selector> {
        let services = self.services.get(&pod.namespace_symbol).into_iter().flatten();
        let mut out: Option<Selector> = None;
        let mut add = |selector: &Selector| {
            out = Some(out.take().unwrap_or_default().and(selector));
        };
        services.filter(|(_, s)| s.matches(&pod.labels)).for_each(|(_, s)| add(s));
        if let Some((kind, name)) = pod.controller {
            self.owners.get(&(kind, pod.namespace_symbol, name)).into_iter().for_each(add);
        }
        out
    }

    /// Ensures that the values of a label are numbered.
    pub(crate) fn ensure_column(&mut self, key: Sym) {
        let nodes = self.nodes.len();
        let crowded = |column: &Column| column.size() > 4 * nodes + 64;
        if self.columns.get(&key).is_some_and(|column| !crowded(column)) {
            return;
        }
        let mut column = Column { domain: vec![0; nodes], ..Column::default() };
        for ix in self.live_nodes() {
            column.set(ix, self.nodes[ix as usize].labels.value(key));
        }
        self.columns.insert(key, column);
    }

    pub(crate) fn column(&self, key: Sym) -> &Column {
        static NONE: std::sync::LazyLock<Column> = std::sync::LazyLock::new(Column::default);
        self.columns.get(&key).unwrap_or(&NONE)
    }

    /// Returns the index of the counts of matching Pods per node; see [`Tracks::ensure`].
    pub(crate) fn ensure_track(&mut self, matcher: &Matcher) -> usize {
        let pods = self.nodes.iter().enumerate().map(|(ix, node)| (ix as NodeIx, &node.pods[..]));
        self.tracks.ensure(matcher, self.nodes.len(), &self.namespaces, pods)
    }

    fn slot(&mut self, name: &Arc<str>) -> NodeIx {
        if let Some(&ix) = self.by_name.get(name) {
            return ix;
        }
        let ix = self.free.pop().unwrap_or_else(|| {
            self.nodes.push(Node::default());
            self.hot.push(Hot::default());
            self.tracks.grow(self.nodes.len());
            (self.nodes.len() - 1) as NodeIx
        });
        self.by_name.insert(name.clone(), ix);
        self.nodes[ix as usize].name = name.clone();
        self.refresh_columns(ix);
        ix
    }

    fn free_if_empty(&mut self, ix: NodeIx) {
        let at = ix as usize;
        if !self.hot[at].live && self.nodes[at].pods.is_empty() {
            self.by_name.remove(&self.nodes[at].name);
            self.nodes[at] = Node::default();
            self.hot[at] = Hot::default();
            self.free.push(ix);
        }
    }

    fn refresh_columns(&mut self, ix: NodeIx) {
        let live = self.hot[ix as usize].live;
        for (key, column) in &mut self.columns {
            let value = self.nodes[ix as usize].labels.value(*key);
            column.set(ix, if live { value } else { Sym::NONE });
        }
    }

    fn each_pod_on(&mut self, ix: NodeIx, change: impl Fn(&mut TermIndex, &Pod, &Labels)) {
        let node = &self.nodes[ix as usize];
        for pod in &node.pods {
            change(&mut self.terms, pod, &node.labels);
        }
    }

    fn count_images(&mut self, ix: NodeIx, sign: i32) {
        if !self.hot[ix as usize].live {
            return;
        }
        for (image, _) in &self.nodes[ix as usize].images {
            let count = self.image_nodes.entry(*image).or_default();
            *count = count.saturating_add_signed(sign);
            if *count == 0 {
                self.image_nodes.remove(image);
            }
        }
    }
}
