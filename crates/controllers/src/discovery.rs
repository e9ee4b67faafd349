//! Which resources the API serves, asked for each time: kinds come and go.

use client::{Client, Resource};
use serde::Deserialize;

#[derive(Debug, Default)]
pub(crate) struct Discovered {
    pub(crate) resources: Vec<Resource>,
    /// Groups that did not answer.
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

#[derive(Deserialize)]
struct Resources {
    #[serde(default)]
    resources: Vec<Served>,
}

#[derive(Deserialize)]
struct Served {
    name: String,
    kind: String,
    namespaced: bool,
    #[serde(default)]
    verbs: Vec<String>,
}

/// All groups in one document.
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

#[derive(Deserialize)]
struct Aggregated {
    #[serde(default)]
    items: Vec<AggregatedGroup>,
}

#[derive(Deserialize)]
struct AggregatedGroup {
    metadata: Named,
    /// The preferred one first.
    #[serde(default)]
    versions: Vec<AggregatedVersion>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

#[derive(Deserialize)]
struct AggregatedVersion {
    version: String,
    /// `Stale` where the server that has it does not answer.
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

/// Resources in namespaces that can be listed and deleted.
pub(crate) async fn namespaced(client: &Client) -> Discovered {
    let mut found = all(client, &["list", "delete"]).await;
    found.resources.retain(|resource| resource.namespaced);
    found
}

/// Every resource with these verbs, in its group's preferred version, or the first that has it.
pub(crate) async fn all(client: &Client, verbs: &[&str]) -> Discovered {
    let mut found = Discovered::default();
    add(client, "", "v1", "/api/v1", verbs, &mut found).await;
    match client.get_raw_as::<Aggregated>("/apis", AGGREGATED).await {
        Ok(groups) => found.take(groups, verbs),
        Err(error) => found.failures.push(error.to_string()),
    }
    found
}

impl Discovered {
    /// What does not answer now is told by upstream's words; what it served before may be gone.
    fn take(&mut self, groups: Aggregated, verbs: &[&str]) {
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
                    self.add(resource, &served.verbs, verbs);
                }
            }
        }
    }

    fn add(&mut self, resource: Resource, able: &[String], verbs: &[&str]) {
        let same = |r: &Resource| r.group == resource.group && r.plural == resource.plural;
        let able = verbs.iter().all(|verb| able.iter().any(|v| v == verb));
        if able && !self.resources.iter().any(same) {
            self.resources.push(resource);
        }
    }
}

/// The resource of a kind: in its version if that serves it, else in another of its group.
pub(crate) async fn of_kind(
    client: &Client,
    api_version: &str,
    kind: &str,
) -> Result<Resource, String> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let mut found = Discovered::default();
    let path = if group.is_empty() { "/api/v1".into() } else { format!("/apis/{api_version}") };
    add(client, group, version, &path, &[], &mut found).await;
    let known = |found: &Discovered| found.resources.iter().find(|r| r.kind == kind).cloned();
    if let Some(resource) = known(&found) {
        return Ok(resource);
    }
    if let Ok(group) = client.get_raw::<Group>(&format!("/apis/{group}")).await {
        for served in group.versions.into_iter().map(|v| v.group_version) {
            if let Some((name, number)) = served.split_once('/') {
                add(client, name, number, &format!("/apis/{served}"), &[], &mut found).await;
            }
        }
    }
    known(&found).ok_or_else(|| format!("no matches for kind {kind:?} in group {group:?}"))
}

async fn add(
    client: &Client,
    group: &str,
    version: &str,
    path: &str,
    verbs: &[&str],
    found: &mut Discovered,
) {
    let served: Resources = match client.get_raw(path).await {
        Ok(served) => served,
        Err(error) => {
            found.failures.push(format!("{group}/{version}: {}", crate::pods::said(&error)));
            return;
        }
    };
    // A name with a slash is a subresource.
    for served in served.resources.into_iter().filter(|served| !served.name.contains('/')) {
        let resource = Resource {
            group: group.to_owned().into(),
            version: version.to_owned().into(),
            plural: served.name.into(),
            kind: served.kind.into(),
            namespaced: served.namespaced,
        };
        found.add(resource, &served.verbs, verbs);
    }
}

/// `pods.`, `deployments.apps`, as upstream's messages name resources.
pub(crate) fn name(resource: &Resource) -> String {
    format!("{}.{}", resource.plural, resource.group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_taken_in_their_preferred_version_and_stale_ones_are_told() {
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
        let mut found = Discovered::default();
        found.take(serde_json::from_value(document).unwrap(), &able);
        let names = |r: &Resource| format!("{}/{}/{}", r.group, r.version, r.plural);
        let names: Vec<String> = found.resources.iter().map(names).collect();
        assert_eq!(names, ["a.example.com/v2/both", "a.example.com/v1/old"]);
        let stale = "dead.example.com/v1: stale GroupVersion discovery: dead.example.com/v1";
        assert_eq!(found.failures, [stale]);
    }
}
