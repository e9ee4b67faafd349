//! Which kind of object is under which key, for whoever encrypts values by their kind.

use std::{collections::BTreeMap, ops::Bound, sync::Arc};

use api_meta::GroupResource;
use encryption::{Encrypted, Encryption};
use store::Store;

use crate::registry::builtin::builtin;

/// What upstream encrypts as, that is no object of a kind that is served.
const OTHERS: [(&str, &str); 2] =
    [("/registry/ranges/", "services"), ("/registry/masterleases/", "apiServerIPInfo")];

/// Encrypts what goes into a store, and decrypts what comes out.
pub fn encrypted(inner: Arc<dyn Store>, encryption: Arc<Encryption>) -> Arc<dyn Store> {
    Arc::new(Encrypted::new(inner, encryption, Arc::new(kinds())))
}

fn kinds() -> impl Fn(&str) -> Option<GroupResource> + Send + Sync {
    let stored = builtin().into_iter().filter(|d| d.is_stored());
    let mut known: BTreeMap<Arc<str>, GroupResource> =
        stored.map(|d| (d.prefix.clone(), d.group_resource())).collect();
    known.extend(OTHERS.map(|(prefix, name)| (prefix.into(), GroupResource::new("", name))));
    move |key| {
        let before = (Bound::Unbounded, Bound::Included(key));
        let named = known.range::<str, _>(before).next_back();
        if let Some((_, kind)) = named.filter(|(prefix, _)| key.starts_with(&***prefix)) {
            return Some(kind.clone());
        }
        // Custom kinds lie under their group and plural name; what is not below the root is bookkeeping.
        let mut parts = key.strip_prefix("/registry/")?.split('/');
        let (group, plural) = (parts.next()?, parts.next()?);
        Some(GroupResource::new(group.to_owned(), plural.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_tells_the_kind() {
        let kinds = kinds();
        for (key, wanted) in [
            ("/registry/secrets/default/one", Some(("", "secrets"))),
            ("/registry/services/specs/default/one", Some(("", "services"))),
            ("/registry/services/endpoints/default/one", Some(("", "endpoints"))),
            ("/registry/minions/one", Some(("", "nodes"))),
            ("/registry/deployments/default/one", Some(("apps", "deployments"))),
            ("/registry/ranges/serviceips", Some(("", "services"))),
            ("/registry/masterleases/10.0.0.1", Some(("", "apiServerIPInfo"))),
            (
                "/registry/apiextensions.k8s.io/customresourcedefinitions/one",
                Some(("apiextensions.k8s.io", "customresourcedefinitions")),
            ),
            ("/registry/example.com/pandas/default/one", Some(("example.com", "pandas"))),
            ("compact_rev_key", None),
        ] {
            let found = kinds(key);
            let found = found.as_ref().map(|kind| (&*kind.group, &*kind.resource));
            assert_eq!(found, wanted, "{key}");
        }
    }
}
