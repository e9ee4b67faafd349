//! Planned changes of a cluster's objects in the store.

use std::collections::BTreeSet;

use vfs::{Precondition, Secrecy};

use crate::{
    error::Error,
    keyset::Keyset,
    layout::{IDENTITY_CA, issued_keyset, private_keyset},
    objects::{ClusterObjects, StoredObject},
    registry::Registry,
};

/// The directories of a cluster in which unwanted objects are deleted.
const OWNED: [&str; 3] = ["igconfig", "manifests", "addons"];

/// A change of an object in the store.
pub struct Change {
    /// The kind shown in the plan.
    pub kind: &'static str,
    /// The object's full name.
    pub name: String,
    /// The wanted content; `None` to delete the object.
    pub content: Option<String>,
    /// The readers of the object.
    pub secrecy: Secrecy,
    /// The state of the object when the plan was made.
    pub since: Precondition,
}

impl Change {
    /// Returns the change's verb for the plan.
    pub fn verb(&self) -> &'static str {
        match (&self.content, &self.since) {
            (None, _) => "delete",
            (_, Precondition::Absent) => "create",
            _ => "modify",
        }
    }

    /// Makes the change, if the object has not changed since the plan was made.
    pub fn carry_out(&self, registry: &Registry) -> Result<(), Error> {
        match (&self.content, &self.since) {
            (Some(content), since) => {
                registry.write_object(&self.name, content.as_bytes(), since, self.secrecy)
            }
            (None, Precondition::Read(version)) => registry.delete_object(&self.name, version),
            (None, Precondition::Absent) => Ok(()),
        }
    }
}

/// Returns the changes that store a new or changed keyset, that of its private half first.
pub fn key_changes(
    registry: &Registry,
    cluster: &str,
    keyset: &Keyset,
) -> Result<Vec<Change>, Error> {
    let change = |name: String, private: bool| {
        // The public half of a new keyset may exist, and then belongs to another keyset.
        let since = match registry.read_object(&name)? {
            None => Precondition::Absent,
            Some((_, version)) => Precondition::Read(version),
        };
        let secrecy = if private { Secrecy::Private } else { Secrecy::Open };
        let content = Some(keyset.document(private)?);
        Ok::<_, Error>(Change { kind: "Keypair", name, content, secrecy, since })
    };
    Ok(vec![
        change(private_keyset(cluster, &keyset.name), true)?,
        change(issued_keyset(cluster, &keyset.name), false)?,
    ])
}

/// Returns the differences between the wanted and the stored objects. Only contents that the listing leaves open are
/// read.
pub fn file_changes(
    stored: &ClusterObjects<'_>,
    objects: Vec<StoredObject>,
) -> Result<Vec<Change>, Error> {
    let mut changes = Vec::new();
    let cluster = stored.cluster();
    let mut left: BTreeSet<String> =
        OWNED.iter().flat_map(|directory| stored.names(directory)).collect();
    for object in objects {
        let name = format!("{cluster}/{}", object.name);
        left.remove(&name);
        if stored.has_content(&name, object.content.as_bytes()) {
            continue;
        }
        let since = match stored.read(&name)? {
            Some((old, _)) if old == object.content.as_bytes() => continue,
            Some((_, version)) => Precondition::Read(version),
            None => Precondition::Absent,
        };
        let StoredObject { content, secrecy, kind, .. } = object;
        changes.push(Change { kind, name, content: Some(content), secrecy, since });
    }
    // This object is written together with the machines, whose authority it is.
    left.remove(&format!("{cluster}/{IDENTITY_CA}"));
    for name in left {
        if let Some((_, version)) = stored.read(&name)? {
            let (kind, secrecy, since) =
                ("ManagedFile", Secrecy::Open, Precondition::Read(version));
            changes.push(Change { kind, name, content: None, secrecy, since });
        }
    }
    Ok(changes)
}
