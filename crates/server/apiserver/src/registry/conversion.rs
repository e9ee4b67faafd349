//! Conversions between the versions of kinds, as requests use them. Those of built-in kinds are in `api-schema`; those
//! of custom kinds without a webhook follow from their schemas.

use api_meta::Tree as _;
use std::sync::Arc;

use api_schema::{NodeId, Schema};
use serde_json::{Value, json};

use super::definition::{Conversion, Convert, Definition, ServedVersion};

/// Returns the conversion of a version of a built-in kind, if it is not the storage version.
pub(crate) fn between(group: &str, version: &str, plural: &str) -> Option<Conversion> {
    let conversion = api_schema::conversion(group, version, plural)?;
    Some(Conversion {
        to_storage: Arc::new(conversion.to_storage),
        from_storage: Arc::new(conversion.from_storage),
        stored_rules: conversion.stored_rules,
    })
}

/// Converts between two versions of a custom kind without a webhook: each version keeps the fields of its schema.
pub(crate) fn by_schema(served: &ServedVersion, stored: &ServedVersion) -> Conversion {
    let fit = |served: &ServedVersion| -> Convert {
        let (schema, node) = (served.schema.clone(), served.node);
        Arc::new(move |tree| fit(&schema, node, tree))
    };
    Conversion { to_storage: fit(stored), from_storage: fit(served), stored_rules: false }
}

/// Conversion for field ownership. It calls no webhook: fields that a webhook would convert keep their names.
impl api_patch::Versions for Definition {
    fn types(&self, api_version: &str) -> Option<(&Schema, NodeId)> {
        // Upstream has no conversion between Events of the two groups, and drops the managers of the other group.
        let one_group = self.served.iter().all(|served| served.group == self.group);
        let version = self.version(api_version).filter(|_| one_group);
        version.map(|served| (&*served.schema, served.node))
    }

    fn convert(&self, object: &Value, from: &str, to: &str) -> Value {
        let mut object = object.clone();
        let conversion =
            |version| self.version(version).and_then(|served| served.conversion.as_ref());
        if let Some(conversion) = conversion(from) {
            (conversion.to_storage)(&mut object);
        }
        if let Some(conversion) = conversion(to) {
            (conversion.from_storage)(&mut object);
        }
        if let Some(served) = self.version(to) {
            object.put(&["apiVersion"], json!(*served.api_version));
            object.put(&["kind"], json!(*served.kind));
        }
        object
    }
}

/// Drops unknown fields and applies defaults, so that objects stored with an earlier schema fit the current one.
pub(crate) fn fit(schema: &Schema, node: NodeId, tree: &mut Value) {
    if let Err(error) = api_schema::prune(schema, node, tree) {
        tracing::debug!(%error, "a stored object does not fit its schema");
    }
    if let Err(error) = api_schema::apply_defaults(schema, node, tree) {
        tracing::debug!(%error, "a stored object does not take all of its schema's defaults");
    }
}

/// Like [`fit`], for an object with kind and apiVersion, which its schema need not contain.
pub(crate) fn fit_whole(served: &ServedVersion, tree: &mut Value) {
    if let Some(map) = tree.as_object_mut() {
        map.remove("kind");
        map.remove("apiVersion");
    }
    fit(&served.schema, served.node, tree);
}
