//! The caches as object source for authenticators, authorizers and admission, and as feed of indexes.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock, Weak},
};

use api_meta::{Changed, GroupResource, Objects, Observer, Tree as _};
use parking_lot::RwLock;
use serde_json::Value;

use super::follower::{ObservedChange, WatchCache};
use crate::registry::{Definition, Object};

/// Returns an observer that passes all changes of the index's resources to it.
pub(crate) fn following(index: Arc<impl Observer + 'static>) -> super::follower::Observer {
    let resources = index.resources().to_vec();
    Box::new(move |observed: &ObservedChange<'_>| {
        let ObservedChange { definition, event, object } = *observed;
        let found = resources.iter().find(|r| definition.is(&r.group, &r.resource));
        let Some(resource) = found else { return };
        let namespace = if definition.namespaced { event.object.namespace() } else { "" };
        index.changed(Changed { resource, namespace, name: event.object.name(), object });
    })
}

/// Reads objects from the caches. It holds a weak reference, because the watch cache's own definitions refer to it.
#[derive(Default)]
pub(crate) struct Snapshot {
    cache: OnceLock<Weak<WatchCache>>,
    parsed: RwLock<ParsedObjects>,
}

/// Cached trees of objects. Some objects (namespaces, service accounts) are read with nearly every write.
#[derive(Default)]
struct ParsedObjects {
    /// The trees by key, with their revision.
    trees: HashMap<Arc<str>, (u64, Arc<Value>)>,
    /// The JSON bytes of all trees that were added. A tree needs several times as much.
    bytes: usize,
}

const PARSED_LIMIT: usize = 1024;
const PARSED_BYTES_LIMIT: usize = 4 << 20;

impl Snapshot {
    pub(crate) fn attach(&self, cache: &Arc<WatchCache>) {
        let _ = self.cache.set(Arc::downgrade(cache));
    }

    fn tree(&self, definition: &Definition, object: &Object) -> Option<Arc<Value>> {
        if let Some((revision, tree)) = self.parsed.read().trees.get(&object.key)
            && *revision == object.revision
        {
            return Some(tree.clone());
        }
        let mut tree = definition.consulted.read(&object.bytes).ok()?;
        // A charge to a quota is written with the revision that it was computed from as precondition.
        tree.put(&["metadata", "resourceVersion"], object.revision.to_string());
        let tree = Arc::new(tree);
        let mut parsed = self.parsed.write();
        if parsed.trees.len() >= PARSED_LIMIT || parsed.bytes >= PARSED_BYTES_LIMIT {
            *parsed = ParsedObjects::default();
        }
        if definition.consulted.is_whole() {
            parsed.bytes += object.bytes.len();
        }
        parsed.trees.insert(object.key.clone(), (object.revision, tree.clone()));
        Some(tree)
    }
}

impl Objects for Snapshot {
    fn get(&self, resource: &GroupResource, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let cache = self.cache.get()?.upgrade()?;
        let kinds = cache.kinds();
        let resource = kinds.get(&resource.group, &resource.resource)?;
        let object = resource.cache.as_ref()?.get(&resource.definition.key(namespace, name))?;
        self.tree(&resource.definition, &object)
    }

    fn list(&self, resource: &GroupResource, namespace: &str) -> Vec<Arc<Value>> {
        let list = || {
            let cache = self.cache.get()?.upgrade()?;
            let kinds = cache.kinds();
            let resource = kinds.get(&resource.group, &resource.resource)?;
            let objects =
                resource.cache.as_ref()?.list(&resource.definition.key(namespace, ""), "");
            Some(objects.iter().filter_map(|o| self.tree(&resource.definition, o)).collect())
        };
        list().unwrap_or_default()
    }

    fn resource_of(&self, group: &str, kind: &str) -> Option<(GroupResource, bool)> {
        let cache = self.cache.get()?.upgrade()?;
        let kinds = cache.kinds();
        let mut definitions = kinds.all.iter().map(|r| &r.definition);
        let serves = |d: &&Arc<Definition>| {
            d.served.iter().any(|s| *s.group == *group && *s.kind == *kind && s.enabled)
        };
        let found = definitions.find(serves)?;
        Some((found.group_resource(), found.namespaced))
    }
}
