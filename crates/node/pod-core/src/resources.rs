//! Converts requests and limits to the kernel's parameters, for cgroup v1 and v2.

use k8s_openapi::api::core::v1::Pod;

use crate::qos::{QosClass, qos_class};

use crate::amounts::memory_requests;
pub use crate::amounts::{Amounts, container_amounts, milli, pod_amounts, pod_level, whole};

const MIN_SHARES: i64 = 2;
const MAX_SHARES: i64 = 262_144;
/// The smallest quota that the kernel accepts, in microseconds.
const MIN_QUOTA: i64 = 1_000;

/// Converts CPU in thousandths to cgroup v1 shares: 1,024 for one CPU.
pub fn cpu_shares(milli: i64) -> i64 {
    (milli.saturating_mul(1024) / 1000).clamp(MIN_SHARES, MAX_SHARES)
}

/// Converts CPU in thousandths to microseconds per `period`, which is in microseconds, too. Zero means no limit.
pub fn cpu_quota(milli: i64, period: i64) -> i64 {
    if milli == 0 { 0 } else { (milli.saturating_mul(period) / 1000).max(MIN_QUOTA) }
}

/// The limits of a cgroup. Zero means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupLimits {
    /// CPU shares of cgroup v1.
    pub cpu_shares: i64,
    /// CPU in thousandths.
    pub cpu: i64,
    /// The limit of memory in bytes.
    pub memory: i64,
}

/// Returns the limits of a Pod's cgroup, by QoS class.
pub fn pod_cgroup(pod: &Pod) -> CgroupLimits {
    let amounts = pod_amounts(pod);
    match qos_class(pod) {
        QosClass::BestEffort => CgroupLimits { cpu_shares: MIN_SHARES, ..Default::default() },
        QosClass::Guaranteed | QosClass::Burstable => CgroupLimits {
            cpu_shares: cpu_shares(amounts.cpu_request),
            cpu: amounts.cpu_limit,
            memory: amounts.memory_limit,
        },
    }
}

/// Returns the OOM score adjustment. The smaller a container's memory request, the earlier the kernel kills it. Memory
/// that the Pod requests beyond its containers counts for them in equal parts (KEP-2837).
pub fn oom_score_adj(pod: &Pod, request: i64, node_memory: i64) -> i64 {
    let priority = pod.spec.as_ref().and_then(|s| s.priority).unwrap_or(0);
    // System-node-critical Pods have the same score as the kubelet.
    if priority >= 2_000_001_000 {
        return -997;
    }
    match qos_class(pod) {
        QosClass::Guaranteed => -997,
        QosClass::BestEffort => 1000,
        QosClass::Burstable => {
            let rest = pod_level(pod).map_or(0, |shared| {
                let (requested, containers) = memory_requests(pod);
                (Amounts::of(shared).memory_request - requested).max(0) / containers.max(1)
            });
            let request = request.saturating_add(rest);
            let share = 1000_i64.saturating_mul(request) / node_memory.max(1);
            (1000 - share).clamp(3, 999)
        }
    }
}
