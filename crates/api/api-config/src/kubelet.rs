//! `KubeletConfiguration` of `kubelet.config.k8s.io/v1beta1`.
//!
//! A zero duration or number, and `None`, mean the kubelet's default, as upstream.

mod parts;

use std::collections::BTreeMap;

use api_meta::GoDuration;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use parts::{
    Anonymous, Authentication, Authorization, AuthorizationWebhook, CrashLoopBackOff,
    MemoryReservation, MemorySwap, PriorityGracePeriod, Tracing, UserNamespaces, Webhook, X509,
};

use crate::{
    decode::{Decoded, decode_kind},
    error::Error,
    shared::{Logging, Taint, tidy, unset},
};

/// The only version of the kind.
pub const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// The kind.
pub const KIND: &str = "KubeletConfiguration";

type Map<V = String> = Option<BTreeMap<String, V>>;

/// A kubelet configuration file, with upstream's fields.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeletConfiguration {
    /// The apiVersion, [`API_VERSION`].
    pub api_version: String,
    /// The kind, [`KIND`].
    pub kind: String,
    /// `true` to serve the kubelet's API.
    pub enable_server: Option<bool>,
    /// The directory or file of static Pods.
    pub static_pod_path: String,
    /// The directory of Pod logs.
    pub pod_logs_dir: String,
    /// The longest interval between two syncs of a Pod.
    pub sync_frequency: GoDuration,
    /// The interval of checks for changed static Pod files.
    pub file_check_frequency: GoDuration,
    /// The interval of requests to `static_pod_url`.
    pub http_check_frequency: GoDuration,
    /// The URL of static Pods.
    #[serde(rename = "staticPodURL")]
    pub static_pod_url: String,
    /// The headers of requests to `static_pod_url`.
    #[serde(rename = "staticPodURLHeader")]
    pub static_pod_url_header: Map<Vec<String>>,
    /// The address to listen on.
    pub address: String,
    /// The port of the kubelet's API.
    #[serde(skip_serializing_if = "unset")]
    pub port: i32,
    /// The port of the read-only API; 0 to disable it.
    #[serde(skip_serializing_if = "unset")]
    pub read_only_port: i32,
    /// The path of the serving certificate.
    pub tls_cert_file: String,
    /// The path of the serving certificate's key.
    pub tls_private_key_file: String,
    /// The TLS 1.2 cipher suites.
    pub tls_cipher_suites: Vec<String>,
    /// The minimum TLS version.
    pub tls_min_version: String,
    /// `true` to renew the client certificate.
    #[serde(skip_serializing_if = "unset")]
    pub rotate_certificates: bool,
    /// `true` to request the serving certificate from the API server.
    #[serde(rename = "serverTLSBootstrap")]
    #[serde(skip_serializing_if = "unset")]
    pub server_tls_bootstrap: bool,
    /// The authentication of the kubelet's API.
    pub authentication: Authentication,
    /// The authorization of the kubelet's API.
    pub authorization: Authorization,
    /// The limit of image pulls per second; 0 for no limit.
    #[serde(rename = "registryPullQPS")]
    pub registry_pull_qps: Option<i32>,
    /// The burst of image pulls.
    #[serde(skip_serializing_if = "unset")]
    pub registry_burst: i32,
    /// The policy for verifying the pull credentials of present images.
    pub image_pull_credentials_verification_policy: String,
    /// The images that skip the verification of pull credentials.
    pub preloaded_images_verification_allowlist: Vec<String>,
    /// The limit of event creations per second; 0 for no limit.
    #[serde(rename = "eventRecordQPS")]
    pub event_record_qps: Option<i32>,
    /// The burst of event creations.
    #[serde(skip_serializing_if = "unset")]
    pub event_burst: i32,
    /// `true` to serve logs, exec, attach and port-forward.
    pub enable_debugging_handlers: Option<bool>,
    /// `true` to profile lock contention.
    #[serde(skip_serializing_if = "unset")]
    pub enable_contention_profiling: bool,
    /// The port of the health endpoint; 0 to disable it.
    pub healthz_port: Option<i32>,
    /// The address of the health endpoint.
    pub healthz_bind_address: String,
    /// The `oom_score_adj` of the kubelet.
    pub oom_score_adj: Option<i32>,
    /// The DNS domain of the cluster.
    pub cluster_domain: String,
    /// The DNS servers of Pods.
    #[serde(rename = "clusterDNS")]
    pub cluster_dns: Vec<String>,
    /// The idle time after which a streaming connection is closed.
    pub streaming_connection_idle_timeout: GoDuration,
    /// The interval of computing the node status.
    pub node_status_update_frequency: GoDuration,
    /// The interval of reporting an unchanged node status.
    pub node_status_report_frequency: GoDuration,
    /// The duration of the node's Lease, in seconds.
    #[serde(skip_serializing_if = "unset")]
    pub node_lease_duration_seconds: i32,
    /// The minimum age of an unused image before it is removed.
    #[serde(rename = "imageMinimumGCAge")]
    pub image_minimum_gc_age: GoDuration,
    /// The maximum age of an unused image before it is removed.
    #[serde(rename = "imageMaximumGCAge")]
    pub image_maximum_gc_age: GoDuration,
    /// The disk usage in percent at which images are removed.
    #[serde(rename = "imageGCHighThresholdPercent")]
    pub image_gc_high_threshold_percent: Option<i32>,
    /// The disk usage in percent down to which images are removed.
    #[serde(rename = "imageGCLowThresholdPercent")]
    pub image_gc_low_threshold_percent: Option<i32>,
    /// The interval of computing the disk usage of volumes.
    pub volume_stats_agg_period: GoDuration,
    /// The cgroup of the kubelet.
    pub kubelet_cgroups: String,
    /// The cgroup of system processes.
    pub system_cgroups: String,
    /// The root cgroup of Pods.
    pub cgroup_root: String,
    /// `true` to create cgroups for QoS classes and Pods.
    #[serde(rename = "cgroupsPerQOS")]
    pub cgroups_per_qos: Option<bool>,
    /// The cgroup driver, `cgroupfs` or `systemd`.
    pub cgroup_driver: String,
    /// The policy of the CPU manager.
    pub cpu_manager_policy: String,
    /// `true` to kill only the process, not the container, that exceeds the memory limit.
    #[serde(rename = "singleProcessOOMKill")]
    pub single_process_oom_kill: Option<bool>,
    /// The options of the CPU manager's policy.
    pub cpu_manager_policy_options: Map,
    /// The interval of the CPU manager's reconciliation.
    pub cpu_manager_reconcile_period: GoDuration,
    /// The policy of the memory manager.
    pub memory_manager_policy: String,
    /// The policy of the topology manager.
    pub topology_manager_policy: String,
    /// The scope of the topology manager.
    pub topology_manager_scope: String,
    /// The options of the topology manager's policy.
    pub topology_manager_policy_options: Map,
    /// The percentages of resources that are reserved for QoS classes.
    pub qos_reserved: Map,
    /// The timeout of requests to the container runtime.
    pub runtime_request_timeout: GoDuration,
    /// The hairpin mode of Pod interfaces.
    pub hairpin_mode: String,
    /// The maximum number of Pods.
    #[serde(skip_serializing_if = "unset")]
    pub max_pods: i32,
    /// The Pod range of a standalone kubelet.
    #[serde(rename = "podCIDR")]
    pub pod_cidr: String,
    /// The maximum number of processes per Pod.
    pub pod_pids_limit: Option<i64>,
    /// The path of the resolver configuration.
    pub resolv_conf: Option<String>,
    /// `true` to run the static Pods once and exit.
    #[serde(skip_serializing_if = "unset")]
    pub run_once: bool,
    /// `true` to enforce CPU limits with CFS quotas.
    #[serde(rename = "cpuCFSQuota")]
    pub cpu_cfs_quota: Option<bool>,
    /// The period of CFS quotas.
    #[serde(rename = "cpuCFSQuotaPeriod")]
    pub cpu_cfs_quota_period: Option<GoDuration>,
    /// The maximum number of images in the node status; -1 for no limit.
    pub node_status_max_images: Option<i32>,
    /// The maximum number of open files of the kubelet.
    #[serde(skip_serializing_if = "unset")]
    pub max_open_files: i64,
    /// The content type of requests to the API server.
    pub content_type: String,
    /// The limit of requests to the API server per second.
    #[serde(rename = "kubeAPIQPS")]
    pub kube_api_qps: Option<i32>,
    /// The burst of requests to the API server.
    #[serde(rename = "kubeAPIBurst")]
    #[serde(skip_serializing_if = "unset")]
    pub kube_api_burst: i32,
    /// `true` to pull images one after another.
    pub serialize_image_pulls: Option<bool>,
    /// The maximum number of parallel image pulls.
    pub max_parallel_image_pulls: Option<i32>,
    /// The hard eviction thresholds, by signal.
    pub eviction_hard: Map,
    /// The soft eviction thresholds, by signal.
    pub eviction_soft: Map,
    /// The grace periods of the soft eviction thresholds, by signal.
    pub eviction_soft_grace_period: Map,
    /// The time before a pressure condition is cleared.
    pub eviction_pressure_transition_period: GoDuration,
    /// The maximum grace period of a soft eviction, in seconds.
    #[serde(skip_serializing_if = "unset")]
    pub eviction_max_pod_grace_period: i32,
    /// The minimum amounts to reclaim, by signal.
    pub eviction_minimum_reclaim: Map,
    /// `true` to keep the defaults of unset eviction thresholds.
    pub merge_default_eviction_settings: Option<bool>,
    /// The maximum number of Pods per core; 0 for no limit.
    #[serde(skip_serializing_if = "unset")]
    pub pods_per_core: i32,
    /// `true` if the controller manager attaches volumes.
    pub enable_controller_attach_detach: Option<bool>,
    /// `true` to fail if kernel parameters differ from the kubelet's.
    #[serde(skip_serializing_if = "unset")]
    pub protect_kernel_defaults: bool,
    /// `true` to create iptables chains for other components.
    #[serde(rename = "makeIPTablesUtilChains")]
    pub make_iptables_util_chains: Option<bool>,
    /// The mark bit for masquerading.
    pub iptables_masquerade_bit: Option<i32>,
    /// The mark bit for dropping packets.
    pub iptables_drop_bit: Option<i32>,
    /// The feature gates.
    pub feature_gates: Map<bool>,
    /// `true` to fail on a machine with swap.
    pub fail_swap_on: Option<bool>,
    /// The use of swap by Pods.
    pub memory_swap: MemorySwap,
    /// The size at which a container log is rotated.
    pub container_log_max_size: String,
    /// The maximum number of log files per container.
    pub container_log_max_files: Option<i32>,
    /// The number of workers that rotate logs.
    pub container_log_max_workers: Option<i32>,
    /// The interval of checks for large logs.
    pub container_log_monitor_interval: Option<GoDuration>,
    /// The strategy for detecting changed ConfigMaps and Secrets.
    pub config_map_and_secret_change_detection_strategy: String,
    /// The resources reserved for system processes.
    pub system_reserved: Map,
    /// The resources reserved for Kubernetes components.
    pub kube_reserved: Map,
    /// The CPUs reserved for system processes and Kubernetes components.
    #[serde(rename = "reservedSystemCPUs")]
    pub reserved_system_cpus: String,
    /// The version whose hidden metrics are shown.
    pub show_hidden_metrics_for_version: String,
    /// The cgroup that limits system processes.
    pub system_reserved_cgroup: String,
    /// The cgroup that limits Kubernetes components.
    pub kube_reserved_cgroup: String,
    /// The cgroups whose limits are enforced. `None` is the default (`pods`); an empty list enforces nothing.
    pub enforce_node_allocatable: Option<Vec<String>>,
    /// The allowed unsafe sysctls, as names or patterns.
    pub allowed_unsafe_sysctls: Vec<String>,
    /// The directory of FlexVolume plugins.
    pub volume_plugin_dir: String,
    /// The ID of the machine at the cloud provider.
    #[serde(rename = "providerID")]
    pub provider_id: String,
    /// `true` to use the kernel's notifications of memory thresholds.
    #[serde(skip_serializing_if = "unset")]
    pub kernel_memcg_notification: bool,
    /// The logging settings.
    pub logging: Logging,
    /// `true` to serve the system's log files.
    pub enable_system_log_handler: Option<bool>,
    /// `true` to serve queries of the system's logs.
    pub enable_system_log_query: Option<bool>,
    /// The time to end Pods at a shutdown of the machine.
    pub shutdown_grace_period: GoDuration,
    /// The part of that time for critical Pods.
    pub shutdown_grace_period_critical_pods: GoDuration,
    /// The times to end Pods at a shutdown, by priority.
    pub shutdown_grace_period_by_pod_priority: Vec<PriorityGracePeriod>,
    /// The backoff of crashing containers.
    pub crash_loop_back_off: CrashLoopBackOff,
    /// The memory reserved on NUMA nodes.
    pub reserved_memory: Vec<MemoryReservation>,
    /// `true` to serve profiles.
    pub enable_profiling_handler: Option<bool>,
    /// `true` to allow changing the log level at runtime.
    pub enable_debug_flags_handler: Option<bool>,
    /// `true` to use the runtime's default seccomp profile by default.
    pub seccomp_default: Option<bool>,
    /// The factor of `memory.high` in memory QoS.
    pub memory_throttling_factor: Option<f64>,
    /// The protection of requested memory in memory QoS: `None` or `TieredReservation`.
    pub memory_reservation_policy: String,
    /// The taints of the Node at its registration.
    pub register_with_taints: Vec<Taint>,
    /// `true` to register the Node.
    pub register_node: Option<bool>,
    /// The export of traces.
    pub tracing: Option<Tracing>,
    /// `true` to isolate ephemeral storage.
    pub local_storage_capacity_isolation: Option<bool>,
    /// The socket of the container runtime.
    pub container_runtime_endpoint: String,
    /// The socket of the image service; empty for that of the container runtime.
    pub image_service_endpoint: String,
    /// `true` to fail on a machine with cgroup version 1.
    #[serde(rename = "failCgroupV1")]
    pub fail_cgroup_v1: Option<bool>,
    /// The settings of user namespaces.
    pub user_namespaces: Option<UserNamespaces>,
}

/// The fields that are written even if they are empty.
const KEEP: &[&str] = &["containerRuntimeEndpoint"];

impl KubeletConfiguration {
    /// Creates an empty configuration with its version and kind.
    pub fn new() -> Self {
        Self { api_version: API_VERSION.to_owned(), kind: KIND.to_owned(), ..Self::default() }
    }

    /// Decodes the kind. The kubelet accepts unknown fields with a warning.
    pub fn from_value(value: Value) -> Result<Decoded<Self>, Error> {
        decode_kind(API_VERSION, KIND, value)
    }

    /// Encodes the object like upstream.
    pub fn to_value(&self) -> Result<Value, Error> {
        let value = serde_json::to_value(self).map_err(|e| Error::Emit(e.to_string()))?;
        Ok(tidy(value, KEEP))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn writes_empty_configuration_like_upstream() {
        let value = KubeletConfiguration::new().to_value().unwrap();
        let text = crate::yaml::to_string(&value).unwrap();
        assert_eq!(text, include_str!("../testdata/kubelet-empty.yaml"));
    }

    #[test]
    fn round_trips_configuration() {
        let value = json!({
            "apiVersion": API_VERSION, "kind": KIND, "clusterDNS": ["10.96.0.10"], "failSwapOn": false,
            "evictionHard": {"memory.available": "100Mi"}, "featureGates": {"A": false}, "enforceNodeAllocatable": ["pods"],
            "registerWithTaints": [{"key": "a", "effect": "NoSchedule"}], "healthzPort": 10248,
            "nodeStatusUpdateFrequency": "10s", "podPidsLimit": -1, "odd": 1,
        });
        let decoded = KubeletConfiguration::from_value(value.clone()).unwrap();
        assert_eq!(decoded.unknown, ["odd"]);
        let written = decoded.value.to_value().unwrap();
        for (name, field) in value.as_object().unwrap().iter().filter(|(n, _)| *n != "odd") {
            assert_eq!(&written[name], field, "{name}");
        }
    }

    #[test]
    fn rejects_other_kind() {
        let error = KubeletConfiguration::from_value(json!({"kind": "Pod", "apiVersion": "v1"}))
            .unwrap_err();
        assert!(error.to_string().contains("but Pod of v1"), "{error}");
    }
}
