//! Looks up the parameters of policies: objects of any kind, in the version that the policy names.

use admission::{
    Request,
    policy::{Binding, ParamError, Policy},
};
use api_meta::GroupVersionKind;
use serde_json::Value;

use crate::watch_cache::{Resource, WatchCache};

/// The kind of a policy's parameters.
pub(super) struct Kind {
    resource: Resource,
    version: usize,
}

/// The reason why a policy's parameters are not available, with upstream's messages.
#[derive(Debug, thiserror::Error)]
pub(super) enum ParamsError {
    #[error(
        "failed to find resource referenced by paramKind: '{}/{}, Kind={}'",
        .0.group, .0.version, .0.kind
    )]
    UnknownKind(GroupVersionKind),
    #[error(transparent)]
    Reference(#[from] ParamError),
    #[error("{0}")]
    Conversion(String),
}

/// Returns the kind of the parameters, if the policy has any.
pub(super) fn kind(cache: &WatchCache, policy: &Policy) -> Result<Option<Kind>, ParamsError> {
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
    let kind = kinds.all.iter().find_map(find);
    kind.map(Some).ok_or_else(|| ParamsError::UnknownKind(wanted.clone()))
}

/// Returns the parameters for a request and binding. A single null if there are none.
pub(super) async fn of(
    kind: Option<&Kind>,
    binding: &Binding,
    request: &Request<'_>,
) -> Result<Vec<Value>, ParamsError> {
    let (Some(kind), Some(reference)) = (kind, &binding.params) else {
        return Ok(vec![Value::Null]);
    };
    let Kind { resource, version } = kind;
    let definition = &resource.definition;
    let lookup = reference.lookup(request, definition.namespaced)?;
    let key = definition.key(lookup.namespace, lookup.name);
    let Some(cache) = &resource.cache else { return Ok(reference.require(Vec::new())?) };
    let found = match lookup.name {
        "" => cache.list(&key, ""),
        _ => cache.get(&key).into_iter().collect(),
    };
    let shown = definition.shown(*version, found).await;
    let shown = shown.map_err(|status| ParamsError::Conversion(status.message))?;
    let served = &definition.served[*version];
    let trees = shown.iter().map(|object| served.tree(object));
    Ok(reference.require(trees.filter(|tree| reference.selects(tree)).collect())?)
}
