//! Looks up the parameters of policies: objects of any kind, in the version that the policy names.

use admission::{
    Request,
    policy::{Binding, Policy},
};
use serde_json::Value;

use crate::watch_cache::{Resource, WatchCache};

/// The kind of a policy's parameters.
pub(super) struct Kind {
    resource: Resource,
    version: usize,
}

/// Returns the kind of the parameters, if the policy has any.
pub(super) fn kind(cache: &WatchCache, policy: &Policy) -> Result<Option<Kind>, String> {
    let Some(wanted) = &policy.params else { return Ok(None) };
    let kinds = cache.kinds();
    let find = |resource: &Resource| {
        let served = resource.definition.served.iter();
        let version = served.into_iter().position(|served| {
            served.enabled
                && *served.kind == *wanted.kind
                && *served.group == *wanted.group
                && *served.version == *wanted.version
        })?;
        resource.cache.as_ref()?;
        Some(Kind { resource: resource.clone(), version })
    };
    let (group, version) = (&wanted.group, &wanted.version);
    let unknown = || {
        format!(
            "failed to find resource referenced by paramKind: '{group}/{version}, Kind={}'",
            wanted.kind
        )
    };
    kinds.all.values().find_map(find).map(Some).ok_or_else(unknown)
}

/// Returns the parameters for a request and binding. A single null if there are none.
pub(super) async fn of(
    kind: Option<&Kind>,
    binding: &Binding,
    request: &Request<'_>,
) -> Result<Vec<Value>, String> {
    let (Some(kind), Some(reference)) = (kind, &binding.params) else {
        return Ok(vec![Value::Null]);
    };
    let Kind { resource, version } = kind;
    let definition = &resource.definition;
    let lookup = reference.lookup(request, definition.namespaced)?;
    let key = definition.key(lookup.namespace, lookup.name);
    let Some(cache) = &resource.cache else { return reference.found(Vec::new()) };
    let found = match lookup.name {
        "" => cache.list(&key, ""),
        _ => cache.get(&key).into_iter().collect(),
    };
    let shown = definition.shown(*version, found).await.map_err(|status| status.message)?;
    let served = &definition.served[*version];
    let trees = shown.iter().map(|object| served.tree(object));
    reference.found(trees.filter(|tree| reference.selects(tree)).collect())
}
