//! What another API server says that it serves: discovery, and OpenAPI.
//!
//! It may say anything, at any length. Documents are read into known fields within a budget, and what is not of the group
//! and version that the server answers for is left out.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use api_meta::{Budget, Tree as _, UserInfo};
use http::header;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::known::Learned;
use crate::outbound::{
    aggregated::{Fetched, Reference, aggregator, open_api_reader},
    backends::Backends,
};

/// How long a server may take to say what it serves, and how many bytes that may be.
const DISCOVERY: (Duration, usize) = (Duration::from_secs(5), 4 << 20);
/// The same of its OpenAPI documents.
const OPEN_API: (Duration, usize) = (Duration::from_secs(60), 16 << 20);
/// How deep a document may nest: schemas nest, and clients read them recursively.
const DEPTH: usize = 64;
/// Bytes that a document's tree may take.
const MEMORY: usize = 96 << 20;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
                          application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,\
                          application/json";

/// A server's group and version.
#[derive(Clone, Copy)]
pub(crate) struct Of<'a> {
    pub(crate) group: &'a str,
    pub(crate) version: &'a str,
}

impl Of<'_> {
    pub(crate) fn path(self) -> String {
        format!("/apis/{}/{}", self.group, self.version)
    }
}

/// Why a document was not learned from.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotLearned {
    #[error("asking for {path}: {cause}")]
    Unanswered { path: String, cause: String },
    #[error("asking for {path}: the status is {code}")]
    Refused { path: String, code: u16 },
    #[error("reading {path}: {cause}")]
    Unreadable { path: String, cause: String },
}

#[derive(Deserialize)]
struct GroupList {
    items: Option<Vec<GroupItem>>,
}

#[derive(Deserialize)]
struct GroupItem {
    metadata: Named,
    #[serde(default)]
    versions: Vec<VersionItem>,
}

#[derive(Deserialize)]
struct Named {
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct VersionItem {
    version: String,
    resources: Option<Vec<Resource>>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Resource {
    resource: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_kind: Option<Kind>,
    #[serde(default)]
    scope: Scope,
    #[serde(default)]
    singular_resource: String,
    verbs: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    short_names: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    categories: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    subresources: Option<Vec<Subresource>>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
enum Scope {
    #[default]
    Cluster,
    Namespaced,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct Kind {
    #[serde(default)]
    group: String,
    #[serde(default)]
    version: String,
    kind: String,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Subresource {
    subresource: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_kind: Option<Kind>,
    verbs: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct LegacyList {
    #[serde(default)]
    resources: Vec<Legacy>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Legacy {
    name: String,
    #[serde(default)]
    singular_name: String,
    #[serde(default)]
    namespaced: bool,
    #[serde(default)]
    group: String,
    #[serde(default)]
    version: String,
    kind: String,
    verbs: Option<Vec<String>>,
    short_names: Option<Vec<String>>,
    categories: Option<Vec<String>>,
}

/// Asks a server. What it does not say now stays as it was known before, and is marked as stale.
pub(crate) async fn learn(
    reference: &Reference,
    backends: &Backends,
    of: Of<'_>,
    before: Option<&Learned>,
) -> Learned {
    let mut learned = before.cloned().unwrap_or_default();
    let asked = Asked { reference, backends };
    match asked.resources(of).await {
        Ok(resources) => (learned.resources, learned.fresh) = (resources, true),
        Err(error) => {
            learned.fresh = false;
            tracing::warn!(server = %reference.url(""), %error, "another API server did not say what it serves");
            return learned;
        }
    }
    match asked.hash(of).await {
        Ok(hash) => learned.hash = hash,
        Err(error) => said_nothing(reference, &error),
    }
    match asked.open_api(of, &learned).await {
        Ok(Some((document, etag))) => {
            (learned.open_api, learned.open_api_etag) = (Some(Arc::new(document)), etag);
        }
        Ok(None) => {}
        Err(error) => said_nothing(reference, &error),
    }
    learned
}

/// Not every server has OpenAPI documents.
fn said_nothing(reference: &Reference, error: &NotLearned) {
    tracing::debug!(server = %reference.url(""), %error, "another API server has no such document");
}

struct Asked<'a> {
    reference: &'a Reference,
    backends: &'a Backends,
}

impl Asked<'_> {
    async fn get(
        &self,
        user: &UserInfo,
        path: &str,
        headers: [(header::HeaderName, &str); 2],
        bounds: (Duration, usize),
    ) -> Result<Fetched, NotLearned> {
        let fetched = self.reference.fetch(self.backends, user, path, &headers, bounds).await;
        fetched.map_err(|e| NotLearned::Unanswered { path: path.to_owned(), cause: e.to_string() })
    }

    async fn resources(&self, of: Of<'_>) -> Result<Vec<Value>, NotLearned> {
        let accept = |kinds: &'static str| [(header::ACCEPT, kinds), (header::IF_NONE_MATCH, "")];
        let user = aggregator();
        let answer = self.get(&user, "/apis", accept(AGGREGATED), DISCOVERY).await?;
        let kind = answer.headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok());
        let aggregated = kind.is_some_and(|kind| kind.contains("as=APIGroupDiscoveryList"));
        if answer.code == 200 && aggregated {
            return resources(read("/apis", &answer.body)?, of);
        }
        let path = of.path();
        let answer = self.get(&user, &path, accept("application/json"), DISCOVERY).await?;
        if answer.code != 200 {
            return Err(NotLearned::Refused { path, code: answer.code });
        }
        legacy(read(&path, &answer.body)?, of)
    }

    /// The hash of the document of version 3, empty where the server has no hash for it.
    async fn hash(&self, of: Of<'_>) -> Result<Option<String>, NotLearned> {
        let path = "/openapi/v3";
        let headers = [(header::ACCEPT, "application/json"), (header::IF_NONE_MATCH, "")];
        let answer = self.get(&open_api_reader(), path, headers, DISCOVERY).await?;
        if answer.code != 200 {
            return Err(NotLearned::Refused { path: path.to_owned(), code: answer.code });
        }
        let index = read(path, &answer.body)?;
        let name = of.path();
        let url = index.at(&["paths", name.trim_start_matches('/'), "serverRelativeURL"]).as_str();
        let hash = url.map(|url| url.split_once("hash=").map_or("", |(_, hash)| hash));
        // It becomes part of a URL of ours.
        let hash = hash.map(|hash| hash.chars().take_while(char::is_ascii_alphanumeric).collect());
        Ok(hash)
    }

    /// What the server adds to OpenAPI of version 2, and the tag of that; `None` if it is as it was.
    async fn open_api(
        &self,
        of: Of<'_>,
        before: &Learned,
    ) -> Result<Option<(Value, String)>, NotLearned> {
        let path = "/openapi/v2";
        let headers =
            [(header::ACCEPT, "application/json"), (header::IF_NONE_MATCH, &*before.open_api_etag)];
        let answer = self.get(&open_api_reader(), path, headers, OPEN_API).await?;
        match answer.code {
            304 => return Ok(None),
            200 => {}
            code => return Err(NotLearned::Refused { path: path.to_owned(), code }),
        }
        let etag = answer.headers.get(header::ETAG).and_then(|v| v.to_str().ok());
        let document = read(path, &answer.body)?;
        Ok(Some((own_part(&document, &of.path()), etag.unwrap_or_default().to_owned())))
    }
}

fn read(path: &str, body: &[u8]) -> Result<Value, NotLearned> {
    Budget::new(DEPTH, MEMORY).json(body).map_err(|e| unreadable(path, e))
}

fn unreadable(path: &str, cause: impl std::fmt::Display) -> NotLearned {
    NotLearned::Unreadable { path: path.to_owned(), cause: cause.to_string() }
}

/// The resources of a group and version, of an `APIGroupDiscoveryList`.
fn resources(list: Value, of: Of<'_>) -> Result<Vec<Value>, NotLearned> {
    let list: GroupList = serde_json::from_value(list).map_err(|e| unreadable("/apis", e))?;
    let groups = list.items.unwrap_or_default();
    let groups = groups.into_iter().filter(|item| item.metadata.name == of.group);
    let version = groups.flat_map(|group| group.versions).find(|v| v.version == of.version);
    let found = version.and_then(|version| version.resources).unwrap_or_default();
    Ok(shown(found))
}

/// The same of an `APIResourceList`, in which subresources stand by themselves.
fn legacy(list: Value, of: Of<'_>) -> Result<Vec<Value>, NotLearned> {
    let list: LegacyList = serde_json::from_value(list).map_err(|e| unreadable(&of.path(), e))?;
    let or = |text: String, own: &str| if text.is_empty() { own.to_owned() } else { text };
    let (mut found, mut below) = (BTreeMap::<String, Resource>::new(), Vec::new());
    for entry in list.resources {
        let kind = Kind {
            group: or(entry.group, of.group),
            version: or(entry.version, of.version),
            kind: entry.kind,
        };
        if let Some((resource, subresource)) = entry.name.split_once('/') {
            below.push((
                resource.to_owned(),
                Subresource {
                    subresource: subresource.to_owned(),
                    response_kind: Some(kind),
                    verbs: entry.verbs,
                },
            ));
            continue;
        }
        let scope = if entry.namespaced { Scope::Namespaced } else { Scope::Cluster };
        let resource = Resource {
            resource: entry.name.clone(),
            response_kind: Some(kind),
            scope,
            singular_resource: entry.singular_name,
            verbs: entry.verbs,
            short_names: entry.short_names,
            categories: entry.categories,
            subresources: None,
        };
        found.insert(entry.name, resource);
    }
    for (resource, subresource) in below {
        let resource = found.entry(resource.clone()).or_insert_with(|| Resource {
            resource,
            scope: Scope::Namespaced,
            ..Resource::default()
        });
        resource.subresources.get_or_insert_default().push(subresource);
    }
    Ok(shown(found.into_values().collect()))
}

/// Names become parts of paths that clients ask for.
fn shown(resources: Vec<Resource>) -> Vec<Value> {
    let named = |name: &str| !name.is_empty() && !name.contains('/');
    let resources = resources.into_iter().filter(|resource| named(&resource.resource));
    let resources = resources.map(|mut resource| {
        resource.verbs.get_or_insert_default();
        for subresource in resource.subresources.iter_mut().flatten() {
            subresource.verbs.get_or_insert_default();
        }
        json!(resource)
    });
    resources.collect()
}

/// Sections of a document that others refer to.
pub(crate) const SHARED: [&str; 2] = ["definitions", "parameters"];

/// What a document of version 2 says below a path, with all that it refers to.
fn own_part(document: &Value, below: &str) -> Value {
    let own = |path: &str| {
        path.strip_prefix(below).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let paths = document["paths"].as_object().into_iter().flatten();
    let paths: Map<String, Value> = paths
        .filter(|(path, item)| own(path) && item.is_object())
        .map(|(path, item)| (path.clone(), item.clone()))
        .collect();
    let mut part = Map::new();
    let mut wanted: Vec<(usize, String)> = Vec::new();
    paths.values().for_each(|item| references(item, &mut wanted));
    let mut known: BTreeSet<(usize, String)> = BTreeSet::new();
    let mut sections = SHARED.map(|_| Map::new());
    while let Some((section, name)) = wanted.pop() {
        let Some(target) = document[SHARED[section]].get(&name).filter(|t| t.is_object()) else {
            continue;
        };
        if known.insert((section, name.clone())) {
            references(target, &mut wanted);
            sections[section].insert(name, target.clone());
        }
    }
    for (name, section) in SHARED.into_iter().zip(sections) {
        part.insert(name.to_owned(), Value::Object(section));
    }
    part.insert("paths".to_owned(), Value::Object(paths));
    Value::Object(part)
}

/// What a tree refers to: sections of its document, and names in them. No recursion: it is as deep as somebody made it.
fn references(tree: &Value, found: &mut Vec<(usize, String)>) {
    let mut open = vec![tree];
    while let Some(tree) = open.pop() {
        match tree {
            Value::Object(members) => {
                if let Some(Value::String(target)) = members.get("$ref") {
                    found.extend(reference(target));
                }
                open.extend(members.values());
            }
            Value::Array(items) => open.extend(items),
            _ => {}
        }
    }
}

/// `#/definitions/NAME`, taken apart.
fn reference(target: &str) -> Option<(usize, String)> {
    let (section, name) = target.strip_prefix("#/")?.split_once('/')?;
    Some((SHARED.iter().position(|shared| *shared == section)?, name.to_owned()))
}

/// Adds what a server says to the one document of version 2. Paths that are there already stay; of a name that means
/// something else here the newcomer is called by another.
pub(crate) fn merge(whole: &mut Value, part: &Value) {
    let mut renamed: BTreeMap<String, String> = BTreeMap::new();
    for section in SHARED {
        for (name, item) in part[section].as_object().into_iter().flatten() {
            let known = |name: &str| whole[section].get(name);
            if known(name).is_none_or(|known| known == item) {
                continue;
            }
            let fresh = (2..).map(|n| format!("{name}_v{n}")).find(|name| known(name).is_none());
            let old = format!("#/{section}/{name}");
            renamed.extend(fresh.map(|fresh| (old, format!("#/{section}/{fresh}"))));
        }
    }
    for section in SHARED.into_iter().chain(["paths"]) {
        let Some(items) = part[section].as_object().filter(|items| !items.is_empty()) else {
            continue;
        };
        let Some(whole) = whole.as_object_mut() else { return };
        let place = whole.entry(section).or_insert_with(|| json!({}));
        let Some(place) = place.as_object_mut() else { continue };
        for (name, item) in items {
            let prefix = format!("#/{section}/");
            let called = renamed.get(&format!("{prefix}{name}"));
            let name = called.and_then(|n| n.strip_prefix(&prefix)).unwrap_or(name);
            place.entry(name).or_insert_with(|| {
                let mut item = item.clone();
                rename(&mut item, &renamed);
                item
            });
        }
    }
}

fn rename(tree: &mut Value, renamed: &BTreeMap<String, String>) {
    let mut open = vec![tree];
    while let Some(tree) = open.pop() {
        match tree {
            Value::Object(members) => {
                if let Some(Value::String(target)) = members.get_mut("$ref")
                    && let Some(fresh) = renamed.get(target.as_str())
                {
                    target.clone_from(fresh);
                }
                open.extend(members.values_mut());
            }
            Value::Array(items) => open.extend(items),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
