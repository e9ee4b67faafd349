//! OpenAPI v3 documents per group version, built from the facts, and the OpenAPI v2 document, which is derived from
//! them.
//!
//! kubectl reads them to explain kinds, to look up supported patches and query parameters, and to validate objects
//! before it sends them.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::{resources::ApiResource, schema::Schema};

mod components;
mod custom;
mod parameters;
mod paths;
mod plain;
mod reference;
mod swagger;

use components::DocumentScope;
pub use custom::{CustomKind, CustomSource};
pub use paths::document_path;
use paths::{Operations, Sub};
use reference::references;
pub use swagger::to_v2;

/// Builds the document of a group version with its built-in kinds and the given custom resources.
pub fn document(
    group: &str,
    version: &str,
    custom: &[CustomKind<'_>],
    server_version: &str,
) -> Value {
    let paths = group_version_paths(group, version, custom);
    let is_builtin = crate::resources().iter().any(|r| r.group == group && r.version == version);
    let of = if is_builtin {
        DocumentScope::Version(group, version)
    } else {
        DocumentScope::CustomVersion
    };
    finish(of, paths, custom, server_version)
}

/// Builds the document of an unversioned path: `api`, `apis`, `apis/GROUP`, `version` or the issuer's. Returns `None`
/// for other paths.
pub fn plain_document(path: &str, server_version: &str) -> Option<Value> {
    let paths = Map::from_iter([plain::path(path)?]);
    Some(finish(DocumentScope::Version("", "v1"), paths, &[], server_version))
}

/// Builds one document with the unversioned paths, the given group versions and their custom resources. OpenAPI v2 has
/// only this document ([`to_v2`]).
pub fn whole(
    plain: &[&str],
    versions: &[(&str, &str)],
    custom: &[CustomKind<'_>],
    server_version: &str,
) -> Value {
    let mut paths: Map<String, Value> = plain.iter().filter_map(|p| plain::path(p)).collect();
    for (group, version) in versions {
        let here = |kind: &&CustomKind<'_>| kind.group == *group && kind.version == *version;
        let custom: Vec<CustomKind<'_>> = custom.iter().filter(here).copied().collect();
        paths.extend(group_version_paths(group, version, &custom));
    }
    finish(DocumentScope::Everything, paths, custom, server_version)
}

fn group_version_paths(
    group: &str,
    version: &str,
    custom: &[CustomKind<'_>],
) -> Map<String, Value> {
    let schema = Schema::builtin();
    let builtin = crate::resources().iter().filter(|r| r.group == group && r.version == version);
    let mut operations: Vec<Operations> = builtin.map(|r| builtin_operations(schema, r)).collect();
    operations.extend(custom.iter().map(CustomKind::operations));
    paths::paths(group, version, &operations)
}

/// Completes a document with the schemas that its paths refer to.
fn finish(
    of: DocumentScope<'_>,
    paths: Map<String, Value>,
    custom: &[CustomKind<'_>],
    server_version: &str,
) -> Value {
    let paths = Value::Object(paths);
    let mut names: BTreeSet<String> = references(&paths);
    let mut schemas = Map::new();
    for kind in custom {
        for (name, component) in kind.components(matches!(of, DocumentScope::Everything)) {
            names.extend(references(&component));
            schemas.insert(name, component);
        }
    }
    components::collect(of, names, &mut schemas);
    let mut components = Map::new();
    if !schemas.is_empty() {
        components.insert("schemas".to_owned(), schemas.into());
    }
    let info = match of {
        DocumentScope::CustomVersion => {
            json!({"title": "Kubernetes CRD Swagger", "version": "v0.1.0"})
        }
        _ => {
            let bearer = json!({
                "type": "apiKey", "in": "header", "name": "authorization", "description": "Bearer Token authentication",
            });
            components.insert("securitySchemes".to_owned(), json!({"BearerToken": bearer}));
            json!({"title": "Kubernetes", "version": server_version})
        }
    };
    json!({"openapi": "3.0.0", "info": info, "paths": paths, "components": components})
}

/// Returns the OpenAPI name of a built-in kind's type.
fn type_name(schema: &Schema, group: &str, version: &str, kind: &str) -> Option<String> {
    let node = schema.kind(group, version, kind)?;
    schema.node(node).name.as_deref().map(str::to_owned)
}

fn builtin_operations(schema: &Schema, resource: &ApiResource) -> Operations {
    let name_of = |group: &str, version: &str, kind: &str| type_name(schema, group, version, kind);
    Operations {
        returns_deleted: crate::resources::returns_deleted(resource.group, resource.name),
        plural: resource.name.to_owned(),
        kind: resource.kind.to_owned(),
        namespaced: resource.namespaced,
        verbs: resource.verbs.iter().map(|v| (*v).to_owned()).collect(),
        type_name: name_of(resource.group, resource.version, resource.kind),
        list_name: name_of(resource.group, resource.version, &format!("{}List", resource.kind)),
        custom: false,
        subresources: resource
            .subresources
            .iter()
            .map(|sub| Sub {
                name: sub.name.to_owned(),
                group: sub.group.to_owned(),
                version: sub.version.to_owned(),
                kind: sub.kind.to_owned(),
                verbs: sub.verbs.iter().map(|v| (*v).to_owned()).collect(),
                type_name: name_of(sub.group, sub.version, sub.kind),
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests;
