//! Encodes objects as a Table.

use api_meta::Timestamp;
use serde_json::{Value, json};

use super::{
    encode::{ListMeta, partial},
    printer_columns,
};
use crate::{
    registry::{Definition, ServedVersion},
    request::Include,
};

/// The parameters of a table of one kind.
pub(super) struct Table<'a> {
    pub(super) definition: &'a Definition,
    pub(super) served: &'a ServedVersion,
    pub(super) include: Include,
    /// The requested version of `meta.k8s.io`.
    pub(super) version: &'a str,
}

impl Table<'_> {
    /// Returns the table of the objects, with column definitions if `named`.
    pub(super) fn of(
        &self,
        meta: &ListMeta,
        objects: impl IntoIterator<Item = Value>,
        named: bool,
    ) -> Value {
        let now = crate::clock::now();
        let rows: Vec<Value> = objects.into_iter().map(|tree| self.row(tree, now)).collect();
        let columns = if named { self.columns() } else { Value::Null };
        json!({
            "kind": "Table",
            "apiVersion": self.version,
            "metadata": meta.tree(),
            "columnDefinitions": columns,
            "rows": rows,
        })
    }

    fn row(&self, tree: Value, now: Timestamp) -> Value {
        let cells = self.cells(&tree, now);
        match self.include {
            Include::Nothing => json!({"cells": cells, "object": null}),
            Include::Metadata => json!({"cells": cells, "object": partial(tree, self.version)}),
            Include::Object => json!({"cells": cells, "object": tree}),
        }
    }

    fn cells(&self, tree: &Value, now: Timestamp) -> Vec<Value> {
        let Self { definition, served, .. } = self;
        if let Some(columns) = &served.columns {
            return printer_columns::cells(columns, tree, now);
        }
        let Some(conversion) = &served.conversion else {
            return api_rules::table::cells(&served.group, &definition.plural, tree, now);
        };
        // Built-in tables are defined for the storage version.
        let mut stored = tree.clone();
        (conversion.to_storage)(&mut stored);
        api_rules::table::cells(&definition.group, &definition.plural, &stored, now)
    }

    fn columns(&self) -> Value {
        let definition = self.definition;
        match &self.served.columns {
            Some(columns) => printer_columns::columns(columns),
            None => json!(api_rules::table::columns(&definition.group, &definition.plural)),
        }
    }
}
