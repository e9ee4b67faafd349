//! The directory of groups, profiles and templates.
//!
//! The store reads its files for every request, so that edits take effect at once. Parsed groups are cached until size
//! or modification time of their file change. With many files, the store skips the scan for a while after each one.

use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::{
    labels::{self, Labels},
    paths,
};

/// The maximum size of a store file in bytes.
const MAX_FILE: u64 = 16 << 20;

/// The errors of reading or changing the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(
        "no group matches the labels {labels:?}; add a group whose selectors all match, or one without selectors"
    )]
    NoGroup { labels: Labels },
    #[error("reading {what} {name:?} ({}): {source}", path.display())]
    Read { what: &'static str, name: String, path: PathBuf, source: io::Error },
    #[error("{what} {name:?} ({}): {source}", path.display())]
    Invalid { what: &'static str, name: String, path: PathBuf, source: BoxError },
    #[error("changing {what} {name:?} ({}): {source}", path.display())]
    Write { what: &'static str, name: String, path: PathBuf, source: io::Error },
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The errors of parsing a group.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("selector {key:?}: {value:?} is not a MAC address")]
    Mac { key: String, value: String },
    #[error("{0} is required")]
    Missing(&'static str),
}

/// The values that a selector accepts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Pattern {
    /// This value. The empty string also matches a missing label.
    Exact(String),
    /// Any of these values. An extension of Matchbox.
    Any(Vec<String>),
    /// Any value with this prefix. An extension of Matchbox.
    Prefix { prefix: String },
}

impl Pattern {
    pub(crate) fn matches(&self, label: &str) -> bool {
        match self {
            Self::Exact(value) => value == label,
            Self::Any(values) => values.iter().any(|value| value == label),
            Self::Prefix { prefix } => label.starts_with(prefix.as_str()),
        }
    }

    fn normalise(&mut self, key: &str) -> Result<(), GroupError> {
        let values = match self {
            Self::Exact(value) => std::slice::from_mut(value),
            Self::Any(values) => values.as_mut_slice(),
            Self::Prefix { prefix } => {
                if key.eq_ignore_ascii_case("mac") {
                    *prefix = prefix.to_ascii_lowercase().replace('-', ":");
                }
                return Ok(());
            }
        };
        for value in values {
            let invalid = || GroupError::Mac { key: key.to_owned(), value: value.clone() };
            *value = labels::normal(key, value).ok_or_else(invalid)?;
        }
        Ok(())
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exact(value) => f.write_str(value),
            Self::Any(values) => f.write_str(&values.join(",")),
            Self::Prefix { prefix } => write!(f, "{prefix}*"),
        }
    }
}

/// A set of machines, selected by labels, and their profile. The fields are Matchbox's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// The unique id.
    #[serde(default)]
    pub id: String,
    /// A descriptive name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The id of the profile.
    #[serde(default)]
    pub profile: String,
    /// The selectors. All must match a machine's labels; an empty map matches every machine.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub selector: BTreeMap<String, Pattern>,
    /// The data for the profile's templates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Map<String, Value>>,
    /// The public TPM key (PEM) of the single machine in this group, which proves its identity. An extension of
    /// Matchbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tpm_key: Option<String>,
}

impl Group {
    /// Parses a group file. The error does not contain the file name.
    pub fn parse(text: &[u8]) -> Result<Self, GroupError> {
        let mut group: Self = serde_json::from_slice(text)?;
        for (key, pattern) in &mut group.selector {
            pattern.normalise(key)?;
        }
        if group.id.is_empty() {
            return Err(GroupError::Missing("id"));
        }
        if group.profile.is_empty() {
            return Err(GroupError::Missing("profile"));
        }
        Ok(group)
    }

    /// Returns `true` if every selector matches. A missing label counts as empty.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.selector
            .iter()
            .all(|(key, pattern)| pattern.matches(labels.get(key).map_or("", String::as_str)))
    }

    /// Returns the selectors as `k=v` pairs, which order groups with equally many selectors.
    pub(super) fn selector_text(&self) -> String {
        let pairs: Vec<String> = self.selector.iter().map(|(k, v)| format!("{k}={v}")).collect();
        pairs.join(",")
    }
}

/// Selects a machine's group: the matching one with the most selectors, then the greatest selector text, then the
/// smallest id.
pub fn select<'g>(groups: &'g [Arc<Group>], labels: &Labels) -> Option<&'g Arc<Group>> {
    groups.iter().filter(|group| group.matches(labels)).max_by(|a, b| {
        let size = a.selector.len().cmp(&b.selector.len());
        size.then_with(|| a.selector_text().cmp(&b.selector_text())).then_with(|| b.id.cmp(&a.id))
    })
}

/// The kernel, initrds and arguments for iPXE and GRUB.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Boot {
    /// The kernel: a URL, or a path below the server's assets.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kernel: String,
    /// The initrds: URLs or paths like the kernel.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub initrd: Vec<String>,
    /// The kernel arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
}

/// The boot settings and templates of machines. The fields are Matchbox's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// The unique id.
    #[serde(default)]
    pub id: String,
    /// A descriptive name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The template file below `ignition`; empty for none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ignition_id: String,
    /// The template file below `cloud`; empty for none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cloud_id: String,
    /// The template file below `generic`; empty for none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub generic_id: String,
    /// The boot settings.
    #[serde(default)]
    pub boot: Boot,
    /// `true` if a machine that has reported success boots from its disk. An extension of Matchbox.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub install_once: bool,
}

/// The kinds of templates. Each has a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ignition,
    Cloud,
    Generic,
}

impl Kind {
    /// All kinds, in the order of upstream's documentation.
    pub const ALL: [Self; 3] = [Self::Ignition, Self::Cloud, Self::Generic];

    /// Returns the directory for templates of this kind, below the store's root.
    pub fn directory(self) -> &'static str {
        match self {
            Self::Ignition => "ignition",
            Self::Cloud => "cloud",
            Self::Generic => "generic",
        }
    }

    /// Returns the name of the profile's template of this kind; empty if it has none.
    pub fn name(self, profile: &Profile) -> &str {
        match self {
            Self::Ignition => &profile.ignition_id,
            Self::Cloud => &profile.cloud_id,
            Self::Generic => &profile.generic_id,
        }
    }
}

type Stamp = (SystemTime, u64);

/// The store: a directory with `groups`, `profiles` and one directory per kind of template. HTTP and gRPC share it.
pub struct Store {
    root: PathBuf,
    groups: Mutex<GroupCache>,
}

/// The groups of the last scan.
#[derive(Default)]
struct GroupCache {
    files: HashMap<PathBuf, (Stamp, Arc<Group>)>,
    /// The end and the duration of the last scan.
    read: Option<(Instant, Duration)>,
    groups: Arc<[Arc<Group>]>,
    errors: Vec<String>,
}

/// The minimum time between scans, as a multiple of a scan's duration. A scan of ten thousand groups is slow.
const REST: u32 = 10;
/// The number of files up to which every request scans, so that edits take effect at once.
const FEW: usize = 500;

impl Store {
    /// Creates a store. It reads nothing yet, and the directory need not exist.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), groups: Mutex::default() }
    }

    /// Returns the directory. Windlass stores further files there besides Matchbox's.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns all valid groups, and the errors of the others.
    pub fn groups(&self) -> (Arc<[Arc<Group>]>, Vec<String>) {
        let mut cache = self.groups.lock();
        let is_fresh =
            cache.read.is_some_and(|(when, took)| when.elapsed() < took.saturating_mul(REST));
        if !is_fresh || cache.files.len() + cache.errors.len() <= FEW {
            let start = Instant::now();
            self.scan(&mut cache);
            cache.read = Some((Instant::now(), start.elapsed()));
        }
        (cache.groups.clone(), cache.errors.clone())
    }

    fn scan(&self, cache: &mut GroupCache) {
        let mut groups = Vec::new();
        let mut files = HashMap::new();
        cache.errors.clear();
        for path in self.entries("groups") {
            match self.group(&path, cache.files.remove(&path)) {
                Ok(entry) => {
                    groups.push(entry.1.clone());
                    files.insert(path, entry);
                }
                Err(error) => cache.errors.push(error.to_string()),
            }
        }
        cache.files = files;
        cache.groups = groups.into();
    }

    fn group(
        &self,
        path: &Path,
        cached: Option<(Stamp, Arc<Group>)>,
    ) -> Result<(Stamp, Arc<Group>), StoreError> {
        let name = || path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let failed = |source| StoreError::Read {
            what: "group",
            name: name(),
            path: path.to_owned(),
            source,
        };
        let metadata = fs::metadata(path).map_err(failed)?;
        let stamp = (metadata.modified().map_err(failed)?, metadata.len());
        if let Some(entry) = cached.filter(|(old, _)| *old == stamp) {
            return Ok(entry);
        }
        let text = read(path).map_err(failed)?;
        let group = Group::parse(&text).map_err(|error| StoreError::Invalid {
            what: "group",
            name: name(),
            path: path.to_owned(),
            source: error.into(),
        })?;
        Ok((stamp, Arc::new(group)))
    }

    /// Returns the JSON files of a directory, sorted.
    pub fn entries(&self, directory: &str) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.root.join(directory)) else { return Vec::new() };
        let mut paths: Vec<PathBuf> =
            entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
        paths.sort();
        paths
    }

    /// Reads a group by its id.
    pub fn group_by_id(&self, id: &str) -> Result<Group, StoreError> {
        let (path, text) = self.file("group", "groups", &format!("{id}.json"), id)?;
        Group::parse(&text).map_err(|error| StoreError::Invalid {
            what: "group",
            name: id.to_owned(),
            path,
            source: error.into(),
        })
    }

    /// Returns all valid profiles, and the errors of the others.
    pub fn profiles(&self) -> (Vec<Profile>, Vec<StoreError>) {
        let (mut profiles, mut errors) = (Vec::new(), Vec::new());
        for path in self.entries("profiles") {
            let id = path.file_stem().unwrap_or_default().to_string_lossy();
            match self.profile(&id) {
                Ok(profile) => profiles.push(profile),
                Err(error) => errors.push(error),
            }
        }
        (profiles, errors)
    }

    /// Selects a machine's group like [`select`]; an error if none matches. Invalid groups are logged and skipped.
    pub fn select(&self, labels: &Labels) -> Result<Arc<Group>, StoreError> {
        let (groups, errors) = self.groups();
        for error in errors {
            tracing::warn!(error, "skipping a group");
        }
        select(&groups, labels)
            .cloned()
            .ok_or_else(|| StoreError::NoGroup { labels: labels.clone() })
    }

    /// Reads a profile by its id.
    pub fn profile(&self, id: &str) -> Result<Profile, StoreError> {
        let (path, text) = self.file("profile", "profiles", &format!("{id}.json"), id)?;
        serde_json::from_slice(&text).map_err(|error| StoreError::Invalid {
            what: "profile",
            name: id.to_owned(),
            path,
            source: error.into(),
        })
    }

    /// Reads a template.
    pub fn template(&self, kind: Kind, name: &str) -> Result<String, StoreError> {
        let directory = kind.directory();
        let (path, text) = self.file(directory, directory, name, name)?;
        String::from_utf8(text).map_err(|error| StoreError::Invalid {
            what: directory,
            name: name.to_owned(),
            path,
            source: error.into(),
        })
    }

    fn file(
        &self,
        what: &'static str,
        directory: &str,
        file: &str,
        name: &str,
    ) -> Result<(PathBuf, Vec<u8>), StoreError> {
        let root = self.root.join(directory);
        let failed =
            |path: PathBuf, source| StoreError::Read { what, name: name.to_owned(), path, source };
        let Some(path) = paths::below(&root, file) else {
            return Err(failed(root, io::ErrorKind::InvalidInput.into()));
        };
        match read(&path) {
            Ok(text) => Ok((path, text)),
            Err(error) => Err(failed(path, error)),
        }
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    if fs::metadata(path)?.len() > MAX_FILE {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    fs::read(path)
}
