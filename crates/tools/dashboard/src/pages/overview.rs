//! The first page: counts, and what does not run and why.

use api_meta::Tree as _;
use client::Client;
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

/// The kinds of workloads whose replicas may be missing.
const WORKLOADS: [&str; 2] = ["deployments", "statefulsets"];
/// The workloads that are searched for missing replicas.
const SEARCHED: usize = 500;
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

/// Renders the overview. A part that the user may not see is replaced by the reason.
pub(crate) async fn content(client: &Client) -> Markup {
    let (counts, nodes, pods, workloads) =
        tokio::join!(counts(client), nodes(client), pods(client), workloads(client));
    html! {
        ul.counts { @for (title, path, count) in &counts {
            li { a href=(path) { b { (count) } (title) } }
        } }
        h2 { "What does not run" }
        @for part in [nodes, pods, workloads] {
            @match part {
                Err(error) => (failure(&error.message())),
                Ok(problems) => (shown(&problems)),
            }
        }
    }
}

fn shown(problems: &[Problem]) -> Markup {
    html! {
        @if !problems.is_empty() {
            table { tbody { @for problem in problems {
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
            let query = Query { limit: 1, ..Query::default() };
            let count = api::table(client, &resource, &query).await;
            let count = count.map_or_else(|_| "?".to_owned(), |table| table.total().to_string());
            (title, format!("/list/{}", resource.segments()), count)
        }
    };
    futures_util::future::join_all(COUNTED.map(count)).await
}

/// Returns the nodes that are not ready, of the first thousands.
async fn nodes(client: &Client) -> Result<Vec<Problem>, PageError> {
    let resource = Resource::new("core", "v1", "nodes");
    let query = Query { limit: 5000, ..Query::default() };
    let table = api::table(client, &resource, &query).await?;
    let names = not_ready(&table);
    let mut problems = Vec::new();
    for name in names.into_iter().take(PAGE) {
        let node = api::object(client, &resource, "", &name).await?;
        problems.extend(problem("Node", &resource, &node));
    }
    Ok(problems)
}

fn not_ready(table: &Table) -> Vec<String> {
    let is_ready = |status: &str| status.split(',').any(|word| word == "Ready");
    let rows = table.rows.iter().filter(|row| !is_ready(table.cell(row, "Status")));
    rows.map(|row| row.object.metadata.name.clone()).filter(|name| api::is_name(name)).collect()
}

async fn pods(client: &Client) -> Result<Vec<Problem>, PageError> {
    let resource = Resource::new("core", "v1", "pods");
    let query = Query { fields: NOT_RUNNING, limit: PAGE, ..Query::default() };
    let pods = api::objects(client, &resource, &query).await?;
    Ok(pods.iter().filter_map(|pod| problem("Pod", &resource, pod)).collect())
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
async fn workloads(client: &Client) -> Result<Vec<Problem>, PageError> {
    let mut problems = Vec::new();
    for plural in WORKLOADS {
        let resource = Resource::new("apps", "v1", plural);
        let query = Query { limit: SEARCHED, ..Query::default() };
        let table = api::table(client, &resource, &query).await?;
        problems.extend(missing(&table, &resource));
    }
    Ok(problems)
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
    fn finds_workloads_with_missing_replicas() {
        let table = table("Ready", &[("a", "2/2"), ("b", "0/3"), ("c", "odd"), ("d", "0/0")]);
        let found = missing(&table, &Resource::new("apps", "v1", "deployments"));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].name, "b");
        assert_eq!(found[0].cause, "0 of 3 replicas are ready");
    }
}
