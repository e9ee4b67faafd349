//! Lists of objects, as the API server prints them.

use client::Client;
use maud::{Markup, html};

use crate::{
    api::{self, PAGE, Query, Resource, Row, Table},
    error::PageError,
};

/// The longest text of a cell, in characters.
const CELL_LIMIT: usize = 300;

/// Renders one page of a list. `namespace` is empty for all namespaces; `next` is the token of a later page.
pub(crate) async fn content(
    client: &Client,
    resource: &Resource,
    namespace: &str,
    next: &str,
) -> Result<Markup, PageError> {
    let query = Query { namespace, next, limit: PAGE, ..Query::default() };
    let table = api::table(client, resource, &query).await?;
    let path = format!("/list/{}", resource.segments());
    Ok(html! {
        @if table.is_namespaced() || !namespace.is_empty() {
            form action=(path) {
                label { "Namespace " input name="namespace" value=(namespace); }
                " " button { "Show" }
            }
        }
        (rows(&table, resource))
        @if !table.metadata.r#continue.is_empty() {
            p {
                a rel="next" href=(format!(
                    "{path}?namespace={namespace}&continue={}", client::escape(&table.metadata.r#continue)
                )) { "Next page" }
                @if let Some(rest) = table.metadata.remaining_item_count { " (" (rest) " more)" }
            }
        }
    })
}

/// Renders the rows of a table, in which the first column links to the objects.
pub(crate) fn rows(table: &Table, resource: &Resource) -> Markup {
    let shown = |index: usize| {
        table.column_definitions.get(index).is_some_and(|column| column.priority == 0)
    };
    let with_namespace = table.is_namespaced();
    let columns = table.column_definitions.iter().filter(|column| column.priority == 0);
    html! {
        @if table.rows.is_empty() { p { "There are none." } } @else {
            table {
                thead { tr {
                    @if with_namespace { th scope="col" { "Namespace" } }
                    @for column in columns { th scope="col" { (column.name) } }
                } }
                tbody {
                    @for row in &table.rows {
                        tr {
                            @if with_namespace { td { (row.object.metadata.namespace) } }
                            @for (index, cell) in row.cells.iter().enumerate().filter(|(i, _)| shown(*i)) {
                                @let text = shown_text(cell);
                                @if index == 0 { td { (link(row, resource, &text)) } } @else { td { (text) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn link(row: &Row, resource: &Resource, text: &str) -> Markup {
    let (namespace, name) = (&row.object.metadata.namespace, &row.object.metadata.name);
    if !api::is_name(name) {
        return html! { (text) };
    }
    html! { a href=(object_path(resource, namespace, name)) { (text) } }
}

/// Returns the path of an object's page.
pub(crate) fn object_path(resource: &Resource, namespace: &str, name: &str) -> String {
    let namespace = if namespace.is_empty() { "-" } else { namespace };
    format!("/object/{}/{namespace}/{name}", resource.segments())
}

/// Returns the text of a cell.
fn shown_text(cell: &serde_json::Value) -> String {
    let text = match cell {
        serde_json::Value::Null => String::new(),
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    shortened(text, CELL_LIMIT)
}

/// Returns the first characters of a text, at most `limit`.
pub(crate) fn shortened(text: String, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn shows_main_columns_and_escapes_what_objects_contain() {
        let table: Table = serde_json::from_value(json!({
            "columnDefinitions": [
                {"name": "Name", "priority": 0}, {"name": "Ready", "priority": 0}, {"name": "IP", "priority": 1},
            ],
            "rows": [
                {"cells": ["web", "<script>alert(1)</script>", "10.0.0.1"],
                 "object": {"metadata": {"name": "web", "namespace": "shop"}}},
                {"cells": ["odd", null, 7], "object": {"metadata": {"name": "../../x", "namespace": "shop"}}},
                {"cells": ["long", "x".repeat(1000), ""], "object": {"metadata": {"name": "long", "namespace": "a"}}},
            ],
        }))
        .unwrap();
        let shown = rows(&table, &Resource::new("core", "v1", "pods")).into_string();
        assert!(shown.contains("<a href=\"/object/core/v1/pods/shop/web\">web</a>"), "{shown}");
        assert!(shown.contains("&lt;script&gt;") && !shown.contains("<script"), "{shown}");
        assert!(!shown.contains("10.0.0.1") && !shown.contains("../"), "{shown}");
        assert!(!shown.contains(&"x".repeat(301)), "{shown}");
    }
}
