//! A change of an informer's cache, as its handlers receive it.

use std::sync::Arc;

/// A change of an informer's cache.
pub struct Change<'a, P> {
    /// `namespace/name`, or `name` for a cluster-scoped object.
    pub key: &'a str,
    /// The previous object; `None` if it is new.
    pub old: Option<&'a Arc<P>>,
    /// The current object; `None` if it was deleted.
    pub new: Option<&'a Arc<P>>,
}

impl<P> Clone for Change<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for Change<'_, P> {}
