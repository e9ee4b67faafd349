//! The requests to the API server. The inner results are messages for the user; the outer ones are errors of a server
//! that does not answer, after which the whole pass is repeated.

use std::collections::BTreeMap;

use api_meta::Tree as _;
use client::{Client, DeleteOptions, Preconditions, Resource};
use serde::Deserialize;
use serde_json::{Value, json};

use super::record::{Key, Object};

/// The manager of the fields that files set.
const MANAGER: &str = "windlass-manifests";

/// An object of a file with its resource.
pub(super) struct ManifestObject {
    pub(super) resource: Resource,
    key: Key,
    object: Value,
}

impl ManifestObject {
    pub(super) fn to_record(&self, file: &str, existed: bool) -> Object {
        Object::new(&self.resource, &self.key, file, existed)
    }
}

/// The kinds of the group versions that files name, as the server lists them.
#[derive(Default)]
pub(super) struct Kinds(BTreeMap<String, Result<Vec<Kind>, String>>);

#[derive(Deserialize)]
struct Kind {
    name: String,
    kind: String,
    namespaced: bool,
}

#[derive(Deserialize)]
struct KindList {
    resources: Vec<Kind>,
}

/// Reports whether a file has set fields of an object.
fn is_ours(object: &Value) -> bool {
    let fields = object["metadata"]["managedFields"].as_array();
    fields.into_iter().flatten().any(|entry| entry.text("manager") == MANAGER)
}

/// Reports whether a text may be a segment of a URL's path.
fn is_segment(text: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-._:@".contains(c);
    !["", ".", ".."].contains(&text) && text.chars().all(is_allowed)
}

/// Separates the server's answers from its absence.
fn answered<T>(
    result: Result<T, client::Error>,
) -> Result<Result<T, client::Error>, client::Error> {
    match result {
        Err(error) if error.status().is_none() || error.code() == Some(401) => Err(error),
        other => Ok(other),
    }
}

impl Kinds {
    /// Returns the identity of an object and its resource. An object without a namespace is in `default`.
    pub(super) async fn locate(
        &mut self,
        client: &Client,
        mut object: Value,
    ) -> Result<Result<(Key, ManifestObject), String>, client::Error> {
        let (version, kind) =
            (object.text("apiVersion").to_owned(), object.text("kind").to_owned());
        let name = object.name().to_owned();
        if kind.is_empty() || !version.split('/').all(is_segment) || version.split('/').count() > 2
        {
            let found = format!("{version:?} and {kind:?}");
            return Ok(Err(format!("an entry needs apiVersion and kind, not {found}")));
        }
        if !is_segment(&name) {
            return Ok(Err(format!("an entry of kind {kind} needs metadata.name, not {name:?}")));
        }
        let kinds = match self.of(client, &version).await? {
            Ok(kinds) => kinds,
            Err(error) => return Ok(Err(format!("{kind} {name}: {error}"))),
        };
        let Some(found) = kinds.iter().find(|k| k.kind == kind && !k.name.contains('/')) else {
            return Ok(Err(format!(
                "{kind} {name}: the API server has no kind {kind} in {version}"
            )));
        };
        let namespace = match (found.namespaced, object.namespace()) {
            (false, "") => String::new(),
            (false, other) => {
                return Ok(Err(format!("{kind} {name} has no namespace, but {other:?} is given")));
            }
            (true, "") => "default".to_owned(),
            (true, given) => given.to_owned(),
        };
        if found.namespaced {
            if !is_segment(&namespace) {
                return Ok(Err(format!("{kind} {name}: {namespace:?} is no namespace")));
            }
            object["metadata"]["namespace"] = json!(namespace);
        }
        let (group, version) = version.split_once('/').unwrap_or(("", version.as_str()));
        let resource = Resource {
            group: group.to_owned().into(),
            version: version.to_owned().into(),
            plural: found.name.clone().into(),
            kind: kind.clone().into(),
            namespaced: found.namespaced,
        };
        let key = Key { group: group.to_owned(), kind, namespace, name };
        Ok(Ok((key.clone(), ManifestObject { resource, key, object })))
    }

    async fn of(
        &mut self,
        client: &Client,
        version: &str,
    ) -> Result<Result<&[Kind], String>, client::Error> {
        if !self.0.contains_key(version) {
            let root = if version.contains('/') { "/apis" } else { "/api" };
            let listed = client.get_raw::<KindList>(&format!("{root}/{version}")).await;
            let listed = answered(listed)?.map(|list| list.resources).map_err(|error| {
                if error.is_not_found() {
                    format!("the API server does not serve {version}")
                } else {
                    error.to_string()
                }
            });
            self.0.insert(version.to_owned(), listed);
        }
        Ok(match &self.0[version] {
            Ok(kinds) => Ok(kinds),
            Err(error) => Err(error.clone()),
        })
    }
}

/// Reports whether an object exists, as far as is known.
pub(super) async fn exists(client: &Client, at: &ManifestObject) -> Result<bool, client::Error> {
    let got = client.get::<Value>(&at.resource, &at.key.namespace, &at.key.name).await;
    Ok(!answered(got)?.is_err_and(|error| error.is_not_found()))
}

/// Applies an object, and returns its UID. Unknown fields are errors.
pub(super) async fn apply(
    client: &Client,
    at: &ManifestObject,
) -> Result<Result<String, String>, client::Error> {
    let path = at.resource.object(&at.key.namespace, &at.key.name, "");
    let path = format!("{path}?fieldManager={MANAGER}&force=true&fieldValidation=Strict");
    let body = at.object.to_string().into_bytes();
    let content_type = "application/apply-patch+yaml";
    let applied = client.call(http::Method::PATCH, &path, content_type, body.into()).await;
    Ok(match answered(applied)? {
        Ok(live) => match serde_json::from_slice::<Value>(&live) {
            Ok(live) => Ok(live.text("metadata.uid").to_owned()),
            Err(error) => Err(format!("reading the answer: {error}")),
        },
        Err(error) => Err(error.server_message()),
    })
}

/// Deletes an object that was created for a file. An object that existed before, or that others have created again,
/// stays.
pub(super) async fn delete(
    client: &Client,
    object: &Object,
) -> Result<Result<(), String>, client::Error> {
    if object.existed {
        return Ok(Ok(()));
    }
    let resource = object.resource();
    let uid = match &object.uid {
        Some(uid) => uid.clone(),
        // The process ended between the apply and the record of its result.
        None => {
            let got = client.get::<Value>(&resource, &object.namespace, &object.name).await;
            match answered(got)? {
                Ok(live) if is_ours(&live) => live.text("metadata.uid").to_owned(),
                _ => return Ok(Ok(())),
            }
        }
    };
    let preconditions = Some(Preconditions { uid: Some(uid), ..Default::default() });
    let options = DeleteOptions {
        preconditions,
        propagation_policy: Some("Background"),
        ..DeleteOptions::default()
    };
    let deleted = client.delete(&resource, &object.namespace, &object.name, &options).await;
    Ok(match answered(deleted)? {
        Err(error) if !error.is_not_found() && !error.is_conflict() => {
            Err(format!("deleting {} {}: {}", resource.kind, object.name, error.server_message()))
        }
        _ => Ok(()),
    })
}
