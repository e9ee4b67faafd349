//! The record of applied files and objects.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs, io,
    path::Path,
};

use client::Resource;
use serde::{Deserialize, Serialize};

use crate::manifests_error::ManifestsError;

/// The record below the cluster's root. `down --keep-data` keeps it, as it keeps the objects.
pub(super) const RECORD: &str = "var/lib/manifests.json";
/// The number of errors of a file that are recorded, and the length of each.
const MAX_ERRORS: usize = 10;
const MAX_LENGTH: usize = 500;

/// The identity of an object. Another version of the same group is the same object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) group: String,
    pub(super) kind: String,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_str() {
            "" => write!(f, "{} {}", self.kind, self.name),
            namespace => write!(f, "{} {namespace}/{}", self.kind, self.name),
        }
    }
}

/// An object of a file, in the record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Object {
    group: String,
    version: String,
    kind: String,
    plural: String,
    /// The namespace; empty for an object of the cluster.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) namespace: String,
    pub(super) name: String,
    /// The file that has the object.
    pub(super) file: String,
    /// The UID after the last apply; `None` if none has succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) uid: Option<String>,
    /// `true` if the object existed before its first apply. It is never deleted.
    #[serde(default)]
    pub(super) existed: bool,
}

impl Object {
    pub(super) fn new(resource: &Resource, key: &Key, file: &str, existed: bool) -> Self {
        Self {
            group: key.group.clone(),
            version: resource.version.to_string(),
            kind: key.kind.clone(),
            plural: resource.plural.to_string(),
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            file: file.to_owned(),
            uid: None,
            existed,
        }
    }

    fn key(&self) -> Key {
        Key {
            group: self.group.clone(),
            kind: self.kind.clone(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }

    /// Returns the resource by which the object was applied.
    pub(super) fn resource(&self) -> Resource {
        Resource {
            group: self.group.clone().into(),
            version: self.version.clone().into(),
            plural: self.plural.clone().into(),
            kind: self.kind.clone().into(),
            namespaced: !self.namespace.is_empty(),
        }
    }

    /// Records a successful apply.
    pub(super) fn applied(&mut self, uid: String, file: &str, resource: &Resource) {
        self.uid = Some(uid);
        file.clone_into(&mut self.file);
        self.version = resource.version.to_string();
    }
}

/// The state of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct FileState {
    /// The hash of the content that was applied.
    pub(super) hash: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) errors: Vec<String>,
}

/// The record of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) files: BTreeMap<String, FileState>,
    pub(super) objects: BTreeMap<Key, Object>,
}

/// The record in its file. Unknown fields are those of a later release, and the record is not read without them.
#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Stored {
    files: BTreeMap<String, FileState>,
    objects: Vec<Object>,
}

impl Record {
    /// Reads the record; without a file, it is empty.
    pub(super) fn load(path: &Path) -> Result<Self, ManifestsError> {
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(source) => return Err(ManifestsError::Read { path: path.to_owned(), source }),
        };
        let stored: Stored = serde_json::from_slice(&text)
            .map_err(|source| ManifestsError::Record { path: path.to_owned(), source })?;
        let objects = stored.objects.into_iter().map(|object| (object.key(), object)).collect();
        Ok(Self { files: stored.files, objects })
    }

    /// Writes the record if it has changed. The errors of each file are shortened.
    pub(super) fn save(&mut self, path: &Path) -> Result<(), ManifestsError> {
        for state in self.files.values_mut() {
            shorten(&mut state.errors);
        }
        let objects = self.objects.values().cloned().collect();
        let stored = Stored { files: self.files.clone(), objects };
        let mut text = serde_json::to_vec_pretty(&stored)
            .map_err(|source| ManifestsError::Record { path: path.to_owned(), source })?;
        text.push(b'\n');
        pki::update_file(path, &text, pki::KEY_MODE)?;
        Ok(())
    }

    pub(super) fn has_errors(&self) -> bool {
        self.files.values().any(|state| !state.errors.is_empty())
    }

    /// Returns the recorded objects that no file has any more, each with its last file. Namespaces and definitions of
    /// kinds, which contain other objects, come last.
    pub(super) fn leftovers(&self, wanted: &BTreeMap<Key, String>) -> Vec<(Key, String)> {
        let unwanted = self.objects.iter().filter(|(key, _)| !wanted.contains_key(key));
        let mut leftovers: Vec<_> =
            unwanted.map(|(key, object)| (key.clone(), object.file.clone())).collect();
        let contains =
            |key: &Key| ["Namespace", "CustomResourceDefinition"].contains(&key.kind.as_str());
        leftovers.sort_by_key(|(key, _)| contains(key));
        leftovers
    }

    /// Returns the number of files with applied objects, and the number of these objects.
    pub(super) fn counts(&self) -> (usize, usize) {
        let applied = self.objects.values().filter(|object| object.uid.is_some());
        let applied: Vec<_> = applied.map(|object| &object.file).collect();
        (applied.iter().collect::<BTreeSet<_>>().len(), applied.len())
    }
}

fn shorten(errors: &mut Vec<String>) {
    let more = errors.len().saturating_sub(MAX_ERRORS);
    errors.truncate(MAX_ERRORS);
    for error in errors.iter_mut().filter(|error| error.len() > MAX_LENGTH) {
        let end = error.floor_char_boundary(MAX_LENGTH);
        error.truncate(end);
        error.push('…');
    }
    if more > 0 {
        errors.push(format!("and {more} more errors"));
    }
}
