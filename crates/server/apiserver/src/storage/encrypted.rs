//! Maps keys to resources for encryption at rest, whose configuration is per resource.

use std::{collections::BTreeMap, ops::Bound, sync::Arc};

use api_meta::GroupResource;
use encryption::{Encrypted, Encryption};
use store::Store;

use crate::registry::builtin::builtin;

/// The resources under which upstream encrypts keys that are not served objects.
const OTHERS: [(&str, &str); 2] =
    [("/registry/ranges/", "services"), ("/registry/masterleases/", "apiServerIPInfo")];

/// Wraps a store: encrypts written values and decrypts read ones.
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
        // Custom kinds have the key prefix of their group and plural name. Keys outside the root are not objects.
        let mut parts = key.strip_prefix("/registry/")?.split('/');
        let (group, plural) = (parts.next()?, parts.next()?);
        Some(GroupResource::new(group.to_owned(), plural.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_keys_to_resources() {
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
