//! Changes of the store for the gRPC API.

use std::{
    fs, io,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use serde::Serialize;

use super::store::{Group, Kind, Profile, Store, StoreError};
use crate::paths;

impl Store {
    /// Writes a group to `groups/ID.json`, replacing one with the same ID.
    pub fn put_group(&self, group: &Group) -> Result<(), StoreError> {
        self.write("group", "groups", &format!("{}.json", group.id), &json(group))
    }

    /// Writes a profile to `profiles/ID.json`, replacing one with the same ID.
    pub fn put_profile(&self, profile: &Profile) -> Result<(), StoreError> {
        self.write("profile", "profiles", &format!("{}.json", profile.id), &json(profile))
    }

    /// Writes a template to the directory of its kind. Returns an error if the name leads out of it.
    pub fn put_template(&self, kind: Kind, name: &str, text: &[u8]) -> Result<(), StoreError> {
        self.write(kind.directory(), kind.directory(), name, text)
    }

    /// Deletes a group; an error if it does not exist.
    pub(crate) fn delete_group(&self, id: &str) -> Result<(), StoreError> {
        self.delete("group", "groups", &format!("{id}.json"))
    }

    /// Deletes a profile, even if groups use it; an error if it does not exist.
    pub(crate) fn delete_profile(&self, id: &str) -> Result<(), StoreError> {
        self.delete("profile", "profiles", &format!("{id}.json"))
    }

    /// Deletes a template; an error if it does not exist.
    pub(crate) fn delete_template(&self, kind: Kind, name: &str) -> Result<(), StoreError> {
        self.delete(kind.directory(), kind.directory(), name)
    }

    /// Returns the path of an entry. Rejects the directory itself and paths outside it.
    fn entry_path(
        &self,
        what: &'static str,
        folder: &str,
        name: &str,
    ) -> Result<PathBuf, StoreError> {
        let root = self.root().join(folder);
        let path = paths::below(&root, name).filter(|path| *path != root);
        path.ok_or_else(|| StoreError::Invalid {
            what,
            name: name.to_owned(),
            path: root,
            source: "it is not a file name".into(),
        })
    }

    fn write(
        &self,
        what: &'static str,
        folder: &str,
        name: &str,
        text: &[u8],
    ) -> Result<(), StoreError> {
        let path = self.entry_path(what, folder, name)?;
        replace(&path, text).map_err(|source| StoreError::Write {
            what,
            name: name.to_owned(),
            path,
            source,
        })
    }

    fn delete(&self, what: &'static str, folder: &str, name: &str) -> Result<(), StoreError> {
        let path = self.entry_path(what, folder, name)?;
        fs::remove_file(&path).map_err(|source| StoreError::Write {
            what,
            name: name.to_owned(),
            path,
            source,
        })
    }
}

/// Replaces a file atomically, so that concurrent readers get the old or the new one.
fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(text)?;
    file.as_file().set_permissions(fs::Permissions::from_mode(0o644))?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// Encodes JSON with tab indentation, as Matchbox does.
fn json(value: &impl Serialize) -> Vec<u8> {
    let mut out = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"\t");
    // These types have no map keys that JSON cannot represent.
    let _ = value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, formatter));
    out
}
