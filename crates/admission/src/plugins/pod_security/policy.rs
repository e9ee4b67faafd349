//! The levels of the Pod Security Standards, and what a namespace's labels say of them.

use api_meta::{FieldError, Path};
use serde_json::Value;

use super::checks::{BASELINE, Check, RESTRICTED, Violation};

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

/// A level as it was in one minor version of Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LevelVersion {
    pub(super) level: Level,
    /// The minor version; `None` for the latest.
    pub(super) minor: Option<u32>,
}

pub(super) const PRIVILEGED: LevelVersion = LevelVersion { level: Level::Privileged, minor: None };

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

/// What a namespace asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    pub(super) enforce: LevelVersion,
    pub(super) audit: LevelVersion,
    pub(super) warn: LevelVersion,
}

const PREFIX: &str = "pod-security.kubernetes.io/";

/// Reads the labels. What cannot be read is an error, and counts as the strictest where it would be enforced.
pub(super) fn policy_of(namespace: &Value) -> (Policy, Vec<FieldError>) {
    let labels = &namespace["metadata"]["labels"];
    let mut errors = Vec::new();
    let at = |key: &str| Path::new("metadata").child("labels").key(key);
    let mut read = |mode: &str, otherwise: Level| {
        let level_key = format!("{PREFIX}{mode}");
        let version_key = format!("{level_key}-version");
        let mut found = PRIVILEGED;
        if let Some(text) = labels[&level_key].as_str() {
            found.level = Level::parse(text).unwrap_or_else(|| {
                let wanted = "must be one of privileged, baseline, restricted";
                errors.push(FieldError::invalid(&at(&level_key), text, wanted));
                otherwise
            });
        }
        if let Some(text) = labels[&version_key].as_str() {
            found.minor = version(text).unwrap_or_else(|| {
                errors.push(FieldError::invalid(
                    &at(&version_key),
                    text,
                    "must be \"latest\" or \"v1.x\"",
                ));
                None
            });
        }
        found
    };
    let policy = Policy {
        enforce: read("enforce", Level::Restricted),
        audit: read("audit", Level::Privileged),
        warn: read("warn", Level::Privileged),
    };
    (policy, errors)
}

/// What a Pod does against a level, in upstream's order: the baseline's checks first, each set by its name.
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
