//! All resources that are served, with their caches.

use std::{collections::HashMap, sync::Arc};

use super::{cache::Cache, feed::Feed};
use crate::registry::Definition;

/// A definition with its cache and its store. Reviews and bindings, which are not stored, have no cache.
#[derive(Clone)]
pub(crate) struct Resource {
    pub(crate) definition: Arc<Definition>,
    pub(crate) cache: Option<Arc<Cache>>,
    pub(crate) feed: Arc<Feed>,
}

/// All resources that are served. Replaced as a whole when custom kinds change.
#[derive(Clone, Default)]
pub(crate) struct Kinds {
    /// Resources and version indexes by `GROUP/VERSION/PLURAL`.
    by_path: HashMap<String, (Resource, usize)>,
    /// The resources of each plural name, which groups seldom share. Every write looks up a dozen.
    by_plural: HashMap<Arc<str>, Vec<Resource>>,
    /// Resources, sorted by group and plural name of their storage.
    pub(crate) all: Vec<Resource>,
    /// Increases with every change, so that derived documents can be invalidated.
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
        let at = self.position(&definition.group, &definition.plural).unwrap_or_else(|at| at);
        self.by_plural.entry(definition.plural.clone()).or_default().push(resource.clone());
        self.all.insert(at, resource);
    }

    pub(crate) fn remove(&mut self, group: &str, plural: &str) -> Option<Resource> {
        let gone = self.all.remove(self.position(group, plural).ok()?);
        self.generation += 1;
        let stays = |resource: &Resource| !Arc::ptr_eq(&resource.definition, &gone.definition);
        self.by_path.retain(|_, (resource, _)| stays(resource));
        self.by_plural.retain(|_, resources| {
            resources.retain(stays);
            !resources.is_empty()
        });
        Some(gone)
    }

    /// Returns the resource of `/apis/GROUP/VERSION/…/PLURAL` and the index of the served version.
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

    /// Returns the resource stored under a group and plural name.
    pub(crate) fn get(&self, group: &str, plural: &str) -> Option<&Resource> {
        let mut resources = self.by_plural.get(plural)?.iter();
        resources.find(|resource| *resource.definition.group == *group)
    }

    /// Returns the index of a resource, or the index at which it would be inserted.
    fn position(&self, group: &str, plural: &str) -> Result<usize, usize> {
        self.all.binary_search_by(|resource| {
            let definition = &resource.definition;
            let by_group = (*definition.group).cmp(group);
            by_group.then_with(|| (*definition.plural).cmp(plural))
        })
    }
}

fn api_path(group: &str, version: &str, plural: &str) -> String {
    [group, "/", version, "/", plural].concat()
}
