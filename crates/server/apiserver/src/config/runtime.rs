//! Parses `--runtime-config`, which enables and disables built-in APIs.

use std::collections::BTreeMap;

/// The APIs that the flag enables and disables. By default, all APIs are served but those on demand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeConfig {
    /// The settings of all versions of a stage.
    stages: BTreeMap<Stage, bool>,
    versions: BTreeMap<(String, String), bool>,
    resources: BTreeMap<(String, String, String), bool>,
}

/// The stage of a version, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Stable,
    Beta,
    Alpha,
}

impl Stage {
    fn of(version: &str) -> Self {
        if version.contains("alpha") {
            Self::Alpha
        } else if version.contains("beta") {
            Self::Beta
        } else {
            Self::Stable
        }
    }
}

/// The keys that set all versions of some stages. A later key overrides an earlier one.
const STAGES: [(&str, &[Stage]); 4] = [
    ("api/all", &[Stage::Stable, Stage::Beta, Stage::Alpha]),
    ("api/ga", &[Stage::Stable]),
    ("api/beta", &[Stage::Beta]),
    ("api/alpha", &[Stage::Alpha]),
];

/// The gate of coordinated leader election.
pub(crate) const COORDINATION_GATE: &str = "CoordinatedLeaderElection";

/// Returns the feature gate without which a resource is not served. As upstream, other kinds on demand are served
/// without the gate of their controllers, which then ignore them.
pub(crate) fn gate_of(group: &str, resource: &str) -> Option<&'static str> {
    match (group, resource) {
        ("certificates.k8s.io", "clustertrustbundles") => Some("ClusterTrustBundle"),
        ("certificates.k8s.io", "podcertificaterequests") => Some("PodCertificateRequest"),
        ("internal.apiserver.k8s.io", "storageversions") => Some("StorageVersionAPI"),
        ("storagemigration.k8s.io", "storageversionmigrations") => Some("StorageVersionMigrator"),
        ("scheduling.k8s.io", "podgroups" | "workloads") => Some("GenericWorkload"),
        _ => None,
    }
}

/// The error for an invalid flag, in upstream's words.
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
}

/// Parses a boolean like Go's `strconv.ParseBool`. An empty value is true.
fn switch(key: &str, value: &str) -> Result<bool, RuntimeConfigError> {
    let wrong = || RuntimeConfigError::Bool { key: key.to_owned(), value: value.to_owned() };
    if value.is_empty() { Ok(true) } else { api_meta::go_bool(value).ok_or_else(wrong) }
}

impl RuntimeConfig {
    /// Parses the flag's pairs. The last pair of a key counts.
    pub fn parse(pairs: &[String]) -> Result<Self, RuntimeConfigError> {
        let pairs = pairs.iter().map(|pair| pair.split_once('=').unwrap_or((pair.as_str(), "")));
        let pairs = pairs.map(|(key, value)| (key.trim(), value.trim()));
        let mut pairs: BTreeMap<&str, &str> = pairs.filter(|(key, _)| !key.is_empty()).collect();
        if pairs.len() == 1 && pairs.get("api/all") == Some(&"false") {
            return Err(RuntimeConfigError::Nothing);
        }
        let mut config = Self::default();
        for (key, stages) in STAGES {
            let on = match pairs.remove(key) {
                None => continue,
                Some("true") => true,
                Some("false") => false,
                Some(value) => {
                    let (key, value) = (key.to_owned(), value.to_owned());
                    return Err(RuntimeConfigError::Switch { key, value });
                }
            };
            config.stages.extend(stages.iter().map(|stage| (*stage, on)));
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

    /// Reports whether the flag serves a resource. `on_demand` is `true` if it is not served by default.
    pub(crate) fn serves(
        &self,
        group: &str,
        version: &str,
        resource: &str,
        on_demand: bool,
    ) -> bool {
        let stage = self.stages.get(&Stage::of(version));
        let version = (group.to_owned(), version.to_owned());
        let named = (version.0.clone(), version.1.clone(), resource.to_owned());
        let setting = self.resources.get(&named).or_else(|| self.versions.get(&version));
        setting.or(stage).copied().unwrap_or(!on_demand)
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
        if !served {
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
                .map(|(group, version, resource)| config.serves(group, version, resource, false))
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
    }

    #[test]
    fn serves_versions_on_demand() {
        let served = |flag: &str| {
            let config = parsed(flag).unwrap();
            [
                ("v1", "deviceclasses"),
                ("v1beta1", "deviceclasses"),
                ("v1alpha3", "devicetaintrules"),
            ]
            .map(|(version, plural)| {
                let on_demand = version != "v1";
                config.serves("resource.k8s.io", version, plural, on_demand)
            })
        };
        for (flag, expected) in [
            ("", [true, false, false]),
            ("api/all=true", [true; 3]),
            ("api/beta=true", [true, true, false]),
            ("api/alpha=true", [true, false, true]),
            ("api/all=true,api/beta=false", [true, false, true]),
            ("api/all=false,api/beta=true", [false, true, false]),
            ("resource.k8s.io/v1beta1=true", [true, true, false]),
            ("resource.k8s.io/v1beta1/deviceclasses=true", [true, true, false]),
            ("resource.k8s.io/v1beta1/resourceclaims=true", [true, false, false]),
            ("api/beta=true,resource.k8s.io/v1beta1/deviceclasses=false", [true, false, false]),
            ("resource.k8s.io/v1alpha3=true,resource.k8s.io/v1=false", [false, false, true]),
        ] {
            assert_eq!(served(flag), expected, "{flag}");
        }
        assert_eq!(gate_of("scheduling.k8s.io", "workloads"), Some("GenericWorkload"));
        assert_eq!(gate_of("resource.k8s.io", "deviceclasses"), None);
    }
}
