//! Plans: differences shown to the user and saved as JSON, including the changes of the store.

use serde_json::{Map, json};
use vfs::{Precondition, Secrecy};

use crate::{
    CommandEnvironment, Error,
    keys::{self, Keyset},
    local,
    model::StoredObject,
    registry::Registry,
};

/// The directories of a cluster in which unwanted objects are deleted.
const OWNED: [&str; 3] = ["igconfig", "manifests", "addons"];

/// A change of an object in the store.
pub(crate) struct Change {
    pub(crate) kind: &'static str,
    /// The object's full name.
    pub(crate) name: String,
    /// The wanted content; `None` to delete the object.
    pub(crate) content: Option<String>,
    pub(crate) secrecy: Secrecy,
    /// The state of the object when the plan was made.
    pub(crate) since: Precondition,
}

impl Change {
    fn verb(&self) -> &'static str {
        match (&self.content, &self.since) {
            (None, _) => "delete",
            (_, Precondition::Absent) => "create",
            _ => "modify",
        }
    }

    /// Makes the change, if the object has not changed since the plan was made.
    pub(crate) fn carry_out(&self, registry: &Registry) -> Result<(), Error> {
        match (&self.content, &self.since) {
            (Some(content), since) => {
                registry.put(&self.name, content.as_bytes(), since, self.secrecy)
            }
            (None, Precondition::Read(version)) => registry.drop_object(&self.name, version),
            (None, Precondition::Absent) => Ok(()),
        }
    }
}

/// A shown change of a resource outside the store.
pub(crate) struct ResourceChange {
    pub(crate) kind: &'static str,
    pub(crate) name: String,
    pub(crate) verb: &'static str,
    /// The changed fields, with the values to print.
    pub(crate) fields: Vec<(String, String)>,
}

/// Returns the changes that store a new keyset.
pub(crate) fn key_changes(
    registry: &Registry,
    cluster: &str,
    keyset: &Keyset,
) -> Result<Vec<Change>, Error> {
    let change = |name: String, private: bool| {
        // The private half is missing, so an existing public half belongs to another keyset.
        let since = match registry.content(&name)? {
            None => Precondition::Absent,
            Some((_, version)) => Precondition::Read(version),
        };
        let secrecy = if private { Secrecy::Private } else { Secrecy::Open };
        let content = Some(keyset.document(private)?);
        Ok::<_, Error>(Change { kind: "Keypair", name, content, secrecy, since })
    };
    Ok(vec![
        change(keys::private_path(cluster, &keyset.name), true)?,
        change(keys::issued_path(cluster, &keyset.name), false)?,
    ])
}

/// Returns the differences between the wanted and the stored objects.
pub(crate) fn file_changes(
    registry: &Registry,
    cluster: &str,
    kept: Vec<StoredObject>,
) -> Result<Vec<Change>, Error> {
    let mut changes = Vec::new();
    let mut left = Vec::new();
    for directory in OWNED {
        left.extend(registry.names(&format!("{cluster}/{directory}"))?);
    }
    for one in kept {
        let name = format!("{cluster}/{}", one.name);
        left.retain(|other| *other != name);
        let since = match registry.content(&name)? {
            Some((old, _)) if old == one.content.as_bytes() => continue,
            Some((_, version)) => Precondition::Read(version),
            None => Precondition::Absent,
        };
        let (kind, secrecy) = (one.kind, one.secrecy);
        changes.push(Change { kind, name, content: Some(one.content), secrecy, since });
    }
    // This object is written together with the machines, whose authority it is.
    left.retain(|name| *name != format!("{cluster}/{}", local::IDENTITY_CA));
    for name in left {
        if let Some((_, version)) = registry.content(&name)? {
            let (kind, secrecy, since) =
                ("ManagedFile", Secrecy::Open, Precondition::Read(version));
            changes.push(Change { kind, name, content: None, secrecy, since });
        }
    }
    Ok(changes)
}

/// Writes a plan as JSON. `list` is the name of its changes outside the store.
pub(crate) fn write_plan(
    path: &str,
    cluster: &str,
    list: &str,
    resources: &[ResourceChange],
    changes: &[Change],
    outdated: &[(String, String)],
) -> Result<(), Error> {
    let objects: Vec<_> = changes
        .iter()
        .map(|change| json!({"action": change.verb(), "kind": change.kind, "name": change.name}))
        .collect();
    let resources: Vec<_> = resources
        .iter()
        .map(|one| {
            let fields = one.fields.iter().map(|(field, value)| (field.clone(), json!(value)));
            let fields: Map<_, _> = fields.collect();
            json!({"action": one.verb, "kind": one.kind, "name": one.name, "fields": fields})
        })
        .collect();
    let outdated: Vec<_> =
        outdated.iter().map(|(name, why)| json!({"name": name, "why": why})).collect();
    let text = json!({"cluster": cluster, "objects": objects, list: resources, "needsRollingUpdate": outdated});
    std::fs::write(path, text.to_string()).map_err(Error::file("writing the plan to", path))
}

/// Prints the changes.
pub(crate) fn print(
    resources: &[ResourceChange],
    changes: &[Change],
    outdated: &[(String, String)],
    around: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let out = &mut around.out;
    let mut any = false;
    for verb in ["create", "modify", "delete"] {
        let resources: Vec<_> = resources.iter().filter(|change| change.verb == verb).collect();
        let files: Vec<_> = changes.iter().filter(|change| change.verb() == verb).collect();
        if resources.is_empty() && files.is_empty() {
            continue;
        }
        any = true;
        writeln!(out, "Will {verb} resources:")?;
        for one in resources {
            writeln!(out, "  {}/{}", one.kind, one.name)?;
            for (field, value) in &one.fields {
                writeln!(out, "  \t{field:<20}\t{value}")?;
            }
            writeln!(out)?;
        }
        for change in files {
            writeln!(out, "  {}/{}", change.kind, change.name)?;
        }
        writeln!(out)?;
    }
    if !any {
        writeln!(out, "No changes need to be applied")?;
    }
    if !outdated.is_empty() {
        writeln!(out, "Machines that kops rolling-update cluster replaces, with the reason:")?;
        for (name, why) in outdated {
            writeln!(out, "  {name}: {why}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Prints the machines that keep their old configuration.
pub(crate) fn print_outdated(
    outdated: &[(String, String)],
    around: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    if !outdated.is_empty() {
        let names: Vec<_> = outdated.iter().map(|(name, _)| name.as_str()).collect();
        let names = names.join(", ");
        writeln!(
            around.out,
            "Changes may require instances to restart: kops rolling-update cluster replaces {names}"
        )?;
    }
    Ok(())
}
