//! The first page: counts, and what does not run and why.

mod search;

use client::Client;
use futures_util::future;
use maud::{Markup, html};

use self::search::Found;
use crate::{
    api::{self, Query, Resource},
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

/// Renders the overview. A part that the user may not see is replaced by the reason.
pub(crate) async fn content(client: &Client) -> Markup {
    let (counts, found) = tokio::join!(counts(client), search::all(client));
    html! {
        ul.counts { @for (title, path, count) in &counts {
            li { a href=(path) { b { (count) } (title) } }
        } }
        h2 { "What does not run" }
        @for part in found {
            @match part {
                Err(error) => (failure(&error.message())),
                Ok(found) => (shown(&found)),
            }
        }
        p {
            "Running Pods that are not ready are shown by their Deployments, StatefulSets and DaemonSets. "
            "Those of other owners are not searched."
        }
    }
}

fn shown(found: &Found) -> Markup {
    html! {
        @for note in &found.notes { p { (note) } }
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
