//! The page of one object: why it is not ready, its Events, its logs, and its YAML.

use api_meta::Tree as _;
use client::Client;
use maud::{Markup, html};
use serde_json::Value;

use super::list;
use crate::{
    api::{self, PAGE, Query, Resource},
    error::PageError,
    layout::failure,
};

/// Renders an object. `namespace` is empty for cluster-scoped objects.
pub(crate) async fn content(
    client: &Client,
    resource: &Resource,
    namespace: &str,
    name: &str,
) -> Result<Markup, PageError> {
    let mut object = api::object(client, resource, namespace, name).await?;
    let events = Resource::new("core", "v1", "events");
    let selector = format!("involvedObject.uid={}", object.uid());
    let query = Query { namespace, fields: &selector, limit: PAGE, ..Query::default() };
    let found = api::table(client, &events, &query).await;
    hide_secrets(&mut object);
    let yaml = api_codec::to_yaml(&object).unwrap_or_else(|error| error.to_string());
    Ok(html! {
        @if let Some(cause) = cause(&object) { p.bad { "Not ready: " (cause) } }
        @if object.text("kind") == "Pod" { (logs(&object, namespace, name)) }
        h2 { "Events" }
        @match found {
            Ok(table) => {
                @if !table.metadata.r#continue.is_empty() { p { "Only the first " (PAGE) " are shown." } }
                (list::rows(&table, &events))
            }
            Err(error) => (failure(&error.message())),
        }
        h2 { "Object" }
        pre tabindex="0" { (yaml) }
    })
}

/// Returns why a Pod or node is not ready.
fn cause(object: &Value) -> Option<String> {
    match object.text("kind") {
        "Pod" if object["status"]["phase"] == "Succeeded" => None,
        "Pod" | "Node" => local::unmet_cause(object, "Ready"),
        "Deployment" => local::unmet_cause(object, "Available"),
        _ => None,
    }
}

/// Replaces the values of a Secret by their sizes. Its last applied configuration contains them too.
fn hide_secrets(object: &mut Value) {
    if object.text("kind") != "Secret" {
        return;
    }
    for field in ["data", "stringData"] {
        let map = object.get_mut(field).and_then(Value::as_object_mut);
        for value in map.into_iter().flat_map(|map| map.values_mut()) {
            let size = value.as_str().map_or(0, str::len);
            *value = format!("(hidden: {size} characters)").into();
        }
    }
    object.remove(&["metadata", "annotations", "kubectl.kubernetes.io/last-applied-configuration"]);
}

/// Renders the links to the logs of a Pod's containers.
fn logs(pod: &Value, namespace: &str, name: &str) -> Markup {
    let lists = ["initContainers", "containers", "ephemeralContainers"];
    let containers =
        lists.iter().flat_map(|list| pod["spec"][*list].as_array().into_iter().flatten());
    html! {
        h2 { "Logs" }
        ul {
            @for container in containers.map(|container| container.text("name")).filter(|name| api::is_name(name)) {
                @let path = format!("/log/{namespace}/{name}/{container}");
                li {
                    a href=(path) { (container) }
                    " (" a href=(format!("{path}?previous=true")) { "before its last restart" }
                    ", " a href=(format!("{path}?live=true")) { "live" } ")"
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn hides_values_of_secrets_everywhere() {
        let mut secret = json!({
            "kind": "Secret", "data": {"password": "aHVudGVyMg=="}, "stringData": {"other": "hunter2"},
            "metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "aHVudGVyMg==", "a": "b"}},
        });
        hide_secrets(&mut secret);
        let text = secret.to_string();
        assert!(!text.contains("aHVudGVyMg") && !text.contains("hunter2"), "{text}");
        assert!(
            text.contains("password") && text.contains("12 characters") && text.contains("\"a\""),
            "{text}"
        );
        let mut map = json!({"kind": "ConfigMap", "data": {"key": "value"}});
        hide_secrets(&mut map);
        assert_eq!(map["data"]["key"], "value");
    }

    #[test]
    fn names_cause_of_pods_that_are_not_ready() {
        let pod = |phase: &str| json!({"kind": "Pod", "status": {"phase": phase}});
        assert!(cause(&pod("Pending")).unwrap().contains("Pending"));
        assert_eq!(cause(&pod("Succeeded")), None);
        assert_eq!(cause(&json!({"kind": "ConfigMap"})), None);
    }
}
