//! The fields of the configuration file, `KubeletConfiguration` (kubelet.config.k8s.io/v1beta1), that have an effect.

use std::collections::BTreeMap;

use api_config::{FeatureGateError, FeatureGates, GoDuration, kubelet::CrashLoopBackOff};
use k8s_openapi::api::core::v1::Taint;
use serde::Deserialize;

use crate::{
    eviction::EvictionConfiguration, host::HostConfiguration, images::ImageConfiguration,
    placement::PlacementConfiguration, reservation::ReservationConfiguration,
    shutdown::ShutdownConfiguration, static_url::StaticUrlConfiguration,
    traces::TracingConfiguration,
};

/// The fields of the configuration file that have an effect. Zero and empty values stand for the default, as upstream.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeletConfiguration {
    /// The directory of static Pod manifests.
    pub static_pod_path: String,
    /// The longest time between two syncs of a Pod.
    pub sync_frequency: GoDuration,
    /// The address of the kubelet's server.
    pub address: String,
    /// The port of the kubelet's server.
    pub port: Option<u16>,
    /// The file of the serving certificate.
    pub tls_cert_file: String,
    /// The file of the serving certificate's key.
    pub tls_private_key_file: String,
    /// The authentication of clients of the kubelet's server.
    pub authentication: Authentication,
    /// The authorization of clients of the kubelet's server.
    pub authorization: Authorization,
    /// The address of the health endpoint.
    pub healthz_bind_address: String,
    /// The port of the health endpoint; 0 turns it off.
    pub healthz_port: Option<u16>,
    /// The DNS domain of the cluster.
    pub cluster_domain: String,
    /// The DNS servers that Pods use.
    #[serde(rename = "clusterDNS")]
    pub cluster_dns: Vec<String>,
    /// The interval at which the Node's status is computed.
    pub node_status_update_frequency: GoDuration,
    /// The interval at which an unchanged Node status is posted.
    pub node_status_report_frequency: GoDuration,
    /// The duration of the node's Lease.
    pub node_lease_duration_seconds: i32,
    /// The cgroup that contains the cgroups of Pods.
    pub cgroup_root: String,
    /// The cgroup driver: `cgroupfs` or `systemd`.
    pub cgroup_driver: String,
    /// The timeout of calls to the container runtime.
    pub runtime_request_timeout: GoDuration,
    /// The largest number of Pods on the node.
    pub max_pods: i32,
    /// The largest number of Pods on each CPU; 0 for no such limit.
    pub pods_per_core: i32,
    /// The number of images in the Node's status; -1 for all.
    pub node_status_max_images: Option<i32>,
    /// The address range of Pods if the Node has none.
    #[serde(rename = "podCIDR")]
    pub pod_cidr: String,
    /// The resolver configuration for Pods; empty for none.
    pub resolv_conf: Option<String>,
    /// `true` if CPU limits are enforced by CFS quota.
    #[serde(rename = "cpuCFSQuota")]
    pub cpu_cfs_quota: Option<bool>,
    /// The size at which container logs are rotated.
    pub container_log_max_size: String,
    /// The number of log files kept per container.
    pub container_log_max_files: Option<i32>,
    /// The number of container logs that are rotated at the same time.
    pub container_log_max_workers: Option<i32>,
    /// The interval at which the sizes of container logs are checked.
    pub container_log_monitor_interval: GoDuration,
    /// The directory of container logs.
    pub pod_logs_dir: String,
    /// Taints of a Node that the kubelet registers.
    pub register_with_taints: Vec<Taint>,
    /// `true` if the kubelet registers its Node.
    pub register_node: Option<bool>,
    /// The endpoint of the container runtime.
    pub container_runtime_endpoint: String,
    /// `true` if the kubelet refuses to start on cgroup v1.
    #[serde(rename = "failCgroupV1")]
    pub fail_cgroup_v1: Option<bool>,
    /// Unsafe sysctls that Pods may set; a name may end in `*`.
    pub allowed_unsafe_sysctls: Vec<String>,
    /// `true` if the server has the debugging endpoints (exec, logs, and so on).
    pub enable_debugging_handlers: Option<bool>,
    /// `true` if the files below `/var/log` are served.
    pub enable_system_log_handler: Option<bool>,
    /// `true` if the logs of the node's services are served.
    pub enable_system_log_query: bool,
    /// The port for requests without authentication; 0 for none.
    pub read_only_port: u16,
    /// The number of Events per second; 0 for no limit.
    #[serde(rename = "eventRecordQPS")]
    pub event_record_qps: Option<i32>,
    /// The number of Events that may be sent at once.
    pub event_burst: i32,
    /// The back-off of crashing containers.
    pub crash_loop_back_off: CrashLoopBackOff,
    /// The feature gates.
    pub feature_gates: BTreeMap<String, bool>,
    /// Memory reserved by QoS class, behind a gate that is off upstream. A value is rejected.
    pub qos_reserved: BTreeMap<String, String>,
    /// `true` if the client certificate is renewed.
    pub rotate_certificates: bool,
    /// `true` if the serving certificate is requested from the cluster.
    #[serde(rename = "serverTLSBootstrap")]
    pub server_tls_bootstrap: bool,
    /// `true` if limits of local ephemeral storage are enforced.
    pub local_storage_capacity_isolation: Option<bool>,
    /// `true` if the runtime's seccomp profile is the default.
    pub seccomp_default: bool,
    /// The largest number of processes in a Pod.
    pub pod_pids_limit: i64,
    /// The cloud provider's identifier of the node.
    #[serde(rename = "providerID")]
    pub provider_id: String,
    /// `true` if the kubelet's server runs.
    pub enable_server: Option<bool>,
    /// The lowest TLS version.
    pub tls_min_version: String,
    /// The allowed TLS cipher suites.
    pub tls_cipher_suites: Vec<String>,
    /// Key exchange groups. Not supported: a value is rejected.
    pub tls_curve_preferences: Vec<i32>,
    /// The idle timeout of exec, attach and port-forward connections.
    pub streaming_connection_idle_timeout: GoDuration,
    /// `true` if wrong kernel settings are an error.
    pub protect_kernel_defaults: bool,
    /// The policy that decides which Pods must present image pull credentials.
    pub image_pull_credentials_verification_policy: String,
    /// Images that never need pull credentials under that policy.
    pub preloaded_images_verification_allowlist: Vec<String>,
    /// The eviction settings.
    #[serde(flatten)]
    pub eviction: EvictionConfiguration,
    /// The settings of image pulls and image garbage collection.
    #[serde(flatten)]
    pub images: ImageConfiguration,
    /// The settings of the machine.
    #[serde(flatten)]
    pub host: HostConfiguration,
    /// The reserved resources.
    #[serde(flatten)]
    pub reservation: ReservationConfiguration,
    /// The settings of a graceful shutdown.
    #[serde(flatten)]
    pub shutdown: ShutdownConfiguration,
    /// The export of traces; `None` for none.
    pub tracing: Option<TracingConfiguration>,
    /// The URL of static Pods.
    #[serde(flatten)]
    pub static_url: StaticUrlConfiguration,
    /// The settings of the CPU, memory and topology managers.
    #[serde(flatten)]
    pub placement: PlacementConfiguration,
}

impl KubeletConfiguration {
    /// Returns the feature gates.
    ///
    /// # Errors
    ///
    /// Returns an error for a gate that is unknown or cannot have its value.
    pub(crate) fn gates(&self) -> Result<FeatureGates, FeatureGateError> {
        FeatureGates::of(self.feature_gates.iter().map(|(name, on)| (name.as_str(), *on)))
    }
}

/// The authentication methods of the kubelet's server.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Authentication {
    /// Client certificates.
    pub x509: X509,
    /// Bearer tokens.
    pub webhook: Webhook,
    /// Requests without credentials.
    pub anonymous: Anonymous,
}

/// Authentication by client certificate. An empty file name disables it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct X509 {
    /// The file with the CA certificates of clients.
    #[serde(rename = "clientCAFile")]
    pub client_ca_file: String,
}

/// Authentication by bearer token, by TokenReview at the API server. Enabled by default.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Webhook {
    /// `true` if bearer tokens are accepted.
    pub enabled: Option<bool>,
    /// The time for which a TokenReview is cached.
    #[serde(rename = "cacheTTL")]
    pub cache_ttl: GoDuration,
}

/// Access without credentials, as the user `system:anonymous`. Disabled by default.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Anonymous {
    /// `true` if anonymous requests are accepted.
    pub enabled: Option<bool>,
}

/// The authorization mode: `Webhook` sends reviews to the API server, `AlwaysAllow` allows everything.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Authorization {
    /// The mode: `Webhook` (default) or `AlwaysAllow`.
    pub mode: String,
    /// The settings of the mode `Webhook`.
    pub webhook: AuthorizationWebhook,
}

/// The times for which the API server's decisions are cached.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AuthorizationWebhook {
    /// The time for which a permission is cached.
    #[serde(rename = "cacheAuthorizedTTL")]
    pub cache_authorized_ttl: GoDuration,
    /// The time for which a denial is cached.
    #[serde(rename = "cacheUnauthorizedTTL")]
    pub cache_unauthorized_ttl: GoDuration,
}
