//! All kinds that the API server serves, with custom ones.

use api_meta::Tree as _;
use client::Client;
use maud::{Markup, html};
use serde_json::Value;

use crate::{
    api::{self, Resource},
    error::PageError,
};

/// Renders the list of kinds.
pub(crate) async fn content(client: &Client) -> Result<Markup, PageError> {
    let groups = api::discovery(client).await?;
    let mut found: Vec<(Resource, String)> = groups.iter().flat_map(kinds).collect();
    found.sort_by(|(left, _), (right, _)| {
        (&left.group, &left.plural).cmp(&(&right.group, &right.plural))
    });
    Ok(html! {
        table {
            thead { tr { th scope="col" { "Kind" } th scope="col" { "Group" } th scope="col" { "Version" } } }
            tbody {
                @for (resource, kind) in found {
                    tr {
                        td { a href=(format!("/list/{}", resource.segments())) { (kind) } }
                        td { (resource.group) }
                        td { (resource.version) }
                    }
                }
            }
        }
    })
}

/// Returns the listable resources of a group in its preferred version, with their kinds.
fn kinds(group: &Value) -> Vec<(Resource, String)> {
    let name = match group.name() {
        "" => "core",
        name => name,
    };
    let version = &group["versions"][0];
    let resources = version["resources"].as_array().into_iter().flatten();
    resources
        .filter(|resource| {
            resource["verbs"].as_array().is_some_and(|verbs| verbs.contains(&"list".into()))
        })
        .filter_map(|resource| {
            let parsed = Resource::parse(name, version.text("version"), resource.text("resource"))?;
            Some((parsed, resource["responseKind"].text("kind").to_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lists_resources_that_can_be_listed() {
        let resource = |plural: &str, kind: &str, verb: &str| json!({"resource": plural, "responseKind": {"kind": kind}, "verbs": [verb]});
        let core = json!({"metadata": {}, "versions": [{"version": "v1", "resources": [
            resource("pods", "Pod", "list"), resource("bindings", "Binding", "create"),
            resource("../nodes", "Node", "list"),
        ]}]});
        assert_eq!(kinds(&core), [(Resource::new("core", "v1", "pods"), "Pod".to_owned())]);
        assert_eq!(kinds(&json!({})), []);
    }
}
