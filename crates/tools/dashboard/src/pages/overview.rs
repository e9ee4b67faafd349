//! The first page: counts, and what does not run and why.

use api_meta::Tree as _;
use client::Client;
use futures_util::{StreamExt as _, TryStreamExt as _, future, stream};
use maud::{Markup, html};
use serde_json::Value;

use super::list::object_path;
use crate::{
    api::{self, PAGE, Query, Resource, Table},
    error::PageError,
    layout::failure,
};

/// The kinds that are counted: title, group and plural name.
const COUNTED: [(&str, &str, &str); 6] = [
    ("Nodes", "core", "nodes"),
    ("Namespaces", "core", "namespaces"),
    ("Pods", "core", "pods"),
    ("Deployments", "apps", "deployments"),
    ("StatefulSets", "apps", "statefulsets"),
    ("Services", "core", "services"),
];

const NODES: &str = "nodes";
/// The kinds of workloads whose replicas may be missing.
const WORKLOADS: [&str; 2] = ["deployments", "statefulsets"];
/// The number of objects that are read at the same time.
const READS: usize = 8;
/// The objects of a kind that are searched for problems. The API server reads each of them for the page.
const SEARCHED: usize = 500;
/// The nodes that are searched at the user's request.
const ALL_NODES: usize = 5000;
/// The phases of Pods that run or have done so. Failed Pods are also shown by their owners.
const NOT_RUNNING: &str = "status.phase!=Running,status.phase!=Succeeded";

/// An object that is not well, and the cause.
#[derive(Debug, PartialEq)]
struct Problem {
    kind: &'static str,
    path: String,
    name: String,
    cause: String,
}

/// The problems of objects of some kinds.
#[derive(Default)]
struct Found {
    problems: Vec<Problem>,
    /// The plural names of the kinds that have more objects than were searched.
    unsearched: Vec<&'static str>,
}

/// Renders the overview. A part that the user may not see is replaced by the reason. With `all_nodes`, more nodes are
/// searched for problems, which takes longer.
///
/// # Errors
///
/// Returns an error if the API server does not know the user. No other request is sent then.
pub(crate) async fn content(client: &Client, all_nodes: bool) -> Result<Markup, PageError> {
    api::check_user(client).await?;
    let searched = if all_nodes { ALL_NODES } else { SEARCHED };
    let (counts, nodes, pods, workloads) =
        tokio::join!(counts(client), nodes(client, searched), pods(client), workloads(client));
    Ok(html! {
        ul.counts { @for (title, path, count) in &counts {
            li { a href=(path) { b { (count) } (title) } }
        } }
        h2 { "What does not run" }
        @for part in [nodes, pods, workloads] {
            @match part {
                Err(error) => (failure(&error.message())),
                Ok(found) => (shown(&found, all_nodes)),
            }
        }
    })
}

fn shown(found: &Found, all_nodes: bool) -> Markup {
    html! {
        @for plural in &found.unsearched {
            @let is_nodes = *plural == NODES;
            @let searched = if is_nodes && all_nodes { ALL_NODES } else { SEARCHED };
            p {
                "Only the first " (searched) " " (plural) " were searched. "
                @if is_nodes && !all_nodes {
                    a href="/?nodes=all" { "Search the first " (ALL_NODES) }
                }
            }
        }
        @if !found.problems.is_empty() {
            table { tbody { @for problem in &found.problems {
                tr {
                    td { (problem.kind) }
                    td { a href=(problem.path) { (problem.name) } }
                    td.bad { (problem.cause) }
                }
            } }
            }
        }
    }
}

async fn counts(client: &Client) -> Vec<(&'static str, String, String)> {
    let count = |(title, group, plural): (&'static str, &str, &str)| {
        let resource = Resource::new(group, "v1", plural);
        async move {
            let query = Query { limit: 1, cells_only: true, ..Query::default() };
            let count = api::table(client, &resource, &query).await;
            let count = count.map_or_else(|_| "?".to_owned(), |table| table.total().to_string());
            (title, format!("/list/{}", resource.segments()), count)
        }
    };
    future::join_all(COUNTED.map(count)).await
}

/// Returns the nodes that are not ready, of the first ones.
async fn nodes(client: &Client, searched: usize) -> Result<Found, PageError> {
    let resource = Resource::new("core", "v1", NODES);
    let query = Query { limit: searched, cells_only: true, ..Query::default() };
    let table = api::table(client, &resource, &query).await?;
    let read = |name: String| {
        let resource = &resource;
        async move { api::object(client, resource, "", &name).await }
    };
    let nodes = stream::iter(not_ready(&table).into_iter().take(PAGE).map(read)).buffered(READS);
    let nodes: Vec<Value> = nodes.try_collect().await?;
    let problems = nodes.iter().filter_map(|node| problem("Node", &resource, node)).collect();
    Ok(Found { problems, unsearched: unsearched(&table, NODES) })
}

fn not_ready(table: &Table) -> Vec<String> {
    let is_ready = |status: &str| status.split(',').any(|word| word == "Ready");
    let rows = table.rows.iter().filter(|row| !is_ready(table.cell(row, "Status")));
    rows.map(|row| table.cell(row, "Name").to_owned()).filter(|name| api::is_name(name)).collect()
}

/// Returns the kind if it has more objects than the table.
fn unsearched(table: &Table, plural: &'static str) -> Vec<&'static str> {
    if table.metadata.r#continue.is_empty() { Vec::new() } else { vec![plural] }
}

async fn pods(client: &Client) -> Result<Found, PageError> {
    let resource = Resource::new("core", "v1", "pods");
    let query = Query { fields: NOT_RUNNING, limit: PAGE, ..Query::default() };
    let pods = api::objects(client, &resource, &query).await?;
    let problems = pods.iter().filter_map(|pod| problem("Pod", &resource, pod)).collect();
    Ok(Found { problems, ..Found::default() })
}

fn problem(kind: &'static str, resource: &Resource, object: &Value) -> Option<Problem> {
    let cause = local::unmet_cause(object, "Ready")?;
    let (namespace, name) = (object.namespace(), object.name());
    let path = object_path(resource, namespace, name);
    Some(Problem { kind, path, name: joined(namespace, name), cause })
}

fn joined(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") }
}

/// Returns the workloads with fewer ready replicas than desired.
async fn workloads(client: &Client) -> Result<Found, PageError> {
    let found = WORKLOADS.map(|plural| async move {
        let resource = Resource::new("apps", "v1", plural);
        let query = Query { limit: SEARCHED, ..Query::default() };
        let table = api::table(client, &resource, &query).await?;
        let problems = missing(&table, &resource);
        Ok::<_, PageError>(Found { problems, unsearched: unsearched(&table, plural) })
    });
    let mut all = Found::default();
    for found in future::try_join_all(found).await? {
        all.problems.extend(found.problems);
        all.unsearched.extend(found.unsearched);
    }
    Ok(all)
}

fn missing(table: &Table, resource: &Resource) -> Vec<Problem> {
    let kind = if resource.plural == "statefulsets" { "StatefulSet" } else { "Deployment" };
    let rows = table.rows.iter().filter_map(|row| {
        let (ready, wanted) = table.cell(row, "Ready").split_once('/')?;
        let (ready, wanted) = (ready.parse::<u64>().ok()?, wanted.parse::<u64>().ok()?);
        let (namespace, name) = (&row.object.metadata.namespace, &row.object.metadata.name);
        (ready < wanted).then(|| Problem {
            kind,
            path: object_path(resource, namespace, name),
            name: joined(namespace, name),
            cause: format!("{ready} of {wanted} replicas are ready"),
        })
    });
    rows.take(PAGE).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn table(column: &str, rows: &[(&str, &str)]) -> Table {
        let rows: Vec<Value> = rows
            .iter()
            .map(|(name, cell)| json!({"cells": [name, cell], "object": {"metadata": {"name": name}}}))
            .collect();
        let columns = json!([{"name": "Name"}, {"name": column}]);
        serde_json::from_value(json!({"columnDefinitions": columns, "rows": rows})).unwrap()
    }

    #[test]
    fn finds_nodes_that_are_not_ready() {
        let table = table(
            "Status",
            &[
                ("a", "Ready"),
                ("b", "NotReady"),
                ("c", "Ready,SchedulingDisabled"),
                ("d", "Unknown"),
            ],
        );
        assert_eq!(not_ready(&table), ["b", "d"]);
    }

    #[test]
    fn names_kinds_that_were_not_searched_as_a_whole() {
        let mut table = table("Status", &[("a", "Ready")]);
        assert_eq!(unsearched(&table, NODES), [""; 0]);
        table.metadata.r#continue = "token".to_owned();
        let found = Found { problems: Vec::new(), unsearched: unsearched(&table, NODES) };
        let text = shown(&found, false).into_string();
        assert!(
            text.contains("Only the first 500 nodes") && text.contains("/?nodes=all"),
            "{text}"
        );
        let text = shown(&found, true).into_string();
        assert!(text.contains("Only the first 5000 nodes") && !text.contains("href"), "{text}");
    }

    #[test]
    fn finds_workloads_with_missing_replicas() {
        let table = table("Ready", &[("a", "2/2"), ("b", "0/3"), ("c", "odd"), ("d", "0/0")]);
        let found = missing(&table, &Resource::new("apps", "v1", "deployments"));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].name, "b");
        assert_eq!(found[0].cause, "0 of 3 replicas are ready");
    }
}
