//! Metrics of the CPU, memory and topology managers.

use k8s_openapi::api::core::v1::{Container, Pod};
use kubelet_config::Scope;
use pod_core::{cpus::Cpus, numa_memory::NumaMemory};
use telemetry::metrics::{Gauge, GaugeVec, Histogram, IntCounter, IntCounterVec, Metrics};

use super::{allocations::Allocations, error::NotPlaced};

/// The metrics, named as upstream.
pub(super) struct Counts {
    pub(super) requests: IntCounter,
    pub(super) errors: IntCounter,
    pub(super) durations: Histogram,
    pins: IntCounter,
    pin_errors: IntCounter,
    memory_pins: IntCounter,
    memory_pin_errors: IntCounter,
    shared: Gauge,
    exclusive: Gauge,
    by_node: GaugeVec,
    aligned: IntCounterVec,
    misaligned: IntCounterVec,
}

const ALIGNED: [&str; 2] = ["scope", "boundary"];

impl Counts {
    pub(super) fn new(metrics: &Metrics) -> Self {
        let counter = |name: &str, help: &str| metrics.counter(name, help);
        // In milliseconds.
        let bounds: Vec<f64> = (0..15).map(|power| 0.05 * f64::from(1 << power)).collect();
        Self {
            requests: counter(
                "kubelet_topology_manager_admission_requests_total",
                "[ALPHA] The number of admission requests where resources have to be aligned.",
            ),
            errors: counter(
                "kubelet_topology_manager_admission_errors_total",
                "[ALPHA] The number of admission request failures where resources could not be aligned.",
            ),
            durations: metrics.histogram(
                "kubelet_topology_manager_admission_duration_ms",
                "[ALPHA] Duration in milliseconds to serve a pod admission request.",
                &bounds,
            ),
            pins: counter(
                "kubelet_cpu_manager_pinning_requests_total",
                "[ALPHA] The number of cpu core allocations which required pinning.",
            ),
            pin_errors: counter(
                "kubelet_cpu_manager_pinning_errors_total",
                "[ALPHA] The number of cpu core allocations which required pinning failed.",
            ),
            memory_pins: counter(
                "kubelet_memory_manager_pinning_requests_total",
                "[ALPHA] The number of memory pages allocations which required pinning.",
            ),
            memory_pin_errors: counter(
                "kubelet_memory_manager_pinning_errors_total",
                "[ALPHA] The number of memory pages allocations which required pinning that failed.",
            ),
            shared: metrics.gauge(
                "kubelet_cpu_manager_shared_pool_size_millicores",
                "[ALPHA] The size of the shared CPU pool for non-guaranteed QoS pods, in millicores.",
            ),
            exclusive: metrics.gauge(
                "kubelet_cpu_manager_exclusive_cpu_allocation_count",
                "[ALPHA] The total number of CPUs exclusively allocated to containers running on this node",
            ),
            by_node: metrics.gauges(
                "kubelet_cpu_manager_allocation_per_numa",
                "[ALPHA] Number of CPUs allocated per NUMA node",
                &["numa_node"],
            ),
            aligned: metrics.counters(
                "kubelet_container_aligned_compute_resources_count",
                "[ALPHA] Cumulative number of aligned compute resources allocated to containers by alignment type.",
                &ALIGNED,
            ),
            misaligned: metrics.counters(
                "kubelet_container_aligned_compute_resources_failure_count",
                "[ALPHA] Cumulative number of failures to allocate aligned compute resources to containers by \
                 alignment type.",
                &ALIGNED,
            ),
        }
    }

    /// Updates the gauges of shared and exclusive CPUs.
    pub(super) fn measure(&self, cpus: Option<&Cpus>) {
        let Some(cpus) = cpus else { return };
        let free = cpus.shared().len() - cpus.shared().without(&cpus.allocatable()).len();
        self.shared.set(free as f64 * 1000.0);
        let mut all = 0;
        for (node, count) in cpus.allocated_by_node() {
            self.by_node.with_label_values(&[node.to_string()]).set(count as f64);
            all += count;
        }
        self.exclusive.set(all as f64);
    }

    /// Counts the allocation of a container's CPUs and memory, or its failure.
    pub(super) fn record_allocation(
        &self,
        pod: &Pod,
        container: &Container,
        allocations: &Allocations,
        why: Option<&NotPlaced>,
    ) {
        if let Some(cpus) = &allocations.cpus
            && Cpus::requested(pod, container) > 0
        {
            self.pins.inc();
            let failed = matches!(why, Some(NotPlaced::Cpus(_)));
            self.pin_errors.inc_by(failed.into());
            let counter = if failed { &self.misaligned } else { &self.aligned };
            if cpus.options().full_cores {
                counter.with_label_values(&["container", "physical_cpu"]).inc();
            }
        }
        if allocations.memory.is_some() && !NumaMemory::requested(pod, container).is_empty() {
            self.memory_pins.inc();
            self.memory_pin_errors.inc_by(matches!(why, Some(NotPlaced::Memory(_))).into());
        }
    }

    /// Counts containers, or one Pod, whose resources are all on one NUMA node.
    pub(super) fn record_aligned(&self, scope: Scope, count: usize) {
        self.aligned.with_label_values(&[name(scope), "numa_node"]).inc_by(count as u64);
    }

    pub(super) fn record_misaligned(&self, scope: Scope) {
        self.misaligned.with_label_values(&[name(scope), "numa_node"]).inc();
    }
}

fn name(scope: Scope) -> &'static str {
    match scope {
        Scope::Container => "container",
        Scope::Pod => "pod",
    }
}
