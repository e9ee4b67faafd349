//! Feature gates: upstream's table of v1.36, and the settings of `--feature-gates`.
//!
//! A gate that would have to act and cannot stops the start: a feature that is not here cannot be switched on, and one
//! that is always on cannot be switched off.

use std::{collections::BTreeMap, sync::LazyLock};

use api_meta::{go_bool, go_quote};

/// The stage of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Off by default, and may be removed.
    Alpha,
    /// Mostly on by default.
    Beta,
    /// Generally available.
    Stable,
    /// Will be removed.
    Deprecated,
}

impl Stage {
    /// Returns the value of the label `stage` of `kubernetes_feature_enabled`.
    pub fn label(self) -> &'static str {
        match self {
            Self::Alpha => "ALPHA",
            Self::Beta => "BETA",
            Self::Stable => "",
            Self::Deprecated => "DEPRECATED",
        }
    }
}

/// The state of a feature in this project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Support {
    /// The gate switches the feature.
    Switched,
    /// The feature is always on.
    Here,
    /// The feature does not exist.
    Lacking,
    /// Nothing can be observed of the feature.
    Free,
}

/// A feature gate of upstream.
#[derive(Clone, Copy, Debug)]
struct Gate {
    name: &'static str,
    stage: Stage,
    default: bool,
    locked: bool,
    support: Support,
}

impl Gate {
    fn parse(line: &'static str) -> Option<Self> {
        let mut fields = line.split('\t');
        let mut next = || fields.next();
        let (name, stage, default, lock, support) = (next()?, next()?, next()?, next()?, next()?);
        let stage = match stage {
            "ALPHA" => Stage::Alpha,
            "BETA" => Stage::Beta,
            "DEPRECATED" => Stage::Deprecated,
            _ => Stage::Stable,
        };
        let support = match support {
            "switch" => Support::Switched,
            "here" => Support::Here,
            "free" => Support::Free,
            _ => Support::Lacking,
        };
        Some(Self { name, stage, default: default == "true", locked: lock == "locked", support })
    }

    /// Reports whether the gate can have this value here. A value that changes nothing is possible.
    fn allows(&self, on: bool) -> bool {
        match self.support {
            Support::Switched | Support::Free => true,
            Support::Here => on,
            Support::Lacking => !on,
        }
    }

    fn is_on_by_default(&self) -> bool {
        self.default && self.support != Support::Lacking
    }
}

/// The table of gates, by name.
static GATES: LazyLock<BTreeMap<&str, Gate>> = LazyLock::new(|| {
    let lines = include_str!("../facts/features.tsv").lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(Gate::parse).map(|gate| (gate.name, gate)).collect()
});

/// The gates that set all features of a stage without a setting of their own.
const GROUPS: [(&str, Stage); 2] = [("AllAlpha", Stage::Alpha), ("AllBeta", Stage::Beta)];

/// Features that have no effect without another one.
const DEPENDENCIES: [(&str, &str); 1] = [("GangScheduling", "GenericWorkload")];

/// The error for `--feature-gates`, in upstream's words except for features that cannot be switched here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FeatureGateError {
    #[error("missing bool value for {0}")]
    Missing(String),
    #[error(
        "invalid value of {name}: {value}, err: strconv.ParseBool: parsing {}: invalid syntax",
        go_quote(value)
    )]
    Bool { name: String, value: String },
    #[error("component not registered: {0}")]
    Component(String),
    #[error("unrecognized feature gate: {0}")]
    Unknown(String),
    #[error("cannot set feature gate {name} to {value}, feature is locked to {}", !value)]
    Locked { name: &'static str, value: bool },
    #[error(
        "--feature-gates={0}=true is not supported: the feature does not exist here; leave it off"
    )]
    Lacking(&'static str),
    #[error(
        "--feature-gates={0}=false is not supported: the feature is always on here; leave it on"
    )]
    AlwaysOn(&'static str),
    #[error("{name} is enabled, but depends on features that are disabled: [{missing}]")]
    Dependency { name: &'static str, missing: &'static str },
    #[error(
        "--feature-gates={group}={value} is not supported, because it sets {gate}; set the gates one by one"
    )]
    Group { group: &'static str, value: bool, gate: &'static str },
}

/// The state of one gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature {
    /// The name of the gate.
    pub name: &'static str,
    /// The stage.
    pub stage: Stage,
    /// `true` if the feature is on.
    pub enabled: bool,
}

/// The settings of the feature gates of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeatureGates(BTreeMap<&'static str, bool>);

impl FeatureGates {
    /// Parses the values of `--feature-gates`: `Name=true`, or `kube:Name=true`.
    pub fn parse<'a>(pairs: impl IntoIterator<Item = &'a str>) -> Result<Self, FeatureGateError> {
        let mut given: BTreeMap<&str, bool> = BTreeMap::new();
        for pair in pairs.into_iter().map(str::trim).filter(|pair| !pair.is_empty()) {
            let pair = match pair.split_once(':') {
                None | Some(("kube", _)) => pair.strip_prefix("kube:").unwrap_or(pair),
                Some((component, _)) => {
                    return Err(FeatureGateError::Component(component.to_owned()));
                }
            };
            let (name, value) =
                pair.split_once('=').ok_or_else(|| FeatureGateError::Missing(pair.to_owned()))?;
            let (name, value) = (name.trim(), value.trim());
            let on = go_bool(value).ok_or_else(|| FeatureGateError::Bool {
                name: name.to_owned(),
                value: value.to_owned(),
            })?;
            given.insert(name, on);
        }
        Self::of(given)
    }

    /// Validates the settings of a configuration file or of flags.
    pub fn of<'a>(
        given: impl IntoIterator<Item = (&'a str, bool)>,
    ) -> Result<Self, FeatureGateError> {
        let (mut gates, mut groups) = (BTreeMap::new(), Vec::new());
        for (name, value) in given {
            if let Some((group, stage)) = GROUPS.iter().find(|(group, _)| *group == name) {
                groups.push((*group, *stage, value));
                continue;
            }
            let gate = GATES.get(name).ok_or_else(|| FeatureGateError::Unknown(name.to_owned()))?;
            if gate.locked && value != gate.default {
                return Err(FeatureGateError::Locked { name: gate.name, value });
            }
            match (gate.allows(value), value) {
                (true, _) => drop(gates.insert(gate.name, value)),
                (false, true) => return Err(FeatureGateError::Lacking(gate.name)),
                (false, false) => return Err(FeatureGateError::AlwaysOn(gate.name)),
            }
        }
        for (group, stage, value) in groups {
            // `AllBeta=false` and the like equal the default of most gates, which then change nothing.
            for gate in GATES.values().filter(|gate| gate.stage == stage) {
                if gates.contains_key(gate.name) || gate.default == value {
                    continue;
                }
                if !gate.allows(value) {
                    return Err(FeatureGateError::Group { group, value, gate: gate.name });
                }
                gates.insert(gate.name, value);
            }
        }
        let gates = Self(gates);
        for (name, missing) in DEPENDENCIES {
            if gates.is_enabled(name) && !gates.is_enabled(missing) {
                return Err(FeatureGateError::Dependency { name, missing });
            }
        }
        Ok(gates)
    }

    /// Returns the settings of a component that ignores unknown gates and impossible values.
    pub fn of_known<'a>(given: impl IntoIterator<Item = (&'a str, bool)>) -> Self {
        let known = given.into_iter().filter_map(|(name, value)| {
            let gate = GATES.get(name)?;
            let is_possible = gate.allows(value) && (!gate.locked || value == gate.default);
            is_possible.then_some((gate.name, value))
        });
        Self(known.collect())
    }

    /// Returns the gates that were set, with their values.
    pub fn set_gates(&self) -> impl Iterator<Item = (&'static str, bool)> + '_ {
        self.0.iter().map(|(name, value)| (*name, *value))
    }

    /// Reports whether a feature is on. A name that is not in the table is off.
    pub fn is_enabled(&self, name: &str) -> bool {
        let default = || GATES.get(name).is_some_and(Gate::is_on_by_default);
        self.0.get(name).copied().unwrap_or_else(default)
    }

    /// Returns the state of each gate, for the metric `kubernetes_feature_enabled`.
    pub fn all(&self) -> impl Iterator<Item = Feature> {
        GATES.values().map(|gate| Feature {
            name: gate.name,
            stage: gate.stage,
            enabled: self.is_enabled(gate.name),
        })
    }

    /// Returns upstream's warnings about gates that will be removed.
    pub fn warnings(&self) -> Vec<String> {
        let set = self.0.iter().filter_map(|(name, value)| Some((GATES.get(name)?, value)));
        let warning = |(gate, value): (&Gate, &bool)| {
            let stage = match gate.stage {
                Stage::Stable => "GA",
                Stage::Deprecated => "deprecated",
                Stage::Alpha | Stage::Beta => return None,
            };
            let name = gate.name;
            Some(format!(
                "Setting {stage} feature gate {name}={value}. It will be removed in a future release."
            ))
        };
        set.filter_map(warning).collect()
    }
}

/// The flag of feature gates
#[derive(clap::Args, Clone, Debug, Default)]
#[group(skip)]
pub struct FeatureGateFlags {
    /// Features to switch on or off: NAME=true|false; may be given several times
    #[arg(long, value_delimiter = ',')]
    pub feature_gates: Vec<String>,
}

impl FeatureGateFlags {
    /// Parses the flag.
    pub fn gates(&self) -> Result<FeatureGates, FeatureGateError> {
        FeatureGates::parse(self.feature_gates.iter().map(String::as_str))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(flag: &str) -> Result<FeatureGates, FeatureGateError> {
        FeatureGates::parse(flag.split(','))
    }

    #[test]
    fn reads_every_line_of_table() {
        let text = include_str!("../facts/features.tsv");
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        assert_eq!(GATES.len(), lines.count());
        // An alpha feature is never on by default, and a lock holds what is here.
        for gate in GATES.values() {
            assert!(gate.stage != Stage::Alpha || !gate.default, "{}", gate.name);
            assert!(!gate.locked || gate.stage != Stage::Beta, "{}", gate.name);
        }
    }

    #[test]
    fn applies_settings_to_features() {
        let usual = FeatureGates::default();
        assert!(
            usual.is_enabled("APIResponseCompression") && !usual.is_enabled("ClientsAllowCBOR")
        );
        assert!(usual.is_enabled("NodeDeclaredFeatures"));
        let off = parsed("kube:APIResponseCompression=false,MemoryQoS=true").unwrap();
        assert!(!off.is_enabled("APIResponseCompression") && off.is_enabled("MemoryQoS"));
        assert_eq!(
            parsed("AllAlpha=false,AllBeta=true,").unwrap_err().to_string(),
            "--feature-gates=AllBeta=true is not supported, because it sets LocalStorageCapacityIsolationFSQuotaMonitoring; set the gates one by one"
        );
        assert_eq!(parsed("AllAlpha=false").unwrap(), usual);
        let state = off.all().find(|feature| feature.name == "APIResponseCompression").unwrap();
        assert_eq!((state.stage.label(), state.enabled), ("BETA", false));
        assert_eq!(
            parsed("SidecarContainers=1").unwrap().warnings(),
            [
                "Setting GA feature gate SidecarContainers=true. It will be removed in a future release."
            ]
        );
    }

    #[test]
    fn ignores_impossible_gates_of_lenient_component() {
        let given = [("ComponentFlagz", false), ("NoSuchGate", true), ("SidecarContainers", false)];
        let gates = FeatureGates::of_known(given);
        assert_eq!(gates.set_gates().collect::<Vec<_>>(), [("ComponentFlagz", false)]);
        assert!(!gates.is_enabled("ComponentFlagz") && gates.is_enabled("SidecarContainers"));
    }

    #[test]
    fn rejects_gates_in_upstreams_words() {
        for (flag, words) in [
            ("NoSuchGate=true", "unrecognized feature gate: NoSuchGate"),
            ("sidecarcontainers=true", "unrecognized feature gate: sidecarcontainers"),
            ("MemoryQoS", "missing bool value for MemoryQoS"),
            (
                "MemoryQoS=maybe",
                "invalid value of MemoryQoS: maybe, err: strconv.ParseBool: parsing \"maybe\": invalid syntax",
            ),
            ("wardle:A=true", "component not registered: wardle"),
            (
                "GangScheduling=true",
                "GangScheduling is enabled, but depends on features that are disabled: [GenericWorkload]",
            ),
            (
                "SidecarContainers=false",
                "cannot set feature gate SidecarContainers to false, feature is locked to true",
            ),
            (
                "ClientsAllowCBOR=true",
                "--feature-gates=ClientsAllowCBOR=true is not supported: the feature does not exist here; leave it off",
            ),
            (
                "WatchList=false",
                "--feature-gates=WatchList=false is not supported: the feature is always on here; leave it on",
            ),
            (
                "AllBeta=false",
                "--feature-gates=AllBeta=false is not supported, because it sets APIServerIdentity; set the gates one by one",
            ),
        ] {
            assert_eq!(parsed(flag).unwrap_err().to_string(), words);
        }
    }
}
