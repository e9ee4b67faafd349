//! Plans: differences shown to the user and saved as JSON, including the changes of the store.

use std::io::Write;

use kops_store::Change;
use serde_json::{Map, json};

use crate::error::Error;

/// A shown change of a resource outside the store.
pub(crate) struct ResourceChange {
    /// The kind.
    pub(crate) kind: &'static str,
    /// The name.
    pub(crate) name: String,
    /// The verb: create, modify or delete.
    pub(crate) verb: &'static str,
    /// The changed fields, with the values to print.
    pub(crate) fields: Vec<(String, String)>,
}

/// A plan in the form that is shown to the user.
pub(crate) struct PlanSummary<'a> {
    /// The field of the JSON file with the changes outside the store.
    pub(crate) list: &'static str,
    /// The changes outside the store.
    pub(crate) resources: &'a [ResourceChange],
    /// The changes of the store.
    pub(crate) changes: &'a [Change],
    /// The machines that keep their old configuration until a rolling update: names and differences.
    pub(crate) outdated: &'a [(String, String)],
}

impl PlanSummary<'_> {
    /// Writes the plan as JSON.
    pub(crate) fn write(&self, path: &str, cluster: &str) -> Result<(), Error> {
        let object = |change: &Change| json!({"action": change.verb(), "kind": change.kind, "name": change.name});
        let objects: Vec<_> = self.changes.iter().map(object).collect();
        let resource = |change: &ResourceChange| {
            let fields = change.fields.iter().map(|(field, value)| (field.clone(), json!(value)));
            let (kind, name, fields) = (change.kind, &change.name, fields.collect::<Map<_, _>>());
            json!({"action": change.verb, "kind": kind, "name": name, "fields": fields})
        };
        let resources: Vec<_> = self.resources.iter().map(resource).collect();
        let outdated: Vec<_> =
            self.outdated.iter().map(|(name, why)| json!({"name": name, "why": why})).collect();
        let text = json!({
            "cluster": cluster, "objects": objects, self.list: resources, "needsRollingUpdate": outdated,
        });
        std::fs::write(path, text.to_string())
            .map_err(kops_store::Error::file("writing the plan to", path))?;
        Ok(())
    }

    /// Prints the changes.
    pub(crate) fn print(&self, out: &mut dyn Write) -> Result<(), Error> {
        let mut is_empty = true;
        for verb in ["create", "modify", "delete"] {
            let resources: Vec<_> =
                self.resources.iter().filter(|change| change.verb == verb).collect();
            let files: Vec<_> =
                self.changes.iter().filter(|change| change.verb() == verb).collect();
            if resources.is_empty() && files.is_empty() {
                continue;
            }
            is_empty = false;
            writeln!(out, "Will {verb} resources:")?;
            for change in resources {
                writeln!(out, "  {}/{}", change.kind, change.name)?;
                for (field, value) in &change.fields {
                    writeln!(out, "  \t{field:<20}\t{value}")?;
                }
                writeln!(out)?;
            }
            for change in files {
                writeln!(out, "  {}/{}", change.kind, change.name)?;
            }
            writeln!(out)?;
        }
        if is_empty {
            writeln!(out, "No changes need to be applied")?;
        }
        if !self.outdated.is_empty() {
            writeln!(out, "Machines that kops rolling-update cluster replaces, with the reason:")?;
            for (name, why) in self.outdated {
                writeln!(out, "  {name}: {why}")?;
            }
            writeln!(out)?;
        }
        Ok(())
    }
}

/// Prints the machines that keep their old configuration.
pub(crate) fn print_outdated(
    outdated: &[(String, String)],
    out: &mut dyn Write,
) -> Result<(), Error> {
    if !outdated.is_empty() {
        let names: Vec<_> = outdated.iter().map(|(name, _)| name.as_str()).collect();
        let names = names.join(", ");
        writeln!(
            out,
            "Changes may require instances to restart: kops rolling-update cluster replaces {names}"
        )?;
    }
    Ok(())
}
