//! The levels of the Pod Security Standards, and their selection by the labels of a namespace.

use api_meta::{FieldError, Path, Tree as _};
use serde::Deserialize;
use serde_json::Value;

use super::checks::{BASELINE, Check, RESTRICTED, Violation};

/// A level of the Pod Security Standards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Privileged,
    Baseline,
    Restricted,
}

impl Level {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "privileged" => Some(Self::Privileged),
            "baseline" => Some(Self::Baseline),
            "restricted" => Some(Self::Restricted),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Privileged => "privileged",
            Self::Baseline => "baseline",
            Self::Restricted => "restricted",
        }
    }
}

/// A level, as of one minor version of Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LevelVersion {
    pub(super) level: Level,
    /// The minor version; `None` for the latest.
    pub(super) minor: Option<u32>,
}

const PRIVILEGED: LevelVersion = LevelVersion { level: Level::Privileged, minor: None };

impl std::fmt::Display for LevelVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.minor {
            None => write!(f, "{}:latest", self.level.name()),
            Some(minor) => write!(f, "{}:v1.{minor}", self.level.name()),
        }
    }
}

fn version(text: &str) -> Option<Option<u32>> {
    if text == "latest" {
        return Some(None);
    }
    let minor = text.strip_prefix("v1.")?;
    let plain =
        minor == "0" || !minor.starts_with('0') && minor.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| minor.parse().ok()).flatten().map(Some)
}

/// The levels of a namespace, by mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    pub(super) enforce: LevelVersion,
    pub(super) audit: LevelVersion,
    pub(super) warn: LevelVersion,
}

/// The levels and versions of a configuration file; empty if not set.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(super) struct Defaults {
    enforce: String,
    enforce_version: String,
    audit: String,
    audit_version: String,
    warn: String,
    warn_version: String,
}

impl Defaults {
    fn get(&self, key: &str) -> Option<&str> {
        let text = match key {
            "enforce" => &self.enforce,
            "enforce-version" => &self.enforce_version,
            "audit" => &self.audit,
            "audit-version" => &self.audit_version,
            "warn" => &self.warn,
            _ => &self.warn_version,
        };
        Some(text.as_str()).filter(|text| !text.is_empty())
    }
}

const PREFIX: &str = "pod-security.kubernetes.io/";

/// The modes, each with the name of its version, and its level for a label that cannot be parsed: the strictest for
/// `enforce`.
const MODES: [(&str, &str, Level); 3] = [
    ("enforce", "enforce-version", Level::Restricted),
    ("audit", "audit-version", Level::Privileged),
    ("warn", "warn-version", Level::Privileged),
];

impl Policy {
    /// A policy that restricts nothing.
    pub(super) const NONE: Self = Self { enforce: PRIVILEGED, audit: PRIVILEGED, warn: PRIVILEGED };

    fn mode(&mut self, mode: &str) -> &mut LevelVersion {
        match mode {
            "enforce" => &mut self.enforce,
            "audit" => &mut self.audit,
            _ => &mut self.warn,
        }
    }

    /// Sets levels and versions from the values that `read` returns by name (`enforce`, `enforce-version`). Calls
    /// `wrong` with the name, the value and the requirement for each value that cannot be parsed.
    fn take<'v>(
        mut self,
        read: impl Fn(&str) -> Option<&'v str>,
        mut wrong: impl FnMut(&str, &str, &str),
    ) -> Self {
        for (mode, key, otherwise) in MODES {
            let found = self.mode(mode);
            if let Some(text) = read(mode) {
                found.level = Level::parse(text).unwrap_or_else(|| {
                    wrong(mode, text, "must be one of privileged, baseline, restricted");
                    otherwise
                });
            }
            if let Some(text) = read(key) {
                found.minor = version(text).unwrap_or_else(|| {
                    wrong(key, text, "must be \"latest\" or \"v1.x\"");
                    None
                });
            }
        }
        self
    }

    /// Reads the defaults of a configuration file.
    pub(super) fn of_configuration(defaults: &Defaults) -> (Self, Vec<FieldError>) {
        let mut errors = Vec::new();
        let policy = Self::NONE.take(
            |key| defaults.get(key),
            |key, text, must| {
                errors.push(FieldError::invalid(&Path::new("defaults").child(key), text, must));
            },
        );
        (policy, errors)
    }

    /// Applies a namespace's labels to these defaults.
    pub(super) fn with_labels(self, namespace: &Value) -> (Self, Vec<FieldError>) {
        // Most namespaces have none of these labels.
        let labels: Vec<(&str, &str)> = namespace
            .pairs("metadata.labels")
            .filter_map(|(name, value)| Some((name.strip_prefix(PREFIX)?, value.as_str()?)))
            .collect();
        let mut errors = Vec::new();
        let policy = self.take(
            |key| labels.iter().find(|(name, _)| *name == key).map(|(_, value)| *value),
            |key, text, must| {
                let at = Path::new("metadata").child("labels").key(&format!("{PREFIX}{key}"));
                errors.push(FieldError::invalid(&at, text, must));
            },
        );
        (policy, errors)
    }
}

/// Returns the violations of a level in upstream's order: baseline checks first, each group by name.
pub(super) fn violations(level: LevelVersion, pod: &Value) -> Vec<Violation> {
    if level.level == Level::Privileged {
        return Vec::new();
    }
    let minor = level.minor.unwrap_or(u32::MAX);
    let restricted: &[Check] = if level.level == Level::Restricted { RESTRICTED } else { &[] };
    let replaced = |check: &&Check| {
        !restricted.iter().any(|r| minor >= r.since && r.replaces == Some(check.name))
    };
    BASELINE
        .iter()
        .filter(replaced)
        .chain(restricted)
        .filter(|check| minor >= check.since)
        .filter_map(|check| (check.find)(pod, minor))
        .collect()
}
