//! Semantic versions (semver.org), with strict and lenient parsing.

use std::{cmp::Ordering, fmt};

use crate::error::EvalError;

/// A semantic version. A pre-release precedes its release, and build metadata is ignored in comparisons.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Version {
    pub(crate) major: u64,
    pub(crate) minor: u64,
    pub(crate) patch: u64,
    pre: Vec<String>,
    build: Vec<String>,
}

impl Version {
    /// Parses a version such as `1.2.3-alpha.1+build`.
    ///
    /// # Errors
    ///
    /// Returns an error for other forms, such as `v1.2.3` and `1.2`.
    pub fn parse(text: &str) -> Result<Self, EvalError> {
        if text.is_empty() {
            return Err(EvalError::new("Version string empty"));
        }
        let (rest, build) = text.split_once('+').map_or((text, None), |(a, b)| (a, Some(b)));
        let (core, pre) = rest.split_once('-').map_or((rest, None), |(a, b)| (a, Some(b)));
        let mut parts = core.splitn(3, '.');
        let (Some(major), Some(minor), Some(patch)) = (parts.next(), parts.next(), parts.next())
        else {
            return Err(EvalError::new("No Major.Minor.Patch elements found"));
        };
        let list = |text: Option<&str>| -> Vec<String> {
            text.into_iter().flat_map(|t| t.split('.')).map(str::to_owned).collect()
        };
        let version = Self {
            major: number(major)?,
            minor: number(minor)?,
            patch: number(patch)?,
            pre: list(pre),
            build: list(build),
        };
        for part in version.pre.iter().chain(&version.build) {
            if part.is_empty() || !part.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
                return Err(EvalError::Failed(format!(
                    "Invalid character(s) found in prerelease {part:?}"
                )));
            }
        }
        if let Some(part) =
            version.pre.iter().find(|p| numeric(p).is_some() && p.len() > 1 && p.starts_with('0'))
        {
            return Err(EvalError::Failed(format!(
                "Numeric PreRelease version must not contain leading zeroes {part:?}"
            )));
        }
        Ok(version)
    }

    /// Parses versions such as `v1.2` and `01.2.3`: a leading `v` and leading zeros are dropped, missing parts are
    /// zero.
    pub(crate) fn normalized(text: &str) -> Result<Self, EvalError> {
        let text = text.trim().strip_prefix('v').unwrap_or(text.trim());
        let core_end = text.find(['-', '+']).unwrap_or(text.len());
        let (core, rest) = text.split_at(core_end);
        let mut parts: Vec<&str> = core.split('.').collect();
        if parts.len() > 3 {
            return Self::parse(text);
        }
        if parts.len() < 3 && !rest.is_empty() {
            return Err(EvalError::new("short version cannot contain PreRelease/Build meta data"));
        }
        parts.resize(3, "0");
        let trimmed: Vec<&str> = parts
            .into_iter()
            .map(|part| match part.trim_start_matches('0') {
                "" if !part.is_empty() => "0",
                trimmed => trimmed,
            })
            .collect();
        Self::parse(&format!("{}{rest}", trimmed.join(".")))
    }
}

fn numeric(part: &str) -> Option<u64> {
    if part.bytes().all(|b| b.is_ascii_digit()) { part.parse().ok() } else { None }
}

fn number(part: &str) -> Result<u64, EvalError> {
    if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
        return Err(EvalError::Failed(format!(
            "Invalid character(s) found in version number {part:?}"
        )));
    }
    if part.len() > 1 && part.starts_with('0') {
        return Err(EvalError::Failed(format!(
            "Version number must not contain leading zeroes {part:?}"
        )));
    }
    part.parse().map_err(|_| EvalError::Failed(format!("version number {part:?} is too large")))
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        let core = |v: &Self| (v.major, v.minor, v.patch);
        core(self).cmp(&core(other)).then_with(|| {
            match (self.pre.is_empty(), other.pre.is_empty()) {
                (true, true) => Ordering::Equal,
                // A pre-release precedes its release.
                (true, false) => Ordering::Greater,
                (false, true) => Ordering::Less,
                (false, false) => pre(&self.pre, &other.pre),
            }
        })
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Compares pre-releases: numbers by value and before words, words as strings, and a prefix before the longer list.
fn pre(a: &[String], b: &[String]) -> Ordering {
    for (a, b) in a.iter().zip(b) {
        let order = match (numeric(a), numeric(b)) {
            (Some(a), Some(b)) => a.cmp(&b),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => a.cmp(b),
        };
        if order != Ordering::Equal {
            return order;
        }
    }
    a.len().cmp(&b.len())
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)?;
        if !self.pre.is_empty() {
            write!(f, "-{}", self.pre.join("."))?;
        }
        if !self.build.is_empty() {
            write!(f, "+{}", self.build.join("."))?;
        }
        Ok(())
    }
}
