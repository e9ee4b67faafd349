//! The stability levels that upstream promises for its metrics.

/// The names of STABLE metrics.
const STABLE: &[&str] = &[
    "apiserver_admission_controller_admission_duration_seconds",
    "apiserver_admission_step_admission_duration_seconds",
    "apiserver_admission_webhook_admission_duration_seconds",
    "apiserver_current_inflight_requests",
    "apiserver_longrunning_requests",
    "apiserver_request_duration_seconds",
    "apiserver_request_total",
    "apiserver_requested_deprecated_apis",
    "apiserver_response_sizes",
    "apiserver_storage_objects",
    "apiserver_storage_size_bytes",
    "container_cpu_usage_seconds_total",
    "container_memory_working_set_bytes",
    "container_start_time_seconds",
    "cronjob_controller_job_creation_skew_duration_seconds",
    "job_controller_job_pods_finished_total",
    "job_controller_job_sync_duration_seconds",
    "job_controller_job_syncs_total",
    "job_controller_jobs_finished_total",
    "kube_pod_resource_limit",
    "kube_pod_resource_request",
    "kubernetes_healthcheck",
    "kubernetes_healthchecks_total",
    "node_collector_evictions_total",
    "node_cpu_usage_seconds_total",
    "node_memory_working_set_bytes",
    "pod_cpu_usage_seconds_total",
    "pod_memory_working_set_bytes",
    "resource_scrape_error",
    "scheduler_framework_extension_point_duration_seconds",
    "scheduler_pending_pods",
    "scheduler_pod_scheduling_attempts",
    "scheduler_preemption_attempts_total",
    "scheduler_preemption_victims",
    "scheduler_queue_incoming_pods_total",
    "scheduler_schedule_attempts_total",
    "scheduler_scheduling_attempt_duration_seconds",
];

/// The names of BETA metrics, except those that begin with a prefix of [`BETA_PREFIXES`].
const BETA: &[&str] = &[
    "apiserver_cel_compilation_duration_seconds",
    "apiserver_cel_evaluation_duration_seconds",
    "apiserver_flowcontrol_current_executing_requests",
    "apiserver_flowcontrol_current_executing_seats",
    "apiserver_flowcontrol_current_inqueue_requests",
    "apiserver_flowcontrol_dispatched_requests_total",
    "apiserver_flowcontrol_nominal_limit_seats",
    "apiserver_flowcontrol_rejected_requests_total",
    "apiserver_flowcontrol_request_wait_duration_seconds",
    "apiserver_storage_events_received_total",
    "apiserver_watch_list_duration_seconds",
    "disabled_metrics_total",
    "hidden_metrics_total",
    "kubernetes_build_info",
    "kubernetes_feature_enabled",
    "prober_probe_total",
    "registered_metrics_total",
    "running_managed_controllers",
    "scheduler_pod_scheduling_sli_duration_seconds",
];

/// The beginnings of names of BETA metrics.
const BETA_PREFIXES: &[&str] = &[
    "apiserver_authentication_config_controller_automatic_reload",
    "apiserver_authorization_config_controller_automatic_reload",
    "apiserver_validating_admission_policy_check_",
    "apiserver_validation_declarative_validation_",
    "kubelet_image_volume_",
    "workqueue_",
];

/// Returns the stability level of a metric, as upstream's `stability_level` label has it. Names that upstream does not
/// know are ALPHA: they may change.
pub(crate) fn stability(name: &str) -> &'static str {
    if STABLE.contains(&name) {
        "STABLE"
    } else if BETA.contains(&name) || BETA_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
        "BETA"
    } else {
        "ALPHA"
    }
}
