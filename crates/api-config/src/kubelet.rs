//! `KubeletConfiguration` of `kubelet.config.k8s.io/v1beta1`.
//!
//! A zero duration or number, and a missing option, mean the kubelet's default, as upstream has it.

mod parts;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use parts::{
    Anonymous, Authentication, Authorization, AuthorizationWebhook, CrashLoopBackOff,
    MemoryReservation, MemorySwap, PriorityGracePeriod, Tracing, UserNamespaces, Webhook, X509,
};

use crate::{
    Decoded, Error, GoDuration, decode,
    shared::{Logging, Taint, tidy, unset},
};

/// The one version that upstream has.
pub const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// What `kind` must say.
pub const KIND: &str = "KubeletConfiguration";

type Map<V = String> = Option<BTreeMap<String, V>>;

/// A whole file of the kubelet's configuration, in upstream's fields.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeletConfiguration {
    pub api_version: String,
    pub kind: String,
    pub enable_server: Option<bool>,
    pub static_pod_path: String,
    pub pod_logs_dir: String,
    pub sync_frequency: GoDuration,
    pub file_check_frequency: GoDuration,
    pub http_check_frequency: GoDuration,
    #[serde(rename = "staticPodURL")]
    pub static_pod_url: String,
    #[serde(rename = "staticPodURLHeader")]
    pub static_pod_url_header: Map<Vec<String>>,
    pub address: String,
    #[serde(skip_serializing_if = "unset")]
    pub port: i32,
    #[serde(skip_serializing_if = "unset")]
    pub read_only_port: i32,
    pub tls_cert_file: String,
    pub tls_private_key_file: String,
    pub tls_cipher_suites: Vec<String>,
    pub tls_min_version: String,
    #[serde(skip_serializing_if = "unset")]
    pub rotate_certificates: bool,
    #[serde(rename = "serverTLSBootstrap")]
    #[serde(skip_serializing_if = "unset")]
    pub server_tls_bootstrap: bool,
    pub authentication: Authentication,
    pub authorization: Authorization,
    #[serde(rename = "registryPullQPS")]
    pub registry_pull_qps: Option<i32>,
    #[serde(skip_serializing_if = "unset")]
    pub registry_burst: i32,
    pub image_pull_credentials_verification_policy: String,
    pub preloaded_images_verification_allowlist: Vec<String>,
    #[serde(rename = "eventRecordQPS")]
    pub event_record_qps: Option<i32>,
    #[serde(skip_serializing_if = "unset")]
    pub event_burst: i32,
    pub enable_debugging_handlers: Option<bool>,
    #[serde(skip_serializing_if = "unset")]
    pub enable_contention_profiling: bool,
    pub healthz_port: Option<i32>,
    pub healthz_bind_address: String,
    pub oom_score_adj: Option<i32>,
    pub cluster_domain: String,
    #[serde(rename = "clusterDNS")]
    pub cluster_dns: Vec<String>,
    pub streaming_connection_idle_timeout: GoDuration,
    pub node_status_update_frequency: GoDuration,
    pub node_status_report_frequency: GoDuration,
    #[serde(skip_serializing_if = "unset")]
    pub node_lease_duration_seconds: i32,
    #[serde(rename = "imageMinimumGCAge")]
    pub image_minimum_gc_age: GoDuration,
    #[serde(rename = "imageMaximumGCAge")]
    pub image_maximum_gc_age: GoDuration,
    #[serde(rename = "imageGCHighThresholdPercent")]
    pub image_gc_high_threshold_percent: Option<i32>,
    #[serde(rename = "imageGCLowThresholdPercent")]
    pub image_gc_low_threshold_percent: Option<i32>,
    pub volume_stats_agg_period: GoDuration,
    pub kubelet_cgroups: String,
    pub system_cgroups: String,
    pub cgroup_root: String,
    #[serde(rename = "cgroupsPerQOS")]
    pub cgroups_per_qos: Option<bool>,
    pub cgroup_driver: String,
    pub cpu_manager_policy: String,
    #[serde(rename = "singleProcessOOMKill")]
    pub single_process_oom_kill: Option<bool>,
    pub cpu_manager_policy_options: Map,
    pub cpu_manager_reconcile_period: GoDuration,
    pub memory_manager_policy: String,
    pub topology_manager_policy: String,
    pub topology_manager_scope: String,
    pub topology_manager_policy_options: Map,
    pub qos_reserved: Map,
    pub runtime_request_timeout: GoDuration,
    pub hairpin_mode: String,
    #[serde(skip_serializing_if = "unset")]
    pub max_pods: i32,
    #[serde(rename = "podCIDR")]
    pub pod_cidr: String,
    pub pod_pids_limit: Option<i64>,
    pub resolv_conf: Option<String>,
    #[serde(skip_serializing_if = "unset")]
    pub run_once: bool,
    #[serde(rename = "cpuCFSQuota")]
    pub cpu_cfs_quota: Option<bool>,
    #[serde(rename = "cpuCFSQuotaPeriod")]
    pub cpu_cfs_quota_period: Option<GoDuration>,
    pub node_status_max_images: Option<i32>,
    #[serde(skip_serializing_if = "unset")]
    pub max_open_files: i64,
    pub content_type: String,
    #[serde(rename = "kubeAPIQPS")]
    pub kube_api_qps: Option<i32>,
    #[serde(rename = "kubeAPIBurst")]
    #[serde(skip_serializing_if = "unset")]
    pub kube_api_burst: i32,
    pub serialize_image_pulls: Option<bool>,
    pub max_parallel_image_pulls: Option<i32>,
    pub eviction_hard: Map,
    pub eviction_soft: Map,
    pub eviction_soft_grace_period: Map,
    pub eviction_pressure_transition_period: GoDuration,
    #[serde(skip_serializing_if = "unset")]
    pub eviction_max_pod_grace_period: i32,
    pub eviction_minimum_reclaim: Map,
    pub merge_default_eviction_settings: Option<bool>,
    #[serde(skip_serializing_if = "unset")]
    pub pods_per_core: i32,
    pub enable_controller_attach_detach: Option<bool>,
    #[serde(skip_serializing_if = "unset")]
    pub protect_kernel_defaults: bool,
    #[serde(rename = "makeIPTablesUtilChains")]
    pub make_iptables_util_chains: Option<bool>,
    pub iptables_masquerade_bit: Option<i32>,
    pub iptables_drop_bit: Option<i32>,
    pub feature_gates: Map<bool>,
    pub fail_swap_on: Option<bool>,
    pub memory_swap: MemorySwap,
    pub container_log_max_size: String,
    pub container_log_max_files: Option<i32>,
    pub container_log_max_workers: Option<i32>,
    pub container_log_monitor_interval: Option<GoDuration>,
    pub config_map_and_secret_change_detection_strategy: String,
    pub system_reserved: Map,
    pub kube_reserved: Map,
    #[serde(rename = "reservedSystemCPUs")]
    pub reserved_system_cpus: String,
    pub show_hidden_metrics_for_version: String,
    pub system_reserved_cgroup: String,
    pub kube_reserved_cgroup: String,
    /// None is the default (`pods`); an empty list enforces nothing.
    pub enforce_node_allocatable: Option<Vec<String>>,
    pub allowed_unsafe_sysctls: Vec<String>,
    pub volume_plugin_dir: String,
    #[serde(rename = "providerID")]
    pub provider_id: String,
    #[serde(skip_serializing_if = "unset")]
    pub kernel_memcg_notification: bool,
    pub logging: Logging,
    pub enable_system_log_handler: Option<bool>,
    pub enable_system_log_query: Option<bool>,
    pub shutdown_grace_period: GoDuration,
    pub shutdown_grace_period_critical_pods: GoDuration,
    pub shutdown_grace_period_by_pod_priority: Vec<PriorityGracePeriod>,
    pub crash_loop_back_off: CrashLoopBackOff,
    pub reserved_memory: Vec<MemoryReservation>,
    pub enable_profiling_handler: Option<bool>,
    pub enable_debug_flags_handler: Option<bool>,
    pub seccomp_default: Option<bool>,
    pub memory_throttling_factor: Option<f64>,
    pub register_with_taints: Vec<Taint>,
    pub register_node: Option<bool>,
    pub tracing: Option<Tracing>,
    pub local_storage_capacity_isolation: Option<bool>,
    pub container_runtime_endpoint: String,
    pub image_service_endpoint: String,
    #[serde(rename = "failCgroupV1")]
    pub fail_cgroup_v1: Option<bool>,
    pub user_namespaces: Option<UserNamespaces>,
}

/// Written even where they say nothing.
const KEEP: &[&str] = &["containerRuntimeEndpoint"];

impl KubeletConfiguration {
    /// An empty configuration with its version and kind, which are written out.
    pub fn new() -> Self {
        Self { api_version: API_VERSION.to_owned(), kind: KIND.to_owned(), ..Self::default() }
    }

    /// Decodes the kind; the kubelet lets unknown fields pass with a warning.
    pub fn from_value(value: Value) -> Result<Decoded<Self>, Error> {
        let (version, kind) = crate::gvk(&value);
        if (version, kind) != (API_VERSION, KIND) {
            return Err(Error::WrongKind {
                wanted: KIND,
                group: API_VERSION,
                found: format!("{kind} of {version}"),
            });
        }
        decode(KIND, value)
    }

    /// The object as upstream's encoder writes it.
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
    fn an_empty_configuration_is_written_as_upstream_writes_it() {
        let value = KubeletConfiguration::new().to_value().unwrap();
        let text = crate::yaml::to_string(&value).unwrap();
        assert_eq!(text, include_str!("../testdata/kubelet-empty.yaml"));
    }

    #[test]
    fn what_is_read_is_written_back() {
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
    fn another_kind_is_refused() {
        let error = KubeletConfiguration::from_value(json!({"kind": "Pod", "apiVersion": "v1"}))
            .unwrap_err();
        assert!(error.to_string().contains("but Pod of v1"), "{error}");
    }
}
