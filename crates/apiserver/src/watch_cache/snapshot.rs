//! The caches as authenticators, authorisers and admission plugins read them: as objects, and as indexes that follow.

use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};

use api_meta::{Changed, GroupResource, Objects, Observer, Tree as _};
use serde_json::Value;

use super::follower::{Observed, WatchCache};
use crate::registry::{Definition, Object};

/// An index that follows the caches: told of every change of the resources that it wants.
pub(crate) fn following(index: Arc<impl Observer + 'static>) -> super::follower::Observer {
    let resources = index.resources().to_vec();
    Box::new(move |observed: &Observed<'_>| {
        let Observed { definition, event, object } = *observed;
        let found = resources.iter().find(|r| definition.is(&r.group, &r.resource));
        let Some(resource) = found else { return };
        let namespace = if definition.namespaced { event.object.namespace() } else { "" };
        index.changed(Changed { resource, namespace, name: event.object.name(), object });
    })
}

/// All objects. It does not keep the watch cache alive, which has kinds that look at it.
#[derive(Default)]
pub(crate) struct Snapshot {
    cache: OnceLock<Weak<WatchCache>>,
    parsed: RwLock<Parsed>,
}

/// Objects that are read with nearly every write (namespaces, service accounts) are kept parsed.
type Parsed = std::collections::HashMap<Arc<str>, (u64, Arc<Value>)>;
const PARSED_LIMIT: usize = 1024;

impl Snapshot {
    pub(crate) fn attach(&self, cache: &Arc<WatchCache>) {
        let _ = self.cache.set(Arc::downgrade(cache));
    }

    fn tree(&self, object: &Object) -> Option<Arc<Value>> {
        if let Some((revision, tree)) =
            self.parsed.read().unwrap_or_else(PoisonError::into_inner).get(&object.key)
            && *revision == object.revision
        {
            return Some(tree.clone());
        }
        let mut tree = object.tree().ok()?;
        // What is charged to a quota is written on the revision that it was judged by.
        tree.put(&["metadata", "resourceVersion"], object.revision.to_string());
        let tree = Arc::new(tree);
        let mut parsed = self.parsed.write().unwrap_or_else(PoisonError::into_inner);
        if parsed.len() >= PARSED_LIMIT {
            parsed.clear();
        }
        parsed.insert(object.key.clone(), (object.revision, tree.clone()));
        Some(tree)
    }
}

impl Objects for Snapshot {
    fn get(&self, resource: &GroupResource, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let cache = self.cache.get()?.upgrade()?;
        let kinds = cache.kinds();
        let resource = kinds.get(&resource.group, &resource.resource)?;
        let object = resource.cache.as_ref()?.get(&resource.definition.key(namespace, name))?;
        self.tree(&object)
    }

    fn list(&self, resource: &GroupResource, namespace: &str) -> Vec<Arc<Value>> {
        let list = || {
            let cache = self.cache.get()?.upgrade()?;
            let kinds = cache.kinds();
            let resource = kinds.get(&resource.group, &resource.resource)?;
            let objects =
                resource.cache.as_ref()?.list(&resource.definition.key(namespace, ""), "");
            Some(objects.iter().filter_map(|o| self.tree(o)).collect())
        };
        list().unwrap_or_default()
    }

    fn resource_of(&self, group: &str, kind: &str) -> Option<(GroupResource, bool)> {
        let cache = self.cache.get()?.upgrade()?;
        let kinds = cache.kinds();
        let mut definitions = kinds.all.values().map(|r| &r.definition);
        let serves = |d: &&Arc<Definition>| {
            d.served.iter().any(|s| *s.group == *group && *s.kind == *kind && s.enabled)
        };
        let found = definitions.find(serves)?;
        Some((found.group_resource(), found.namespaced))
    }
}
