//! `KubeletConfiguration` (kubelet.config.k8s.io/v1beta1): the fields that act, and a table of those that do not.

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

/// What is wrong with the kubelet's flags or its file.
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

/// What this kubelet reads of its configuration. Zero and empty stand for the default, as upstream's do.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeletConfiguration {
    pub static_pod_path: String,
    pub sync_frequency: GoDuration,
    pub address: String,
    pub port: Option<u16>,
    pub tls_cert_file: String,
    pub tls_private_key_file: String,
    pub authentication: Authentication,
    pub authorization: Authorization,
    pub healthz_bind_address: String,
    pub healthz_port: Option<u16>,
    pub cluster_domain: String,
    #[serde(rename = "clusterDNS")]
    pub cluster_dns: Vec<String>,
    pub node_status_update_frequency: GoDuration,
    pub node_status_report_frequency: GoDuration,
    pub node_lease_duration_seconds: i32,
    #[serde(rename = "imageMinimumGCAge")]
    pub image_minimum_gc_age: GoDuration,
    #[serde(rename = "imageGCHighThresholdPercent")]
    pub image_gc_high_threshold_percent: Option<u64>,
    #[serde(rename = "imageGCLowThresholdPercent")]
    pub image_gc_low_threshold_percent: Option<u64>,
    pub cgroup_root: String,
    pub cgroup_driver: String,
    pub runtime_request_timeout: GoDuration,
    pub max_pods: i32,
    #[serde(rename = "podCIDR")]
    pub pod_cidr: String,
    pub resolv_conf: Option<String>,
    #[serde(rename = "cpuCFSQuota")]
    pub cpu_cfs_quota: Option<bool>,
    pub container_log_max_size: String,
    pub container_log_max_files: Option<i32>,
    pub system_reserved: BTreeMap<String, String>,
    pub kube_reserved: BTreeMap<String, String>,
    pub pod_logs_dir: String,
    pub register_with_taints: Vec<Taint>,
    pub register_node: Option<bool>,
    pub container_runtime_endpoint: String,
    pub serialize_image_pulls: Option<bool>,
    #[serde(rename = "failCgroupV1")]
    pub fail_cgroup_v1: Option<bool>,
    pub allowed_unsafe_sysctls: Vec<String>,
    pub enable_debugging_handlers: Option<bool>,
    pub rotate_certificates: bool,
    #[serde(rename = "serverTLSBootstrap")]
    pub server_tls_bootstrap: bool,
    pub local_storage_capacity_isolation: Option<bool>,
    pub seccomp_default: bool,
    pub pod_pids_limit: i64,
    #[serde(rename = "providerID")]
    pub provider_id: String,
    pub enable_server: Option<bool>,
    pub tls_min_version: String,
    pub tls_cipher_suites: Vec<String>,
    pub tls_curve_preferences: Vec<i32>,
    pub streaming_connection_idle_timeout: GoDuration,
    pub protect_kernel_defaults: bool,
    pub image_pull_credentials_verification_policy: String,
    pub preloaded_images_verification_allowlist: Vec<String>,
    #[serde(flatten)]
    pub eviction: eviction::EvictionConfiguration,
    #[serde(flatten)]
    pub placement: placement::PlacementConfiguration,
}

/// Who may be a user at the kubelet's own API.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Authentication {
    pub x509: X509,
    pub webhook: Webhook,
    pub anonymous: Anonymous,
}

/// Users by client certificates; an empty file name turns them off.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct X509 {
    #[serde(rename = "clientCAFile")]
    pub client_ca_file: String,
}

/// Users by bearer tokens, which the API server is asked about. On where it is not set.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Webhook {
    pub enabled: Option<bool>,
    #[serde(rename = "cacheTTL")]
    pub cache_ttl: GoDuration,
}

/// Whether requests without credentials are those of `system:anonymous`. Off where it is not set.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Anonymous {
    pub enabled: Option<bool>,
}

/// What users may do: with `Webhook` the API server says so, with `AlwaysAllow` it is everything.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Authorization {
    pub mode: String,
    pub webhook: AuthorizationWebhook,
}

/// How long the API server's answers are believed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AuthorizationWebhook {
    #[serde(rename = "cacheAuthorizedTTL")]
    pub cache_authorized_ttl: GoDuration,
    #[serde(rename = "cacheUnauthorizedTTL")]
    pub cache_unauthorized_ttl: GoDuration,
}

/// The configuration with defaults in place and values checked, which is what the code reads.
#[derive(Clone, Debug)]
pub struct Settings {
    pub node_name: String,
    pub node_ips: Vec<String>,
    pub root: PathBuf,
    pub cert_dir: PathBuf,
    pub logs: PathBuf,
    pub static_pods: Option<PathBuf>,
    pub runtime_endpoint: String,
    pub request_timeout: Duration,
    pub sync_frequency: Duration,
    pub cgroup_root: String,
    pub systemd_slices: bool,
    pub cluster_domain: String,
    pub cluster_dns: Vec<String>,
    pub resolv_conf: Option<PathBuf>,
    pub cpu_quota: bool,
    pub max_pods: i32,
    pub pod_cidr: String,
    pub serialize_pulls: bool,
    pub log_max_size: u64,
    pub log_max_files: usize,
    pub unsafe_sysctls: Vec<String>,
    pub lease_duration: Duration,
    pub status_update: Duration,
    pub status_report: Duration,
    pub image_gc_high: u64,
    pub image_gc_low: u64,
    pub image_min_age: Duration,
    pub reserved: BTreeMap<String, Vec<String>>,
    pub register: bool,
    pub taints: Vec<Taint>,
    pub labels: BTreeMap<String, String>,
    pub address: std::net::IpAddr,
    pub port: u16,
    pub healthz: Option<std::net::SocketAddr>,
    pub server: ServerSettings,
    pub eviction: EvictionSettings,
    pub placement: PlacementSettings,
    /// Whether Pods are held to what they may write to the node's disk.
    pub limit_storage: bool,
    /// Whether containers that ask for no seccomp profile get the runtime's.
    pub seccomp_default: bool,
    /// How many processes a Pod may have; none or less is no limit.
    pub pod_pids: i64,
    /// What the cloud calls this node.
    pub provider_id: String,
    /// Whether the kubelet answers requests at all.
    pub serve: bool,
    /// Whether the kubelet refuses to start on a kernel that is set otherwise than it wants.
    pub protect_kernel: bool,
    pub verification: Verification,
}

/// How the kubelet's own API is served, and to whom.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// The files of the serving certificate and its key; made on the spot where there are none.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Whether the cluster is asked for the certificate to serve with.
    pub bootstrap: bool,
    pub client_ca: Option<PathBuf>,
    pub anonymous: bool,
    pub webhook_authentication: bool,
    pub authentication_ttl: Duration,
    /// Whether users may do everything, without a question to the API server.
    pub always_allow: bool,
    pub authorized_ttl: Duration,
    pub unauthorized_ttl: Duration,
    /// Whether there are exec, logs and the like, and not only what monitoring asks for.
    pub debugging_handlers: bool,
    pub tls: serve::TlsPolicy,
    /// How long nothing may move on a connection of exec, attach or port-forward.
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

/// What comes from flags and the machine rather than from the file.
#[derive(Clone, Debug)]
pub struct Place {
    pub node_name: String,
    pub node_ips: Vec<String>,
    pub root: PathBuf,
    pub cert_dir: PathBuf,
    pub labels: BTreeMap<String, String>,
}

impl Settings {
    /// Fills in upstream's defaults and checks values; the error names the field.
    pub fn new(config: &KubeletConfiguration, place: Place) -> Result<Self, ConfigError> {
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
            // As many as are named, whatever else is reserved of them.
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

    /// Where one Pod's files are.
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

    fn place() -> Place {
        Place {
            node_name: "n".into(),
            node_ips: vec![],
            root: "/var/lib/kubelet".into(),
            cert_dir: "/var/lib/kubelet/pki".into(),
            labels: BTreeMap::new(),
        }
    }

    #[test]
    fn kubeadms_configuration_is_understood_and_zeros_are_defaults() {
        let settings = Settings::new(&parse(KUBEADM).unwrap(), place()).unwrap();
        assert_eq!(settings.sync_frequency, Duration::from_secs(60));
        assert_eq!(settings.cluster_dns, ["10.96.0.10"]);
        assert_eq!(settings.port, 10250);
        assert!(!settings.server.anonymous && settings.server.webhook_authentication);
        assert_eq!(settings.log_max_size, 10 << 20);
    }

    /// A setting that guards security acts or is refused.
    #[test]
    fn settings_of_security_that_cannot_act_are_refused_by_name() {
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
    fn a_wrong_type_and_a_half_key_pair_are_refused() {
        assert!(parse("maxPods: many").unwrap_err().to_string().contains("invalid type"));
        let config = parse("tlsCertFile: /x").unwrap();
        assert!(Settings::new(&config, place()).unwrap_err().to_string().contains("tlsCertFile"));
    }
}
