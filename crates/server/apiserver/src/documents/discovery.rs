//! Serves `/api`, `/apis` and the documents below: discovery in legacy and aggregated form.

use api_meta::Tree as _;

use bytes::Bytes;
use data_encoding::HEXUPPER;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};
use serve::Body;
use sha2::{Digest, Sha256};

use super::member_order::ordered;
use crate::{
    aggregation::{ApiServices, Group, RemoteApi, snapshot::served},
    peers::Peers,
    registry::{Definition, ServedVersion, api_version},
    request::ResponseFormat,
    response,
    watch_cache::Kinds,
};

/// The sources of discovery: this server's kinds, and what other servers serve.
#[derive(Clone, Copy)]
pub(crate) struct Sources<'a> {
    pub(crate) kinds: &'a Kinds,
    pub(crate) known: &'a ApiServices,
    pub(crate) peers: &'a Peers,
}

/// Answers a discovery path. Returns `None` for other paths.
pub(crate) fn answer(
    sources: Sources<'_>,
    path: &str,
    headers: &HeaderMap,
    accepted: ResponseFormat,
) -> Option<Response<Body>> {
    let Sources { kinds, known, .. } = sources;
    let path = path.trim_end_matches('/');
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    let tree = match parts.as_slice() {
        ["api"] | ["apis"] if let Some(form) = AggregatedForm::wanted(headers) => {
            return Some(aggregated(sources, parts[0] == "api", form, headers));
        }
        ["api"] => {
            json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})
        }
        ["apis"] => groups(&known.groups(kinds)),
        ["api", version] => resources(kinds, "", version)?,
        ["apis", group] => {
            group_document(known.groups(kinds).iter().find(|found| found.name == *group)?, true)
        }
        ["apis", group, version] => resources(kinds, group, version)?,
        _ => return None,
    };
    Some(response::written(accepted, StatusCode::OK, &tree, &ordered(&tree)))
}

fn groups(groups: &[Group<'_>]) -> Value {
    let groups: Vec<Value> = groups.iter().map(|group| group_document(group, false)).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

fn group_document(group: &Group<'_>, alone: bool) -> Value {
    let versions = group.versions.iter().map(|version| version.name);
    let versions: Vec<Value> = versions
        .map(|v| json!({"groupVersion": api_version(group.name, v), "version": v}))
        .collect();
    let mut document =
        json!({"name": group.name, "preferredVersion": versions.first(), "versions": versions});
    if alone {
        document.put(&["kind"], json!("APIGroup"));
        document.put(&["apiVersion"], json!("v1"));
    }
    document
}

fn resources(kinds: &Kinds, group: &str, version: &str) -> Option<Value> {
    let mut resources = Vec::new();
    for (definition, served) in
        served(kinds).filter(|(_, s)| &*s.group == group && &*s.version == version)
    {
        resources.push(resource(definition, served));
        for sub in &served.subresources {
            let mut entry = json!({
                "name": format!("{}/{}", definition.plural, sub.name),
                "singularName": "",
                "namespaced": definition.namespaced,
                "kind": *sub.kind,
                "verbs": sub.verbs,
            });
            if sub.foreign {
                entry.put(&["group"], json!(*sub.group));
                entry.put(&["version"], json!(*sub.version));
            }
            resources.push(entry);
        }
    }
    if resources.is_empty() {
        return None;
    }
    resources.sort_by(|a, b| a["name"].as_str().cmp(&b["name"].as_str()));
    let group_version = api_version(group, version);
    let mut list =
        json!({"kind": "APIResourceList", "groupVersion": group_version, "resources": resources});
    // Upstream's document of the legacy group has no apiVersion.
    if !group.is_empty() {
        list.put(&["apiVersion"], json!("v1"));
    }
    Some(list)
}

fn resource(definition: &Definition, served: &ServedVersion) -> Value {
    let mut entry = json!({
        "name": *definition.plural,
        "singularName": *served.singular,
        "namespaced": definition.namespaced,
        "kind": *served.kind,
        "verbs": served.verbs,
    });
    if !served.short_names.is_empty() {
        entry.put(&["shortNames"], json!(served.short_names));
    }
    if !served.categories.is_empty() {
        entry.put(&["categories"], json!(served.categories));
    }
    if !served.storage_version_hash.is_empty() {
        entry.put(&["storageVersionHash"], json!(*served.storage_version_hash));
    }
    entry
}

/// Returns `true` if the request accepts aggregated discovery, which has its own media type.
pub(crate) fn is_aggregated(path: &str, headers: &HeaderMap) -> bool {
    matches!(path.trim_end_matches('/'), "/api" | "/apis")
        && AggregatedForm::wanted(headers).is_some()
}

/// The form of aggregated discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AggregatedForm {
    version: &'static str,
    /// `true` if the document shows no resources that only peers serve (`profile=nopeer`).
    without_peers: bool,
}

impl AggregatedForm {
    /// Returns the requested form, or `None` if the request accepts the plain documents before it.
    fn wanted(headers: &HeaderMap) -> Option<Self> {
        let accept = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
        // The first supported range decides, because clients list the aggregated forms before the plain one.
        accept.split(',').find_map(Self::of_range).flatten()
    }

    /// Returns the form of a media range: `Some(None)` for that of the plain documents, `None` for an unsupported one.
    fn of_range(range: &str) -> Option<Option<Self>> {
        let mut parts = range.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default();
        let parameters: Vec<&str> = parts.collect();
        let has = |parameter: &str| parameters.contains(&parameter);
        if !matches!(media, "application/json" | "*/*") {
            return None;
        }
        if media == "*/*" || !has("as=APIGroupDiscoveryList") {
            return Some(None);
        }
        let version = ["v2", "v2beta1"].into_iter().find(|v| has(&format!("v={v}")))?;
        Some(Some(Self { version, without_peers: has("profile=nopeer") }))
    }
}

fn aggregated(
    sources: Sources<'_>,
    core: bool,
    form: AggregatedForm,
    headers: &HeaderMap,
) -> Response<Body> {
    let Sources { kinds, known, peers } = sources;
    let AggregatedForm { version, without_peers } = form;
    let own = || -> Vec<Value> {
        if core {
            vec![aggregated_group("", vec![own_version(kinds, "", "v1")])]
        } else {
            known.groups(kinds).iter().map(|group| shown_group(kinds, group)).collect()
        }
    };
    let encode = |items: Vec<Value>| encode(version, &items);
    if without_peers && version == "v2" {
        peers.count_no_peer_request();
    }
    let merged = (!core && !without_peers && version == "v2")
        .then(|| peers.discovery((kinds.generation, known.generation), own, encode))
        .flatten();
    let body = merged.unwrap_or_else(|| encode(own()));
    let etag = format!("\"{}\"", HEXUPPER.encode(&Sha256::digest(&body)));
    let unchanged =
        headers.get(header::IF_NONE_MATCH).is_some_and(|v| v.as_bytes() == etag.as_bytes());
    let code = if unchanged { StatusCode::NOT_MODIFIED } else { StatusCode::OK };
    let mut response =
        response::bytes(code, "application/json", if unchanged { Bytes::new() } else { body });
    let content_type =
        format!("application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList");
    if let (Ok(content_type), Ok(etag)) =
        (HeaderValue::from_str(&content_type), HeaderValue::from_str(&etag))
    {
        response.headers_mut().insert(header::CONTENT_TYPE, content_type);
        response.headers_mut().insert(header::ETAG, etag);
        response.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
    }
    response
}

/// Encodes a list of groups.
fn encode(version: &str, items: &[Value]) -> Bytes {
    let tree = json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": format!("apidiscovery.k8s.io/{version}"),
        "metadata": {},
        "items": items,
    });
    serde_json::to_vec(&ordered(&tree)).unwrap_or_default().into()
}

fn shown_group(kinds: &Kinds, group: &Group<'_>) -> Value {
    let versions = group.versions.iter().map(|version| match version.remote {
        None => own_version(kinds, group.name, version.name),
        Some(learned) => remote_version(version.name, learned),
    });
    aggregated_group(group.name, versions.collect())
}

fn aggregated_group(group: &str, versions: Vec<Value>) -> Value {
    let mut metadata = json!({});
    if !group.is_empty() {
        metadata.put(&["name"], json!(group));
    }
    json!({"metadata": metadata, "versions": versions})
}

fn own_version(kinds: &Kinds, group: &str, version: &str) -> Value {
    let mut resources: Vec<Value> = served(kinds)
        .filter(|(_, s)| &*s.group == group && &*s.version == version)
        .map(|(definition, served)| aggregated_resource(definition, served))
        .collect();
    resources.sort_by(|a, b| a["resource"].as_str().cmp(&b["resource"].as_str()));
    json!({"version": version, "resources": resources, "freshness": "Current"})
}

/// Returns the discovery data of another server. `freshness` states whether the last fetch succeeded.
fn remote_version(version: &str, learned: Option<&RemoteApi>) -> Value {
    let fresh = learned.is_some_and(|learned| learned.fresh);
    let freshness = if fresh { "Current" } else { "Stale" };
    let mut shown = json!({"version": version, "freshness": freshness});
    if let Some(learned) = learned.filter(|learned| !learned.resources.is_empty()) {
        shown.put(&["resources"], json!(learned.resources));
    }
    shown
}

fn aggregated_resource(definition: &Definition, served: &ServedVersion) -> Value {
    let scope = if definition.namespaced { "Namespaced" } else { "Cluster" };
    // As upstream, which leaves out the version of built-in kinds that is the resource's own.
    let response_kind = |group: &str, version: &str, kind: &str| {
        let own =
            definition.custom.is_none() && (group, version) == (&*served.group, &*served.version);
        let (group, version) = if own { ("", "") } else { (group, version) };
        json!({"group": group, "version": version, "kind": kind})
    };
    let mut entry = json!({
        "resource": *definition.plural,
        "responseKind": response_kind(&served.group, &served.version, &served.kind),
        "scope": scope,
        "singularResource": *served.singular,
        "verbs": served.verbs,
    });
    if !served.short_names.is_empty() {
        entry.put(&["shortNames"], json!(served.short_names));
    }
    if !served.categories.is_empty() {
        entry.put(&["categories"], json!(served.categories));
    }
    let subresources: Vec<Value> = served
        .subresources
        .iter()
        .map(|s| {
            json!({
                "subresource": *s.name,
                "responseKind": response_kind(&s.group, &s.version, &s.kind),
                "verbs": s.verbs,
            })
        })
        .collect();
    if !subresources.is_empty() {
        entry.put(&["subresources"], json!(subresources));
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negotiates_form_of_discovery() {
        let form = |version, without_peers| Some(AggregatedForm { version, without_peers });
        let v2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let beta = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
        for (accept, wanted) in [
            (v2.to_owned(), form("v2", false)),
            (format!("{v2},{beta},application/json"), form("v2", false)),
            (format!("{beta}, {v2}"), form("v2beta1", false)),
            (format!("{v2};profile=nopeer,{v2}"), form("v2", true)),
            (format!("{v2},{v2};profile=nopeer"), form("v2", false)),
            (format!("application/yaml,{v2};q=0.9"), form("v2", false)),
            (format!("application/json,{v2}"), None),
            (format!("*/*,{v2}"), None),
            ("application/json;v=v3;as=APIGroupDiscoveryList".to_owned(), None),
            (String::new(), None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, accept.parse().unwrap());
            assert_eq!(AggregatedForm::wanted(&headers), wanted, "{accept}");
        }
    }
}
