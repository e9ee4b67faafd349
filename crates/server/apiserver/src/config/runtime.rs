//! Parses `--runtime-config`, which enables and disables built-in APIs.

use std::collections::BTreeMap;

/// The APIs that the flag enables and disables. By default all available APIs are served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeConfig {
    /// `true` if APIs that are not named are disabled.
    off: bool,
    versions: BTreeMap<(String, String), bool>,
    resources: BTreeMap<(String, String, String), bool>,
}

/// The error for an invalid flag, in upstream's words except for APIs that do not exist here.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuntimeConfigError {
    #[error("invalid runtime-config with only api/all=false")]
    Nothing,
    #[error("runtime-config invalid key {0}")]
    Key(String),
    #[error("unknown api groups {0}")]
    Groups(String),
    #[error("group version {0} that has not been registered")]
    Version(String),
    #[error("invalid value {key}={value}")]
    Switch { key: String, value: String },
    #[error(
        "invalid value of {key}: {value}, err: strconv.ParseBool: parsing {value:?}: invalid syntax"
    )]
    Bool { key: String, value: String },
    #[error(
        "--runtime-config={0}=true is not supported: only the APIs that upstream serves by default \
         are available; start without it"
    )]
    NotHere(String),
}

/// Parses a boolean like Go's `strconv.ParseBool`. An empty value is true.
fn switch(key: &str, value: &str) -> Result<bool, RuntimeConfigError> {
    let wrong = || RuntimeConfigError::Bool { key: key.to_owned(), value: value.to_owned() };
    if value.is_empty() { Ok(true) } else { api_meta::go_bool(value).ok_or_else(wrong) }
}

/// The groups and versions that upstream has and serves only on demand. They do not exist here.
const ON_DEMAND: [(&str, &[&str]); 9] = [
    ("admissionregistration.k8s.io", &["v1alpha1", "v1beta1"]),
    ("certificates.k8s.io", &["v1alpha1", "v1beta1"]),
    ("coordination.k8s.io", &["v1alpha2", "v1beta1"]),
    ("internal.apiserver.k8s.io", &["v1alpha1"]),
    ("networking.k8s.io", &["v1beta1"]),
    ("resource.k8s.io", &["v1alpha3", "v1beta1", "v1beta2"]),
    ("scheduling.k8s.io", &["v1alpha2"]),
    ("storage.k8s.io", &["v1beta1"]),
    ("storagemigration.k8s.io", &["v1beta1"]),
];

fn is_on_demand(group: &str, version: &str) -> bool {
    ON_DEMAND.iter().any(|(g, versions)| *g == group && versions.contains(&version))
}

impl RuntimeConfig {
    /// Parses the flag's pairs. The last pair of a key counts.
    pub fn parse(pairs: &[String]) -> Result<Self, RuntimeConfigError> {
        let pairs = pairs.iter().map(|pair| pair.split_once('=').unwrap_or((pair.as_str(), "")));
        let mut pairs: BTreeMap<&str, &str> =
            pairs.map(|(key, value)| (key.trim(), value.trim())).collect();
        if pairs.len() == 1 && pairs.get("api/all") == Some(&"false") {
            return Err(RuntimeConfigError::Nothing);
        }
        let mut config = Self::default();
        for (key, stable) in
            [("api/all", true), ("api/ga", true), ("api/beta", false), ("api/alpha", false)]
        {
            match pairs.remove(key) {
                None => {}
                Some("true") if key == "api/ga" => config.off = false,
                Some("true") => return Err(RuntimeConfigError::NotHere(key.to_owned())),
                Some("false") => config.off |= stable,
                Some(value) => {
                    let (key, value) = (key.to_owned(), value.to_owned());
                    return Err(RuntimeConfigError::Switch { key, value });
                }
            }
        }
        check_groups(pairs.keys())?;
        for (key, value) in pairs {
            config.set(key, value)?;
        }
        Ok(config)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), RuntimeConfigError> {
        let on = switch(key, value)?;
        let (group, version, resource) = split(key)?;
        let (group, version) = (group.to_owned(), version.to_owned());
        let here = |r: &api_schema::ApiResource| r.group == group && r.version == version;
        if on && is_on_demand(&group, &version) {
            return Err(RuntimeConfigError::NotHere(key.to_owned()));
        }
        if on && !api_schema::resources().iter().any(here) {
            return Err(RuntimeConfigError::Version(format!("{group}/{version}")));
        }
        match resource {
            None => drop(self.versions.insert((group, version), on)),
            Some(resource) => {
                self.resources.insert((group, version, resource.to_owned()), on);
            }
        }
        Ok(())
    }

    pub(crate) fn serves(&self, group: &str, version: &str, resource: &str) -> bool {
        let version = (group.to_owned(), version.to_owned());
        let named = (version.0.clone(), version.1.clone(), resource.to_owned());
        let setting = self.resources.get(&named).or_else(|| self.versions.get(&version));
        setting.copied().unwrap_or(!self.off)
    }
}

/// Splits a key into group, version and, if present, resource. `api/v1` names the core group.
fn split(key: &str) -> Result<(&str, &str, Option<&str>), RuntimeConfigError> {
    let parts: Vec<&str> = key.split('/').collect();
    match parts.as_slice() {
        ["api", "v1"] => Ok(("", "v1", None)),
        ["api", "v1", resource] => Ok(("", "v1", Some(resource))),
        [group, version] if !version.is_empty() => Ok((group, version, None)),
        [group, version, resource] if !version.is_empty() => Ok((group, version, Some(resource))),
        _ => Err(RuntimeConfigError::Key(key.to_owned())),
    }
}

fn check_groups<'a>(keys: impl Iterator<Item = &'a &'a str>) -> Result<(), RuntimeConfigError> {
    let mut unknown = Vec::new();
    for key in keys {
        let (group, version, _) = split(key)?;
        let served = api_schema::resources().iter().any(|resource| resource.group == group);
        if !served && !ON_DEMAND.iter().any(|(known, _)| *known == group) {
            unknown.push(format!("{group}/{version}"));
        }
    }
    unknown.sort_unstable();
    unknown.dedup();
    if unknown.is_empty() { Ok(()) } else { Err(RuntimeConfigError::Groups(unknown.join(","))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(flag: &str) -> Result<RuntimeConfig, RuntimeConfigError> {
        RuntimeConfig::parse(&flag.split(',').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn enables_and_disables_versions_and_resources() {
        let served = |flag: &str| {
            let config = parsed(flag).unwrap();
            [("", "v1", "pods"), ("batch", "v1", "jobs"), ("batch", "v1", "cronjobs")]
                .map(|(group, version, resource)| config.serves(group, version, resource))
        };
        for flag in ["api/ga=true", "api/beta=false,api/alpha=false", "batch/v1", "batch/v2=false"]
        {
            assert_eq!(served(flag), [true; 3], "{flag}");
        }
        assert_eq!(served("batch/v1=false"), [true, false, false]);
        assert_eq!(served("batch/v1/cronjobs=0"), [true, true, false]);
        assert_eq!(served("batch/v1=false,batch/v1/jobs=true"), [true, true, false]);
        assert_eq!(served("api/all=false,/v1=true"), [true, false, false]);
        assert_eq!(served("api/all=false,api/v1"), [true, false, false]);
        assert_eq!(served("api/v1/pods=false"), [false, true, true]);
        assert_eq!(served("api/ga=false,batch/v1=true"), [false, true, true]);
        assert_eq!(served("api/all=false,api/ga=true"), [true; 3]);
        assert_eq!(served("storagemigration.k8s.io/v1beta1=false"), [true; 3]);
    }

    #[test]
    fn rejects_invalid_flags_in_upstreams_words() {
        for (flag, told) in [
            ("api/all=false", "invalid runtime-config with only api/all=false"),
            ("api/ga=maybe", "invalid value api/ga=maybe"),
            ("v1=true", "runtime-config invalid key v1"),
            ("a/b/c/d=true", "runtime-config invalid key a/b/c/d"),
            ("api/v2=true", "unknown api groups api/v2"),
            ("example.com/v1=false,a.b/v2=true", "unknown api groups a.b/v2,example.com/v1"),
            ("batch/v1beta1=true", "group version batch/v1beta1 that has not been registered"),
            (
                "batch/v1=no",
                "invalid value of batch/v1: no, err: strconv.ParseBool: parsing \"no\": invalid syntax",
            ),
        ] {
            assert_eq!(parsed(flag).unwrap_err().to_string(), told);
        }
        for flag in [
            "api/all=true",
            "api/beta=true",
            "api/alpha=true",
            "resource.k8s.io/v1beta1=true",
            "storagemigration.k8s.io/v1beta1/storageversionmigrations=true",
        ] {
            let told = parsed(flag).unwrap_err().to_string();
            assert!(
                told.starts_with(&format!("--runtime-config={flag} is not supported")),
                "{told}"
            );
        }
    }
}
