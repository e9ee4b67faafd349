//! The metrics of the scheduler, with upstream's names, and the page of Pods' resources.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use sched_core::{Observer, Pod, QueueName, Resources, Stage, StageResult, Tries};
use telemetry::{
    exposition::{Exposition, Labels, Metric, gauge},
    metrics::{GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, Metrics, doubling},
};
use tokio::time::Instant;

use crate::state::Shared;

/// The result of an attempt to schedule a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttemptResult {
    /// The Pod is bound.
    Scheduled,
    /// No node has room for the Pod.
    Unschedulable,
    /// A plugin or a write failed.
    Error,
}

/// A decision being carried out: its start and the Pod's scheduler.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) started: Instant,
    pub(crate) scheduler: Arc<str>,
}

/// The metrics of the scheduler.
#[derive(Clone)]
pub(crate) struct SchedulerMetrics {
    attempts: IntCounterVec,
    attempt_seconds: HistogramVec,
    algorithm_seconds: Histogram,
    tries: Histogram,
    sli_seconds: HistogramVec,
    pending: GaugeVec,
    victims: Histogram,
    stages: Arc<StageMetrics>,
}

/// The metrics of the core's stages and queues.
struct StageMetrics {
    seconds: HistogramVec,
    incoming: IntCounterVec,
    preemptions: IntCounter,
    /// The start of the current stage.
    begun: Mutex<Instant>,
}

impl SchedulerMetrics {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        Self {
            attempts: metrics.counters(
                "scheduler_schedule_attempts_total",
                "Number of attempts to schedule pods, by the result. 'unschedulable' means a pod could not be \
                 scheduled, while 'error' means an internal scheduler problem.",
                &["result", "profile"],
            ),
            attempt_seconds: metrics.histograms(
                "scheduler_scheduling_attempt_duration_seconds",
                "Scheduling attempt latency in seconds (scheduling algorithm + binding)",
                &doubling(0.001, 15),
                &["result", "profile"],
            ),
            algorithm_seconds: metrics.histogram(
                "scheduler_scheduling_algorithm_duration_seconds",
                "Scheduling algorithm latency in seconds",
                &doubling(0.001, 15),
            ),
            tries: metrics.histogram(
                "scheduler_pod_scheduling_attempts",
                "Number of attempts to successfully schedule a pod.",
                &doubling(1.0, 5),
            ),
            sli_seconds: metrics.histograms(
                "scheduler_pod_scheduling_sli_duration_seconds",
                "E2e latency for a pod being scheduled, from the time the pod enters the scheduling queue and might \
                 involve multiple scheduling attempts.",
                &doubling(0.01, 20),
                &["attempts"],
            ),
            pending: metrics.gauges(
                "scheduler_pending_pods",
                "Number of pending pods, by the queue type.",
                &["queue"],
            ),
            victims: metrics.histogram(
                "scheduler_preemption_victims",
                "Number of selected preemption victims",
                &doubling(1.0, 7),
            ),
            stages: Arc::new(StageMetrics {
                seconds: metrics.histograms(
                    "scheduler_framework_extension_point_duration_seconds",
                    "Latency for running all plugins of a specific extension point.",
                    &doubling(0.0001, 12),
                    &["extension_point", "status", "profile"],
                ),
                incoming: metrics.counters(
                    "scheduler_queue_incoming_pods_total",
                    "Number of pods added to scheduling queues by event and queue type.",
                    &["queue", "event"],
                ),
                preemptions: metrics.counter(
                    "scheduler_preemption_attempts_total",
                    "Total preemption attempts in the cluster till now",
                ),
                begun: Mutex::new(Instant::now()),
            }),
        }
    }

    /// Measures the core's stages and queues.
    pub(crate) fn follow(&self, shared: &Arc<Shared>, metrics: &Metrics) {
        shared.core().observe(self.stages.clone());
        let (pending, shared) = (self.pending.clone(), Arc::downgrade(shared));
        metrics.before_scrape(move || {
            let Some(shared) = shared.upgrade() else { return };
            let lengths = shared.core().queue_lengths();
            for (queue, pods) in [
                (QueueName::Active, lengths.active),
                (QueueName::Backoff, lengths.backoff),
                (QueueName::Unschedulable, lengths.unschedulable),
                (QueueName::Gated, lengths.gated),
            ] {
                pending.with_label_values(&[label(queue)]).set(pods as f64);
            }
        });
    }

    /// Counts the time in which the core found a decision.
    pub(crate) fn decided(&self, attempt: &Attempt) {
        self.algorithm_seconds.observe(attempt.started.elapsed().as_secs_f64());
    }

    /// Counts the victims that the core selected.
    pub(crate) fn preempted(&self, victims: usize) {
        self.victims.observe(victims as f64);
    }

    /// Counts the end of an attempt.
    pub(crate) fn ended(&self, attempt: &Attempt, result: AttemptResult) {
        let result = match result {
            AttemptResult::Scheduled => "scheduled",
            AttemptResult::Unschedulable => "unschedulable",
            AttemptResult::Error => "error",
        };
        let of = [result, &*attempt.scheduler];
        self.attempts.with_label_values(&of).inc();
        let took = attempt.started.elapsed();
        self.attempt_seconds.with_label_values(&of).observe(took.as_secs_f64());
    }

    /// Counts a bound Pod. `now` is the core's time in milliseconds.
    pub(crate) fn bound(&self, tries: Tries, now: u64) {
        self.tries.observe(f64::from(tries.attempts));
        let attempts = match tries.attempts {
            attempts @ 0..15 => attempts.to_string(),
            _ => "15+".to_owned(),
        };
        let seconds = now.saturating_sub(tries.since) as f64 / 1000.0;
        self.sli_seconds.with_label_values(&[attempts]).observe(seconds);
    }

    /// Measures an extension point outside of the core.
    pub(crate) fn observe(&self, point: &str, started: Instant, success: bool, scheduler: &str) {
        let status = if success { "Success" } else { "Error" };
        let of = [point, status, scheduler];
        let seconds = &self.stages.seconds;
        seconds.with_label_values(&of).observe(started.elapsed().as_secs_f64());
    }
}

fn label(queue: QueueName) -> &'static str {
    match queue {
        QueueName::Active => "active",
        QueueName::Backoff => "backoff",
        QueueName::Unschedulable => "unschedulable",
        QueueName::Gated => "gated",
    }
}

impl Observer for StageMetrics {
    fn begin(&self) {
        *self.begun.lock() = Instant::now();
    }

    fn end(&self, stage: Stage, result: StageResult, scheduler: &str) {
        let begun = *self.begun.lock();
        let point = match stage {
            Stage::PreFilter => "PreFilter",
            Stage::Filter => "Filter",
            Stage::PostFilter => "PostFilter",
            Stage::Score => "Score",
            Stage::Reserve => "Reserve",
        };
        let status = match result {
            StageResult::Success => "Success",
            StageResult::Unschedulable => "Unschedulable",
            StageResult::Error => "Error",
        };
        let of = [point, status, scheduler];
        self.seconds.with_label_values(&of).observe(begun.elapsed().as_secs_f64());
        if stage == Stage::PostFilter {
            self.preemptions.inc();
        }
    }

    fn queued(&self, queue: QueueName, event: &'static str) {
        self.incoming.with_label_values(&[label(queue), event]).inc();
    }
}

const REQUEST: Metric = gauge(
    "kube_pod_resource_request",
    "[STABLE] Resources requested by workloads on the cluster, broken down by pod. This shows the resource usage the \
     scheduler and kubelet expect per pod for resources along with the unit for the resource if any.",
);
const LIMIT: Metric = gauge(
    "kube_pod_resource_limit",
    "[STABLE] Resources limit for workloads on the cluster, broken down by pod. This shows the resource usage the \
     scheduler and kubelet expect per pod for resources along with the unit for the resource if any.",
);

/// The page of all Pods' requests and limits, `/metrics/resources`. It is empty until the scheduler runs.
#[derive(Clone, Default)]
pub struct ResourcePage(Arc<Mutex<Weak<Shared>>>);

impl std::fmt::Debug for ResourcePage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ResourcePage")
    }
}

impl ResourcePage {
    pub(crate) fn set(&self, shared: &Arc<Shared>) {
        *self.0.lock() = Arc::downgrade(shared);
    }

    /// Returns the page in the text format.
    pub fn text(&self) -> String {
        let shared = self.0.lock().upgrade();
        let Some(shared) = shared else { return String::new() };
        // Text is made after the lock is free, so that a scrape of many Pods does not delay decisions.
        let pods: Vec<(Arc<Pod>, Arc<str>)> = {
            let core = shared.core();
            let of = |pod: &Arc<Pod>| (pod.clone(), core.node_of(pod).cloned().unwrap_or_default());
            core.pods().map(of).collect()
        };
        let mut page = Exposition::default();
        for (pod, node) in pods {
            add_pod(&mut page, &pod, &node);
        }
        page.text()
    }
}

fn add_pod(page: &mut Exposition, pod: &Pod, node: &str) {
    let priority = pod.priority.to_string();
    let labels = |resource: &str, unit: &str| {
        Labels::of(&[
            ("namespace", &*pod.id.namespace),
            ("node", node),
            ("pod", &*pod.id.name),
            ("priority", &priority),
            ("resource", resource),
            ("scheduler", &*pod.scheduler_name),
            ("unit", unit),
        ])
    };
    for (metric, amounts) in [(REQUEST, &pod.requests), (LIMIT, &pod.limits)] {
        let Resources { cpu, memory, ephemeral, .. } = amounts;
        for (resource, unit, amount) in [
            ("cpu", "cores", *cpu as f64 / 1000.0),
            ("memory", "bytes", *memory as f64),
            ("ephemeral-storage", "bytes", *ephemeral as f64),
        ] {
            if amount != 0.0 {
                page.add(metric, &labels(resource, unit), amount, None);
            }
        }
        // A Pod's limits of other resources equal its requests.
        for (name, (symbol, _)) in pod.extended_names.iter().zip(&pod.requests.extended) {
            let amount = amounts.extended(*symbol);
            let unit = if name.starts_with("hugepages-") { "bytes" } else { "integer" };
            if amount != 0 && !name.is_empty() {
                page.add(metric, &labels(name, unit), amount as f64, None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn writes_requests_and_limits_by_pod() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p\"}\nx 1", "namespace": "default", "uid": "u"},
            "spec": {"priority": 7, "containers": [{"resources": {
                "requests": {"cpu": "250m", "example.com/gpu": "2", "hugepages-2Mi": "4Mi"},
                "limits": {"memory": "1Mi", "example.com/gpu": "2", "hugepages-2Mi": "4Mi"}}}]},
        }))
        .unwrap();
        let mut page = Exposition::default();
        add_pod(&mut page, &pod, "n");
        let text = page.text();
        let of = |metric: &str, resource: &str, unit: &str, value: &str| {
            let line = format!(
                "{metric}{{namespace=\"default\",node=\"n\",pod=\"p\\\"}}\\nx 1\",priority=\"7\",\
                 resource=\"{resource}\",scheduler=\"default-scheduler\",unit=\"{unit}\"}} {value}\n"
            );
            assert!(text.contains(&line), "{line}{text}");
        };
        of("kube_pod_resource_request", "cpu", "cores", "0.25");
        of("kube_pod_resource_request", "example.com/gpu", "integer", "2");
        of("kube_pod_resource_limit", "memory", "bytes", "1.048576e+06");
        of("kube_pod_resource_limit", "hugepages-2Mi", "bytes", "4.194304e+06");
        assert_eq!(text.lines().filter(|line| !line.starts_with('#')).count(), 6, "{text}");
    }
}
