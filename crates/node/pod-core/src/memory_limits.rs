//! The memory settings of cgroup v2 besides the limit: swap, throttling and protection.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;

use crate::{
    admit::is_critical,
    amounts::{Amounts, pod_amounts},
    qos::{QosClass, qos_class},
};

/// The page size to which throttling limits are rounded.
const PAGE: i64 = 4096;

/// The node's policy for the memory of containers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MemoryPolicy {
    /// The node's memory in bytes.
    pub capacity: i64,
    /// The memory in bytes that all Pods together may use.
    pub allocatable: i64,
    /// The node's swap in bytes, if the kernel can limit its use.
    pub swap: Option<i64>,
    /// `true` if burstable Pods may use swap in proportion to their requests.
    pub limited_swap: bool,
    /// The fraction of the memory between request and limit from which on a container is throttled.
    pub throttling_factor: Option<f64>,
    /// `true` if requested memory is protected.
    pub reserve: bool,
}

/// The memory of a cgroup that is protected from reclaim, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Protection {
    /// The memory that the kernel never reclaims.
    pub min: i64,
    /// The memory that the kernel reclaims last.
    pub low: i64,
}

/// Returns the protection of requested memory: hard for guaranteed Pods, soft for burstable ones.
pub fn protection(class: QosClass, request: i64) -> Protection {
    match class {
        QosClass::Guaranteed => Protection { min: request, low: 0 },
        QosClass::Burstable => Protection { min: 0, low: request },
        QosClass::BestEffort => Protection::default(),
    }
}

impl MemoryPolicy {
    /// Returns the protection of a Pod's cgroup.
    pub fn of_pod(&self, pod: &Pod) -> Protection {
        if !self.reserve {
            return Protection::default();
        }
        protection(qos_class(pod), pod_amounts(pod).memory_request)
    }

    /// Returns the files of a container's cgroup with their values.
    pub fn of_container(&self, pod: &Pod, amounts: &Amounts) -> BTreeMap<String, String> {
        let mut files = BTreeMap::new();
        let mut set = |file: &str, bytes: i64| files.insert(file.to_owned(), bytes.to_string());
        if let Some(swap) = self.swap {
            set("memory.swap.max", self.swap_limit(pod, amounts, swap));
        }
        if let Some(high) = self.throttling(pod, amounts) {
            set("memory.high", high);
        }
        if self.reserve {
            let protection = protection(qos_class(pod), amounts.memory_request);
            for (file, bytes) in [("memory.min", protection.min), ("memory.low", protection.low)] {
                if bytes > 0 {
                    set(file, bytes);
                }
            }
        }
        files
    }

    /// Returns the swap that a container may use: a share like its share of the node's memory. Only containers of
    /// burstable Pods that are not critical and whose memory limit is above the request may use swap.
    fn swap_limit(&self, pod: &Pod, amounts: &Amounts, swap: i64) -> i64 {
        let request = amounts.memory_request;
        let excluded = !self.limited_swap
            || is_critical(pod)
            || qos_class(pod) != QosClass::Burstable
            || request == amounts.memory_limit
            || self.capacity <= 0;
        if excluded {
            return 0;
        }
        let share = i128::from(request) * i128::from(swap) / i128::from(self.capacity);
        i64::try_from(share.min(i128::from(swap))).unwrap_or(swap)
    }

    /// Returns the usage from which on a container is throttled, unless its request is its limit.
    fn throttling(&self, pod: &Pod, amounts: &Amounts) -> Option<i64> {
        let factor = self.throttling_factor?;
        if qos_class(pod) == QosClass::Guaranteed {
            return None;
        }
        let limit = if amounts.memory_limit > 0 { amounts.memory_limit } else { self.allocatable };
        let above = limit.checked_sub(amounts.memory_request).filter(|above| *above > 0)?;
        let high = amounts.memory_request + (factor * above as f64) as i64;
        let high = high / PAGE * PAGE;
        (high > amounts.memory_request).then_some(high)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const MIB: i64 = 1 << 20;

    /// Returns the files of a container with this request and limit in mebibytes.
    fn files(policy: MemoryPolicy, request: i64, limit: i64, priority: i32) -> Vec<String> {
        let amount =
            |mib: i64| (mib > 0).then(|| json!({ "memory": format!("{mib}Mi"), "cpu": "1" }));
        let container = json!({ "name": "c", "resources": { "requests": amount(request), "limits": amount(limit) } });
        let pod = json!({ "spec": { "containers": [container], "priority": priority } });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let resources = pod.spec.as_ref().unwrap().containers[0].resources.clone().unwrap();
        let files = policy.of_container(&pod, &Amounts::of(&resources));
        files.into_iter().map(|(file, value)| format!("{file}={value}")).collect()
    }

    #[test]
    fn limits_swap_to_the_share_of_requested_memory() {
        let none =
            MemoryPolicy { capacity: 1000 * MIB, swap: Some(500 * MIB), ..Default::default() };
        assert_eq!(files(none, 100, 200, 0), ["memory.swap.max=0"], "NoSwap");
        let limited = MemoryPolicy { limited_swap: true, ..none };
        assert_eq!(files(limited, 100, 200, 0), [format!("memory.swap.max={}", 50 * MIB)]);
        for (request, limit, priority) in [(0, 0, 0), (100, 100, 0), (100, 200, 2_000_000_000)] {
            assert_eq!(files(limited, request, limit, priority), ["memory.swap.max=0"]);
        }
        assert!(files(MemoryPolicy { swap: None, ..limited }, 100, 200, 0).is_empty());
    }

    #[test]
    fn throttles_between_request_and_limit() {
        let policy = MemoryPolicy {
            allocatable: 1000 * MIB,
            throttling_factor: Some(0.5),
            ..Default::default()
        };
        assert_eq!(files(policy, 100, 200, 0), [format!("memory.high={}", 150 * MIB)]);
        assert_eq!(files(policy, 100, 0, 0), [format!("memory.high={}", 550 * MIB)]);
        assert_eq!(files(policy, 0, 0, 0), [format!("memory.high={}", 500 * MIB)]);
        assert!(files(policy, 100, 100, 0).is_empty());
    }

    #[test]
    fn protects_requests_by_class() {
        let policy = MemoryPolicy { reserve: true, ..Default::default() };
        assert_eq!(files(policy, 100, 100, 0), [format!("memory.min={}", 100 * MIB)]);
        assert_eq!(files(policy, 100, 200, 0), [format!("memory.low={}", 100 * MIB)]);
        assert!(files(policy, 0, 0, 0).is_empty());
    }
}
