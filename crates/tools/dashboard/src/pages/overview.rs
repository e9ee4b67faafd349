//! The first page: the counts of objects, and the objects with a problem.

mod search;
mod watches;

use client::Client;
use futures_util::future;
use maud::{Markup, html};

use self::search::SearchResult;
pub(crate) use self::watches::Watches;
use crate::{
    api::{self, Resource},
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

/// Renders the counts, which are available at once. A `?` replaces those that the user may not see.
pub(crate) async fn counts(client: &Client) -> Markup {
    let count = |(title, group, plural): (&'static str, &str, &str)| {
        let resource = Resource::new(group, "v1", plural);
        async move {
            let count = api::count(client, &resource).await;
            let count = count.map_or_else(|_| "?".to_owned(), |count| count.to_string());
            (title, format!("/list/{}", resource.segments()), count)
        }
    };
    let counts = future::join_all(COUNTED.map(count)).await;
    html! {
        ul.counts { @for (title, path, count) in &counts {
            li { a href=(path) { b { (count) } (title) } }
        } }
        h2 { "What does not run" }
    }
}

/// Renders the objects with a problem, which takes longer. For a kind that the user may not list, it shows the error.
pub(crate) async fn problems(client: &Client, watches: &Watches) -> Markup {
    let found = watches.search(client).await;
    html! {
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

fn shown(found: &SearchResult) -> Markup {
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
