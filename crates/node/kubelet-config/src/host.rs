//! Settings of the machine and of the kernel's limits: swap, memory quality of service, CPU periods.

use std::time::Duration;

use api_config::{
    FeatureGates, GoDuration,
    kubelet::{MemorySwap, UserNamespaces},
};
use pod_core::user_namespaces::UNIT;
use serde::Deserialize;

use crate::error::{ConfigError, invalid};

/// The machine's fields of the configuration file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HostConfiguration {
    fail_swap_on: Option<bool>,
    memory_swap: MemorySwap,
    #[serde(rename = "cpuCFSQuotaPeriod")]
    cpu_cfs_quota_period: GoDuration,
    #[serde(rename = "singleProcessOOMKill")]
    single_process_oom_kill: Option<bool>,
    max_open_files: Option<i64>,
    oom_score_adj: Option<i32>,
    memory_throttling_factor: Option<f64>,
    memory_reservation_policy: String,
    user_namespaces: UserNamespaces,
}

/// The checked settings of the machine and of the kernel's limits.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelSettings {
    /// `true` if the kubelet refuses to start on a machine with swap.
    pub fail_swap_on: bool,
    /// `true` if containers may use swap in proportion to their memory requests (`LimitedSwap`).
    pub limited_swap: bool,
    /// The period in which CPU quotas are counted.
    pub cpu_period: Duration,
    /// `true` if an out-of-memory kill ends one process of a container instead of all. `None` stands for the default
    /// of the cgroup version.
    pub single_process_oom_kill: Option<bool>,
    /// The largest number of open files of the kubelet.
    pub max_open_files: u64,
    /// The kubelet's adjustment of its own out-of-memory score.
    pub oom_score_adj: i32,
    /// The quality of service of memory, if the feature gate `MemoryQoS` is on.
    pub memory_qos: Option<MemoryQos>,
    /// The number of user IDs of each Pod with a user namespace.
    pub ids_per_pod: u32,
}

/// The settings of the feature gate `MemoryQoS`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryQos {
    /// The fraction of the memory between request and limit from which on a container is throttled.
    pub throttling_factor: f64,
    /// `true` if requested memory is protected: hard for guaranteed Pods, soft for burstable ones.
    pub reserve: bool,
}

impl KernelSettings {
    pub(crate) fn new(
        config: &HostConfiguration,
        gates: &FeatureGates,
    ) -> Result<Self, ConfigError> {
        let limited_swap = match config.memory_swap.swap_behavior.as_str() {
            "" | "NoSwap" => false,
            "LimitedSwap" => true,
            other => {
                let message =
                    format!("{other:?} must be one of: \"\", \"LimitedSwap\" or \"NoSwap\"");
                return Err(invalid("memorySwap.swapBehavior", message));
            }
        };
        let oom_score_adj = config.oom_score_adj.unwrap_or(-999);
        if !(-1000..=1000).contains(&oom_score_adj) {
            let message = format!("{oom_score_adj} must be between -1000 and 1000, inclusive");
            return Err(invalid("oomScoreAdj", message));
        }
        let max_open_files = config.max_open_files.unwrap_or(1_000_000);
        let max_open_files = u64::try_from(max_open_files).map_err(|_| {
            invalid("maxOpenFiles", format!("{max_open_files} must not be a negative number"))
        })?;
        Ok(Self {
            fail_swap_on: config.fail_swap_on.unwrap_or(true),
            limited_swap,
            cpu_period: cpu_period(config.cpu_cfs_quota_period)?,
            single_process_oom_kill: config.single_process_oom_kill,
            max_open_files,
            oom_score_adj,
            memory_qos: memory_qos(config, gates)?,
            ids_per_pod: ids_per_pod(config.user_namespaces.ids_per_pod)?,
        })
    }
}

fn ids_per_pod(ids: Option<i64>) -> Result<u32, ConfigError> {
    let ids = ids.unwrap_or(UNIT.into());
    u32::try_from(ids).ok().filter(|ids| *ids > 0 && ids.is_multiple_of(UNIT)).ok_or_else(|| {
        let message = format!("{ids} must be a positive multiple of {UNIT} below 4294967296");
        invalid("userNamespaces.idsPerPod", message)
    })
}

fn cpu_period(period: GoDuration) -> Result<Duration, ConfigError> {
    if period.is_zero() {
        return Ok(Duration::from_millis(100));
    }
    if !(GoDuration::from_millis(1)..=GoDuration::from_secs(1)).contains(&period) {
        let message = format!("{period} must be between 1ms and 1sec, inclusive");
        return Err(invalid("cpuCFSQuotaPeriod", message));
    }
    Ok(period.to_std())
}

fn memory_qos(
    config: &HostConfiguration,
    gates: &FeatureGates,
) -> Result<Option<MemoryQos>, ConfigError> {
    let throttling_factor = config.memory_throttling_factor.unwrap_or(0.9);
    if !(throttling_factor > 0.0 && throttling_factor <= 1.0) {
        let message =
            format!("{throttling_factor} must be greater than 0 and less than or equal to 1.0");
        return Err(invalid("memoryThrottlingFactor", message));
    }
    let reserve = match config.memory_reservation_policy.as_str() {
        "" | "None" => false,
        "TieredReservation" => true,
        other => {
            let message = format!("{other:?} must be one of: \"None\" or \"TieredReservation\"");
            return Err(invalid("memoryReservationPolicy", message));
        }
    };
    let is_on = gates.is_enabled("MemoryQoS");
    if reserve && !is_on {
        let message = "TieredReservation requires the feature gate MemoryQoS".to_owned();
        return Err(invalid("memoryReservationPolicy", message));
    }
    Ok(is_on.then_some(MemoryQos { throttling_factor, reserve }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Result<KernelSettings, String> {
        let config = crate::load::parse(text).unwrap();
        let gates = config.gates().unwrap();
        KernelSettings::new(&config.host, &gates).map_err(|error| error.to_string())
    }

    #[test]
    fn reads_kernel_settings_with_upstream_defaults() {
        let default = settings("{}").unwrap();
        assert!(default.fail_swap_on && !default.limited_swap && default.memory_qos.is_none());
        assert_eq!((default.max_open_files, default.oom_score_adj), (1_000_000, -999));
        assert_eq!(default.cpu_period, Duration::from_millis(100));
        let set = "failSwapOn: false\nmemorySwap: {swapBehavior: LimitedSwap}\ncpuCFSQuotaPeriod: 10ms\n\
                   featureGates: {MemoryQoS: true}\nmemoryReservationPolicy: TieredReservation";
        let set = settings(set).unwrap();
        assert!(!set.fail_swap_on && set.limited_swap);
        assert_eq!(set.cpu_period, Duration::from_millis(10));
        assert_eq!(set.memory_qos, Some(MemoryQos { throttling_factor: 0.9, reserve: true }));
    }

    #[test]
    fn rejects_kernel_settings_out_of_range() {
        for (text, cause) in [
            ("memorySwap: {swapBehavior: UnlimitedSwap}", "\"UnlimitedSwap\" must be one of"),
            ("cpuCFSQuotaPeriod: 2s", "must be between 1ms and 1sec, inclusive"),
            ("cpuCFSQuotaPeriod: 1us", "must be between 1ms and 1sec, inclusive"),
            ("cpuCFSQuotaPeriod: -1s", "must be between 1ms and 1sec, inclusive"),
            ("oomScoreAdj: -1001", "must be between -1000 and 1000"),
            ("maxOpenFiles: -1", "must not be a negative number"),
            ("memoryThrottlingFactor: 1.1", "less than or equal to 1.0"),
            ("memoryReservationPolicy: TieredReservation", "requires the feature gate MemoryQoS"),
        ] {
            let error = settings(text).unwrap_err();
            assert!(error.contains(cause), "{text}: {error}");
        }
    }
}
