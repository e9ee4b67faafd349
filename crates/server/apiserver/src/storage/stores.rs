//! The stores of an API server: the main one, and those of single resources.

use std::sync::Arc;

use api_meta::GroupResource;
use store::Store;

/// The stores behind an API server. Each has revisions of its own, so revisions of different stores are not compared.
pub struct Stores {
    /// The store of all resources that no override names, of custom kinds and of keys that are not objects.
    pub main: Arc<dyn Store>,
    /// The stores of single resources.
    pub overrides: Vec<StoreOverride>,
}

/// The store of some built-in resources.
pub struct StoreOverride {
    /// The resources, by their stored group. Not empty.
    pub resources: Vec<GroupResource>,
    /// Their store.
    pub store: Arc<dyn Store>,
}

impl From<Arc<dyn Store>> for Stores {
    fn from(main: Arc<dyn Store>) -> Self {
        Self { main, overrides: Vec::new() }
    }
}
