//! Every resource that is served, each with its cache.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use super::cache::Cache;
use crate::registry::Definition;

/// A definition in use, with its cache; reviews and bindings, which are not stored, have none.
#[derive(Clone)]
pub(crate) struct Resource {
    pub(crate) definition: Arc<Definition>,
    pub(crate) cache: Option<Arc<Cache>>,
}

/// Every resource that is served, replaced as a whole when custom kinds come and go.
#[derive(Clone, Default)]
pub(crate) struct Kinds {
    /// By `GROUP/VERSION/PLURAL`.
    by_path: HashMap<String, (Resource, usize)>,
    /// Definitions by `(group, plural)` of their storage.
    pub(crate) all: BTreeMap<(Arc<str>, Arc<str>), Resource>,
    /// Grows with every change, so that what was made from the kinds knows when it is out of date.
    pub(crate) generation: u64,
}

impl Kinds {
    pub(crate) fn insert(&mut self, resource: Resource) {
        let definition = resource.definition.clone();
        self.remove(&definition.group, &definition.plural);
        self.generation += 1;
        for (index, served) in definition.served.iter().enumerate().filter(|(_, s)| s.enabled) {
            let path = api_path(&served.group, &served.version, &definition.plural);
            self.by_path.insert(path, (resource.clone(), index));
        }
        self.all.insert((definition.group.clone(), definition.plural.clone()), resource);
    }

    pub(crate) fn remove(&mut self, group: &str, plural: &str) -> Option<Resource> {
        let gone = self.all.remove(&(Arc::from(group), Arc::from(plural)))?;
        self.generation += 1;
        self.by_path
            .retain(|_, (resource, _)| !Arc::ptr_eq(&resource.definition, &gone.definition));
        Some(gone)
    }

    /// The resource behind `/apis/GROUP/VERSION/…/PLURAL`, and which of its served versions that is.
    pub(crate) fn find(
        &self,
        group: &str,
        version: &str,
        plural: &str,
    ) -> Option<(&Resource, usize)> {
        self.by_path
            .get(&api_path(group, version, plural))
            .map(|(resource, index)| (resource, *index))
    }

    /// The resource stored under a group and plural name.
    pub(crate) fn get(&self, group: &str, plural: &str) -> Option<&Resource> {
        self.all.get(&(Arc::from(group), Arc::from(plural)))
    }
}

fn api_path(group: &str, version: &str, plural: &str) -> String {
    [group, "/", version, "/", plural].concat()
}
