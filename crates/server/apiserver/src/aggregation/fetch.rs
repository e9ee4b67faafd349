//! Fetches discovery and OpenAPI from another API server.
//!
//! Documents are decoded into known fields within a budget. An aggregated server is not trusted: everything outside of
//! its own group and version is dropped. A peer may serve every group.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use api_meta::{Budget, Tree as _, UserInfo};
use http::header;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::snapshot::RemoteApi;
use crate::outbound::{
    aggregated::{
        DocumentRequest, FetchedResponse, Reference, RequestError, aggregator, open_api_reader,
    },
    backends::Backends,
    peers::{PEER_PROXIED, PeerReference, peer_reader},
    webhook::CallLimits,
};

/// The timeout and the maximum size in bytes of discovery.
const DISCOVERY: CallLimits =
    CallLimits { timeout: Duration::from_secs(5), response_bytes: 4 << 20 };
/// The timeout and the maximum size in bytes of OpenAPI documents.
const OPEN_API: CallLimits =
    CallLimits { timeout: Duration::from_secs(60), response_bytes: 16 << 20 };
/// The maximum nesting of a document. Clients read schemas recursively.
const DEPTH: usize = 64;
/// The maximum memory in bytes of a parsed document.
const MEMORY: usize = 96 << 20;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
                          application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,\
                          application/json";

/// The form without resources that only the peers of the other server serve. Servers that do not know it send the usual
/// one.
const AGGREGATED_WITHOUT_PEERS: &str = "application/json;g=apidiscovery.k8s.io;v=v2;\
                                        as=APIGroupDiscoveryList;profile=nopeer";

/// A group and version of an APIService.
#[derive(Clone, Copy)]
pub(crate) struct GroupVersionName<'a> {
    pub(crate) group: &'a str,
    pub(crate) version: &'a str,
}

impl GroupVersionName<'_> {
    pub(crate) fn path(self) -> String {
        format!("/apis/{}/{}", self.group, self.version)
    }
}

/// The error of fetching a document.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    #[error("asking for {path}: {source}")]
    Transport { path: String, source: RequestError },
    #[error("asking for {path}: the status is {code}")]
    Status { path: String, code: u16 },
    #[error("reading {path}: {cause}")]
    Decode { path: String, cause: String },
}

#[derive(Deserialize)]
struct GroupList {
    items: Option<Vec<GroupItem>>,
}

#[derive(Deserialize)]
struct GroupItem {
    metadata: ItemName,
    #[serde(default)]
    versions: Vec<VersionItem>,
}

#[derive(Deserialize)]
struct ItemName {
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

/// Fetches what a server serves. A document that cannot be fetched keeps its previous value; stale discovery is marked.
pub(crate) async fn fetch(
    reference: &Reference,
    backends: &Backends,
    of: GroupVersionName<'_>,
    before: Option<&RemoteApi>,
) -> RemoteApi {
    let mut learned = before.cloned().unwrap_or_default();
    let server = RemoteServer { reference, backends };
    match server.resources(of).await {
        Ok(resources) => (learned.resources, learned.fresh) = (resources, true),
        Err(error) => {
            learned.fresh = false;
            tracing::warn!(
                server = %reference.url(""),
                %error,
                "failed to fetch discovery from an aggregated API server"
            );
            return learned;
        }
    }
    match server.hash(of).await {
        Ok(hash) => learned.hash = hash,
        Err(error) => log_missing(reference, &error),
    }
    match server.open_api(of, &learned).await {
        Ok(Some((document, etag))) => {
            (learned.open_api, learned.open_api_etag) = (Some(Arc::new(document)), etag);
        }
        Ok(None) => {}
        Err(error) => log_missing(reference, &error),
    }
    learned
}

/// Logged for debugging only, since not every server has OpenAPI documents.
fn log_missing(reference: &Reference, error: &FetchError) {
    tracing::debug!(server = %reference.url(""), %error, "failed to fetch OpenAPI from an aggregated API server");
}

struct RemoteServer<'a> {
    reference: &'a Reference,
    backends: &'a Backends,
}

impl RemoteServer<'_> {
    async fn get(
        &self,
        user: &UserInfo,
        path: &str,
        headers: [(header::HeaderName, &str); 2],
        limits: CallLimits,
    ) -> Result<FetchedResponse, FetchError> {
        let document = DocumentRequest { user, path, headers: &headers, limits };
        let fetched = self.reference.fetch(self.backends, document).await;
        fetched.map_err(|source| FetchError::Transport { path: path.to_owned(), source })
    }

    async fn resources(&self, of: GroupVersionName<'_>) -> Result<Vec<Value>, FetchError> {
        let accept = |kinds: &'static str| [(header::ACCEPT, kinds), (header::IF_NONE_MATCH, "")];
        let user = aggregator();
        let answer = self.get(&user, "/apis", accept(AGGREGATED), DISCOVERY).await?;
        if answer.code == 200 && is_aggregated(&answer) {
            return resources(read("/apis", &answer.body)?, of);
        }
        let path = of.path();
        let answer = self.get(&user, &path, accept("application/json"), DISCOVERY).await?;
        if answer.code != 200 {
            return Err(FetchError::Status { path, code: answer.code });
        }
        legacy(read(&path, &answer.body)?, of)
    }

    /// Returns the hash of the OpenAPI v3 document. It is empty if the server publishes none.
    async fn hash(&self, of: GroupVersionName<'_>) -> Result<Option<String>, FetchError> {
        let path = "/openapi/v3";
        let headers = [(header::ACCEPT, "application/json"), (header::IF_NONE_MATCH, "")];
        let answer = self.get(&open_api_reader(), path, headers, DISCOVERY).await?;
        if answer.code != 200 {
            return Err(FetchError::Status { path: path.to_owned(), code: answer.code });
        }
        let index = read(path, &answer.body)?;
        let name = of.path();
        let url = index.at(&["paths", name.trim_start_matches('/'), "serverRelativeURL"]).as_str();
        let hash = url.map(|url| url.split_once("hash=").map_or("", |(_, hash)| hash));
        // The hash becomes part of this server's URLs, so only safe characters are kept.
        let hash = hash.map(|hash| hash.chars().take_while(char::is_ascii_alphanumeric).collect());
        Ok(hash)
    }

    /// Returns the server's part of OpenAPI v2 and its ETag, or `None` if it has not changed.
    async fn open_api(
        &self,
        of: GroupVersionName<'_>,
        before: &RemoteApi,
    ) -> Result<Option<(Value, String)>, FetchError> {
        let path = "/openapi/v2";
        let headers =
            [(header::ACCEPT, "application/json"), (header::IF_NONE_MATCH, &*before.open_api_etag)];
        let answer = self.get(&open_api_reader(), path, headers, OPEN_API).await?;
        match answer.code {
            304 => return Ok(None),
            200 => {}
            code => return Err(FetchError::Status { path: path.to_owned(), code }),
        }
        let etag = answer.headers.get(header::ETAG).and_then(|v| v.to_str().ok());
        let document = read(path, &answer.body)?;
        Ok(Some((extract_paths(&document, &of.path()), etag.unwrap_or_default().to_owned())))
    }
}

fn read(path: &str, body: &[u8]) -> Result<Value, FetchError> {
    Budget::new(DEPTH, MEMORY).json(body).map_err(|e| unreadable(path, e))
}

fn unreadable(path: &str, cause: impl std::fmt::Display) -> FetchError {
    FetchError::Decode { path: path.to_owned(), cause: cause.to_string() }
}

/// The resources of a version of a group in another server's discovery.
pub(crate) struct DiscoveredVersion {
    pub(crate) group: String,
    pub(crate) version: String,
    /// The resources, in the format of aggregated discovery.
    pub(crate) resources: Vec<Value>,
}

/// The document `/api` or `/apis` of a peer.
#[derive(Default)]
pub(crate) struct PeerDocument {
    /// The versions of all groups.
    pub(crate) versions: Vec<DiscoveredVersion>,
    /// The document's ETag, for conditional requests.
    pub(crate) etag: String,
}

/// Fetches `/api` or `/apis` of a peer, with the peer's own resources only. Returns `None` if the document has not
/// changed since the one with `etag`.
pub(crate) async fn fetch_peer(
    peer: &PeerReference,
    backends: &Backends,
    path: &str,
    etag: &str,
) -> Result<Option<PeerDocument>, FetchError> {
    let headers = [
        (header::ACCEPT, AGGREGATED_WITHOUT_PEERS),
        (header::IF_NONE_MATCH, etag),
        (PEER_PROXIED, "true"),
    ];
    let document =
        DocumentRequest { user: &peer_reader(), path, headers: &headers, limits: DISCOVERY };
    let fetched = peer.destination().fetch(backends, document).await;
    let answer =
        fetched.map_err(|source| FetchError::Transport { path: path.to_owned(), source })?;
    match answer.code {
        304 if !etag.is_empty() => return Ok(None),
        200 if is_aggregated(&answer) => {}
        200 => return Err(unreadable(path, "it is no APIGroupDiscoveryList")),
        code => return Err(FetchError::Status { path: path.to_owned(), code }),
    }
    let list: GroupList = serde_json::from_value(read(path, &answer.body)?)
        .map_err(|error| unreadable(path, error))?;
    let etag = answer.headers.get(header::ETAG).and_then(|v| v.to_str().ok()).unwrap_or_default();
    Ok(Some(PeerDocument { versions: versions(list).collect(), etag: etag.to_owned() }))
}

/// Returns the versions of all groups in an `APIGroupDiscoveryList`.
fn versions(list: GroupList) -> impl Iterator<Item = DiscoveredVersion> {
    list.items.unwrap_or_default().into_iter().flat_map(|group| {
        group.versions.into_iter().map(move |version| DiscoveredVersion {
            group: group.metadata.name.clone(),
            version: version.version,
            resources: encode_resources(version.resources.unwrap_or_default()),
        })
    })
}

fn is_aggregated(answer: &FetchedResponse) -> bool {
    let kind = answer.headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok());
    kind.is_some_and(|kind| kind.contains("as=APIGroupDiscoveryList"))
}

/// Returns the resources of a group and version from an `APIGroupDiscoveryList`.
fn resources(list: Value, of: GroupVersionName<'_>) -> Result<Vec<Value>, FetchError> {
    let list: GroupList = serde_json::from_value(list).map_err(|e| unreadable("/apis", e))?;
    let found = versions(list).find(|v| v.group == of.group && v.version == of.version);
    Ok(found.map(|found| found.resources).unwrap_or_default())
}

/// Returns the resources from an `APIResourceList`, which lists subresources separately.
fn legacy(list: Value, of: GroupVersionName<'_>) -> Result<Vec<Value>, FetchError> {
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
    Ok(encode_resources(found.into_values().collect()))
}

/// Encodes the resources. Names that cannot be part of a path are dropped.
fn encode_resources(resources: Vec<Resource>) -> Vec<Value> {
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

/// The sections of a document that `$ref` can refer to.
pub(crate) const SHARED: [&str; 2] = ["definitions", "parameters"];

/// Extracts the paths below a prefix from an OpenAPI v2 document, with everything they refer to.
fn extract_paths(document: &Value, below: &str) -> Value {
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

/// Collects the references in a tree as section index and name. Iterative, because the tree may be deeply nested.
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

/// Parses `#/definitions/NAME`.
fn reference(target: &str) -> Option<(usize, String)> {
    let (section, name) = target.strip_prefix("#/")?.split_once('/')?;
    Some((SHARED.iter().position(|shared| *shared == section)?, name.to_owned()))
}

#[cfg(test)]
mod tests;
