//! `/api`, `/apis` and below: what is served, in the legacy and the aggregated form, and `/version`.

use api_meta::Tree as _;
use std::{collections::BTreeMap, sync::Arc};

use data_encoding::HEXUPPER;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};
use serve::Body;
use sha2::{Digest, Sha256};

use crate::{
    answer,
    registry::{Definition, Served, api_version, definition::version_rank},
    request::Accepted,
    watch_cache::Kinds,
};

/// The groups in the order in which upstream lists them: clients that look a short name up take the first.
const ORDER: [&str; 22] = [
    "apiregistration.k8s.io",
    "apps",
    "events.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "networking.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "storage.k8s.io",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "scheduling.k8s.io",
    "coordination.k8s.io",
    "node.k8s.io",
    "discovery.k8s.io",
    "resource.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "internal.apiserver.k8s.io",
    "storagemigration.k8s.io",
];

type GroupVersions<'a> = BTreeMap<(usize, &'a str), Vec<&'a str>>;

/// Answers a discovery path; `None` if it is none.
pub(crate) fn answer(
    kinds: &Kinds,
    path: &str,
    headers: &HeaderMap,
    accepted: Accepted,
) -> Option<Response<Body>> {
    let path = path.trim_end_matches('/');
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    let tree = match parts.as_slice() {
        ["api"] | ["apis"] if wants_aggregated(headers) => {
            return Some(aggregated(kinds, parts[0] == "api", headers));
        }
        ["api"] => {
            json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})
        }
        ["apis"] => groups(kinds),
        ["api", version] => resources(kinds, "", version)?,
        ["apis", group] => group_document(
            group,
            &versions(kinds).into_iter().find(|((_, g), _)| g == group)?.1,
            true,
        ),
        ["apis", group, version] => resources(kinds, group, version)?,
        _ => return None,
    };
    Some(answer::value(accepted, StatusCode::OK, &tree))
}

fn versions(kinds: &Kinds) -> GroupVersions<'_> {
    let mut groups = GroupVersions::new();
    for served in served(kinds).map(|(_, served)| served).filter(|s| !s.group.is_empty()) {
        let rank = ORDER.iter().position(|g| *g == &*served.group).unwrap_or(ORDER.len());
        let versions = groups.entry((rank, &served.group)).or_default();
        if !versions.contains(&&*served.version) {
            versions.push(&served.version);
        }
    }
    for versions in groups.values_mut() {
        versions.sort_by_key(|v| std::cmp::Reverse(version_rank(v)));
    }
    groups
}

fn served(kinds: &Kinds) -> impl Iterator<Item = (&Arc<Definition>, &Served)> {
    kinds.all.values().flat_map(|r| {
        r.definition.served.iter().filter(|s| s.enabled).map(move |s| (&r.definition, s))
    })
}

fn groups(kinds: &Kinds) -> Value {
    let groups: Vec<Value> = versions(kinds)
        .iter()
        .map(|((_, group), versions)| group_document(group, versions, false))
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

fn group_document(group: &str, versions: &[&str], alone: bool) -> Value {
    let versions: Vec<Value> = versions
        .iter()
        .map(|v| json!({"groupVersion": api_version(group, v), "version": v}))
        .collect();
    let mut document =
        json!({"name": group, "preferredVersion": versions[0], "versions": versions});
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
    // Upstream's legacy group never said its own version.
    if !group.is_empty() {
        list.put(&["apiVersion"], json!("v1"));
    }
    Some(list)
}

fn resource(definition: &Definition, served: &Served) -> Value {
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

/// Whether a request wants discovery in the aggregated form, a media type that nothing else has.
pub(crate) fn is_aggregated(path: &str, headers: &HeaderMap) -> bool {
    matches!(path.trim_end_matches('/'), "/api" | "/apis") && wants_aggregated(headers)
}

fn wants_aggregated(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    // The first range that we can serve decides, as clients list the aggregated forms before the plain one.
    accept.split(',').find_map(|range| {
        let range = range.trim();
        if range.starts_with("application/json") && range.contains("as=APIGroupDiscoveryList") {
            return range.contains("v=v2").then_some(true);
        }
        (range.starts_with("application/json") || range == "*/*").then_some(false)
    }) == Some(true)
}

fn aggregated(kinds: &Kinds, core: bool, headers: &HeaderMap) -> Response<Body> {
    let accept = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let version = if accept.contains("v=v2;")
        || accept.contains("v=v2,")
        || accept.split(',').any(|r| r.contains("v=v2") && !r.contains("v=v2beta1"))
    {
        "v2"
    } else {
        "v2beta1"
    };
    let groups: Vec<(&str, Vec<&str>)> = if core {
        vec![("", vec!["v1"])]
    } else {
        versions(kinds).into_iter().map(|((_, group), versions)| (group, versions)).collect()
    };
    let items: Vec<Value> =
        groups.iter().map(|(group, versions)| aggregated_group(kinds, group, versions)).collect();
    let tree = json!({"kind": "APIGroupDiscoveryList", "apiVersion": format!("apidiscovery.k8s.io/{version}"), "metadata": {}, "items": items});
    let body = tree.to_string();
    let etag = format!("\"{}\"", HEXUPPER.encode(&Sha256::digest(body.as_bytes())));
    let unchanged =
        headers.get(header::IF_NONE_MATCH).is_some_and(|v| v.as_bytes() == etag.as_bytes());
    let code = if unchanged { StatusCode::NOT_MODIFIED } else { StatusCode::OK };
    let mut response =
        answer::bytes(code, "application/json", if unchanged { String::new() } else { body });
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

fn aggregated_group(kinds: &Kinds, group: &str, versions: &[&str]) -> Value {
    let versions: Vec<Value> = versions
        .iter()
        .map(|version| {
            let mut resources: Vec<Value> = served(kinds)
                .filter(|(_, s)| &*s.group == group && &*s.version == *version)
                .map(|(definition, served)| aggregated_resource(definition, served))
                .collect();
            resources.sort_by(|a, b| a["resource"].as_str().cmp(&b["resource"].as_str()));
            json!({"version": version, "resources": resources, "freshness": "Current"})
        })
        .collect();
    let mut metadata = json!({"creationTimestamp": null});
    if !group.is_empty() {
        metadata.put(&["name"], json!(group));
    }
    json!({"metadata": metadata, "versions": versions})
}

fn aggregated_resource(definition: &Definition, served: &Served) -> Value {
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
        .map(|s| json!({"subresource": *s.name, "responseKind": {"group": *s.group, "version": *s.version, "kind": *s.kind}, "verbs": s.verbs}))
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
    fn versions_sort_as_kubernetes_has_it() {
        let mut versions =
            ["foo10", "v1beta1", "v11alpha2", "v10", "v2", "v1", "v3beta1", "v12alpha1"];
        versions.sort_by_key(|v| std::cmp::Reverse(version_rank(v)));
        assert_eq!(
            versions,
            ["v10", "v2", "v1", "v3beta1", "v1beta1", "v12alpha1", "v11alpha2", "foo10"]
        );
    }
}
