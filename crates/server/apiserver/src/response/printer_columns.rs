//! The columns of a custom kind's table.

use api_meta::{Timestamp, Tree as _, human_duration};
use serde_json::{Value, json};

/// Returns the columns: the name, followed by the definition's columns or the age.
pub(crate) fn columns(given: &Value) -> Value {
    let [name, _] = api_rules::table::name_and_age();
    let mut columns = vec![json!(name)];
    for column in each(given) {
        let description = match column.text("description") {
            "" => format!(
                "Custom resource definition column (in JSONPath format): {}",
                column.text("jsonPath")
            ),
            given => given.to_owned(),
        };
        columns.push(json!({
            "name": column["name"],
            "type": column["type"],
            "format": column.text("format"),
            "priority": column.int("priority"),
            "description": description,
        }));
    }
    json!(columns)
}

fn each(given: &Value) -> Vec<Value> {
    match given.as_array().filter(|c| !c.is_empty()) {
        Some(columns) => columns.clone(),
        None => vec![json!({
            "name": "Age",
            "type": "date",
            "jsonPath": ".metadata.creationTimestamp",
            "description": api_rules::table::name_and_age()[1].description,
        })],
    }
}

pub(crate) fn cells(given: &Value, object: &Value, now: Timestamp) -> Vec<Value> {
    let mut cells = vec![object.at("metadata.name").clone()];
    for column in each(given) {
        let found = gotmpl::jsonpath::find(object, column.text("jsonPath"));
        cells.push(match (column.text("type"), found.as_slice()) {
            (_, []) | (_, [Value::Null]) => Value::Null,
            ("date", [time, ..]) => match time.text("").parse::<Timestamp>() {
                Ok(time) => json!(human_duration(now.since(time))),
                Err(_) => json!("<invalid>"),
            },
            ("string", [Value::String(one)]) => json!(one),
            ("string", [one]) => json!(one.to_string()),
            ("string", many) => json!(
                many.iter()
                    .map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned))
                    .collect::<Vec<_>>()
                    .join(",")
            ),
            (_, [one, ..]) => (*one).clone(),
        });
    }
    cells
}
