//! The report of a validation, as tables or as a document.

use std::collections::BTreeMap;

use api_meta::Tree as _;
use kops_core::life;
use serde_json::{Map, Value, json};

use super::checks::{Failure, label};
use crate::{
    cloud::{CloudState, GroupState},
    document,
    environment::CommandEnvironment,
    error::Error,
    role::role_word,
    table,
};

/// The result of a validation.
pub(super) struct Report<'a> {
    pub(super) cluster: &'a str,
    pub(super) state: &'a CloudState,
    pub(super) failures: &'a [Failure],
}

impl Report<'_> {
    /// Prints the report, and returns an error if the cluster is not valid.
    pub(super) fn print(
        &self,
        output: &str,
        context: &mut CommandEnvironment<'_>,
    ) -> Result<(), Error> {
        match output {
            "table" => self.print_tables(context)?,
            _ => document::print(context.out, output, &self.to_tree())?,
        }
        match self.failures.len() {
            0 => Ok(()),
            count => Err(Error::Validation { cluster: self.cluster.to_owned(), count }),
        }
    }

    /// Returns the report with upstream's fields. Empty fields are omitted.
    fn to_tree(&self) -> Value {
        let object = |fields: &[(&str, &str)]| {
            let set = fields.iter().filter(|(_, value)| !value.is_empty());
            set.map(|(name, value)| ((*name).to_owned(), json!(value))).collect::<Map<_, _>>()
        };
        let failure =
            |f: &Failure| object(&[("type", f.kind), ("name", &f.name), ("message", &f.text())]);
        let roles = self.roles();
        let node = |node: &Value| {
            let name = node.text("metadata.name");
            object(&[
                ("name", name),
                ("zone", label(node, "topology.kubernetes.io/zone")),
                ("role", roles.get(name).copied().unwrap_or_default()),
                ("hostname", label(node, "kubernetes.io/hostname")),
                ("status", ready_status(node)),
            ])
        };
        let mut tree = Map::new();
        if !self.failures.is_empty() {
            tree.insert("failures".to_owned(), self.failures.iter().map(failure).collect());
        }
        if !self.state.nodes.is_empty() {
            tree.insert("nodes".to_owned(), self.state.nodes.iter().map(node).collect());
        }
        tree.into()
    }

    /// Returns upstream's words for the roles of Nodes by their names.
    fn roles(&self) -> BTreeMap<&str, &'static str> {
        let groups = self.state.groups_by_node().into_iter();
        groups.map(|(node, group)| (node, role_word(&group.role))).collect()
    }

    fn print_tables(&self, context: &mut CommandEnvironment<'_>) -> Result<(), Error> {
        writeln!(context.out, "INSTANCE GROUPS")?;
        let groups = &self.state.groups;
        let size = |group: &GroupState| [group.min.to_string(), group.max.to_string()];
        if groups.iter().any(|group| !group.machine_type.is_empty()) {
            let row = |group: &GroupState| {
                let ([min, max], kind) = (size(group), group.machine_type.clone());
                [group.name.clone(), group.role.clone(), kind, min, max, group.subnets.clone()]
            };
            let header = ["NAME", "ROLE", "MACHINETYPE", "MIN", "MAX", "SUBNETS"];
            table::print(context.out, header, groups.iter().map(row).collect())?;
        } else {
            let row = |group: &GroupState| {
                let [min, max] = size(group);
                [group.name.clone(), group.role.clone(), min, max]
            };
            let header = ["NAME", "ROLE", "MIN", "MAX"];
            table::print(context.out, header, groups.iter().map(row).collect())?;
        }
        writeln!(context.out, "\nNODE STATUS")?;
        let roles = self.roles();
        let row = |node: &Value| {
            let name = node.text("metadata.name");
            let role = roles.get(name).copied().unwrap_or_default();
            [name.to_owned(), role.to_owned(), ready_status(node).to_owned()]
        };
        let rows = self.state.nodes.iter().map(row).collect();
        table::print(context.out, ["NAME", "ROLE", "READY"], rows)?;
        if self.failures.is_empty() {
            writeln!(context.out, "\nYour cluster {} is ready", self.cluster)?;
            return Ok(());
        }
        writeln!(context.out, "\nVALIDATION ERRORS")?;
        let row = |f: &Failure| [f.kind.to_owned(), f.name.clone(), f.text()];
        let rows = self.failures.iter().map(row).collect();
        table::print(context.out, ["KIND", "NAME", "MESSAGE"], rows)?;
        writeln!(context.out, "\nValidation Failed")?;
        Ok(())
    }
}

/// Returns the status of a Node's condition Ready.
fn ready_status(node: &Value) -> &'static str {
    if life::readiness(node).0 { "True" } else { "False" }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            checks::not_joined,
            fixtures::{node, seen},
        },
        *,
    };

    #[test]
    fn prints_upstreams_documents_without_prose() {
        let mut ready = node("cp-1", "True");
        ready.put("metadata.labels", json!({"kubernetes.io/hostname": "cp-1"}));
        let state = seen(&[ready]);
        let failures = [not_joined(&state.groups[1].machines[0], &state.groups[1])];
        let mut report = Report { cluster: "a.local", state: &state, failures: &failures };
        let text = |report: &Report<'_>, output: &str| {
            let mut out = Vec::new();
            let environment = |_: &str| None;
            let now = std::time::SystemTime::UNIX_EPOCH;
            let mut context = CommandEnvironment { now, out: &mut out, environment: &environment };
            let result = report.print(output, &mut context);
            (String::from_utf8(out).unwrap(), result.is_ok())
        };
        let (json, valid) = text(&report, "json");
        let tree: Value = serde_json::from_str(&json).unwrap();
        let expected = json!({
            "failures": [{"type": "Machine", "name": "nodes-1",
                "message": "machine \"nodes-1\" has not yet joined cluster: why"}],
            "nodes": [{"name": "cp-1", "role": "control-plane", "hostname": "cp-1", "status": "True"}],
        });
        assert!(!valid && tree == expected, "{json}");
        report.failures = &[];
        let (yaml, valid) = text(&report, "yaml");
        assert!(valid && yaml.starts_with("nodes:\n- hostname: cp-1\n"), "{yaml}");
    }
}
