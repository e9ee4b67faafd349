//! The graph of owners and dependents, built from the informers.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    sync::Arc,
};

use api_meta::{ObjectMeta, OwnerReference};
use client::Resource;
use serde::{Deserialize, Deserializer};

pub(super) type Uid = Arc<str>;

pub(super) const FOREGROUND: &str = "foregroundDeletion";
pub(super) const ORPHAN: &str = "orphan";

/// The metadata that the collector caches of every object.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct TrackedObject {
    pub(super) uid: Uid,
    pub(super) name: Box<str>,
    pub(super) namespace: Box<str>,
    pub(super) version: Box<str>,
    pub(super) owners: Vec<OwnerReference>,
    pub(super) finalizers: Vec<String>,
    pub(super) deleting: bool,
}

impl<'de> Deserialize<'de> for TrackedObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Whole {
            metadata: ObjectMeta,
        }
        let meta = Whole::deserialize(deserializer)?.metadata;
        Ok(Self {
            uid: meta.uid.as_str().into(),
            name: meta.name.into(),
            namespace: meta.namespace.into(),
            version: meta.resource_version.into(),
            owners: meta.owner_references,
            finalizers: meta.finalizers,
            deleting: meta.deletion_timestamp.is_some(),
        })
    }
}

impl TrackedObject {
    fn holds(&self, finalizer: &str) -> bool {
        self.finalizers.iter().any(|f| f == finalizer)
    }

    /// Reports whether the object is being deleted in the foreground, after its dependents.
    pub(super) fn waits_for_dependents(&self) -> bool {
        self.deleting && self.holds(FOREGROUND)
    }

    pub(super) fn orphans_dependents(&self) -> bool {
        self.deleting && self.holds(ORPHAN)
    }

    pub(super) fn policy(&self) -> &'static str {
        match () {
            () if self.holds(ORPHAN) => "Orphan",
            () if self.holds(FOREGROUND) => "Foreground",
            () => "Background",
        }
    }
}

#[derive(Debug)]
struct Item {
    resource: Arc<Resource>,
    object: Arc<TrackedObject>,
}

#[derive(Default)]
pub(super) struct Graph {
    items: HashMap<Uid, Item>,
    /// Dependents by their owner's uid, also for unknown owners.
    dependents: HashMap<Uid, BTreeSet<Uid>>,
    /// Owners known not to exist, by the namespace of the lookup. Uids are never reused, so this only saves reads.
    absent: BTreeSet<(Uid, Box<str>)>,
    absent_order: VecDeque<(Uid, Box<str>)>,
}

const ABSENT_KEPT: usize = 10_000;

/// The state of an owner.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum OwnerState {
    /// Exists and is not waiting for its dependents.
    Solid,
    /// Exists and waits for its dependents to be deleted.
    Waiting,
    Absent,
    /// Missing in the graph; the API must be read.
    Unknown,
}

impl Graph {
    /// Records a new or changed object. Returns the objects to collect.
    pub(super) fn observe(
        &mut self,
        resource: &Arc<Resource>,
        object: &Arc<TrackedObject>,
    ) -> Vec<Uid> {
        let uid = object.uid.clone();
        let item = Item { resource: resource.clone(), object: object.clone() };
        let before = self.items.insert(uid.clone(), item).map(|item| item.object);
        let old = before.as_ref().map_or(&[][..], |object| &object.owners);
        let mut uids = Vec::new();
        // Sets, because the author of an object chooses the number of its owners.
        let current: HashSet<&OwnerReference> = object.owners.iter().collect();
        let current_uids: HashSet<&str> = object.owners.iter().map(|o| o.uid.as_str()).collect();
        for owner in old.iter().filter(|o| !current_uids.contains(o.uid.as_str())) {
            self.cut(&owner.uid, &uid);
        }
        for owner in old.iter().filter(|o| !current.contains(o)) {
            // The owner may have waited for this change.
            uids.push(Uid::from(owner.uid.as_str()));
        }
        for owner in &object.owners {
            self.dependents.entry(owner.uid.as_str().into()).or_default().insert(uid.clone());
        }
        let all_solid =
            object.owners.iter().all(|o| self.owner_state(object, o) == OwnerState::Solid);
        if !object.owners.is_empty() && !all_solid {
            uids.push(uid.clone());
        }
        let waits =
            |object: &TrackedObject| (object.waits_for_dependents(), object.orphans_dependents());
        if before.as_ref().map(|b| waits(b)) != Some(waits(object))
            && waits(object) != (false, false)
        {
            uids.push(uid.clone());
            uids.extend(self.dependents(&uid));
        }
        uids
    }

    /// Removes a deleted object. Returns the objects to collect: its dependents, and owners that waited for it.
    pub(super) fn remove(&mut self, uid: &str) -> Vec<Uid> {
        let Some(item) = self.items.remove(uid) else { return vec![] };
        self.note_absent(&item.object.uid, &item.object.namespace);
        let mut uids = self.dependents(uid);
        for owner in &item.object.owners {
            self.cut(&owner.uid, uid);
            uids.push(owner.uid.as_str().into());
        }
        uids
    }

    fn cut(&mut self, owner: &str, dependent: &str) {
        if let Some(all) = self.dependents.get_mut(owner) {
            all.remove(dependent);
            if all.is_empty() {
                self.dependents.remove(owner);
            }
        }
    }

    pub(super) fn get(&self, uid: &str) -> Option<(Arc<Resource>, Arc<TrackedObject>)> {
        self.items.get(uid).map(|item| (item.resource.clone(), item.object.clone()))
    }

    pub(super) fn dependents(&self, owner: &str) -> Vec<Uid> {
        self.dependents.get(owner).into_iter().flatten().cloned().collect()
    }

    /// Returns the dependents that block the owner's deletion.
    pub(super) fn blocking(&self, owner: &str) -> Vec<Arc<TrackedObject>> {
        let items =
            self.dependents.get(owner).into_iter().flatten().filter_map(|uid| self.items.get(uid));
        let blocks = |object: &TrackedObject| {
            object.owners.iter().any(|o| o.uid == owner && o.block_owner_deletion == Some(true))
        };
        items.map(|item| item.object.clone()).filter(|object| blocks(object)).collect()
    }

    /// Reports whether a dependent waits for dependents of its own. With a waiting owner this looks like a cycle. A
    /// chain that is mistaken for a cycle is only deleted in another order.
    fn has_waiting_dependent(&self, owner: &str) -> bool {
        let dependents = self.dependents.get(owner).into_iter().flatten();
        dependents
            .filter_map(|uid| self.items.get(uid))
            .any(|item| item.object.waits_for_dependents())
    }

    /// Returns the state of the owner that `child` refers to. The reference must match in kind, name and namespace: an
    /// owner in another namespace does not count.
    pub(super) fn owner_state(&self, child: &TrackedObject, owner: &OwnerReference) -> OwnerState {
        let uid: &str = &owner.uid;
        if self.absent.contains(&(uid.into(), child.namespace.clone())) {
            return OwnerState::Absent;
        }
        let Some(item) = self.items.get(uid) else { return OwnerState::Unknown };
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        let right = item.resource.group == group
            && item.resource.kind == owner.kind
            && *item.object.name == *owner.name
            && (!item.resource.namespaced || item.object.namespace == child.namespace);
        match () {
            () if !right => OwnerState::Unknown,
            () if item.object.waits_for_dependents() => OwnerState::Waiting,
            () => OwnerState::Solid,
        }
    }

    pub(super) fn note_absent(&mut self, uid: &Uid, namespace: &str) {
        let key = (uid.clone(), Box::from(namespace));
        // The lookup came from a cluster-scoped child or from a child in the same namespace.
        if self.absent.insert(key.clone()) {
            self.absent_order.push_back(key);
        }
        if self.absent_order.len() > ABSENT_KEPT
            && let Some(oldest) = self.absent_order.pop_front()
        {
            self.absent.remove(&oldest);
        }
    }
}

/// The action for one object.
#[derive(Debug, PartialEq)]
pub(super) enum Plan {
    Nothing,
    /// All its owners are gone, or are being deleted and wait for it.
    Delete {
        policy: &'static str,
    },
    /// Removes these references, because it has other owners.
    DropOwners(Vec<OwnerReference>),
    /// Stops it from blocking its owners, because it is part of a cycle of waiting objects.
    StopBlocking,
    /// Its dependents are gone: remove this finalizer.
    RemoveFinalizer(&'static str),
    /// Collect its dependents first.
    Dependents(Vec<Uid>),
    /// Remove it from its dependents' owner references, then remove the finalizer.
    Orphan(Vec<Uid>),
}

/// Decides the action for one object from the states of its owners.
pub(super) fn plan(graph: &Graph, object: &TrackedObject, states: &[OwnerState]) -> Plan {
    if object.orphans_dependents() {
        return Plan::Orphan(graph.dependents(&object.uid));
    }
    if object.waits_for_dependents() {
        let blocking = graph.blocking(&object.uid);
        if blocking.is_empty() {
            return Plan::RemoveFinalizer(FOREGROUND);
        }
        return Plan::Dependents(
            blocking.iter().filter(|d| !d.deleting).map(|d| d.uid.clone()).collect(),
        );
    }
    if object.deleting || object.owners.is_empty() {
        return Plan::Nothing;
    }
    let of = |state: OwnerState| {
        let pairs = object.owners.iter().zip(states);
        pairs.filter(|(_, s)| **s == state).map(|(o, _)| o.clone()).collect::<Vec<_>>()
    };
    let (solid, waiting, absent) =
        (of(OwnerState::Solid), of(OwnerState::Waiting), of(OwnerState::Absent));
    if !solid.is_empty() {
        let drop = [absent, waiting].concat();
        return if drop.is_empty() { Plan::Nothing } else { Plan::DropOwners(drop) };
    }
    if !waiting.is_empty() && !graph.dependents(&object.uid).is_empty() {
        let blocks = object.owners.iter().any(|owner| owner.block_owner_deletion == Some(true));
        if blocks && graph.has_waiting_dependent(&object.uid) {
            return Plan::StopBlocking;
        }
        // The owner waits for this object, so this object must wait for its own dependents.
        return Plan::Delete { policy: "Foreground" };
    }
    Plan::Delete { policy: object.policy() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(uid: &str, blocks: bool) -> OwnerReference {
        OwnerReference {
            api_version: "v1".into(),
            kind: "Thing".into(),
            name: uid.into(),
            uid: uid.into(),
            controller: None,
            block_owner_deletion: Some(blocks),
        }
    }

    fn kept(uid: &str, owners: Vec<OwnerReference>) -> TrackedObject {
        TrackedObject {
            uid: uid.into(),
            name: uid.into(),
            namespace: "ns".into(),
            owners,
            ..TrackedObject::default()
        }
    }

    fn things() -> Arc<Resource> {
        Arc::new(Resource::constant("", "v1", "things", "Thing", true))
    }

    fn plan_for(graph: &Graph, kept: &TrackedObject) -> Plan {
        let states: Vec<_> = kept.owners.iter().map(|o| graph.owner_state(kept, o)).collect();
        plan(graph, kept, &states)
    }

    fn observe(graph: &mut Graph, kept: &TrackedObject) -> Vec<Uid> {
        graph.observe(&things(), &Arc::new(kept.clone()))
    }

    #[test]
    fn deletes_dependents_after_last_owner() {
        let mut graph = Graph::default();
        let (one, two) = (kept("one", vec![]), kept("two", vec![]));
        let both = kept("both", vec![owner("one", true), owner("two", true)]);
        let single = kept("single", vec![owner("one", true)]);
        for item in [&one, &two, &both, &single] {
            assert!(observe(&mut graph, item).is_empty());
        }
        assert_eq!(plan_for(&graph, &both), Plan::Nothing);
        assert_eq!(graph.remove("one"), ["both".into(), "single".into()]);
        assert_eq!(plan_for(&graph, &both), Plan::DropOwners(vec![owner("one", true)]));
        assert_eq!(plan_for(&graph, &single), Plan::Delete { policy: "Background" });
    }

    #[test]
    fn replaces_tens_of_thousands_of_owners() {
        let mut graph = Graph::default();
        let owners = |from: usize| (from..from + 30_000).map(|n| owner(&n.to_string(), true));
        observe(&mut graph, &kept("child", owners(0).collect()));
        let uids = observe(&mut graph, &kept("child", owners(10_000).collect()));
        assert_eq!(uids.len(), 10_000 + 1, "the former owners and the object");
        assert!(graph.dependents("0").is_empty());
        assert_eq!(graph.dependents("10000"), ["child".into()]);
    }

    #[test]
    fn deletes_waiting_owner_after_blocking_dependents() {
        let mut graph = Graph::default();
        let mut top = kept("top", vec![]);
        let child = kept("child", vec![owner("top", true)]);
        let loose = kept("loose", vec![owner("top", false)]);
        for item in [&top, &child, &loose] {
            observe(&mut graph, item);
        }
        top.deleting = true;
        top.finalizers = vec![FOREGROUND.into()];
        let uids = observe(&mut graph, &top);
        assert_eq!(uids, ["top".into(), "child".into(), "loose".into()]);
        assert_eq!(plan_for(&graph, &top), Plan::Dependents(vec!["child".into()]));
        assert_eq!(plan_for(&graph, &child), Plan::Delete { policy: "Background" });
        assert!(graph.remove("child").contains(&"top".into()));
        assert_eq!(plan_for(&graph, &top), Plan::RemoveFinalizer(FOREGROUND));
    }

    #[test]
    fn deletes_middle_of_chain_in_foreground() {
        let mut graph = Graph::default();
        let mut top = kept("top", vec![]);
        top.deleting = true;
        top.finalizers = vec![FOREGROUND.into()];
        let middle = kept("middle", vec![owner("top", true)]);
        let leaf = kept("leaf", vec![owner("middle", true)]);
        for item in [&top, &middle, &leaf] {
            observe(&mut graph, item);
        }
        assert_eq!(plan_for(&graph, &middle), Plan::Delete { policy: "Foreground" });
        assert_eq!(plan_for(&graph, &leaf), Plan::Nothing);
    }

    #[test]
    fn breaks_ownership_cycle() {
        let mut graph = Graph::default();
        let mut one = kept("one", vec![owner("three", true)]);
        let mut two = kept("two", vec![owner("one", true)]);
        let mut three = kept("three", vec![owner("two", true)]);
        for waiting in [&mut one, &mut two] {
            waiting.deleting = true;
            waiting.finalizers = vec![FOREGROUND.into()];
        }
        for item in [&one, &two, &three] {
            observe(&mut graph, item);
        }
        assert_eq!(plan_for(&graph, &three), Plan::StopBlocking);
        three.owners = vec![owner("two", false)];
        assert!(observe(&mut graph, &three).contains(&"two".into()));
        assert_eq!(plan_for(&graph, &two), Plan::RemoveFinalizer(FOREGROUND));
        assert_eq!(plan_for(&graph, &three), Plan::Delete { policy: "Foreground" });
    }

    #[test]
    fn orphans_dependents_before_owner_deletion() {
        let mut graph = Graph::default();
        let mut top = kept("top", vec![]);
        observe(&mut graph, &top);
        observe(&mut graph, &kept("child", vec![owner("top", true)]));
        top.deleting = true;
        top.finalizers = vec![ORPHAN.into()];
        assert!(observe(&mut graph, &top).contains(&"top".into()));
        assert_eq!(plan_for(&graph, &top), Plan::Orphan(vec!["child".into()]));
    }

    #[test]
    fn ignores_owner_in_other_namespace() {
        let mut graph = Graph::default();
        let mut top = kept("top", vec![]);
        top.namespace = "other".into();
        observe(&mut graph, &top);
        let child = kept("child", vec![owner("top", true)]);
        assert_eq!(observe(&mut graph, &child), ["child".into()]);
        assert_eq!(graph.owner_state(&child, &child.owners[0]), OwnerState::Unknown);
        graph.note_absent(&"top".into(), "ns");
        assert_eq!(plan_for(&graph, &child), Plan::Delete { policy: "Background" });
    }
}
