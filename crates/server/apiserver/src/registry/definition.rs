//! The definition of a kind: where it is served and stored, and its schemas. Built-in and custom kinds differ only in
//! the source of this data.

use std::{borrow::Cow, sync::Arc};

use api_meta::{GroupKind, GroupResource, Tree as _};
use api_schema::{NodeId, Schema};
use serde_json::{Value, json};

use super::{
    converter::{Converter, Version},
    object::{Object, Selectable},
    projection::Projection,
};

/// A stored resource with all groups and versions that serve it.
pub(crate) struct Definition {
    pub(crate) group: Arc<str>,
    pub(crate) plural: Arc<str>,
    pub(crate) namespaced: bool,
    /// The key prefix: `/registry/pods/`, or `/registry/GROUP/PLURAL/` for custom kinds.
    pub(crate) prefix: Arc<str>,
    pub(crate) selectable: Vec<Selectable>,
    /// The members of objects that are parsed for selectors and observers.
    pub(crate) projection: Projection,
    /// The members of objects that [`Snapshot`](crate::watch_cache::Snapshot) parses and keeps.
    pub(crate) consulted: Projection,
    pub(crate) served: Vec<ServedVersion>,
    /// The index of the storage version in `served`.
    pub(crate) storage: usize,
    /// The hash of a custom kind's CustomResourceDefinition: of the specification with the accepted names. The
    /// definition itself is many times larger as a tree, and stays in its cache.
    pub(crate) custom: Option<SpecHash>,
    /// The conversion webhook of a custom kind. Its objects are cached in the version in which they were written, and
    /// converted on demand.
    pub(crate) converter: Option<Arc<Converter>>,
    pub(crate) strategy: &'static api_rules::Strategy,
}

/// The hash of a specification.
pub(crate) type SpecHash = [u8; 32];

/// A group and version of a resource.
pub(crate) struct ServedVersion {
    pub(crate) group: Arc<str>,
    pub(crate) version: Arc<str>,
    /// Group and version, such as `v1` or `apps/v1`.
    pub(crate) api_version: Arc<str>,
    pub(crate) kind: Arc<str>,
    pub(crate) list_kind: Arc<str>,
    pub(crate) singular: Arc<str>,
    pub(crate) verbs: Vec<Arc<str>>,
    pub(crate) short_names: Vec<Arc<str>>,
    pub(crate) categories: Vec<Arc<str>>,
    pub(crate) storage_version_hash: Arc<str>,
    pub(crate) subresources: Vec<ServedSubresource>,
    pub(crate) schema: Arc<Schema>,
    pub(crate) node: NodeId,
    pub(crate) conversion: Option<Conversion>,
    /// A warning for every request in this version.
    pub(crate) warning: Option<Arc<str>>,
    /// The `additionalPrinterColumns` of a custom kind.
    pub(crate) columns: Option<Arc<Value>>,
    /// The `subresources.scale` of a custom kind.
    pub(crate) scale: Option<Arc<Value>>,
    /// `false` if the version is not served. Even the storage version of a custom kind may be disabled.
    pub(crate) enabled: bool,
}

/// A subresource of a served version: its kind and verbs.
#[derive(Clone, Debug)]
pub(crate) struct ServedSubresource {
    pub(crate) name: Arc<str>,
    pub(crate) group: Arc<str>,
    pub(crate) version: Arc<str>,
    pub(crate) kind: Arc<str>,
    pub(crate) foreign: bool,
    pub(crate) verbs: Vec<Arc<str>>,
}

/// The conversion of whole objects between a served version and the storage version.
#[derive(Clone)]
pub(crate) struct Conversion {
    pub(crate) to_storage: Convert,
    pub(crate) from_storage: Convert,
    /// `true` if the kind's rules apply to the storage version: objects are converted before validation.
    pub(crate) stored_rules: bool,
}

/// A conversion of an object in place.
pub(crate) type Convert = Arc<dyn Fn(&mut Value) + Send + Sync>;

impl Definition {
    pub(crate) fn group_resource(&self) -> GroupResource {
        GroupResource::new(self.group.to_string(), self.plural.to_string())
    }

    pub(crate) fn stored(&self) -> &ServedVersion {
        &self.served[self.storage]
    }

    /// Returns an object in the version that the kind's rules apply to.
    pub(crate) fn in_validated_version<'t>(
        &self,
        served: &ServedVersion,
        tree: &'t Value,
    ) -> Cow<'t, Value> {
        match served.conversion.as_ref().filter(|conversion| conversion.stored_rules) {
            Some(conversion) => {
                let mut stored = tree.clone();
                (conversion.to_storage)(&mut stored);
                stored.put(&["apiVersion"], json!(*self.stored().api_version));
                Cow::Owned(stored)
            }
            None => Cow::Borrowed(tree),
        }
    }

    /// Returns the version with this apiVersion.
    pub(crate) fn version(&self, api_version: &str) -> Option<&ServedVersion> {
        self.served.iter().find(|served| &*served.api_version == api_version)
    }

    /// Returns the key of an object, such as `/registry/pods/default/web`. With an empty name, it is the prefix of a
    /// collection.
    pub(crate) fn key(&self, namespace: &str, name: &str) -> String {
        let mut key = self.prefix.to_string();
        if self.namespaced && !(namespace.is_empty() && name.is_empty()) {
            key.push_str(namespace);
            key.push('/');
        }
        key.push_str(name);
        key
    }

    /// Returns `true` if the kind is stored, unlike reviews and bindings.
    pub(crate) fn is_stored(&self) -> bool {
        self.stored().has_verb("list") && !self.strategy.computed
    }

    pub(crate) fn is(&self, group: &str, plural: &str) -> bool {
        &*self.group == group && &*self.plural == plural
    }
}

impl ServedVersion {
    /// Returns an object in this version as a tree, with kind, apiVersion and resourceVersion.
    pub(crate) fn tree(&self, object: &Object) -> Value {
        let mut tree = object.tree().unwrap_or_else(|error| {
            tracing::error!(key = %object.key, %error, "failed to parse a stored object");
            json!({"metadata": {"name": object.name()}})
        });
        if let Some(conversion) = &self.conversion {
            (conversion.from_storage)(&mut tree);
        }
        tree.put(&["kind"], json!(*self.kind));
        tree.put(&["apiVersion"], json!(*self.api_version));
        if object.revision > 0 {
            tree.put(&["metadata", "resourceVersion"], json!(object.revision.to_string()));
        }
        tree
    }

    pub(crate) fn version(&self) -> Version<'_> {
        Version { api_version: &self.api_version, kind: &self.kind }
    }

    pub(crate) fn group_kind(&self) -> GroupKind {
        GroupKind::new(self.group.to_string(), self.kind.to_string())
    }

    pub(crate) fn subresource(&self, name: &str) -> Option<&ServedSubresource> {
        self.subresources.iter().find(|s| &*s.name == name)
    }

    pub(crate) fn has_verb(&self, verb: &str) -> bool {
        self.verbs.iter().any(|v| &**v == verb)
    }
}

/// Returns the sort key of Kubernetes' version priority: GA before beta before alpha, each by number; others last.
pub(crate) fn version_rank(version: &str) -> (u8, u32, u32) {
    let parse = || {
        let rest = version.strip_prefix('v')?;
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let major = rest[..digits].parse().ok()?;
        let (stage, rest) = match &rest[digits..] {
            "" => return Some((3, major, 0)),
            rest if rest.starts_with("beta") => (2, &rest[4..]),
            rest if rest.starts_with("alpha") => (1, &rest[5..]),
            _ => return None,
        };
        Some((stage, major, rest.parse().ok()?))
    };
    parse().unwrap_or((0, 0, 0))
}

pub(crate) fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}
