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
struct Groups {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Group {
    preferred_version: GroupVersion,
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
    let groups: Groups = match client.get_raw("/apis").await {
        Ok(groups) => groups,
        Err(error) => {
            found.failures.push(error.to_string());
            return found;
        }
    };
    for group in groups.groups {
        let preferred = group.preferred_version.group_version;
        let others =
            group.versions.into_iter().map(|v| v.group_version).filter(|v| *v != preferred);
        for version in std::iter::once(preferred.clone()).chain(others.collect::<Vec<_>>()) {
            let (name, number) = version.split_once('/').unwrap_or(("", &version));
            add(client, name, number, &format!("/apis/{version}"), verbs, &mut found).await;
        }
    }
    found
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
    for resource in served.resources {
        let known = found.resources.iter().any(|r| r.group == group && r.plural == resource.name);
        // A name with a slash is a subresource.
        let able = verbs.iter().all(|verb| resource.verbs.iter().any(|v| v == verb));
        if !known && able && !resource.name.contains('/') {
            found.resources.push(Resource {
                group: group.to_owned().into(),
                version: version.to_owned().into(),
                plural: resource.name.into(),
                kind: resource.kind.into(),
                namespaced: resource.namespaced,
            });
        }
    }
}

/// `pods.`, `deployments.apps`, as upstream's messages name resources.
pub(crate) fn name(resource: &Resource) -> String {
    format!("{}.{}", resource.plural, resource.group)
}
