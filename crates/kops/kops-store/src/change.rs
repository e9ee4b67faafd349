//! Planned changes of a cluster's objects in the store.

use vfs::{Precondition, Secrecy};

use crate::{
    error::Error,
    keyset::Keyset,
    layout::{IDENTITY_CA, issued_keyset, private_keyset},
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

/// An object for the store.
pub struct StoredObject {
    /// The object's name below the cluster's directory.
    pub name: String,
    /// The content.
    pub content: String,
    /// The readers of the object.
    pub secrecy: Secrecy,
    /// The kind shown in the plan.
    pub kind: &'static str,
}

/// Returns the changes that store a new keyset.
pub fn key_changes(
    registry: &Registry,
    cluster: &str,
    keyset: &Keyset,
) -> Result<Vec<Change>, Error> {
    let change = |name: String, private: bool| {
        // The private half is missing, so an existing public half belongs to another keyset.
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

/// Returns the differences between the wanted and the stored objects.
pub fn file_changes(
    registry: &Registry,
    cluster: &str,
    objects: Vec<StoredObject>,
) -> Result<Vec<Change>, Error> {
    let mut changes = Vec::new();
    let mut left = Vec::new();
    for directory in OWNED {
        left.extend(registry.list_objects(&format!("{cluster}/{directory}"))?);
    }
    for object in objects {
        let name = format!("{cluster}/{}", object.name);
        left.retain(|other| *other != name);
        let since = match registry.read_object(&name)? {
            Some((old, _)) if old == object.content.as_bytes() => continue,
            Some((_, version)) => Precondition::Read(version),
            None => Precondition::Absent,
        };
        let StoredObject { content, secrecy, kind, .. } = object;
        changes.push(Change { kind, name, content: Some(content), secrecy, since });
    }
    // This object is written together with the machines, whose authority it is.
    left.retain(|name| *name != format!("{cluster}/{}", IDENTITY_CA));
    for name in left {
        if let Some((_, version)) = registry.read_object(&name)? {
            let (kind, secrecy, since) =
                ("ManagedFile", Secrecy::Open, Precondition::Read(version));
            changes.push(Change { kind, name, content: None, secrecy, since });
        }
    }
    Ok(changes)
}
