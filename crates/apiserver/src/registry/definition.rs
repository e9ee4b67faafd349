//! What the registry knows of a kind: where it is served and stored, and its schema. A kind is data: a
//! built-in and a custom one differ only in where this comes from.

use std::{borrow::Cow, sync::Arc};

use api_meta::{GroupKind, GroupResource, Tree as _};
use api_schema::{NodeId, Schema};
use serde_json::{Value, json};

use super::{
    converter::{Converter, Version},
    object::{Object, Selectable},
    projection::Projection,
};

/// A resource as it is stored, with all the groups and versions that serve it.
pub(crate) struct Definition {
    pub(crate) group: Arc<str>,
    pub(crate) plural: Arc<str>,
    pub(crate) namespaced: bool,
    /// `/registry/pods/`, or `/registry/GROUP/PLURAL/` for custom kinds.
    pub(crate) prefix: Arc<str>,
    pub(crate) selectable: Vec<Selectable>,
    /// What of an object is read to know its labels and selectable fields, and for whoever observes changes.
    pub(crate) projection: Projection,
    pub(crate) served: Vec<Served>,
    /// Which of `served` the stored form is.
    pub(crate) storage: usize,
    /// The CustomResourceDefinition that a custom kind comes from.
    pub(crate) custom: Option<Arc<Value>>,
    /// Where somebody else converts between a custom kind's versions: its objects are kept in the version that they
    /// were written in, and those in another are made when they are asked for.
    pub(crate) converter: Option<Arc<Converter>>,
    pub(crate) strategy: &'static api_rules::Strategy,
}

/// One group and version of a resource.
pub(crate) struct Served {
    pub(crate) group: Arc<str>,
    pub(crate) version: Arc<str>,
    /// `v1`, `apps/v1`.
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
    /// Sent as a `Warning` header with every write.
    pub(crate) warning: Option<Arc<str>>,
    /// For custom kinds: `additionalPrinterColumns`.
    pub(crate) columns: Option<Arc<Value>>,
    /// A custom kind's versions need not be served, even the one that is stored.
    pub(crate) enabled: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct ServedSubresource {
    pub(crate) name: Arc<str>,
    pub(crate) group: Arc<str>,
    pub(crate) version: Arc<str>,
    pub(crate) kind: Arc<str>,
    pub(crate) foreign: bool,
    pub(crate) verbs: Vec<Arc<str>>,
}

/// Between a served version and the stored one, on whole objects.
#[derive(Clone)]
pub(crate) struct Conversion {
    pub(crate) to_storage: Convert,
    pub(crate) from_storage: Convert,
    /// `true` if the kind's rules speak of the stored version: an object is converted before it is validated.
    pub(crate) stored_rules: bool,
}

pub(crate) type Convert = Arc<dyn Fn(&mut Value) + Send + Sync>;

impl Definition {
    pub(crate) fn group_resource(&self) -> GroupResource {
        GroupResource::new(self.group.to_string(), self.plural.to_string())
    }

    pub(crate) fn stored(&self) -> &Served {
        &self.served[self.storage]
    }

    /// Returns the form of an object that the kind's rules speak of.
    pub(crate) fn judged<'t>(&self, served: &Served, tree: &'t Value) -> Cow<'t, Value> {
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

    /// One of its versions, by `apps/v1`.
    pub(crate) fn version(&self, api_version: &str) -> Option<&Served> {
        self.served.iter().find(|served| &*served.api_version == api_version)
    }

    /// `/registry/pods/default/web`; for a collection with an empty name, the prefix of its keys.
    pub(crate) fn key(&self, namespace: &str, name: &str) -> String {
        let mut key = self.prefix.to_string();
        if self.namespaced && !(namespace.is_empty() && name.is_empty()) {
            key.push_str(namespace);
            key.push('/');
        }
        key.push_str(name);
        key
    }

    /// Reviews and bindings are not stored.
    pub(crate) fn is_stored(&self) -> bool {
        self.stored().has_verb("list") && !self.strategy.computed
    }

    pub(crate) fn is(&self, group: &str, plural: &str) -> bool {
        &*self.group == group && &*self.plural == plural
    }
}

impl Served {
    /// An object as this version shows it, as a tree with kind, apiVersion and resource version.
    pub(crate) fn tree(&self, object: &Object) -> Value {
        let mut tree = object.tree().unwrap_or_else(|error| {
            tracing::error!(key = %object.key, %error, "a stored object cannot be parsed");
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

/// Kubernetes' version priority: GA before beta before alpha, each by number; others last.
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
