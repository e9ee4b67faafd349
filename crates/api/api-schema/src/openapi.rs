//! OpenAPI v3 documents per group version, built from the facts, and the OpenAPI v2 document, which is derived from
//! them. Read [`Contents`] first.
//!
//! kubectl reads them to explain kinds, to look up supported patches and query parameters, and to validate objects
//! before it sends them.

use std::collections::BTreeSet;

use serde_json::{Value, json};

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
pub use swagger::Version2;

/// The contents of a document, as paths and schemas of OpenAPI v3.
///
/// They are built one at a time, because a document with many custom kinds takes far more memory as a tree than as
/// text.
pub struct Contents<'a> {
    scope: DocumentScope<'a>,
    unversioned: Vec<&'a str>,
    versions: Vec<(&'a str, &'a str)>,
    custom: &'a [CustomKind<'a>],
}

impl<'a> Contents<'a> {
    /// Returns the contents of a group version: its built-in kinds and the given custom resources.
    pub fn of_version(group: &'a str, version: &'a str, custom: &'a [CustomKind<'a>]) -> Self {
        let is_builtin =
            crate::resources().iter().any(|r| r.group == group && r.version == version);
        let scope = if is_builtin {
            DocumentScope::Version(group, version)
        } else {
            DocumentScope::CustomVersion
        };
        Self { scope, unversioned: Vec::new(), versions: vec![(group, version)], custom }
    }

    /// Returns the contents of an unversioned path: `api`, `apis`, `apis/GROUP`, `version` or the issuer's. Returns
    /// `None` for other paths.
    pub fn unversioned(path: &'a str) -> Option<Self> {
        plain::path(path)?;
        let scope = DocumentScope::Version("", "v1");
        Some(Self { scope, unversioned: vec![path], versions: Vec::new(), custom: &[] })
    }

    /// Returns the contents of the unversioned paths, the given group versions and their custom resources. OpenAPI v2
    /// has only this document ([`Version2`]).
    pub fn whole(
        unversioned: Vec<&'a str>,
        versions: Vec<(&'a str, &'a str)>,
        custom: &'a [CustomKind<'a>],
    ) -> Self {
        Self { scope: DocumentScope::Everything, unversioned, versions, custom }
    }

    /// Passes every path to `take`. Returns the names of the schemas that the paths refer to.
    ///
    /// # Errors
    ///
    /// The error of `take`.
    pub fn paths<E>(
        &self,
        mut take: impl FnMut(String, Value) -> Result<(), E>,
    ) -> Result<BTreeSet<String>, E> {
        let mut names = BTreeSet::new();
        let mut take = |path: String, item: Value| {
            names.extend(references(&item));
            take(path, item)
        };
        for (path, item) in self.unversioned.iter().filter_map(|path| plain::path(path)) {
            take(path, item)?;
        }
        for (group, version) in &self.versions {
            for (path, item) in self.group_version_paths(group, version) {
                take(path, item)?;
            }
        }
        Ok(names)
    }

    fn group_version_paths(
        &self,
        group: &'a str,
        version: &'a str,
    ) -> impl Iterator<Item = (String, Value)> {
        let builtin = move |r: &&ApiResource| r.group == group && r.version == version;
        let builtin = || crate::resources().iter().filter(builtin);
        let custom = move |kind: &&CustomKind<'_>| kind.group == group && kind.version == version;
        let custom = self.custom.iter().filter(custom).map(CustomKind::operations);
        let operations = builtin().map(|r| builtin_operations(Schema::builtin(), r)).chain(custom);
        paths::paths(group, version, builtin().next().is_some(), operations)
    }

    /// Passes every schema to `take`: those of custom resources, those of the given names, and all that these refer
    /// to.
    ///
    /// # Errors
    ///
    /// The error of `take`.
    pub fn schemas<E>(
        &self,
        mut names: BTreeSet<String>,
        mut take: impl FnMut(String, Value) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut taken = BTreeSet::new();
        for kind in self.custom {
            for (name, schema) in kind.components(matches!(self.scope, DocumentScope::Everything)) {
                if taken.insert(name.clone()) {
                    names.extend(references(&schema));
                    take(name, schema)?;
                }
            }
        }
        while let Some(name) = names.pop_first() {
            if taken.contains(&name) {
                continue;
            }
            let Some(schema) = components::component(self.scope, &name) else { continue };
            names.extend(references(&schema));
            taken.insert(name.clone());
            take(name, schema)?;
        }
        Ok(())
    }

    /// Returns the title and the version of the document.
    pub fn info(&self, server_version: &str) -> Value {
        match self.scope {
            DocumentScope::CustomVersion => {
                json!({"title": "Kubernetes CRD Swagger", "version": "v0.1.0"})
            }
            _ => json!({"title": "Kubernetes", "version": server_version}),
        }
    }

    /// Returns the ways to authenticate. As upstream, documents of custom resources have none.
    pub fn security_schemes(&self) -> Option<Value> {
        let bearer = json!({
            "type": "apiKey", "in": "header", "name": "authorization", "description": "Bearer Token authentication",
        });
        match self.scope {
            DocumentScope::CustomVersion => None,
            _ => Some(json!({"BearerToken": bearer})),
        }
    }
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
