//! The columns of tables, and the cells that many kinds share.

use api_meta::{Timestamp, Tree as _};
use serde::Serialize;
use serde_json::{Value, json};

use super::format::since;

/// A column of a table, as in the API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Column {
    /// The title.
    pub name: &'static str,
    /// The OpenAPI type of the cells.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The OpenAPI format of the cells; may be empty.
    pub format: &'static str,
    /// The description, which is upstream's.
    pub description: &'static str,
    /// The priority. Columns above 0 show only in wide output.
    pub priority: i32,
}

impl Column {
    pub(super) const fn of(name: &'static str, kind: &'static str, format: &'static str) -> Self {
        Self { name, kind, format, description: "", priority: 0 }
    }

    pub(super) const fn wide(mut self) -> Self {
        self.priority = 1;
        self
    }
}

pub(super) const NAME: Column = Column::of("Name", "string", "name");
pub(super) const AGE: Column = text("Age");

pub(super) const fn text(name: &'static str) -> Column {
    Column::of(name, "string", "")
}

pub(super) const fn integer(name: &'static str) -> Column {
    Column::of(name, "integer", "")
}

pub(super) const fn boolean(name: &'static str) -> Column {
    Column::of(name, "boolean", "")
}

/// The table of a kind. The cell function gets the object and the current time.
pub(super) struct Table {
    pub(super) columns: &'static [Column],
    pub(super) cells: fn(&Value, Timestamp) -> Vec<Value>,
}

/// The table of kinds without one of their own.
pub(super) static DEFAULT: Table = Table {
    columns: &[NAME, Column::of("Created At", "date", "")],
    cells: |object, _| vec![name(object), object.at("metadata.creationTimestamp").clone()],
};

/// The table of kinds with only a name and an age.
pub(super) static AGED: Table =
    Table { columns: &[NAME, AGE], cells: |object, now| vec![name(object), age(object, now)] };

pub(super) fn name(object: &Value) -> Value {
    json!(object.name())
}

pub(super) fn age(object: &Value, now: Timestamp) -> Value {
    json!(since(object.text("metadata.creationTimestamp"), now))
}
