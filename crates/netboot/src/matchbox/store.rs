//! The directory that holds groups, profiles and templates.
//!
//! It is read anew for every request, so that an edit counts at once; only parsed groups are kept, each as
//! long as its file's size and time of change stay the same. Where there are so many files that looking at all
//! takes long, it is not done for every request.

use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use tokio::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::labels::{self, Labels};
use crate::paths;

/// Larger files are no store entries.
const MAX_FILE: u64 = 16 << 20;

/// Why the store has no answer, or took no change.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(
        "no group matches the labels {labels:?}; add a group whose selectors all match, or one without selectors"
    )]
    NoGroup { labels: Labels },
    #[error("reading {what} {name:?} ({}): {source}", path.display())]
    Read { what: &'static str, name: String, path: PathBuf, source: io::Error },
    #[error("{what} {name:?} ({}): {reason}", path.display())]
    Invalid { what: &'static str, name: String, path: PathBuf, reason: String },
    #[error("changing {what} {name:?} ({}): {source}", path.display())]
    Write { what: &'static str, name: String, path: PathBuf, source: io::Error },
}

/// What one selector accepts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Pattern {
    /// Exactly this; the empty string also matches a label that is absent.
    Exact(String),
    /// Any of these. Beyond Matchbox.
    Any(Vec<String>),
    /// Whatever begins so. Beyond Matchbox.
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

    fn normalise(&mut self, key: &str) -> Result<(), String> {
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
            *value = labels::normal(key, value)
                .ok_or_else(|| format!("selector {key:?}: {value:?} is no MAC address"))?;
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

/// Machines by their labels, and the profile that they get. The fields are Matchbox's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Group {
    #[serde(default)]
    pub id: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(default)]
    pub profile: String,
    /// Every one must match a machine's labels; none at all is everybody.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub selector: BTreeMap<String, Pattern>,
    /// What templates of the profile are filled in with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Map<String, Value>>,
    /// The public key (PEM) of the TPM of this group's one machine, by which it proves itself. Beyond Matchbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tpm_key: Option<String>,
}

impl Group {
    /// Reads a group's file. The error is a reason without the file's name.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let mut group: Self = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        for (key, pattern) in &mut group.selector {
            pattern.normalise(key)?;
        }
        if group.id.is_empty() {
            return Err("id is required".into());
        }
        if group.profile.is_empty() {
            return Err("profile is required".into());
        }
        Ok(group)
    }

    /// Whether every selector matches. A label that the machine did not tell is empty.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.selector
            .iter()
            .all(|(key, pattern)| pattern.matches(labels.get(key).map_or("", String::as_str)))
    }

    /// `k=v` pairs, for the order of groups with as many selectors.
    pub(super) fn selector_text(&self) -> String {
        let pairs: Vec<String> = self.selector.iter().map(|(k, v)| format!("{k}={v}")).collect();
        pairs.join(",")
    }
}

/// The group of a machine: of those that match, the one with most selectors, then the greatest by its
/// selectors' text, then the first by id.
pub fn select<'g>(groups: &'g [Arc<Group>], labels: &Labels) -> Option<&'g Arc<Group>> {
    groups.iter().filter(|group| group.matches(labels)).max_by(|a, b| {
        let size = a.selector.len().cmp(&b.selector.len());
        size.then_with(|| a.selector_text().cmp(&b.selector_text())).then_with(|| b.id.cmp(&a.id))
    })
}

/// What iPXE and GRUB are told to load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Boot {
    /// A URL, or a path below the server's assets; likewise each initrd.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kernel: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub initrd: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
}

/// What machines of some groups boot, and which templates they are configured by. The fields are Matchbox's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    #[serde(default)]
    pub id: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The file's name below `ignition`; likewise `cloud` and `generic` for the two others.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ignition_id: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cloud_id: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub generic_id: String,
    #[serde(default)]
    pub boot: Boot,
    /// A machine that has reported success boots from its disk. Beyond Matchbox.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub install_once: bool,
}

/// The three sorts of templates, each in its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ignition,
    Cloud,
    Generic,
}

impl Kind {
    /// In the order of upstream's documentation.
    pub const ALL: [Self; 3] = [Self::Ignition, Self::Cloud, Self::Generic];

    /// The directory below the store's root that has the templates of this kind.
    pub fn directory(self) -> &'static str {
        match self {
            Self::Ignition => "ignition",
            Self::Cloud => "cloud",
            Self::Generic => "generic",
        }
    }

    /// The name of the profile's template of this sort; empty when it has none.
    pub fn name(self, profile: &Profile) -> &str {
        match self {
            Self::Ignition => &profile.ignition_id,
            Self::Cloud => &profile.cloud_id,
            Self::Generic => &profile.generic_id,
        }
    }
}

type Stamp = (SystemTime, u64);

/// A directory with `groups`, `profiles` and a directory for each kind of template. Shared by HTTP and gRPC.
pub struct Store {
    root: PathBuf,
    groups: Mutex<Known>,
}

/// The groups as they were read last.
#[derive(Default)]
struct Known {
    files: HashMap<PathBuf, (Stamp, Arc<Group>)>,
    /// When that was, and how long it took.
    read: Option<(Instant, Duration)>,
    groups: Arc<[Arc<Group>]>,
    errors: Vec<String>,
}

/// Of ten thousand groups a look at every file takes long, and a rack asks all at once: the files are looked at
/// again only after this many times as long.
const REST: u32 = 10;
/// So few are looked at for every request, so that an edit counts at once.
const FEW: usize = 500;

impl Store {
    /// Nothing is read yet, and the directory need not be there.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), groups: Mutex::default() }
    }

    /// The directory, in which Windlass keeps further files beside Matchbox's.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// All groups that can be read, and what is wrong with the others.
    pub fn groups(&self) -> (Arc<[Arc<Group>]>, Vec<String>) {
        let mut known = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh =
            known.read.is_some_and(|(when, took)| when.elapsed() < took.saturating_mul(REST));
        if !fresh || known.files.len() + known.errors.len() <= FEW {
            let start = Instant::now();
            self.look(&mut known);
            known.read = Some((Instant::now(), start.elapsed()));
        }
        (known.groups.clone(), known.errors.clone())
    }

    fn look(&self, known: &mut Known) {
        let mut groups = Vec::new();
        let mut seen = HashMap::new();
        known.errors.clear();
        for path in self.entries("groups") {
            match self.group(&path, known.files.remove(&path)) {
                Ok(entry) => {
                    groups.push(entry.1.clone());
                    seen.insert(path, entry);
                }
                Err(error) => known.errors.push(error.to_string()),
            }
        }
        known.files = seen;
        known.groups = groups.into();
    }

    fn group(
        &self,
        path: &Path,
        known: Option<(Stamp, Arc<Group>)>,
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
        if let Some(entry) = known.filter(|(old, _)| *old == stamp) {
            return Ok(entry);
        }
        let text = read(path).map_err(failed)?;
        let group = Group::parse(&text).map_err(|reason| StoreError::Invalid {
            what: "group",
            name: name(),
            path: path.to_owned(),
            reason,
        })?;
        Ok((stamp, Arc::new(group)))
    }

    /// The JSON files of a directory, by name.
    pub fn entries(&self, directory: &str) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.root.join(directory)) else { return Vec::new() };
        let mut paths: Vec<PathBuf> =
            entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
        paths.sort();
        paths
    }

    /// Reads one group, whatever its selectors.
    pub fn group_by_id(&self, id: &str) -> Result<Group, StoreError> {
        let (path, text) = self.file("group", "groups", &format!("{id}.json"), id)?;
        Group::parse(&text).map_err(|reason| StoreError::Invalid {
            what: "group",
            name: id.to_owned(),
            path,
            reason,
        })
    }

    /// All profiles that can be read, and what is wrong with the others.
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

    /// The machine's group, as [`select`] chooses it; an error if none matches. Groups that cannot be read are logged
    /// and left out.
    pub fn select(&self, labels: &Labels) -> Result<Arc<Group>, StoreError> {
        let (groups, errors) = self.groups();
        for error in errors {
            tracing::warn!(error, "skipping a group");
        }
        select(&groups, labels)
            .cloned()
            .ok_or_else(|| StoreError::NoGroup { labels: labels.clone() })
    }

    /// Reads one profile.
    pub fn profile(&self, id: &str) -> Result<Profile, StoreError> {
        let (path, text) = self.file("profile", "profiles", &format!("{id}.json"), id)?;
        let invalid =
            |reason| StoreError::Invalid { what: "profile", name: id.to_owned(), path, reason };
        let profile: Profile =
            serde_json::from_slice(&text).map_err(|error| invalid(error.to_string()))?;
        Ok(profile)
    }

    /// The text of a template.
    pub fn template(&self, kind: Kind, name: &str) -> Result<String, StoreError> {
        let directory = kind.directory();
        let (path, text) = self.file(directory, directory, name, name)?;
        String::from_utf8(text).map_err(|error| StoreError::Invalid {
            what: directory,
            name: name.to_owned(),
            path,
            reason: error.to_string(),
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
