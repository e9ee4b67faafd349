//! Settings of the CPU, memory and topology managers.

use std::{collections::BTreeMap, time::Duration};

use api_config::{GoDuration, kubelet::MemoryReservation};
use api_meta::{Quantity, go_bool, go_quote};
use pod_core::{
    cpus::{CpuSet, Options},
    numa_memory::HUGE_PAGES,
    topology::{MAX_NODES, Policy, USUAL_NODES},
};
use serde::Deserialize;

use crate::{
    defaults::{duration_or, text_or},
    error::{ConfigError, invalid},
};

type Texts = BTreeMap<String, String>;

/// Reserved amounts by NUMA node and resource.
pub type ReservedMemory = BTreeMap<i64, BTreeMap<String, Quantity>>;

/// The placement fields of the configuration file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PlacementConfiguration {
    cpu_manager_policy: String,
    cpu_manager_policy_options: Texts,
    cpu_manager_reconcile_period: GoDuration,
    #[serde(rename = "reservedSystemCPUs")]
    reserved_system_cpus: String,
    memory_manager_policy: String,
    reserved_memory: Vec<MemoryReservation>,
    topology_manager_policy: String,
    topology_manager_scope: String,
    topology_manager_policy_options: Texts,
}

/// The unit that the topology manager aligns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Each container separately.
    #[default]
    Container,
    /// All containers of a Pod together.
    Pod,
}

/// The checked settings of the CPU, memory and topology managers.
#[derive(Clone, Debug, Default)]
pub struct PlacementSettings {
    /// The options of the CPU manager's policy `static`. `None` stands for the policy `none`.
    pub cpus: Option<Options>,
    /// The interval at which the CPU sets of running containers are corrected.
    pub reconcile: Duration,
    /// The CPUs reserved for the system (`reservedSystemCPUs`), if they are set.
    pub reserved_cpus: Option<CpuSet>,
    /// The memory reserved per NUMA node under the memory manager's policy `Static`. `None` stands for the policy
    /// `None`.
    pub reserved_memory: Option<ReservedMemory>,
    /// The policy of the topology manager.
    pub topology: Policy,
    /// The unit that the topology manager aligns.
    pub scope: Scope,
    /// `true` if the closest of several sets of NUMA nodes is preferred.
    pub closest: bool,
    /// The largest number of NUMA nodes at which topology alignment is used.
    pub most_nodes: usize,
}

/// The error of a policy option or a reservation, in upstream's words.
#[derive(Debug, thiserror::Error)]
enum OptionError {
    #[error(
        "the limit type {} for NUMA node {node} is not supported, only [memory hugepages-<HugePageSize>] is accepted",
        go_quote(resource)
    )]
    LimitType { resource: String, node: i32 },
    #[error("{} of NUMA node {node}: {source}", go_quote(resource))]
    Amount { resource: String, node: i32, source: api_meta::ParseQuantityError },
    #[error(
        "reserved memory may not be zero for NUMA node {node} and resource {}",
        go_quote(resource)
    )]
    ZeroMemory { resource: String, node: i32 },
    #[error(
        "the reserved memory has a duplicate value for NUMA node {node} and resource {}",
        go_quote(resource)
    )]
    DuplicateMemory { resource: String, node: i32 },
    #[error("CPU Manager Policy Alpha-level Options not enabled, but option {} provided", go_quote(.0))]
    Alpha(String),
    #[error("unknown CPU Manager Policy option: {}", go_quote(.0))]
    UnknownCpu(String),
    #[error(
        "static policy options prefer-align-cpus-by-uncorecache and distribute-cpus-across-numa can not be used at \
         the same time"
    )]
    Conflict,
    #[error(
        "unable to convert policy option to integer {}: strconv.Atoi: parsing {}: invalid syntax",
        go_quote(name),
        go_quote(value)
    )]
    Integer { name: String, value: String },
    #[error("the minimum value of {} should not be less than {USUAL_NODES}", go_quote(.0))]
    TooFewNodes(String),
    #[error("unknown Topology Manager Policy option: {}", go_quote(.0))]
    UnknownTopology(String),
    #[error(
        "bad value for option {}: strconv.ParseBool: parsing {}: invalid syntax",
        go_quote(name),
        go_quote(value)
    )]
    Bool { name: String, value: String },
}

impl PlacementSettings {
    /// Returns `true` if no setting restricts the placement of containers.
    pub fn is_idle(&self) -> bool {
        let is_given = self.cpus.is_some() || self.reserved_memory.is_some();
        !is_given && self.reserved_cpus.is_none() && self.topology == Policy::None
    }

    pub(crate) fn new(config: &PlacementConfiguration) -> Result<Self, ConfigError> {
        let (topology, scope) = topology(config)?;
        let (closest, most_nodes) = match topology {
            Policy::None => (false, usize::MAX),
            _ => topology_options(&config.topology_manager_policy_options)
                .map_err(|message| invalid("topologyManagerPolicyOptions", message))?,
        };
        let reserved = &config.reserved_system_cpus;
        let reserved_cpus = reserved.parse::<CpuSet>().map_err(|error| {
            let message = format!(
                "invalid configuration: unable to parse reservedSystemCPUs (--reserved-cpus) {reserved}, error: {error}"
            );
            invalid("reservedSystemCPUs", message)
        })?;
        Ok(Self {
            cpus: cpus(config)?,
            reconcile: duration_or(config.cpu_manager_reconcile_period, 10),
            reserved_memory: memory(config)?,
            reserved_cpus: Some(reserved_cpus).filter(|cpus| !cpus.is_empty()),
            topology,
            scope,
            closest,
            most_nodes,
        })
    }
}

fn topology(config: &PlacementConfiguration) -> Result<(Policy, Scope), ConfigError> {
    let policy = text_or(&config.topology_manager_policy, "none");
    let policy = match policy.as_str() {
        "none" => Policy::None,
        "best-effort" => Policy::BestEffort,
        "restricted" => Policy::Restricted,
        "single-numa-node" => Policy::SingleNode,
        other => {
            let message = format!(
                "invalid configuration: topologyManagerPolicy (--topology-manager-policy) {} must be one of: \
                 [\"none\" \"best-effort\" \"restricted\" \"single-numa-node\"]",
                go_quote(other)
            );
            return Err(invalid("topologyManagerPolicy", message));
        }
    };
    let scope = match text_or(&config.topology_manager_scope, "container").as_str() {
        "container" => Scope::Container,
        "pod" => Scope::Pod,
        other => {
            let message = format!(
                "invalid configuration: topologyManagerScope (--topology-manager-scope) {} must be one of: \
                 \"container\", or \"pod\"",
                go_quote(other)
            );
            return Err(invalid("topologyManagerScope", message));
        }
    };
    Ok((policy, scope))
}

/// Returns the options of the CPU manager's policy `static`, or `None` for the policy `none`.
fn cpus(config: &PlacementConfiguration) -> Result<Option<Options>, ConfigError> {
    let options = &config.cpu_manager_policy_options;
    match text_or(&config.cpu_manager_policy, "none").as_str() {
        "none" if options.is_empty() => Ok(None),
        "none" => {
            let each: Vec<String> = options.iter().map(|(k, v)| format!("{k}:{v}")).collect();
            let message = format!(
                "new none policy error: None policy: received unsupported options=map[{}]",
                each.join(" ")
            );
            Err(invalid("cpuManagerPolicyOptions", message))
        }
        "static" => cpu_options(options).map(Some).map_err(|message| {
            invalid("cpuManagerPolicyOptions", format!("new static policy error: {message}"))
        }),
        other => Err(invalid("cpuManagerPolicy", format!("unknown policy: \"{other}\""))),
    }
}

/// Returns the memory reserved per NUMA node, or `None` for the policy `None`.
fn memory(config: &PlacementConfiguration) -> Result<Option<ReservedMemory>, ConfigError> {
    let mut nodes = ReservedMemory::new();
    for reservation in &config.reserved_memory {
        let number = reservation.numa_node;
        let node = nodes.entry(number.into()).or_default();
        for (name, amount) in &reservation.limits {
            reserve(node, number, name, amount).map_err(|message| {
                invalid("reservedMemory", format!("invalid configuration: {message}"))
            })?;
        }
    }
    match text_or(&config.memory_manager_policy, "None").as_str() {
        "None" => Ok(None),
        "Static" => Ok(Some(nodes)),
        "BestEffort" => {
            let message = "policy \"BestEffort\" is not available for platform \"linux\"";
            Err(invalid("memoryManagerPolicy", message.to_owned()))
        }
        other => {
            let message = format!("unknown policy: {}", go_quote(other));
            Err(invalid("memoryManagerPolicy", message))
        }
    }
}

fn reserve(
    node: &mut BTreeMap<String, Quantity>,
    number: i32,
    name: &str,
    amount: &str,
) -> Result<(), OptionError> {
    let resource = || name.to_owned();
    if name != "memory" && !name.starts_with(HUGE_PAGES) {
        return Err(OptionError::LimitType { resource: resource(), node: number });
    }
    let amount = Quantity::parse(amount).map_err(|source| OptionError::Amount {
        resource: resource(),
        node: number,
        source,
    })?;
    if amount.is_zero() {
        return Err(OptionError::ZeroMemory { resource: resource(), node: number });
    }
    if node.insert(name.to_owned(), amount).is_some() {
        return Err(OptionError::DuplicateMemory { resource: resource(), node: number });
    }
    Ok(())
}

fn cpu_options(values: &Texts) -> Result<Options, OptionError> {
    let mut options = Options::default();
    for (name, value) in values {
        let option = match name.as_str() {
            "full-pcpus-only" => &mut options.full_cores,
            "strict-cpu-reservation" => &mut options.strict,
            "distribute-cpus-across-numa" => &mut options.distribute,
            "prefer-align-cpus-by-uncorecache" => &mut options.by_cache,
            "align-by-socket" | "distribute-cpus-across-cores" => {
                return Err(OptionError::Alpha(name.clone()));
            }
            _ => return Err(OptionError::UnknownCpu(name.clone())),
        };
        *option = parse_option(name, value)?;
    }
    if options.by_cache && options.distribute {
        return Err(OptionError::Conflict);
    }
    Ok(options)
}

/// Returns `true` if the closest NUMA nodes are preferred, and the largest number of nodes.
fn topology_options(values: &Texts) -> Result<(bool, usize), OptionError> {
    let (mut closest, mut most) = (false, USUAL_NODES);
    for (name, value) in values {
        match name.as_str() {
            "prefer-closest-numa-nodes" => closest = parse_option(name, value)?,
            "max-allowable-numa-nodes" => {
                let (name, value) = (name.clone(), value.clone());
                let Ok(number) = value.parse::<usize>() else {
                    return Err(OptionError::Integer { name, value });
                };
                if number < USUAL_NODES {
                    return Err(OptionError::TooFewNodes(name));
                }
                most = number.min(MAX_NODES);
            }
            _ => return Err(OptionError::UnknownTopology(name.clone())),
        }
    }
    Ok((closest, most))
}

fn parse_option(name: &str, value: &str) -> Result<bool, OptionError> {
    let bad = || OptionError::Bool { name: name.to_owned(), value: value.to_owned() };
    go_bool(value).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Result<PlacementSettings, String> {
        let config = crate::load::parse(text).unwrap();
        PlacementSettings::new(&config.placement).map_err(|error| error.to_string())
    }

    #[test]
    fn parses_settings_and_rejects_invalid_ones_as_upstream() {
        let none = settings("{}").unwrap();
        assert!(
            none.cpus.is_none() && none.topology == Policy::None && none.reconcile.as_secs() == 10
        );
        let all = settings(
            "cpuManagerPolicy: static\ncpuManagerPolicyOptions: {full-pcpus-only: 'true', strict-cpu-reservation: 't'}\nreservedSystemCPUs: 0-1,4\ntopologyManagerPolicy: restricted\ntopologyManagerScope: pod\ntopologyManagerPolicyOptions: {prefer-closest-numa-nodes: '1', max-allowable-numa-nodes: '12'}",
        )
        .unwrap();
        let options = Options { full_cores: true, strict: true, ..Options::default() };
        assert_eq!((all.cpus, all.scope, all.closest), (Some(options), Scope::Pod, true));
        assert_eq!((all.most_nodes, all.reserved_cpus.unwrap().len()), (12, 3));
        let of_cpus = |options: &str| {
            format!("cpuManagerPolicy: static\ncpuManagerPolicyOptions: {{{options}}}")
        };
        let of_topology = |options: &str| {
            format!(
                "topologyManagerPolicy: restricted\ntopologyManagerPolicyOptions: {{{options}}}"
            )
        };
        for (text, words) in [
            ("cpuManagerPolicy: most".to_owned(), "unknown policy: \"most\""),
            ("cpuManagerPolicyOptions: {a: b}".to_owned(), "received unsupported options=map[a:b]"),
            (of_cpus("x: z"), "unknown CPU Manager Policy option: \"x\""),
            (
                of_cpus("align-by-socket: 'true'"),
                "Alpha-level Options not enabled, but option \"align-by-socket\"",
            ),
            (
                of_cpus("full-pcpus-only: 'yes'"),
                "bad value for option \"full-pcpus-only\": strconv.ParseBool: parsing \"yes\": invalid syntax",
            ),
            (
                of_cpus(
                    "distribute-cpus-across-numa: 'true', prefer-align-cpus-by-uncorecache: 'true'",
                ),
                "can not be used at the same time",
            ),
            (
                "reservedSystemCPUs: 1-".to_owned(),
                "unable to parse reservedSystemCPUs (--reserved-cpus) 1-,",
            ),
            (
                "topologyManagerPolicy: best".to_owned(),
                "topologyManagerPolicy (--topology-manager-policy) \"best\" must be one of: [\"none\"",
            ),
            (
                "topologyManagerScope: node".to_owned(),
                "topologyManagerScope (--topology-manager-scope) \"node\" must be one of: \"container\", or \"pod\"",
            ),
            ("memoryManagerPolicy: static".to_owned(), "unknown policy: \"static\""),
            (
                "memoryManagerPolicy: BestEffort".to_owned(),
                "policy \"BestEffort\" is not available for platform \"linux\"",
            ),
            (
                "reservedMemory: [{numaNode: 1, limits: {cpu: '1'}}]".to_owned(),
                "the limit type \"cpu\" for NUMA node 1 is not supported, only [memory hugepages-<HugePageSize>] is accepted",
            ),
            (
                "reservedMemory: [{limits: {memory: '0'}}]".to_owned(),
                "reserved memory may not be zero for NUMA node 0 and resource \"memory\"",
            ),
            (
                "reservedMemory: [{limits: {memory: 1Gi}}, {limits: {memory: 2Gi}}]".to_owned(),
                "has a duplicate value for NUMA node 0 and resource \"memory\"",
            ),
            (of_topology("x: z"), "unknown Topology Manager Policy option: \"x\""),
            (of_topology("max-allowable-numa-nodes: '7'"), "should not be less than 8"),
            (
                of_topology("max-allowable-numa-nodes: many"),
                "unable to convert policy option to integer",
            ),
        ] {
            let error = settings(&text).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
