//! PodGroups and their Pods.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use crate::{pod::Pod, view::PodGroupView};

/// The namespace and name of a PodGroup.
pub(crate) type GroupKey = (Arc<str>, Arc<str>);

/// The result of scheduling the Pods of a PodGroup.
#[derive(Clone, Debug)]
pub struct GroupOutcome {
    /// The namespace of the group.
    pub namespace: Arc<str>,
    /// The name of the group.
    pub name: Arc<str>,
    /// The uid of the group.
    pub uid: Arc<str>,
    /// `true` if enough Pods have a node.
    pub scheduled: bool,
    /// `true` if a plugin failed, rather than finding no nodes.
    pub is_error: bool,
    /// The reason why there are not enough Pods with a node; empty if there are.
    pub message: String,
    /// `true` if the status of the group's condition changes, and not only its message.
    pub is_transition: bool,
}

/// The PodGroups of the cluster. Without the feature they are off, and Pods are scheduled one by one.
#[derive(Default)]
pub(crate) struct PodGroups {
    pub(crate) enabled: bool,
    groups: HashMap<GroupKey, Entry>,
}

/// The state of a group. Pods may name a group that does not exist yet.
#[derive(Default)]
struct Entry {
    group: Option<PodGroup>,
    /// The uids of the Pods that have not ended, with or without a node.
    members: BTreeSet<Arc<str>>,
}

impl Entry {
    /// Reports whether the group exists and has as many Pods as it needs.
    fn is_complete(&self) -> bool {
        self.group.as_ref().is_some_and(|group| self.members.len() >= group.required())
    }
}

/// A PodGroup, compiled for scheduling.
#[derive(Clone, Debug)]
pub(crate) struct PodGroup {
    pub(crate) uid: Arc<str>,
    /// The number of Pods that must fit at the same time; `None` for the basic policy.
    pub(crate) gang: Option<usize>,
    /// The status and the message of the condition PodGroupScheduled.
    pub(crate) scheduled: Option<(bool, Box<str>)>,
}

impl PodGroup {
    fn new(view: &PodGroupView) -> Self {
        let gang = view.spec.scheduling_policy.gang.as_ref();
        let condition = view.status.conditions.iter().find(|c| &*c.r#type == "PodGroupScheduled");
        Self {
            uid: view.metadata.uid.clone(),
            gang: gang.map(|gang| usize::try_from(gang.min_count).unwrap_or(0)),
            scheduled: condition.map(|c| (&*c.status == "True", c.message.clone())),
        }
    }

    fn required(&self) -> usize {
        self.gang.unwrap_or(0)
    }
}

impl PodGroups {
    /// Returns the key of the Pod's group.
    pub(crate) fn key_of(&self, pod: &Pod) -> Option<GroupKey> {
        let name = pod.group.as_ref().filter(|_| self.enabled)?;
        Some((pod.id.namespace.clone(), name.clone()))
    }

    /// Sets or, with `None`, removes a group. Returns `true` if its Pods may be tried now and could not before.
    pub(crate) fn set(&mut self, key: GroupKey, view: Option<&PodGroupView>) -> bool {
        let entry = self.groups.entry(key.clone()).or_default();
        let was_complete = entry.is_complete();
        entry.group = view.map(PodGroup::new);
        let completes = !was_complete && entry.is_complete();
        if entry.group.is_none() && entry.members.is_empty() {
            self.groups.remove(&key);
        }
        completes
    }

    /// Adds a Pod to its group. Returns `true` if the group's Pods may be tried now and could not before.
    pub(crate) fn add_member(&mut self, key: GroupKey, uid: &Arc<str>) -> bool {
        let entry = self.groups.entry(key).or_default();
        let was_complete = entry.is_complete();
        entry.members.insert(uid.clone());
        !was_complete && entry.is_complete()
    }

    /// Removes a Pod from its group.
    pub(crate) fn remove_member(&mut self, key: &GroupKey, uid: &str) {
        let Some(entry) = self.groups.get_mut(key) else { return };
        entry.members.remove(uid);
        if entry.group.is_none() && entry.members.is_empty() {
            self.groups.remove(key);
        }
    }

    /// Returns an existing group.
    pub(crate) fn get(&self, key: &GroupKey) -> Option<&PodGroup> {
        self.groups.get(key)?.group.as_ref()
    }

    /// Returns the uids of the group's Pods.
    pub(crate) fn members(&self, key: &GroupKey) -> impl Iterator<Item = &Arc<str>> {
        self.groups.get(key).into_iter().flat_map(|entry| &entry.members)
    }

    /// Reports whether the Pod must wait for its group or for other Pods of the group.
    pub(crate) fn holds_back(&self, pod: &Pod) -> bool {
        let key = self.key_of(pod);
        key.is_some_and(|key| self.groups.get(&key).is_none_or(|entry| !entry.is_complete()))
    }
}
