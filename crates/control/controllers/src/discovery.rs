//! Discovers the resources that the API serves. Nothing is cached, because kinds come and go.

use client::{ApiResource, Client, Resource};
use serde::Deserialize;

#[derive(Debug, Default)]
pub(crate) struct Discovery {
    pub(crate) resources: Vec<Resource>,
    /// Groups whose discovery failed.
    pub(crate) failures: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Group {
    #[serde(default)]
    versions: Vec<GroupVersion>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GroupVersion {
    group_version: String,
}

/// The media type of aggregated discovery: all groups in one document.
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

#[derive(Deserialize)]
struct GroupList {
    #[serde(default)]
    items: Vec<AggregatedGroup>,
}

#[derive(Deserialize)]
struct AggregatedGroup {
    metadata: GroupName,
    /// Versions, the preferred one first.
    #[serde(default)]
    versions: Vec<AggregatedVersion>,
}

#[derive(Deserialize)]
struct GroupName {
    name: String,
}

#[derive(Deserialize)]
struct AggregatedVersion {
    version: String,
    /// `Stale` if the aggregated API server of this version is unreachable.
    #[serde(default)]
    freshness: String,
    #[serde(default)]
    resources: Vec<AggregatedResource>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AggregatedResource {
    resource: String,
    response_kind: Option<ResponseKind>,
    scope: String,
    #[serde(default)]
    verbs: Vec<String>,
}

#[derive(Deserialize)]
struct ResponseKind {
    kind: String,
}

/// Returns the namespaced resources that support list and delete.
pub(crate) async fn namespaced(client: &Client) -> Discovery {
    let mut discovery = all(client, &["list", "delete"]).await;
    discovery.resources.retain(|resource| resource.namespaced);
    discovery
}

/// Returns every resource with these verbs, in its group's preferred version or else in the first that serves it.
pub(crate) async fn all(client: &Client, verbs: &[&str]) -> Discovery {
    let mut discovery = Discovery::default();
    add(client, "", "v1", "/api/v1", verbs, &mut discovery).await;
    match client.get_raw_as::<GroupList>("/apis", AGGREGATED).await {
        Ok(groups) => discovery.take(groups, verbs),
        Err(error) => discovery.failures.push(error.to_string()),
    }
    discovery
}

impl Discovery {
    /// Adds the resources of the groups. A stale version becomes a failure with upstream's message.
    fn take(&mut self, groups: GroupList, verbs: &[&str]) {
        for group in groups.items {
            let name = group.metadata.name;
            for version in group.versions {
                if version.freshness == "Stale" {
                    let gv = format!("{name}/{}", version.version);
                    self.failures.push(format!("{gv}: stale GroupVersion discovery: {gv}"));
                    continue;
                }
                for served in version.resources {
                    let kind = served.response_kind.map_or_else(String::new, |kind| kind.kind);
                    let resource = Resource {
                        group: name.clone().into(),
                        version: version.version.clone().into(),
                        plural: served.resource.into(),
                        kind: kind.into(),
                        namespaced: served.scope == "Namespaced",
                    };
                    self.add(ApiResource { resource, verbs: served.verbs }, verbs);
                }
            }
        }
    }

    fn add(&mut self, served: ApiResource, verbs: &[&str]) {
        let able = served.supports(verbs);
        let resource = served.resource;
        let same = |r: &Resource| r.group == resource.group && r.plural == resource.plural;
        if able && !self.resources.iter().any(same) {
            self.resources.push(resource);
        }
    }
}

/// The API serves no resource of a kind.
#[derive(Debug, thiserror::Error)]
#[error("no matches for kind {kind:?} in group {group:?}")]
pub(crate) struct NoSuchKind {
    kind: String,
    group: String,
}

/// Returns the resource of a kind, in this version or else in another of its group.
pub(crate) async fn of_kind(
    client: &Client,
    api_version: &str,
    kind: &str,
) -> Result<Resource, NoSuchKind> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let mut discovery = Discovery::default();
    let path = if group.is_empty() { "/api/v1".into() } else { format!("/apis/{api_version}") };
    add(client, group, version, &path, &[], &mut discovery).await;
    let find = |all: &Discovery| all.resources.iter().find(|r| r.kind == kind).cloned();
    if let Some(resource) = find(&discovery) {
        return Ok(resource);
    }
    if let Ok(group) = client.get_raw::<Group>(&format!("/apis/{group}")).await {
        for served in group.versions.into_iter().map(|v| v.group_version) {
            if let Some((name, number)) = served.split_once('/') {
                add(client, name, number, &format!("/apis/{served}"), &[], &mut discovery).await;
            }
        }
    }
    find(&discovery).ok_or_else(|| NoSuchKind { kind: kind.to_owned(), group: group.to_owned() })
}

async fn add(
    client: &Client,
    group: &str,
    version: &str,
    path: &str,
    verbs: &[&str],
    discovery: &mut Discovery,
) {
    match client.resources(path, group, version).await {
        Ok(served) => served.into_iter().for_each(|served| discovery.add(served, verbs)),
        Err(error) => {
            discovery.failures.push(format!("{group}/{version}: {}", error.server_message()));
        }
    }
}

/// Formats a resource as upstream's messages do: `pods.`, `deployments.apps`.
pub(crate) fn name(resource: &Resource) -> String {
    format!("{}.{}", resource.plural, resource.group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_preferred_versions_and_reports_stale_groups() {
        let resource = |name: &str, verbs: &[&str]| serde_json::json!({"resource": name, "responseKind": {"kind": "K"}, "scope": "Namespaced", "verbs": verbs});
        let able = ["list", "delete"];
        let document = serde_json::json!({"items": [
            {"metadata": {"name": "a.example.com"}, "versions": [
                {"version": "v2", "freshness": "Current", "resources": [resource("both", &able), resource("shown", &["list"])]},
                {"version": "v1", "freshness": "Current", "resources": [resource("both", &able), resource("old", &able)]},
            ]},
            {"metadata": {"name": "dead.example.com"}, "versions": [
                {"version": "v1", "freshness": "Stale", "resources": [resource("lost", &able)]},
            ]},
        ]});
        let mut found = Discovery::default();
        found.take(serde_json::from_value(document).unwrap(), &able);
        let names = |r: &Resource| format!("{}/{}/{}", r.group, r.version, r.plural);
        let names: Vec<String> = found.resources.iter().map(names).collect();
        assert_eq!(names, ["a.example.com/v2/both", "a.example.com/v1/old"]);
        let stale = "dead.example.com/v1: stale GroupVersion discovery: dead.example.com/v1";
        assert_eq!(found.failures, [stale]);
    }
}
