//! Parses `KubeletConfiguration` (kubelet.config.k8s.io/v1beta1) and checks it. [`KubeletConfiguration`] is the file,
//! and [`Settings`] the checked values with defaults that the kubelet uses. Fields without effect are in `ignored`.

mod eviction;
mod ignored;
mod load;
mod placement;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

pub(crate) use eviction::EvictionSettings;
pub(crate) use load::load;
pub use load::parse;
pub(crate) use placement::{PlacementSettings, ReservedMemory, Scope};

use api_config::GoDuration;
use k8s_openapi::api::core::v1::Taint;
use serde::Deserialize;

use crate::pulls::Verification;

/// An error in the kubelet's flags or configuration file.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("read the kubelet's configuration {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("the kubelet's configuration {}: {source}", path.display())]
    Decode { path: PathBuf, source: api_config::Error },
    #[error("the kubelet's configuration: {field}: {message}")]
    Invalid { field: &'static str, message: String },
    #[error("--{flag}={value}: it must be {wanted}")]
    Flag { flag: &'static str, value: String, wanted: &'static str },
}

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
    /// The age below which unused images are kept.
    #[serde(rename = "imageMinimumGCAge")]
    pub image_minimum_gc_age: GoDuration,
    /// The disk usage in percent above which unused images are removed.
    #[serde(rename = "imageGCHighThresholdPercent")]
    pub image_gc_high_threshold_percent: Option<u64>,
    /// The disk usage in percent down to which unused images are removed.
    #[serde(rename = "imageGCLowThresholdPercent")]
    pub image_gc_low_threshold_percent: Option<u64>,
    /// The cgroup that contains the cgroups of Pods.
    pub cgroup_root: String,
    /// The cgroup driver: `cgroupfs` or `systemd`.
    pub cgroup_driver: String,
    /// The timeout of calls to the container runtime.
    pub runtime_request_timeout: GoDuration,
    /// The largest number of Pods on the node.
    pub max_pods: i32,
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
    /// Resources reserved for the system, by name.
    pub system_reserved: BTreeMap<String, String>,
    /// Resources reserved for Kubernetes components, by name.
    pub kube_reserved: BTreeMap<String, String>,
    /// The directory of container logs.
    pub pod_logs_dir: String,
    /// Taints of a Node that the kubelet registers.
    pub register_with_taints: Vec<Taint>,
    /// `true` if the kubelet registers its Node.
    pub register_node: Option<bool>,
    /// The endpoint of the container runtime.
    pub container_runtime_endpoint: String,
    /// `true` if only one image is pulled at a time.
    pub serialize_image_pulls: Option<bool>,
    /// `true` if the kubelet refuses to start on cgroup v1.
    #[serde(rename = "failCgroupV1")]
    pub fail_cgroup_v1: Option<bool>,
    /// Unsafe sysctls that Pods may set; a name may end in `*`.
    pub allowed_unsafe_sysctls: Vec<String>,
    /// `true` if the server has the debugging endpoints (exec, logs, and so on).
    pub enable_debugging_handlers: Option<bool>,
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
    pub eviction: eviction::EvictionConfiguration,
    /// The settings of the CPU, memory and topology managers.
    #[serde(flatten)]
    pub placement: placement::PlacementConfiguration,
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

/// The authorization mode: `Webhook` asks the API server, `AlwaysAllow` allows everything.
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

/// The checked configuration with defaults filled in. All other modules read this.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The name of the Node.
    pub node_name: String,
    /// The addresses set with `--node-ip`.
    pub node_ips: Vec<String>,
    /// The directory for the kubelet's state.
    pub root: PathBuf,
    /// The directory for certificates.
    pub cert_dir: PathBuf,
    /// The directory of container logs.
    pub logs: PathBuf,
    /// The directory of static Pod manifests, if there is one.
    pub static_pods: Option<PathBuf>,
    /// The endpoint of the container runtime.
    pub runtime_endpoint: String,
    /// The timeout of calls to the container runtime.
    pub request_timeout: Duration,
    /// The longest time between two syncs of a Pod.
    pub sync_frequency: Duration,
    /// The cgroup that contains the cgroups of Pods, without a slash at the end; empty for the root.
    pub cgroup_root: String,
    /// `true` if the cgroup driver is `systemd`.
    pub systemd_slices: bool,
    /// The DNS domain of the cluster.
    pub cluster_domain: String,
    /// The DNS servers that Pods use.
    pub cluster_dns: Vec<String>,
    /// The resolver configuration for Pods; `None` if Pods get none.
    pub resolv_conf: Option<PathBuf>,
    /// `true` if CPU limits are enforced by CFS quota.
    pub cpu_quota: bool,
    /// The largest number of Pods on the node.
    pub max_pods: i32,
    /// The address range of Pods if the Node has none.
    pub pod_cidr: String,
    /// `true` if only one image is pulled at a time.
    pub serialize_pulls: bool,
    /// The size in bytes at which container logs are rotated.
    pub log_max_size: u64,
    /// The number of log files kept per container, at least 2.
    pub log_max_files: usize,
    /// Unsafe sysctls that Pods may set.
    pub unsafe_sysctls: Vec<String>,
    /// The duration of the node's Lease.
    pub lease_duration: Duration,
    /// The interval at which the Node's status is computed.
    pub status_update: Duration,
    /// The interval at which an unchanged Node status is posted.
    pub status_report: Duration,
    /// The disk usage in percent above which unused images are removed.
    pub image_gc_high: u64,
    /// The disk usage in percent down to which unused images are removed.
    pub image_gc_low: u64,
    /// The age below which unused images are kept.
    pub image_min_age: Duration,
    /// Reserved amounts by resource: the system's and Kubernetes' own.
    pub reserved: BTreeMap<String, Vec<String>>,
    /// `true` if the kubelet registers its Node.
    pub register: bool,
    /// Taints of a Node that the kubelet registers.
    pub taints: Vec<Taint>,
    /// Labels of a Node that the kubelet registers.
    pub labels: BTreeMap<String, String>,
    /// The address of the kubelet's server.
    pub address: std::net::IpAddr,
    /// The port of the kubelet's server.
    pub port: u16,
    /// The address of the health endpoint, if it is enabled.
    pub healthz: Option<std::net::SocketAddr>,
    /// The settings of the kubelet's server.
    pub server: ServerSettings,
    /// The eviction settings.
    pub eviction: EvictionSettings,
    /// The settings of the CPU, memory and topology managers.
    pub placement: PlacementSettings,
    /// `true` if limits of local ephemeral storage are enforced.
    pub limit_storage: bool,
    /// `true` if containers without a seccomp profile get the runtime's default profile.
    pub seccomp_default: bool,
    /// The largest number of processes in a Pod. Zero and negative values mean no limit.
    pub pod_pids: i64,
    /// The cloud provider's identifier of the node.
    pub provider_id: String,
    /// `true` if the kubelet's server runs.
    pub serve: bool,
    /// `true` if the kubelet refuses to start if kernel settings differ from those that it needs.
    pub protect_kernel: bool,
    /// The policy that decides which Pods must present image pull credentials.
    pub verification: Verification,
}

/// The settings of the kubelet's server: addresses, TLS, authentication and authorization.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// The files of the serving certificate and its key. Without them, the kubelet generates a self-signed certificate.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// `true` if the serving certificate is requested from the cluster.
    pub bootstrap: bool,
    /// The file with the CA certificates of clients.
    pub client_ca: Option<PathBuf>,
    /// `true` if requests without credentials are accepted.
    pub anonymous: bool,
    /// `true` if bearer tokens are accepted.
    pub webhook_authentication: bool,
    /// The time for which a TokenReview is cached.
    pub authentication_ttl: Duration,
    /// `true` if every user may do everything (mode `AlwaysAllow`).
    pub always_allow: bool,
    /// The time for which a permission is cached.
    pub authorized_ttl: Duration,
    /// The time for which a denial is cached.
    pub unauthorized_ttl: Duration,
    /// `true` if exec, logs and the other debugging endpoints are served, and not only those for monitoring.
    pub debugging_handlers: bool,
    /// The TLS versions and cipher suites.
    pub tls: serve::TlsPolicy,
    /// The idle timeout of exec, attach and port-forward connections.
    pub idle: Duration,
}

fn or(given: GoDuration, default: u64) -> Duration {
    if given.is_zero() { Duration::from_secs(default) } else { given.to_std() }
}

fn text(given: &str, default: &str) -> String {
    if given.is_empty() { default.to_owned() } else { given.to_owned() }
}

fn path(given: &str) -> Option<PathBuf> {
    (!given.is_empty()).then(|| PathBuf::from(given))
}

/// Settings that come from flags and the machine instead of the file.
#[derive(Clone, Debug)]
pub struct HostSettings {
    /// The name of the Node.
    pub node_name: String,
    /// The addresses set with `--node-ip`.
    pub node_ips: Vec<String>,
    /// The directory for the kubelet's state.
    pub root: PathBuf,
    /// The directory for certificates.
    pub cert_dir: PathBuf,
    /// Labels of a Node that the kubelet registers.
    pub labels: BTreeMap<String, String>,
}

impl Settings {
    /// Fills in upstream's defaults and validates the values. An error names the field.
    pub fn new(config: &KubeletConfiguration, place: HostSettings) -> Result<Self, ConfigError> {
        let invalid = |field, message: String| ConfigError::Invalid { field, message };
        let address = text(&config.address, "0.0.0.0");
        let address =
            address.parse().map_err(|e| invalid("address", format!("{address:?}: {e}")))?;
        let healthz_address = text(&config.healthz_bind_address, "127.0.0.1");
        let healthz_address: std::net::IpAddr = healthz_address
            .parse()
            .map_err(|e| invalid("healthzBindAddress", format!("{healthz_address:?}: {e}")))?;
        let healthz_port = config.healthz_port.unwrap_or(10248);
        let log_size = text(&config.container_log_max_size, "10Mi");
        let log_size = api_meta::Quantity::parse(&log_size)
            .map_err(|e| invalid("containerLogMaxSize", format!("{log_size:?}: {e}")))?;
        let high = config.image_gc_high_threshold_percent.unwrap_or(85);
        let low = config.image_gc_low_threshold_percent.unwrap_or(80);
        if low > high || high > 100 {
            let message = format!(
                "{low} and {high}: the low threshold must not exceed the high one, nor that 100"
            );
            return Err(invalid("imageGCLowThresholdPercent", message));
        }
        let mut reserved: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, amount) in config.system_reserved.iter().chain(&config.kube_reserved) {
            api_meta::Quantity::parse(amount).map_err(|e| {
                invalid("systemReserved, kubeReserved", format!("{name}: {amount:?}: {e}"))
            })?;
            reserved.entry(name.clone()).or_default().push(amount.clone());
        }
        let placement = PlacementSettings::new(&config.placement)?;
        if let Some(cpus) = &placement.reserved_cpus {
            // The number of named CPUs wins over other reservations of CPU.
            reserved.insert("cpu".to_owned(), vec![cpus.len().to_string()]);
        }
        let resolv_conf = match config.resolv_conf.as_deref() {
            Some("") => None,
            given => Some(PathBuf::from(given.unwrap_or("/etc/resolv.conf"))),
        };
        Ok(Self {
            node_name: place.node_name,
            node_ips: place.node_ips,
            root: place.root,
            cert_dir: place.cert_dir,
            labels: place.labels,
            logs: PathBuf::from(text(&config.pod_logs_dir, "/var/log/pods")),
            static_pods: path(&config.static_pod_path),
            runtime_endpoint: text(
                &config.container_runtime_endpoint,
                "unix:///run/containerd/containerd.sock",
            ),
            request_timeout: or(config.runtime_request_timeout, 120),
            sync_frequency: or(config.sync_frequency, 60),
            cgroup_root: text(config.cgroup_root.trim_end_matches('/'), ""),
            systemd_slices: config.cgroup_driver == "systemd",
            cluster_domain: config.cluster_domain.clone(),
            cluster_dns: config.cluster_dns.clone(),
            resolv_conf,
            cpu_quota: config.cpu_cfs_quota.unwrap_or(true),
            max_pods: if config.max_pods == 0 { 110 } else { config.max_pods },
            pod_cidr: config.pod_cidr.clone(),
            serialize_pulls: config.serialize_image_pulls.unwrap_or(true),
            log_max_size: log_size.value().unsigned_abs(),
            log_max_files: usize::try_from(config.container_log_max_files.unwrap_or(5))
                .unwrap_or(5)
                .max(2),
            unsafe_sysctls: config.allowed_unsafe_sysctls.clone(),
            lease_duration: match config.node_lease_duration_seconds {
                seconds if seconds > 0 => Duration::from_secs(u64::from(seconds.unsigned_abs())),
                _ => Duration::from_secs(40),
            },
            status_update: or(config.node_status_update_frequency, 10),
            status_report: or(config.node_status_report_frequency, 300),
            image_gc_high: high,
            image_gc_low: low,
            image_min_age: or(config.image_minimum_gc_age, 120),
            reserved,
            register: config.register_node.unwrap_or(true),
            taints: config.register_with_taints.clone(),
            address,
            port: config.port.unwrap_or(10250),
            healthz: (healthz_port != 0).then(|| (healthz_address, healthz_port).into()),
            server: ServerSettings::new(config)?,
            eviction: EvictionSettings::new(&config.eviction)?,
            placement,
            limit_storage: config.local_storage_capacity_isolation.unwrap_or(true),
            seccomp_default: config.seccomp_default,
            pod_pids: config.pod_pids_limit,
            provider_id: config.provider_id.clone(),
            serve: config.enable_server.unwrap_or(true),
            protect_kernel: config.protect_kernel_defaults,
            verification: Verification::new(
                &config.image_pull_credentials_verification_policy,
                &config.preloaded_images_verification_allowlist,
            )
            .map_err(|e| invalid("imagePullCredentialsVerificationPolicy", e))?,
        })
    }

    /// Returns the directory of a Pod's files.
    pub(crate) fn pod_dir(&self, uid: &str) -> PathBuf {
        self.root.join("pods").join(uid)
    }
}

impl ServerSettings {
    fn new(config: &KubeletConfiguration) -> Result<Self, ConfigError> {
        let certificate = match (path(&config.tls_cert_file), path(&config.tls_private_key_file)) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => {
                let message = "tlsCertFile and tlsPrivateKeyFile must be given together".to_owned();
                return Err(ConfigError::Invalid { field: "tlsCertFile", message });
            }
        };
        if !config.tls_curve_preferences.is_empty() {
            let message = "key exchange is not configurable; leave it out".to_owned();
            return Err(ConfigError::Invalid { field: "tlsCurvePreferences", message });
        }
        let tls = serve::TlsPolicy::new(&config.tls_min_version, &config.tls_cipher_suites)
            .map_err(|error| ConfigError::Invalid {
                field: match error {
                    serve::PolicyError::Version(_) => "tlsMinVersion",
                    _ => "tlsCipherSuites",
                },
                message: error.to_string(),
            })?;
        let mode = text(&config.authorization.mode, "Webhook");
        if mode != "Webhook" && mode != "AlwaysAllow" {
            let message = format!("{mode:?}: it must be Webhook or AlwaysAllow");
            return Err(ConfigError::Invalid { field: "authorization.mode", message });
        }
        Ok(Self {
            certificate,
            bootstrap: config.server_tls_bootstrap,
            client_ca: path(&config.authentication.x509.client_ca_file),
            anonymous: config.authentication.anonymous.enabled.unwrap_or(false),
            webhook_authentication: config.authentication.webhook.enabled.unwrap_or(true),
            authentication_ttl: or(config.authentication.webhook.cache_ttl, 120),
            always_allow: mode == "AlwaysAllow",
            authorized_ttl: or(config.authorization.webhook.cache_authorized_ttl, 300),
            unauthorized_ttl: or(config.authorization.webhook.cache_unauthorized_ttl, 30),
            debugging_handlers: config.enable_debugging_handlers.unwrap_or(true),
            tls,
            idle: or(config.streaming_connection_idle_timeout, 4 * 3600),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KUBEADM: &str = "
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {cacheTTL: 0s, enabled: true}
  x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}
authorization:
  mode: Webhook
  webhook: {cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 0s}
cgroupDriver: systemd
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
cpuManagerReconcilePeriod: 0s
logging: {flushFrequency: 0, options: {json: {infoBufferSize: \"0\"}}}
rotateCertificates: true
staticPodPath: /etc/kubernetes/manifests
syncFrequency: 0s
";

    fn place() -> HostSettings {
        HostSettings {
            node_name: "n".into(),
            node_ips: vec![],
            root: "/var/lib/kubelet".into(),
            cert_dir: "/var/lib/kubelet/pki".into(),
            labels: BTreeMap::new(),
        }
    }

    #[test]
    fn reads_kubeadm_configuration_and_treats_zero_as_default() {
        let settings = Settings::new(&parse(KUBEADM).unwrap(), place()).unwrap();
        assert_eq!(settings.sync_frequency, Duration::from_secs(60));
        assert_eq!(settings.cluster_dns, ["10.96.0.10"]);
        assert_eq!(settings.port, 10250);
        assert!(!settings.server.anonymous && settings.server.webhook_authentication);
        assert_eq!(settings.log_max_size, 10 << 20);
    }

    /// Security settings either have an effect or are rejected.
    #[test]
    fn rejects_security_settings_without_effect() {
        for (text, words) in [
            ("tlsMinVersion: VersionTLS9", "tlsMinVersion: unknown tls version"),
            ("tlsCurvePreferences: [29]", "tlsCurvePreferences: key exchange is not configurable"),
            ("tlsCipherSuites: [NONE]", "tlsCipherSuites: Cipher suite NONE not supported"),
            ("imagePullCredentialsVerificationPolicy: x", "option \"x\" specified for"),
        ] {
            let error = Settings::new(&parse(text).unwrap(), place()).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        let text = "streamingConnectionIdleTimeout: 5m\nprotectKernelDefaults: true";
        let settings = Settings::new(&parse(text).unwrap(), place()).unwrap();
        assert_eq!(
            (settings.server.idle, settings.protect_kernel),
            (Duration::from_secs(300), true)
        );
        let settings = Settings::new(&parse("{}").unwrap(), place()).unwrap();
        assert_eq!(settings.server.idle, Duration::from_secs(4 * 3600));
        assert_eq!(settings.verification, Verification::Pulled);
    }

    #[test]
    fn rejects_wrong_type_and_certificate_without_key() {
        assert!(parse("maxPods: many").unwrap_err().to_string().contains("invalid type"));
        let config = parse("tlsCertFile: /x").unwrap();
        assert!(Settings::new(&config, place()).unwrap_err().to_string().contains("tlsCertFile"));
    }
}
