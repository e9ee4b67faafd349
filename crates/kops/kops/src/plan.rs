//! Plans: differences shown to the user and saved as JSON, including the changes of the store.
//!
//! A saved plan is never executed as it stands. The command plans again, and carries its own plan out if that is the
//! saved one: it has the same actions, and was made from the same state.

use std::io::{Read as _, Write};

use api_meta::Tree as _;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use kops_api::{Object, VersionName};
use kops_store::{Change, KOPS_VERSION};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::{error::Error, flags::UpdateCluster};

/// The largest file with a plan, in bytes.
const LARGEST: u64 = 64 << 20;

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
    /// The hash of the state that the plan was made from; see [`hash_state`].
    pub(crate) state: &'a str,
    /// The notes about what the plan leaves out.
    pub(crate) warnings: &'a [String],
}

/// Returns the hash of everything that a plan is made from: the user's objects, the present state of the resources, and
/// the versions of the stored objects to change. Keys that the plan would generate are not part of it.
pub(crate) fn hash_state(
    cluster: &Object,
    groups: &[Object],
    resources: &str,
    changes: &[Change],
) -> String {
    let mut hash = Sha256::new();
    let mut add = |text: &str| {
        hash.update(text.len().to_le_bytes());
        hash.update(text.as_bytes());
    };
    add(KOPS_VERSION);
    for object in std::iter::once(cluster).chain(groups) {
        add(&object.to_yaml(VersionName::V1alpha2));
    }
    add(resources);
    for change in changes {
        add(&change.name);
        add(&format!("{:?}", change.since));
    }
    STANDARD.encode(hash.finalize())
}

impl PlanSummary<'_> {
    fn to_tree(&self, cluster: &str) -> Value {
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
        json!({
            "cluster": cluster, "objects": objects, self.list: resources, "needsRollingUpdate": outdated,
            "state": self.state,
        })
    }

    /// Writes the plan as JSON.
    pub(crate) fn write(&self, path: &str, cluster: &str) -> Result<(), Error> {
        std::fs::write(path, self.to_tree(cluster).to_string())
            .map_err(kops_store::Error::file("writing the plan to", path))?;
        Ok(())
    }

    /// Saves the plan to the file of `--plan-out`, and rejects the file of `--plan` if it holds another one.
    pub(crate) fn save_and_check(
        &self,
        command: &UpdateCluster,
        cluster: &str,
    ) -> Result<(), Error> {
        self.save(command, cluster)?;
        command.plan.as_ref().map_or(Ok(()), |path| self.check_saved(path, cluster))
    }

    /// Rejects a saved plan that is not this one.
    fn check_saved(&self, path: &str, cluster: &str) -> Result<(), Error> {
        let failed = || kops_store::Error::file("reading the plan", path);
        let file = std::fs::File::open(path).map_err(failed())?;
        let mut text = String::new();
        file.take(LARGEST + 1).read_to_string(&mut text).map_err(failed())?;
        if text.len() as u64 > LARGEST {
            return Err(Error::Size { file: path.to_owned(), limit: LARGEST });
        }
        let saved: Value = serde_json::from_str(&text)
            .map_err(|source| Error::PlanFile { file: path.to_owned(), source })?;
        let own = self.to_tree(cluster);
        let stale =
            |difference: String| Err(Error::StalePlan { file: path.to_owned(), difference });
        if saved.text("cluster") != cluster {
            return stale(format!("it is for cluster {:?}", saved.text("cluster")));
        }
        for list in ["objects", self.list] {
            let actions = |tree: &Value| -> Vec<String> {
                let action = |item: &Value| {
                    format!("{} {}/{}", item.text("action"), item.text("kind"), item.text("name"))
                };
                tree.items(list).iter().map(action).collect()
            };
            let (before, now) = (actions(&saved), actions(&own));
            if let Some(action) = now.iter().find(|action| !before.contains(action)) {
                return stale(format!("it does not {action}, which is necessary now"));
            }
            if let Some(action) = before.iter().find(|action| !now.contains(action)) {
                return stale(format!("it would {action}, which is not necessary now"));
            }
        }
        if saved.text("state") != self.state {
            return stale(
                "the specs, the stored objects or the resources have changed since".to_owned(),
            );
        }
        Ok(())
    }

    /// Writes the plan to the file of `--plan-out`, if there is one.
    pub(crate) fn save(&self, command: &UpdateCluster, cluster: &str) -> Result<(), Error> {
        command.plan_out.as_ref().map_or(Ok(()), |path| self.write(path, cluster))
    }

    /// Prints the changes, and the flag that applies them.
    pub(crate) fn propose(&self, out: &mut dyn Write) -> Result<(), Error> {
        self.print(out)?;
        writeln!(out, "Must specify --yes to apply changes")?;
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
        print_warnings(self.warnings, out)
    }
}

/// Prints the notes about what a plan leaves out.
pub(crate) fn print_warnings(warnings: &[String], out: &mut dyn Write) -> Result<(), Error> {
    for warning in warnings {
        writeln!(out, "Warning: {warning}")?;
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use vfs::{Precondition, Secrecy};

    use super::*;

    fn change(name: &str, content: Option<&str>) -> Change {
        Change {
            kind: "ManagedFile",
            name: name.to_owned(),
            content: content.map(str::to_owned),
            secrecy: Secrecy::Open,
            since: Precondition::Absent,
        }
    }

    #[test]
    fn accepts_only_the_saved_plan() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plan.json").display().to_string();
        let resource = |name: &str| ResourceChange {
            kind: "InstanceGroup",
            name: name.to_owned(),
            verb: "create",
            fields: Vec::new(),
        };
        let (changes, resources) = ([change("a/x", Some("1"))], [resource("nodes")]);
        let summary = PlanSummary {
            list: "instanceGroups",
            resources: &resources,
            changes: &changes,
            outdated: &[],
            state: "5a",
            warnings: &[],
        };
        summary.write(&path, "a.local").unwrap();
        summary.check_saved(&path, "a.local").unwrap();
        let reason = |summary: &PlanSummary<'_>, cluster: &str| {
            summary.check_saved(&path, cluster).unwrap_err().to_string()
        };
        assert!(reason(&summary, "b.local").contains("it is for cluster \"a.local\""));
        let other = PlanSummary { state: "5b", ..summary };
        assert!(reason(&other, "a.local").contains("have changed since"));
        let other = PlanSummary { resources: &[], state: "5a", ..other };
        assert!(reason(&other, "a.local").contains("it would create InstanceGroup/nodes"));
        let more = [change("a/x", Some("1")), change("a/y", None)];
        let other = PlanSummary { changes: &more, resources: &resources, ..other };
        assert!(reason(&other, "a.local").contains("does not delete ManagedFile/a/y"));
        for hostile in ["", "[", "{}", "\"plan\"", "{\"cluster\": \"a.local\", \"objects\": 5}"] {
            std::fs::write(&path, hostile).unwrap();
            assert!(summary_error(&path).contains("plan.json"), "{hostile}");
        }
    }

    fn summary_error(path: &str) -> String {
        let changes = [change("a/x", Some("1"))];
        let summary = PlanSummary {
            list: "resources",
            resources: &[],
            changes: &changes,
            outdated: &[],
            state: "5a",
            warnings: &[],
        };
        summary.check_saved(path, "a.local").unwrap_err().to_string()
    }
}
