//! The group versions and custom kinds of documents, from the kinds that this server serves.

use std::collections::BTreeSet;

use api_meta::Tree as _;
use api_schema::openapi::{CustomKind, CustomSource};

use crate::{
    registry::{Definition, ServedVersion},
    watch_cache::Kinds,
};

/// Documents of paths outside of API groups.
pub(super) const PLAIN: [&str; 5] =
    [".well-known/openid-configuration", "api", "apis", "openid/v1/jwks", "version"];

pub(super) fn versions(kinds: &Kinds) -> BTreeSet<(&str, &str)> {
    let served = kinds.all.iter().flat_map(|r| r.definition.served.iter());
    served.filter(|s| s.enabled).map(|s| (&*s.group, &*s.version)).collect()
}

/// Returns the paths of groups with built-in kinds. As upstream, other groups have no document of their own.
pub(super) fn groups(kinds: &Kinds) -> BTreeSet<String> {
    let builtin = kinds.all.iter().map(|r| &r.definition).filter(|d| d.custom.is_none());
    let served = builtin.flat_map(|definition| &definition.served).filter(|s| s.enabled);
    served.filter(|s| !s.group.is_empty()).map(|s| format!("apis/{}", s.group)).collect()
}

/// A version of a custom kind, and the function that reads its part of the definition.
pub(super) struct CustomVersion<'a> {
    definition: &'a Definition,
    served: &'a ServedVersion,
    read: Box<dyn Fn() -> CustomSource + 'a>,
}

impl CustomVersion<'_> {
    pub(super) fn kind(&self) -> CustomKind<'_> {
        let Self { definition, served, read } = self;
        CustomKind {
            group: &served.group,
            version: &served.version,
            plural: &definition.plural,
            kind: &served.kind,
            list_kind: &served.list_kind,
            namespaced: definition.namespaced,
            read,
            status: served.subresource("status").is_some(),
            scale: served.subresource("scale").is_some(),
        }
    }
}

/// Returns the custom kinds of one group and version, or of all.
pub(super) fn custom<'a>(kinds: &'a Kinds, of: Option<(&str, &str)>) -> Vec<CustomVersion<'a>> {
    let mut custom = Vec::new();
    for definition in kinds.all.iter().map(|r| &*r.definition).filter(|d| d.custom.is_some()) {
        let wanted = |s: &&ServedVersion| {
            s.enabled
                && of.is_none_or(|(group, version)| *s.group == *group && *s.version == *version)
        };
        for served in definition.served.iter().filter(wanted) {
            let read = move || source(kinds, definition, &served.version).unwrap_or_default();
            custom.push(CustomVersion { definition, served, read: Box::new(read) });
        }
    }
    custom
}

/// Reads a version's part of a kind's definition. The definition may be newer than the kind, and lack the version:
/// once the kind follows, documents are built again.
fn source(kinds: &Kinds, definition: &Definition, version: &str) -> Option<CustomSource> {
    let resource = kinds.get("apiextensions.k8s.io", "customresourcedefinitions")?;
    let name = format!("{}.{}", definition.plural, definition.group);
    let object = resource.cache.as_ref()?.get(&resource.definition.key("", &name))?;
    let mut tree = object.tree().ok()?;
    let found = tree.items_mut("spec.versions").find(|found| found["name"] == *version)?;
    Some(CustomSource {
        open_api_v3: found.take_at("schema.openAPIV3Schema"),
        selectable_fields: found.take_at("selectableFields"),
    })
}
