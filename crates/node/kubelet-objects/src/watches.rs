//! Detects changes of ConfigMaps and Secrets that Pods' volumes contain.
//!
//! Each object has a watch of its own, which is all that a node's permissions allow. Only the resourceVersion is kept.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use api_meta::ObjectKey;
use client::{Change, Client, Informer, ListOptions, Resource};
use k8s_openapi::api::core::v1::{Pod, VolumeProjection};
use parking_lot::Mutex;
use serde::Deserialize;

/// The limit of watched objects, since each watch takes a stream of the connection. Volumes with other objects are
/// refreshed at every sync.
const MAX_WATCHES: usize = 64;

/// A user of the objects in a Pod's volumes: the Pod's worker.
pub trait VolumeUser: Send + Sync {
    /// Records that objects in the Pod's volumes have changed.
    fn volumes_are_stale(&self);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    ConfigMap,
    Secret,
}

/// A reference to an object: kind, namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Reference {
    pub(crate) kind: Kind,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// Returns the objects that a Pod's volumes contain.
fn references(pod: &Pod) -> BTreeSet<Reference> {
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let mut references = BTreeSet::new();
    let mut add = |kind, name: Option<&String>| {
        if let Some(name) = name.filter(|name| !name.is_empty()) {
            references.insert(Reference { kind, namespace: namespace.clone(), name: name.clone() });
        }
    };
    for volume in pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()) {
        add(Kind::ConfigMap, volume.config_map.as_ref().map(|source| &source.name));
        add(Kind::Secret, volume.secret.as_ref().and_then(|source| source.secret_name.as_ref()));
        let sources = volume.projected.iter().flat_map(|p| p.sources.iter().flatten());
        sources.for_each(|source: &VolumeProjection| {
            add(Kind::ConfigMap, source.config_map.as_ref().map(|source| &source.name));
            add(Kind::Secret, source.secret.as_ref().map(|source| &source.name));
        });
    }
    references
}

/// The part of an object with its resourceVersion.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct View {
    metadata: ObjectKey,
}

#[derive(Default)]
struct Entry {
    /// The workers of the Pods whose volumes contain the object, by UID.
    users: BTreeMap<String, Arc<dyn VolumeUser>>,
    /// Stops the watch.
    shutdown: rt::Shutdown,
    /// The resourceVersion that was last read for a volume.
    read: Option<String>,
    /// The resourceVersion that the watch reported last.
    latest: Option<String>,
}

type Entries = Arc<Mutex<HashMap<Reference, Entry>>>;

pub(crate) struct ObjectWatches {
    client: Client,
    shutdown: rt::Shutdown,
    entries: Entries,
}

impl ObjectWatches {
    pub(crate) fn new(client: Client, tasks: &rt::Tasks) -> Self {
        Self { client, shutdown: tasks.shutdown().clone(), entries: Entries::default() }
    }

    /// Watches the objects in a Pod's volumes, and stops watches that no Pod needs any more. Without a Pod, removes its
    /// uses.
    pub(crate) fn follow(&self, uid: &str, user: &Arc<dyn VolumeUser>, pod: Option<&Pod>) {
        let current = pod.map(references).unwrap_or_default();
        let mut entries = self.entries.lock();
        entries.retain(|reference, entry| {
            if !current.contains(reference) {
                entry.users.remove(uid);
            }
            if entry.users.is_empty() {
                entry.shutdown.stop();
            }
            !entry.users.is_empty()
        });
        for reference in current {
            if !entries.contains_key(&reference) {
                if entries.len() >= MAX_WATCHES {
                    continue;
                }
                let shutdown = self.shutdown.child();
                self.start(&reference, shutdown.clone());
                entries.insert(reference.clone(), Entry { shutdown, ..Entry::default() });
            }
            if let Some(entry) = entries.get_mut(&reference) {
                entry.users.entry(uid.to_owned()).or_insert_with(|| user.clone());
            }
        }
    }

    /// Records the resourceVersion that was read for a volume, so that a watch event with the same one is ignored.
    pub(crate) fn record_version(&self, reference: &Reference, version: Option<&String>) {
        if let Some(entry) = self.entries.lock().get_mut(reference) {
            entry.read = Some(version.cloned().unwrap_or_default());
        }
    }

    fn start(&self, reference: &Reference, shutdown: rt::Shutdown) {
        let resource = match reference.kind {
            Kind::ConfigMap => Resource::CONFIG_MAPS,
            Kind::Secret => Resource::SECRETS,
        };
        let options = ListOptions {
            namespace: reference.namespace.clone(),
            ..ListOptions::fields(&format!("metadata.name={}", reference.name))
        };
        let (entries, reference) = (Arc::downgrade(&self.entries), reference.clone());
        let tasks = rt::Tasks::new(shutdown);
        Informer::start(
            &self.client,
            resource,
            options,
            &tasks,
            move |change: Change<'_, View>| {
                let version = change.new.map(|view| view.metadata.resource_version.clone());
                if let Some(entries) = entries.upgrade() {
                    notify_users(&entries, &reference, version.unwrap_or_default());
                }
            },
        );
    }
}

/// Wakes the workers of Pods whose volumes contain an object with a new resourceVersion. The first event of a watch
/// counts only if another version was read before.
fn notify_users(entries: &Entries, reference: &Reference, version: String) {
    let mut entries = entries.lock();
    let Some(entry) = entries.get_mut(reference) else { return };
    let before = entry.latest.as_ref().or(entry.read.as_ref());
    if before.is_some_and(|before| *before != version) {
        entry.users.values().for_each(|user| user.volumes_are_stale());
    }
    entry.latest = Some(version);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use serde_json::json;

    use super::*;

    #[derive(Default)]
    struct Flag(AtomicBool);

    impl Flag {
        fn take_stale(&self) -> bool {
            self.0.swap(false, Ordering::Relaxed)
        }
    }

    impl VolumeUser for Flag {
        fn volumes_are_stale(&self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn finds_objects_of_every_kind_of_volume() {
        let volumes = json!([
            { "name": "a", "configMap": { "name": "one" } },
            { "name": "b", "secret": { "secretName": "two" } },
            { "name": "c", "projected": { "sources": [
                { "configMap": { "name": "one" } }, { "secret": { "name": "three" } },
                { "serviceAccountToken": { "path": "token" } } ] } },
            { "name": "d", "emptyDir": {} },
        ]);
        let pod = json!({ "metadata": { "namespace": "ns" }, "spec": { "containers": [], "volumes": volumes } });
        let found = references(&serde_json::from_value(pod).unwrap());
        let names: Vec<_> = found.iter().map(|r| (r.kind, r.name.as_str())).collect();
        assert_eq!(
            names,
            [(Kind::ConfigMap, "one"), (Kind::Secret, "three"), (Kind::Secret, "two")]
        );
    }

    #[test]
    fn marks_volumes_stale_only_for_a_new_version() {
        let user = Arc::new(Flag::default());
        let reference =
            Reference { kind: Kind::Secret, namespace: "ns".to_owned(), name: "s".to_owned() };
        let users = [("u".to_owned(), user.clone() as Arc<dyn VolumeUser>)].into();
        let entries = Entries::default();
        entries.lock().insert(reference.clone(), Entry { users, ..Entry::default() });
        for (latest, read, now, stale) in [
            (None, None, "1", false),
            (None, Some("1"), "1", false),
            (None, Some("1"), "2", true),
            (None, Some(""), "1", true),
            (Some("1"), Some("2"), "2", true),
            (Some("2"), Some("2"), "2", false),
            (Some("2"), Some("2"), "", true),
        ] {
            let known = |version: Option<&str>| version.map(str::to_owned);
            let mut locked = entries.lock();
            let entry = locked.get_mut(&reference).unwrap();
            (entry.latest, entry.read) = (known(latest), known(read));
            drop(locked);
            notify_users(&entries, &reference, now.to_owned());
            assert_eq!(user.take_stale(), stale, "{latest:?}, {read:?}, then {now:?}");
        }
    }
}
