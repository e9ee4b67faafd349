//! The reservation of resources for the system and for Kubernetes, and its enforcement (`enforceNodeAllocatable`).

use std::collections::BTreeMap;

use api_meta::Quantity;
use serde::Deserialize;

use crate::error::ConfigError;

type Amounts = BTreeMap<String, String>;

/// The reservation fields of the configuration file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ReservationConfiguration {
    /// Resources reserved for the system, by name.
    pub system_reserved: Amounts,
    /// Resources reserved for Kubernetes components, by name.
    pub kube_reserved: Amounts,
    system_reserved_cgroup: String,
    kube_reserved_cgroup: String,
    enforce_node_allocatable: Option<Vec<String>>,
    #[serde(rename = "cgroupsPerQOS")]
    cgroups_per_qos: Option<bool>,
}

/// The checked settings of enforcement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Enforcement {
    /// `true` if all Pods together are limited to the allocatable amounts.
    pub pods: bool,
    /// The control groups that are limited to what is reserved for them.
    pub groups: Vec<ReservedGroup>,
}

/// A control group of the system or of Kubernetes' components that is limited to the reserved amounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservedGroup {
    /// The path of the control group. It must exist.
    pub group: String,
    /// The reserved amounts by resource.
    pub amounts: Amounts,
    /// `true` if only CPU is limited, not memory and processes.
    pub compressible_only: bool,
}

const FIELD: &str = "enforceNodeAllocatable";
const OPTIONS: [&str; 6] = [
    "pods",
    "system-reserved",
    "kube-reserved",
    "system-reserved-compressible",
    "kube-reserved-compressible",
    "none",
];

impl Enforcement {
    pub(crate) fn new(config: &ReservationConfiguration) -> Result<Self, ConfigError> {
        let invalid = |message: String| Err(ConfigError::Invalid { field: FIELD, message });
        let default = vec!["pods".to_owned()];
        let options = config.enforce_node_allocatable.as_ref().unwrap_or(&default);
        if config.cgroups_per_qos == Some(false) && options.iter().any(|option| option != "none") {
            return invalid("is not supported unless cgroupsPerQOS is true".to_owned());
        }
        let mut enforcement = Self::default();
        for option in options {
            let (part, compressible_only) = match option.strip_suffix("-compressible") {
                Some(part) => (part, true),
                None => (option.as_str(), false),
            };
            let (field, group, amounts) = match part {
                "none" if options.len() > 1 => {
                    let message =
                        "may not contain additional enforcements when \"none\" is specified";
                    return invalid(message.to_owned());
                }
                "none" if !compressible_only => continue,
                "pods" if !compressible_only => {
                    enforcement.pods = true;
                    continue;
                }
                "system-reserved" => (
                    "systemReservedCgroup",
                    &config.system_reserved_cgroup,
                    &config.system_reserved,
                ),
                "kube-reserved" => {
                    ("kubeReservedCgroup", &config.kube_reserved_cgroup, &config.kube_reserved)
                }
                _ => {
                    let options = OPTIONS.map(|option| format!("{option:?}")).join(", ");
                    return invalid(format!("option {option:?}; valid options are {options}"));
                }
            };
            if group.is_empty() {
                let message = format!("{field} must be specified when it contains {option:?}");
                return invalid(message);
            }
            if compressible_only && options.iter().any(|other| other == part) {
                return invalid(format!("cannot contain both {part:?} and {option:?}"));
            }
            let (group, amounts) = (group.clone(), amounts.clone());
            enforcement.groups.push(ReservedGroup { group, amounts, compressible_only });
        }
        Ok(enforcement)
    }
}

/// Returns the reserved amounts by resource: the system's and Kubernetes' own.
pub(crate) fn reserved(
    config: &ReservationConfiguration,
) -> Result<BTreeMap<String, Vec<String>>, ConfigError> {
    let mut reserved: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, amount) in config.system_reserved.iter().chain(&config.kube_reserved) {
        Quantity::parse(amount).map_err(|error| ConfigError::Invalid {
            field: "systemReserved, kubeReserved",
            message: format!("{name}: {amount:?}: {error}"),
        })?;
        reserved.entry(name.clone()).or_default().push(amount.clone());
    }
    Ok(reserved)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enforcement(text: &str) -> Result<Enforcement, String> {
        let config = crate::load::parse(text).unwrap();
        Enforcement::new(&config.reservation).map_err(|error| error.to_string())
    }

    #[test]
    fn limits_pods_by_default_and_reserved_groups_on_request() {
        assert_eq!(enforcement("{}"), Ok(Enforcement { pods: true, groups: vec![] }));
        assert_eq!(enforcement("enforceNodeAllocatable: []"), Ok(Enforcement::default()));
        assert_eq!(enforcement("enforceNodeAllocatable: [none]"), Ok(Enforcement::default()));
        let both = "enforceNodeAllocatable: [pods, system-reserved, kube-reserved-compressible]\n\
                    systemReserved: {memory: 1Gi}\nsystemReservedCgroup: /system.slice\n\
                    kubeReserved: {cpu: 100m}\nkubeReservedCgroup: /kube.slice";
        let group = |group: &str, name: &str, amount: &str, compressible_only| ReservedGroup {
            group: group.to_owned(),
            amounts: [(name.to_owned(), amount.to_owned())].into(),
            compressible_only,
        };
        let groups = vec![
            group("/system.slice", "memory", "1Gi", false),
            group("/kube.slice", "cpu", "100m", true),
        ];
        assert_eq!(enforcement(both), Ok(Enforcement { pods: true, groups }));
    }

    #[test]
    fn rejects_enforcement_without_group_and_unknown_options() {
        for (text, cause) in [
            ("[system-reserved]", "systemReservedCgroup must be specified"),
            ("[kube-reserved-compressible]", "kubeReservedCgroup must be specified"),
            ("[none, pods]", "may not contain additional enforcements"),
            ("[pods-compressible]", "option \"pods-compressible\"; valid options are"),
            ("[nodes]", "option \"nodes\"; valid options are"),
            ("[pods]\ncgroupsPerQOS: false", "unless cgroupsPerQOS is true"),
        ] {
            let error = enforcement(&format!("enforceNodeAllocatable: {text}")).unwrap_err();
            assert!(error.contains(cause), "{error}");
        }
    }
}
