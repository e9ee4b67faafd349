//! Serves `/api`, `/apis` and the documents below: discovery in legacy and aggregated form.

use api_meta::Tree as _;

use data_encoding::HEXUPPER;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};
use serve::Body;
use sha2::{Digest, Sha256};

use super::member_order::ordered;
use crate::{
    aggregation::{ApiServices, Group, RemoteApi, snapshot::served},
    registry::{Definition, ServedVersion, api_version},
    request::ResponseFormat,
    response,
    watch_cache::Kinds,
};

/// Answers a discovery path. Returns `None` for other paths.
pub(crate) fn answer(
    kinds: &Kinds,
    known: &ApiServices,
    path: &str,
    headers: &HeaderMap,
    accepted: ResponseFormat,
) -> Option<Response<Body>> {
    let path = path.trim_end_matches('/');
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    let tree = match parts.as_slice() {
        ["api"] | ["apis"] if wants_aggregated(headers) => {
            return Some(aggregated(kinds, known, parts[0] == "api", headers));
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
    matches!(path.trim_end_matches('/'), "/api" | "/apis") && wants_aggregated(headers)
}

fn wants_aggregated(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    // The first supported range decides, because clients list the aggregated forms before the plain one.
    accept.split(',').find_map(|range| {
        let range = range.trim();
        if range.starts_with("application/json") && range.contains("as=APIGroupDiscoveryList") {
            return range.contains("v=v2").then_some(true);
        }
        (range.starts_with("application/json") || range == "*/*").then_some(false)
    }) == Some(true)
}

fn aggregated(
    kinds: &Kinds,
    known: &ApiServices,
    core: bool,
    headers: &HeaderMap,
) -> Response<Body> {
    let accept = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let version = if accept.contains("v=v2;")
        || accept.contains("v=v2,")
        || accept.split(',').any(|r| r.contains("v=v2") && !r.contains("v=v2beta1"))
    {
        "v2"
    } else {
        "v2beta1"
    };
    let items: Vec<Value> = if core {
        vec![aggregated_group("", vec![own_version(kinds, "", "v1")])]
    } else {
        known.groups(kinds).iter().map(|group| shown_group(kinds, group)).collect()
    };
    let tree = json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": format!("apidiscovery.k8s.io/{version}"),
        "metadata": {},
        "items": items,
    });
    let body = serde_json::to_string(&ordered(&tree)).unwrap_or_default();
    let etag = format!("\"{}\"", HEXUPPER.encode(&Sha256::digest(body.as_bytes())));
    let unchanged =
        headers.get(header::IF_NONE_MATCH).is_some_and(|v| v.as_bytes() == etag.as_bytes());
    let code = if unchanged { StatusCode::NOT_MODIFIED } else { StatusCode::OK };
    let mut response =
        response::bytes(code, "application/json", if unchanged { String::new() } else { body });
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

fn shown_group(kinds: &Kinds, group: &Group<'_>) -> Value {
    let versions = group.versions.iter().map(|version| match version.remote {
        None => own_version(kinds, group.name, version.name),
        Some(learned) => remote_version(version.name, learned),
    });
    aggregated_group(group.name, versions.collect())
}

fn aggregated_group(group: &str, versions: Vec<Value>) -> Value {
    let mut metadata = json!({"creationTimestamp": null});
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

/// Returns the discovery data of another server. `freshness` tells whether the last fetch succeeded.
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
    let mut entry = json!({
        "resource": *definition.plural,
        "responseKind": {"group": *served.group, "version": *served.version, "kind": *served.kind},
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
                "responseKind": {"group": *s.group, "version": *s.version, "kind": *s.kind},
                "verbs": s.verbs,
            })
        })
        .collect();
    if !subresources.is_empty() {
        entry.put(&["subresources"], json!(subresources));
    }
    entry
}
