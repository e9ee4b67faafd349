//! Who owns whom, as far as the informers have shown it.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::Arc,
};

use api_meta::{ObjectMeta, OwnerReference};
use client::Resource;
use serde::{Deserialize, Deserializer};

pub(super) type Uid = Arc<str>;

pub(super) const FOREGROUND: &str = "foregroundDeletion";
pub(super) const ORPHAN: &str = "orphan";

/// What the collector keeps of every object.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Kept {
    pub(super) uid: Uid,
    pub(super) name: Box<str>,
    pub(super) namespace: Box<str>,
    pub(super) version: Box<str>,
    pub(super) owners: Vec<OwnerReference>,
    pub(super) finalizers: Vec<String>,
    pub(super) deleting: bool,
}

impl<'de> Deserialize<'de> for Kept {
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

impl Kept {
    fn holds(&self, finalizer: &str) -> bool {
        self.finalizers.iter().any(|f| f == finalizer)
    }

    /// Being deleted in the foreground: it goes when its dependents have gone.
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
    kept: Arc<Kept>,
}

#[derive(Default)]
pub(super) struct Graph {
    items: HashMap<Uid, Item>,
    /// By the owner's uid, whether or not the owner is known.
    dependents: HashMap<Uid, BTreeSet<Uid>>,
    /// Owners known not to exist (any more), with the namespace they were looked for in. A uid never comes
    /// back, so this only saves asking again.
    absent: BTreeSet<(Uid, Box<str>)>,
    absent_order: VecDeque<(Uid, Box<str>)>,
}

const ABSENT_KEPT: usize = 10_000;

/// How an owner stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Standing {
    /// There, and staying.
    Solid,
    /// There, waiting for its dependents to go.
    Waiting,
    Absent,
    /// Not in the graph: the API must be asked.
    Unknown,
}

impl Graph {
    /// An object came or changed. Returns the objects to look at.
    pub(super) fn observe(&mut self, resource: &Arc<Resource>, kept: &Arc<Kept>) -> Vec<Uid> {
        let uid = kept.uid.clone();
        let item = Item { resource: resource.clone(), kept: kept.clone() };
        let before = self.items.insert(uid.clone(), item).map(|item| item.kept);
        let old = before.as_ref().map_or(&[][..], |kept| &kept.owners);
        let mut look = Vec::new();
        for owner in old.iter().filter(|o| !kept.owners.iter().any(|n| n.uid == o.uid)) {
            self.cut(&owner.uid, &uid);
        }
        for owner in old.iter().filter(|o| !kept.owners.contains(o)) {
            // An owner may have waited for just this.
            look.push(Uid::from(owner.uid.as_str()));
        }
        for owner in &kept.owners {
            self.dependents.entry(owner.uid.as_str().into()).or_default().insert(uid.clone());
        }
        let all_solid = kept.owners.iter().all(|o| self.standing(kept, o) == Standing::Solid);
        if !kept.owners.is_empty() && !all_solid {
            look.push(uid.clone());
        }
        let waits = |kept: &Kept| (kept.waits_for_dependents(), kept.orphans_dependents());
        if before.as_ref().map(|b| waits(b)) != Some(waits(kept)) && waits(kept) != (false, false) {
            look.push(uid.clone());
            look.extend(self.dependents(&uid));
        }
        look
    }

    /// An object is gone. Returns the objects to look at: what it owned, and owners that waited for it.
    pub(super) fn gone(&mut self, uid: &str) -> Vec<Uid> {
        let Some(item) = self.items.remove(uid) else { return vec![] };
        self.note_absent(&item.kept.uid, &item.kept.namespace);
        let mut look = self.dependents(uid);
        for owner in &item.kept.owners {
            self.cut(&owner.uid, uid);
            look.push(owner.uid.as_str().into());
        }
        look
    }

    fn cut(&mut self, owner: &str, dependent: &str) {
        if let Some(all) = self.dependents.get_mut(owner) {
            all.remove(dependent);
            if all.is_empty() {
                self.dependents.remove(owner);
            }
        }
    }

    pub(super) fn get(&self, uid: &str) -> Option<(Arc<Resource>, Arc<Kept>)> {
        self.items.get(uid).map(|item| (item.resource.clone(), item.kept.clone()))
    }

    pub(super) fn dependents(&self, owner: &str) -> Vec<Uid> {
        self.dependents.get(owner).into_iter().flatten().cloned().collect()
    }

    /// Dependents whose owner may not go before them.
    pub(super) fn blocking(&self, owner: &str) -> Vec<Arc<Kept>> {
        let items =
            self.dependents.get(owner).into_iter().flatten().filter_map(|uid| self.items.get(uid));
        let blocks = |kept: &Kept| {
            kept.owners.iter().any(|o| o.uid == owner && o.block_owner_deletion == Some(true))
        };
        items.map(|item| item.kept.clone()).filter(|kept| blocks(kept)).collect()
    }

    /// Whether a dependent waits for dependents of its own. With a waiting owner that makes a circle, as far as one
    /// can see from here; taking a chain for one only makes its members go in another order.
    fn has_waiting_dependent(&self, owner: &str) -> bool {
        let dependents = self.dependents.get(owner).into_iter().flatten();
        dependents
            .filter_map(|uid| self.items.get(uid))
            .any(|item| item.kept.waits_for_dependents())
    }

    /// How the owner that `child` refers to stands. The reference must be right in kind, name and namespace:
    /// an owner in another namespace is no owner.
    pub(super) fn standing(&self, child: &Kept, owner: &OwnerReference) -> Standing {
        let uid: &str = &owner.uid;
        if self.absent.contains(&(uid.into(), child.namespace.clone())) {
            return Standing::Absent;
        }
        let Some(item) = self.items.get(uid) else { return Standing::Unknown };
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        let right = item.resource.group == group
            && item.resource.kind == owner.kind
            && *item.kept.name == *owner.name
            && (!item.resource.namespaced || item.kept.namespace == child.namespace);
        match () {
            () if !right => Standing::Unknown,
            () if item.kept.waits_for_dependents() => Standing::Waiting,
            () => Standing::Solid,
        }
    }

    pub(super) fn note_absent(&mut self, uid: &Uid, namespace: &str) {
        let key = (uid.clone(), Box::from(namespace));
        // Looked for from a cluster-scoped child, or by a child of the same namespace.
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

/// What to do about one object.
#[derive(Debug, PartialEq)]
pub(super) enum Plan {
    Nothing,
    /// Its last owner is gone, or is going and waits for it.
    Delete {
        policy: &'static str,
    },
    /// It has other owners: forget these.
    DropOwners(Vec<OwnerReference>),
    /// It is part of a circle whose members wait for each other: let its owners go without it.
    StopBlocking,
    /// All that it waited for is gone: let it go.
    RemoveFinalizer(&'static str),
    /// Look at its dependents first.
    Dependents(Vec<Uid>),
    /// Take it off its dependents' owners, then let it go.
    Orphan(Vec<Uid>),
}

/// Decides for one object, given how each of its owners stands.
pub(super) fn plan(graph: &Graph, kept: &Kept, standings: &[Standing]) -> Plan {
    if kept.orphans_dependents() {
        return Plan::Orphan(graph.dependents(&kept.uid));
    }
    if kept.waits_for_dependents() {
        let blocking = graph.blocking(&kept.uid);
        if blocking.is_empty() {
            return Plan::RemoveFinalizer(FOREGROUND);
        }
        return Plan::Dependents(
            blocking.iter().filter(|d| !d.deleting).map(|d| d.uid.clone()).collect(),
        );
    }
    if kept.deleting || kept.owners.is_empty() {
        return Plan::Nothing;
    }
    let of = |wanted: Standing| {
        let pairs = kept.owners.iter().zip(standings);
        pairs.filter(|(_, s)| **s == wanted).map(|(o, _)| o.clone()).collect::<Vec<_>>()
    };
    let (solid, waiting, absent) =
        (of(Standing::Solid), of(Standing::Waiting), of(Standing::Absent));
    if !solid.is_empty() {
        let drop = [absent, waiting].concat();
        return if drop.is_empty() { Plan::Nothing } else { Plan::DropOwners(drop) };
    }
    if !waiting.is_empty() && !graph.dependents(&kept.uid).is_empty() {
        let blocks = kept.owners.iter().any(|owner| owner.block_owner_deletion == Some(true));
        if blocks && graph.has_waiting_dependent(&kept.uid) {
            return Plan::StopBlocking;
        }
        // The owner waits for this one, so this one waits for its own dependents.
        return Plan::Delete { policy: "Foreground" };
    }
    Plan::Delete { policy: kept.policy() }
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

    fn kept(uid: &str, owners: Vec<OwnerReference>) -> Kept {
        Kept {
            uid: uid.into(),
            name: uid.into(),
            namespace: "ns".into(),
            owners,
            ..Kept::default()
        }
    }

    fn things() -> Arc<Resource> {
        Arc::new(Resource::constant("", "v1", "things", "Thing", true))
    }

    fn judged(graph: &Graph, kept: &Kept) -> Plan {
        let standings: Vec<_> = kept.owners.iter().map(|o| graph.standing(kept, o)).collect();
        plan(graph, kept, &standings)
    }

    fn observe(graph: &mut Graph, kept: &Kept) -> Vec<Uid> {
        graph.observe(&things(), &Arc::new(kept.clone()))
    }

    #[test]
    fn dependents_go_when_their_last_owner_has_gone() {
        let mut graph = Graph::default();
        let (one, two) = (kept("one", vec![]), kept("two", vec![]));
        let both = kept("both", vec![owner("one", true), owner("two", true)]);
        let single = kept("single", vec![owner("one", true)]);
        for item in [&one, &two, &both, &single] {
            assert!(observe(&mut graph, item).is_empty());
        }
        assert_eq!(judged(&graph, &both), Plan::Nothing);
        assert_eq!(graph.gone("one"), ["both".into(), "single".into()]);
        assert_eq!(judged(&graph, &both), Plan::DropOwners(vec![owner("one", true)]));
        assert_eq!(judged(&graph, &single), Plan::Delete { policy: "Background" });
    }

    #[test]
    fn an_owner_that_waits_goes_after_those_that_block_it() {
        let mut graph = Graph::default();
        let mut top = kept("top", vec![]);
        let child = kept("child", vec![owner("top", true)]);
        let loose = kept("loose", vec![owner("top", false)]);
        for item in [&top, &child, &loose] {
            observe(&mut graph, item);
        }
        top.deleting = true;
        top.finalizers = vec![FOREGROUND.into()];
        let look = observe(&mut graph, &top);
        assert_eq!(look, ["top".into(), "child".into(), "loose".into()]);
        assert_eq!(judged(&graph, &top), Plan::Dependents(vec!["child".into()]));
        assert_eq!(judged(&graph, &child), Plan::Delete { policy: "Background" });
        assert!(graph.gone("child").contains(&"top".into()));
        assert_eq!(judged(&graph, &top), Plan::RemoveFinalizer(FOREGROUND));
    }

    #[test]
    fn the_middle_of_a_chain_is_deleted_in_the_foreground() {
        let mut graph = Graph::default();
        let mut top = kept("top", vec![]);
        top.deleting = true;
        top.finalizers = vec![FOREGROUND.into()];
        let middle = kept("middle", vec![owner("top", true)]);
        let leaf = kept("leaf", vec![owner("middle", true)]);
        for item in [&top, &middle, &leaf] {
            observe(&mut graph, item);
        }
        assert_eq!(judged(&graph, &middle), Plan::Delete { policy: "Foreground" });
        assert_eq!(judged(&graph, &leaf), Plan::Nothing);
    }

    #[test]
    fn a_circle_is_cut() {
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
        assert_eq!(judged(&graph, &three), Plan::StopBlocking);
        three.owners = vec![owner("two", false)];
        assert!(observe(&mut graph, &three).contains(&"two".into()));
        assert_eq!(judged(&graph, &two), Plan::RemoveFinalizer(FOREGROUND));
        assert_eq!(judged(&graph, &three), Plan::Delete { policy: "Foreground" });
    }

    #[test]
    fn orphans_are_let_go_first() {
        let mut graph = Graph::default();
        let mut top = kept("top", vec![]);
        observe(&mut graph, &top);
        observe(&mut graph, &kept("child", vec![owner("top", true)]));
        top.deleting = true;
        top.finalizers = vec![ORPHAN.into()];
        assert!(observe(&mut graph, &top).contains(&"top".into()));
        assert_eq!(judged(&graph, &top), Plan::Orphan(vec!["child".into()]));
    }

    #[test]
    fn an_owner_in_another_namespace_is_none() {
        let mut graph = Graph::default();
        let mut top = kept("top", vec![]);
        top.namespace = "other".into();
        observe(&mut graph, &top);
        let child = kept("child", vec![owner("top", true)]);
        assert_eq!(observe(&mut graph, &child), ["child".into()]);
        assert_eq!(graph.standing(&child, &child.owners[0]), Standing::Unknown);
        graph.note_absent(&"top".into(), "ns");
        assert_eq!(judged(&graph, &child), Plan::Delete { policy: "Background" });
    }
}
