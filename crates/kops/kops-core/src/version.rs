//! Versions of Kubernetes and kOps, and version ranges in channels.

use std::{cmp::Ordering, fmt, str::FromStr};

use crate::error::Error;

/// A semantic version. Pre-releases sort before the release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The major version.
    pub major: u64,
    /// The minor version.
    pub minor: u64,
    /// The patch version.
    pub patch: u64,
    /// The pre-release, such as `rc.1` in `1.36.0-rc.1`; empty for a release.
    pub pre: String,
}

impl Version {
    /// Returns the first release of a minor version.
    pub fn release(major: u64, minor: u64) -> Self {
        Self { major, minor, patch: 0, pre: String::new() }
    }

    /// Reports whether the version is before a minor version of Kubernetes 1. Pre-releases count as the release.
    pub(crate) fn is_before(&self, minor: u64) -> bool {
        (self.major, self.minor) < (1, minor)
    }
}

impl FromStr for Version {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || Error::value("version", text, "is not a version such as 1.36.2 or v1.36.2");
        let plain = text.trim().trim_start_matches('v');
        let plain = plain.split_once('+').map_or(plain, |(version, _)| version);
        let (numbers, pre) = plain.split_once('-').unwrap_or((plain, ""));
        let mut parts = numbers.split('.').map(|part| part.parse::<u64>().map_err(|_| wrong()));
        let major = parts.next().ok_or_else(wrong)??;
        let minor = parts.next().ok_or_else(wrong)??;
        let patch = parts.next().transpose()?.unwrap_or(0);
        if parts.next().is_some() {
            return Err(wrong());
        }
        Ok(Self { major, minor, patch, pre: pre.to_owned() })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)?;
        if self.pre.is_empty() { Ok(()) } else { write!(f, "-{}", self.pre) }
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        let numbers = |v: &Self| (v.major, v.minor, v.patch);
        numbers(self).cmp(&numbers(other)).then_with(|| {
            match (self.pre.is_empty(), other.pre.is_empty()) {
                (true, true) => Ordering::Equal,
                (true, false) => Ordering::Greater,
                (false, true) => Ordering::Less,
                (false, false) => identifiers(&self.pre, &other.pre),
            }
        })
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Compares pre-release identifiers. Numbers compare numerically and sort before words; a prefix sorts first.
fn identifiers(a: &str, b: &str) -> Ordering {
    let (a, b): (Vec<_>, Vec<_>) = (a.split('.').collect(), b.split('.').collect());
    for (a, b) in a.iter().zip(&b) {
        let order = match (a.parse::<u64>(), b.parse::<u64>()) {
            (Ok(a), Ok(b)) => a.cmp(&b),
            (Ok(_), Err(_)) => Ordering::Less,
            (Err(_), Ok(_)) => Ordering::Greater,
            (Err(_), Err(_)) => a.cmp(b),
        };
        if order.is_ne() {
            return order;
        }
    }
    a.len().cmp(&b.len())
}

/// A version range such as `>=1.27.0 <1.32.0`, with alternatives separated by `||`.
#[derive(Clone, Debug)]
pub struct VersionRange(Vec<Vec<(String, Version)>>);

impl FromStr for VersionRange {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let bound = |part: &str| {
            let at = part.find(|c: char| c.is_ascii_digit() || c == 'v').unwrap_or(part.len());
            let (operator, version) = part.split_at(at);
            let known = ["", "=", "==", ">", ">=", "<", "<=", "!", "!="].contains(&operator);
            match (known, version.parse()) {
                (true, Ok(version)) => Ok((operator.to_owned(), version)),
                _ => Err(Error::value("range", text, "is not a range such as >=1.27.0 <1.32.0")),
            }
        };
        let alternatives = text.split("||");
        alternatives
            .map(|all| all.split_whitespace().map(bound).collect())
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

impl VersionRange {
    /// Reports whether a version is in the range: all parts of one alternative hold.
    pub fn holds(&self, version: &Version) -> bool {
        self.0.iter().any(|all| {
            all.iter().all(|(operator, bound)| match operator.as_str() {
                ">" => version > bound,
                ">=" => version >= bound,
                "<" => version < bound,
                "<=" => version <= bound,
                "!" | "!=" => version != bound,
                _ => version == bound,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> Version {
        text.parse().unwrap_or_else(|e| panic!("{e}"))
    }

    #[test]
    fn orders_versions_as_semver() {
        let order = [
            "1.9",
            "v1.10.0-alpha.1",
            "1.10.0-alpha.beta",
            "1.10.0-rc.2",
            "1.10.0-rc.10",
            "1.10.0",
            "1.10.1+x",
        ];
        for pair in order.windows(2) {
            assert!(version(pair[0]) < version(pair[1]), "{pair:?}");
        }
        for wrong in ["", "1", "a.b", "1.2.3.4", "1.-2", "https://x/1.2.3"] {
            assert!(wrong.parse::<Version>().is_err(), "{wrong}");
        }
        assert_eq!(version(" v1.36.0-rc.1 ").to_string(), "1.36.0-rc.1");
    }

    #[test]
    fn range_contains_versions_within_bounds() {
        for (range, holds, not) in [
            (">=1.27.0 <1.32.0", "1.31.9", "1.32.0"),
            ("<1.16.0-alpha.1", "1.15.0", "1.16.0-alpha.1"),
            ("1.2.0 || >2.0.0", "1.2.0", "1.2.1"),
        ] {
            let parsed: VersionRange = range.parse().unwrap();
            assert!(parsed.holds(&version(holds)) && !parsed.holds(&version(not)), "{range}");
        }
        assert!("~1.2".parse::<VersionRange>().is_err());
    }
}
