use pod_core::cpus::{CpuError, Cpus};
use telemetry::metrics::{Gauge, GaugeVec, Histogram, IntCounter, IntCounterVec, Metrics};

use crate::config::Scope;

/// What is counted of placement, under upstream's names.
pub(super) struct Counts {
    pub(super) requests: IntCounter,
    pub(super) errors: IntCounter,
    pub(super) durations: Histogram,
    pins: IntCounter,
    pin_errors: IntCounter,
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
        // Milliseconds.
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
                "[ALPHA] Cumulative number of failures to allocate aligned compute resources to containers by alignment type.",
                &ALIGNED,
            ),
        }
    }

    /// Takes down how many CPUs are given away.
    pub(super) fn measure(&self, cpus: Option<&Cpus>) {
        let Some(cpus) = cpus else { return };
        let free = cpus.shared().len() - cpus.shared().without(&cpus.allocatable()).len();
        self.shared.set(free as f64 * 1000.0);
        let mut all = 0;
        for (node, count) in cpus.given_by_node() {
            self.by_node.with_label_values(&[node.to_string()]).set(count as f64);
            all += count;
        }
        self.exclusive.set(all as f64);
    }

    /// A container asked for CPUs of its own.
    pub(super) fn pinned(&self, done: &Result<bool, CpuError>, whole_cores: bool) {
        self.pins.inc();
        let aligned = if done.is_ok() { &self.aligned } else { &self.misaligned };
        if whole_cores {
            aligned.with_label_values(&["container", "physical_cpu"]).inc();
        }
        if done.is_err() {
            self.pin_errors.inc();
        }
    }

    /// So many containers, or one Pod, are on one NUMA node with all they have.
    pub(super) fn aligned(&self, scope: Scope, count: usize) {
        self.aligned.with_label_values(&[name(scope), "numa_node"]).inc_by(count as u64);
    }

    pub(super) fn misaligned(&self, scope: Scope) {
        self.misaligned.with_label_values(&[name(scope), "numa_node"]).inc();
    }
}

fn name(scope: Scope) -> &'static str {
    match scope {
        Scope::Container => "container",
        Scope::Pod => "pod",
    }
}
