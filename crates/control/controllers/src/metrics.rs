//! The metrics of the controllers, with upstream's names.

use std::{collections::HashSet, time::Duration};

use client::ClientMetrics;
use serde_json::Value;
use telemetry::metrics::{GaugeVec, Histogram, HistogramVec, IntCounterVec, Metrics, doubling};

use crate::views::Job;

/// The metrics of all controllers of a process.
pub(crate) struct ControllerMetrics {
    pub(crate) client: ClientMetrics,
    /// The time between a CronJob's schedule and the creation of its Job.
    pub(crate) job_creation_skew: Histogram,
    pub(crate) jobs: JobMetrics,
    pub(crate) evictions: EvictionMetrics,
    running: GaugeVec,
}

/// The metrics of the Job controller.
pub(crate) struct JobMetrics {
    syncs: IntCounterVec,
    sync_seconds: HistogramVec,
    finished: IntCounterVec,
    pods_finished: IntCounterVec,
}

/// The action of one sync of a Job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobAction {
    /// Earlier creations or deletions of Pods are not visible yet.
    Reconciling,
    /// The Job has the Pods that it needs.
    Tracking,
    PodsCreated,
    PodsDeleted,
}

/// The reasons of finished Jobs. Others could be any text that a client wrote into a Job's status.
const REASONS: &[&str] = &[
    "BackoffLimitExceeded",
    "CompletionsReached",
    "DeadlineExceeded",
    "FailedIndexes",
    "MaxFailedIndexesExceeded",
    "PodFailurePolicy",
    "SuccessPolicy",
];

impl ControllerMetrics {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let of_sync = &["completion_mode", "result", "action"];
        Self {
            client: ClientMetrics::new(metrics),
            job_creation_skew: metrics.histogram(
                "cronjob_controller_job_creation_skew_duration_seconds",
                "Time between when a cronjob is scheduled to be run, and when the corresponding job is created",
                &doubling(1.0, 10),
            ),
            jobs: JobMetrics {
                syncs: metrics.counters(
                    "job_controller_job_syncs_total",
                    "The number of job syncs",
                    of_sync,
                ),
                sync_seconds: metrics.histograms(
                    "job_controller_job_sync_duration_seconds",
                    "The time it took to sync a job",
                    &doubling(0.004, 15),
                    of_sync,
                ),
                finished: metrics.counters(
                    "job_controller_jobs_finished_total",
                    "The number of finished jobs",
                    &["completion_mode", "result", "reason"],
                ),
                pods_finished: metrics.counters(
                    "job_controller_job_pods_finished_total",
                    "The number of finished Pods that are fully tracked",
                    &["completion_mode", "result"],
                ),
            },
            evictions: EvictionMetrics(metrics.counters(
                "node_collector_evictions_total",
                "Number of Node evictions that happened since current instance of NodeController started.",
                &["zone"],
            )),
            running: metrics.gauges(
                "running_managed_controllers",
                "Indicates where instances of a controller are currently running",
                &["name", "manager"],
            ),
        }
    }

    pub(crate) fn started(&self, controller: &str) {
        self.running.with_label_values(&[controller, "kube-controller-manager"]).set(1.0);
    }
}

fn completion_mode(job: &Job) -> &'static str {
    if job.is_indexed() { "Indexed" } else { "NonIndexed" }
}

impl JobMetrics {
    pub(crate) fn synced(&self, job: &Job, action: JobAction, took: Duration, success: bool) {
        let action = match action {
            JobAction::Reconciling => "reconciling",
            JobAction::Tracking => "tracking",
            JobAction::PodsCreated => "pods_created",
            JobAction::PodsDeleted => "pods_deleted",
        };
        let result = if success { "success" } else { "error" };
        let of = [completion_mode(job), result, action];
        self.syncs.with_label_values(&of).inc();
        self.sync_seconds.with_label_values(&of).observe(took.as_secs_f64());
    }

    /// Counts the difference between a Job's status and the new one that was written.
    pub(crate) fn written(&self, job: &Job, status: &Value) {
        let mode = completion_mode(job);
        for (result, before) in [("succeeded", job.status.succeeded), ("failed", job.status.failed)]
        {
            let more = status[result].as_i64().unwrap_or(0) - before;
            if let Ok(more @ 1..) = u64::try_from(more) {
                self.pods_finished.with_label_values(&[mode, result]).inc_by(more);
            }
        }
        if job.finished().is_some() {
            return;
        }
        let conditions = status["conditions"].as_array().into_iter().flatten();
        for condition in conditions.filter(|condition| condition["status"] == "True") {
            let result = match condition["type"].as_str() {
                Some("Complete") => "succeeded",
                Some("Failed") => "failed",
                _ => continue,
            };
            let known = REASONS.iter().find(|reason| condition["reason"] == **reason);
            let reason = known.copied().unwrap_or_default();
            self.finished.with_label_values(&[mode, result, reason]).inc();
        }
    }
}

/// The number of nodes whose Pods were evicted, by zone.
pub(crate) struct EvictionMetrics(IntCounterVec);

impl EvictionMetrics {
    pub(crate) fn count(&self, zone: &str) {
        self.0.with_label_values(&[zone]).inc();
    }

    /// Follows the zones that have nodes. A zone without nodes is dropped, because a node chooses its zone by a label.
    pub(crate) fn follow(&self, known: &mut HashSet<String>, zones: HashSet<String>) {
        for zone in known.difference(&zones) {
            // It fails only if the zone was dropped before.
            let _ = self.0.remove_label_values(&[zone]);
        }
        for zone in &zones {
            self.0.with_label_values(&[zone]);
        }
        *known = zones;
    }
}

/// Returns the name of a controller's work queue in metrics.
pub(crate) fn queue_name(controller: &str) -> &str {
    match controller {
        "namespace-controller" => "namespace",
        "serviceaccount-controller" => "serviceaccount",
        "root-ca-certificate-publisher-controller" => "root_ca_cert_publisher",
        "replicaset-controller" => "replicaset",
        "replicationcontroller-controller" => "replicationmanager",
        "daemonset-controller" => "daemonset",
        "statefulset-controller" => "statefulset",
        "job-controller" => "job",
        "cronjob-controller" => "cronjob",
        "ttl-after-finished-controller" => "ttl_jobs_to_delete",
        "deployment-controller" => "deployment",
        "endpointslice-controller" => "endpoint_slice",
        "endpointslice-mirroring-controller" => "endpoint_slice_mirroring",
        "endpoints-controller" => "endpoint",
        "garbage-collector-controller" => "garbage_collector_attempt_to_delete",
        "resourcequota-controller" => "resourcequota_primary",
        "disruption-controller" => "disruption",
        "horizontal-pod-autoscaler-controller" => "horizontalpodautoscaler",
        "persistentvolume-binder-controller" => "claims",
        "persistentvolume-expander-controller" => "volume_expand",
        "ephemeral-volume-controller" => "ephemeral_volume",
        "persistentvolumeclaim-protection-controller" => "pvcprotection",
        "persistentvolume-protection-controller" => "pvprotection",
        "resourceclaim-controller" => "resource_claim",
        "service-lb-controller" => "service",
        "service-cidr-controller" => "servicecidrs",
        "bootstrap-signer-controller" => "bootstrap_signer_queue",
        "token-cleaner-controller" => "token_cleaner",
        "node-lifecycle-controller" => "node_lifecycle_controller",
        "taint-eviction-controller" => "noexec_taint_pod",
        "clusterrole-aggregation-controller" => "ClusterRoleAggregator",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lines(metrics: &Metrics, name: &str) -> Vec<String> {
        let text = metrics.text();
        text.lines().filter(|line| line.starts_with(name)).map(str::to_owned).collect()
    }

    #[test]
    fn counts_finished_job_once_and_drops_unknown_reason() {
        let registry = Metrics::default();
        let metrics = ControllerMetrics::new(&registry).jobs;
        let job: Job = serde_json::from_value(json!({"spec": {"completionMode": "Indexed"},
            "status": {"succeeded": 1}}))
        .unwrap();
        let status = |reason: &str| {
            json!({"succeeded": 3, "conditions": [
                {"type": "FailureTarget", "status": "True", "reason": reason},
                {"type": "Failed", "status": "True", "reason": reason}]})
        };
        metrics.written(&job, &status("DeadlineExceeded"));
        for number in 0..50 {
            metrics.written(&job, &status(&format!("hostile-{number}")));
        }
        let finished = lines(&registry, "job_controller_jobs_finished_total");
        assert_eq!(finished.len(), 2, "{finished:?}");
        let of = "job_controller_jobs_finished_total{completion_mode=\"Indexed\",reason=";
        assert!(finished.contains(&format!("{of}\"DeadlineExceeded\",result=\"failed\"}} 1")));
        let pods = lines(&registry, "job_controller_job_pods_finished_total");
        let of = "job_controller_job_pods_finished_total{completion_mode=\"Indexed\",result=";
        assert_eq!(pods, [format!("{of}\"succeeded\"}} 102")]);
        let done: Job = serde_json::from_value(json!({"status": {"succeeded": 3,
            "conditions": [{"type": "Failed", "status": "True"}]}}))
        .unwrap();
        metrics.written(&done, &status("DeadlineExceeded"));
        assert_eq!(lines(&registry, "job_controller_jobs_finished_total"), finished);
    }

    #[test]
    fn keeps_only_zones_that_have_nodes() {
        let registry = Metrics::default();
        let metrics = ControllerMetrics::new(&registry).evictions;
        let mut known = HashSet::new();
        // A node that moves itself to ever new zones.
        for number in 0..100 {
            metrics
                .follow(&mut known, HashSet::from(["a".to_owned(), format!("hostile-{number}")]));
            metrics.count("a");
        }
        let name = "node_collector_evictions_total{zone=";
        let wanted = [format!("{name}\"a\"}} 100"), format!("{name}\"hostile-99\"}} 0")];
        assert_eq!(lines(&registry, "node_collector_evictions_total"), wanted);
    }
}
