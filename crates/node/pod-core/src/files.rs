//! The files of volumes from ConfigMaps, Secrets and fields of the Pod.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::{ConfigMap, DownwardAPIVolumeFile, KeyToPath, Pod, Secret};

use crate::fields::{FieldError, NodeFacts, field, resource_field};

/// The largest space of the files that the kubelet writes for a Pod, in bytes. A Pod may name the same key for any
/// number of files, and they are in the node's memory, outside of the Pod's memory limit. It is the size of 64
/// ConfigMaps of the largest size.
pub const MAX_SPACE: u64 = 64 << 20;

/// The space that each file and directory takes at least, in bytes.
const PAGE: u64 = 4096;

/// The files of a volume by path below the volume. They take at most [`MAX_SPACE`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    files: BTreeMap<String, File>,
    space: u64,
}

impl Files {
    /// Adds a file. It replaces one with the same path, whose space stays counted.
    ///
    /// # Errors
    ///
    /// The files would take more than [`MAX_SPACE`].
    pub fn insert(&mut self, path: String, file: File) -> Result<(), FilesError> {
        self.take(space(&path, file.content.len()))?;
        self.files.insert(path, file);
        Ok(())
    }

    /// Adds all files of another source.
    ///
    /// # Errors
    ///
    /// The files would take more than [`MAX_SPACE`].
    pub fn append(&mut self, mut other: Self) -> Result<(), FilesError> {
        self.take(other.space)?;
        self.files.append(&mut other.files);
        Ok(())
    }

    /// Returns the space that the files take, in bytes: whole pages of content, and a page for each file and directory.
    pub fn space(&self) -> u64 {
        self.space
    }

    fn take(&mut self, space: u64) -> Result<(), FilesError> {
        self.space += space;
        if self.space > MAX_SPACE { Err(FilesError::TooLarge) } else { Ok(()) }
    }
}

impl std::ops::Deref for Files {
    type Target = BTreeMap<String, File>;

    fn deref(&self) -> &Self::Target {
        &self.files
    }
}

fn space(path: &str, length: usize) -> u64 {
    let entries = path.split('/').count() as u64;
    (length as u64).next_multiple_of(PAGE) + entries * PAGE
}

/// A file of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// The content. All files of one key share it.
    pub content: Arc<[u8]>,
    /// The permission bits.
    pub mode: u32,
    /// The owner's UID; `None` for root.
    pub owner: Option<u32>,
}

impl File {
    fn of_root(content: Arc<[u8]>, mode: u32) -> Self {
        Self { content, mode, owner: None }
    }
}

/// The error of a volume whose files cannot be created. The Pod waits until the cause is fixed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FilesError {
    #[error("references non-existent {kind} key: {key}")]
    MissingKey { kind: &'static str, key: String },
    #[error("the path {0:?} of a volume's file must be relative and stay below the volume")]
    BadPath(String),
    #[error(
        "the files of the volume take more than {} MiB, counted in pages of 4 KiB and with a page for each file and \
         directory; select fewer or smaller keys",
        MAX_SPACE >> 20
    )]
    TooLarge,
    #[error(transparent)]
    Field(#[from] FieldError),
}

/// The selection of keys of a ConfigMap or Secret.
#[derive(Clone, Copy)]
pub struct Selection<'a> {
    /// The selected keys and their paths. `None` selects all keys by name.
    pub items: Option<&'a [KeyToPath]>,
    /// The permission bits of files whose item sets none.
    pub default_mode: i32,
    /// `true` if missing keys are omitted; otherwise they are an error.
    pub optional: bool,
}

impl<'a> Selection<'a> {
    /// Creates the selection of a volume. Without `mode`, files are readable by everyone.
    pub fn of_volume(
        items: Option<&'a [KeyToPath]>,
        mode: Option<i32>,
        optional: Option<bool>,
    ) -> Self {
        Self { items, default_mode: mode.unwrap_or(0o644), optional: optional == Some(true) }
    }
}

/// Returns the files of a ConfigMap's text and binary keys. A selected key that is missing is an error unless the
/// selection is optional.
pub fn of_config_map(map: &ConfigMap, selection: Selection<'_>) -> Result<Files, FilesError> {
    let text = map.data.iter().flatten().map(|(key, value)| (key, value.as_bytes()));
    let binary = map.binary_data.iter().flatten().map(|(key, value)| (key, value.0.as_slice()));
    select("config", text.chain(binary).collect(), selection)
}

/// Returns the files of a Secret's keys. A selected key that is missing is an error unless the selection is optional.
pub fn of_secret(secret: &Secret, selection: Selection<'_>) -> Result<Files, FilesError> {
    let data = secret.data.iter().flatten().map(|(key, value)| (key, value.0.as_slice()));
    select("secret", data.collect(), selection)
}

fn select(
    kind: &'static str,
    data: BTreeMap<&String, &[u8]>,
    selection: Selection<'_>,
) -> Result<Files, FilesError> {
    let mode = |m: Option<i32>| m.unwrap_or(selection.default_mode).unsigned_abs();
    let mut files = Files::default();
    let Some(items) = selection.items.filter(|items| !items.is_empty()) else {
        for (key, content) in data {
            files.insert(key.clone(), File::of_root(content.into(), mode(None)))?;
        }
        return Ok(files);
    };
    let mut shared: BTreeMap<&str, Arc<[u8]>> = BTreeMap::new();
    for item in items {
        let Some(content) = data.get(&item.key) else {
            if selection.optional {
                continue;
            }
            return Err(FilesError::MissingKey { kind, key: item.key.clone() });
        };
        check_path(&item.path)?;
        let content = shared.entry(&item.key).or_insert_with(|| (*content).into()).clone();
        files.insert(item.path.clone(), File::of_root(content, mode(item.mode)))?;
    }
    Ok(files)
}

/// Returns the files of a downward API volume.
pub fn of_downward_api(
    pod: &Pod,
    items: &[DownwardAPIVolumeFile],
    default_mode: i32,
    node: &NodeFacts<'_>,
) -> Result<Files, FilesError> {
    let mut files = Files::default();
    for item in items {
        check_path(&item.path)?;
        let value = if let Some(from) = &item.field_ref {
            field(pod, &from.field_path, node)?
        } else if let Some(from) = &item.resource_field_ref {
            resource_field(pod, None, from, node)?
        } else {
            String::new()
        };
        let mode = item.mode.unwrap_or(default_mode).unsigned_abs();
        files.insert(item.path.clone(), File::of_root(value.into_bytes().into(), mode))?;
    }
    Ok(files)
}

/// Returns `true` if a path is relative and has no `..`. It then stays below any directory without links.
pub fn is_descending(path: &str) -> bool {
    !path.starts_with('/') && path.split('/').all(|part| part != "..")
}

/// Validates a path below a volume. The API server has done that already, but not for static Pods.
pub fn check_path(path: &str) -> Result<(), FilesError> {
    let bad = !is_descending(path)
        || path.starts_with("..")
        || path.split('/').any(|part| part.is_empty());
    if bad { Err(FilesError::BadPath(path.to_owned())) } else { Ok(()) }
}
