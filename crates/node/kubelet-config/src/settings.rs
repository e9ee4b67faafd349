//! The checked configuration. All parts of the kubelet read [`Settings`].

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use api_config::{FeatureGates, GoDuration};
use api_meta::Quantity;
use k8s_openapi::api::core::v1::Taint;
use pod_core::cgroups::CgroupNames;
use serde_json::{Value, json};

use crate::{
    cloud::CloudSettings,
    configuration::KubeletConfiguration,
    defaults::{duration_or, path, text_or},
    error::{ConfigError, invalid},
    eviction::EvictionSettings,
    host::KernelSettings,
    images::ImageSettings,
    placement::PlacementSettings,
    rate::{Rate, RateField, not_negative},
    reservation::{self, Enforcement},
    shutdown::{self, ShutdownPeriod},
    static_url::{self, StaticUrl},
    verification::Verification,
};

/// The default endpoint of the container runtime.
const RUNTIME_ENDPOINT: &str = "unix:///run/containerd/containerd.sock";

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
    /// The URL of static Pods, if there is one.
    pub static_url: Option<StaticUrl>,
    /// The endpoint of the container runtime.
    pub runtime_endpoint: String,
    /// The timeout of calls to the container runtime.
    pub request_timeout: Duration,
    /// The longest time between two syncs of a Pod.
    pub sync_frequency: Duration,
    /// The names of the cgroups of Pods, by cgroup root and driver.
    pub cgroups: CgroupNames,
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
    /// The largest number of Pods on each CPU; 0 for no such limit.
    pub pods_per_core: u32,
    /// The address range of Pods if the Node has none.
    pub pod_cidr: String,
    /// The settings of image pulls and image garbage collection.
    pub images: ImageSettings,
    /// The size in bytes at which container logs are rotated.
    pub log_max_size: u64,
    /// The number of log files kept per container, at least 2.
    pub log_max_files: usize,
    /// The number of container logs that are rotated at the same time, at least 1.
    pub log_workers: usize,
    /// The interval at which the sizes of container logs are checked.
    pub log_interval: Duration,
    /// Unsafe sysctls that Pods may set.
    pub unsafe_sysctls: Vec<String>,
    /// The duration of the node's Lease.
    pub lease_duration: Duration,
    /// The interval at which the Node's status is computed.
    pub status_update: Duration,
    /// The interval at which an unchanged Node status is posted.
    pub status_report: Duration,
    /// The number of images in the Node's status; `None` for all.
    pub status_images: Option<usize>,
    /// The rate of Events; `None` if there is no limit.
    pub event_rate: Option<Rate>,
    /// The longest delay before a crashing container is restarted.
    pub restart_cap: Duration,
    /// The settings of the machine and of the kernel's limits.
    pub kernel: KernelSettings,
    /// The times that Pods have to end when the node shuts down, by rising priority.
    pub shutdown: Vec<ShutdownPeriod>,
    /// The enforcement of reserved and allocatable amounts.
    pub enforcement: Enforcement,
    /// Reserved amounts by resource: the system's and Kubernetes' own.
    pub reserved: BTreeMap<String, Vec<String>>,
    /// `true` if the kubelet registers its Node.
    pub register: bool,
    /// Taints of a Node that the kubelet registers.
    pub taints: Vec<Taint>,
    /// Labels of a Node that the kubelet registers.
    pub labels: BTreeMap<String, String>,
    /// The address of the kubelet's server.
    pub address: IpAddr,
    /// The port of the kubelet's server.
    pub port: u16,
    /// The address of the health endpoint, if it is enabled.
    pub healthz: Option<SocketAddr>,
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
    /// The part of the Node that a cloud controller manager completes.
    pub cloud: CloudSettings,
    /// `true` if the kubelet's server runs.
    pub serve: bool,
    /// `true` if the kubelet refuses to start if kernel settings differ from those that it needs.
    pub protect_kernel: bool,
    /// The policy that decides which Pods must present image pull credentials.
    pub verification: Verification,
    /// The export of traces; `None` for none.
    pub tracing: Option<otlp::Exporter>,
    /// The feature gates.
    pub features: FeatureGates,
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
    /// `true` if the files below `/var/log` are served.
    pub system_logs: bool,
    /// `true` if the logs of the node's services are served.
    pub log_query: bool,
    /// `true` if containers can be checkpointed.
    pub checkpoints: bool,
    /// The port for requests without authentication, if there is one.
    pub read_only_port: Option<u16>,
    /// The TLS versions and cipher suites.
    pub tls: serve::TlsPolicy,
    /// The idle timeout of exec, attach and port-forward connections.
    pub idle: Duration,
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
    /// Fills in upstream's defaults and validates the values.
    ///
    /// # Errors
    ///
    /// Returns the first invalid field.
    pub fn new(config: &KubeletConfiguration, host: HostSettings) -> Result<Self, ConfigError> {
        let address = parse_address("address", &config.address, "0.0.0.0")?;
        let healthz = healthz_address(config)?;
        let log_max_size = log_size(&config.container_log_max_size)?;
        let gates = config.gates()?;
        check_unsupported(config)?;
        let mut reserved = reservation::reserved(&config.reservation)?;
        let placement = PlacementSettings::new(&config.placement)?;
        if let Some(cpus) = &placement.reserved_cpus {
            // The number of named CPUs wins over other reservations of CPU.
            reserved.insert("cpu".to_owned(), vec![cpus.len().to_string()]);
        }
        let verification = Verification::new(
            &config.image_pull_credentials_verification_policy,
            &config.preloaded_images_verification_allowlist,
        );
        Ok(Self {
            node_name: host.node_name,
            node_ips: host.node_ips,
            root: host.root,
            cert_dir: host.cert_dir,
            labels: host.labels,
            logs: PathBuf::from(text_or(&config.pod_logs_dir, "/var/log/pods")),
            static_pods: path(&config.static_pod_path),
            static_url: static_url::of(&config.static_url)?,
            runtime_endpoint: text_or(&config.container_runtime_endpoint, RUNTIME_ENDPOINT),
            request_timeout: duration_or(config.runtime_request_timeout, 120),
            sync_frequency: duration_or(config.sync_frequency, 60),
            cgroups: CgroupNames {
                root: config.cgroup_root.trim_end_matches('/').to_owned(),
                systemd: config.cgroup_driver == "systemd",
            },
            cluster_domain: config.cluster_domain.clone(),
            cluster_dns: config.cluster_dns.clone(),
            resolv_conf: path(config.resolv_conf.as_deref().unwrap_or("/etc/resolv.conf")),
            cpu_quota: config.cpu_cfs_quota.unwrap_or(true),
            max_pods: if config.max_pods == 0 { 110 } else { config.max_pods },
            pod_cidr: config.pod_cidr.clone(),
            pods_per_core: not_negative("podsPerCore", config.pods_per_core)?,
            images: ImageSettings::new(&config.images)?,
            log_max_size,
            log_max_files: config.container_log_max_files.map_or(5, log_files),
            log_workers: log_workers(config.container_log_max_workers)?,
            log_interval: log_interval(config.container_log_monitor_interval)?,
            unsafe_sysctls: config.allowed_unsafe_sysctls.clone(),
            lease_duration: lease_duration(config.node_lease_duration_seconds),
            status_update: duration_or(config.node_status_update_frequency, 10),
            status_report: duration_or(config.node_status_report_frequency, 300),
            status_images: status_images(config.node_status_max_images)?,
            event_rate: event_rate(config)?,
            restart_cap: restart_cap(config, &gates)?,
            kernel: KernelSettings::new(&config.host, &gates)?,
            shutdown: shutdown::periods(&config.shutdown, &gates)?,
            enforcement: Enforcement::new(&config.reservation)?,
            reserved,
            register: config.register_node.unwrap_or(true),
            taints: config.register_with_taints.clone(),
            address,
            port: config.port.unwrap_or(10250),
            healthz,
            server: ServerSettings::new(config, &gates)?,
            eviction: EvictionSettings::new(&config.eviction)?,
            placement,
            limit_storage: config.local_storage_capacity_isolation.unwrap_or(true),
            seccomp_default: config.seccomp_default,
            pod_pids: config.pod_pids_limit,
            provider_id: config.provider_id.clone(),
            cloud: CloudSettings::default(),
            serve: config.enable_server.unwrap_or(true),
            protect_kernel: config.protect_kernel_defaults,
            verification: verification
                .map_err(|error| invalid("imagePullCredentialsVerificationPolicy", error))?,
            features: gates,
            tracing: config.tracing.as_ref().map(|tracing| tracing.exporter()).transpose()?,
        })
    }

    /// Returns the directory of a Pod's files.
    pub fn pod_dir(&self, uid: &str) -> PathBuf {
        pod_core::paths::pod_dir(&self.root, uid)
    }

    /// Returns the effective settings by the field names of KubeletConfiguration.
    pub fn configz(&self) -> Value {
        json!({
            "kind": "KubeletConfiguration",
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "staticPodPath": self.static_pods,
            "syncFrequency": GoDuration::from(self.sync_frequency),
            "address": self.address,
            "port": self.port,
            "clusterDomain": self.cluster_domain,
            "clusterDNS": self.cluster_dns,
            "nodeStatusUpdateFrequency": GoDuration::from(self.status_update),
            "nodeStatusReportFrequency": GoDuration::from(self.status_report),
            "nodeLeaseDurationSeconds": self.lease_duration.as_secs(),
            "imageGCHighThresholdPercent": self.images.gc_high,
            "imageGCLowThresholdPercent": self.images.gc_low,
            "cgroupRoot": self.cgroups.root,
            "runtimeRequestTimeout": GoDuration::from(self.request_timeout),
            "maxPods": self.max_pods,
            "podCIDR": self.pod_cidr,
            "resolvConf": self.resolv_conf,
            "cpuCFSQuota": self.cpu_quota,
            "containerLogMaxSize": self.log_max_size.to_string(),
            "containerLogMaxFiles": self.log_max_files,
            "podLogsDir": self.logs,
            "containerRuntimeEndpoint": self.runtime_endpoint,
        })
    }
}

fn parse_address(field: &'static str, value: &str, default: &str) -> Result<IpAddr, ConfigError> {
    let address = text_or(value, default);
    address.parse().map_err(|error| invalid(field, format!("{address:?}: {error}")))
}

/// Returns the address of the health endpoint, or `None` if its port is 0.
fn healthz_address(config: &KubeletConfiguration) -> Result<Option<SocketAddr>, ConfigError> {
    let port = config.healthz_port.unwrap_or(10248);
    let address = parse_address("healthzBindAddress", &config.healthz_bind_address, "127.0.0.1")?;
    Ok((port != 0).then(|| (address, port).into()))
}

/// Returns the size in bytes at which logs are rotated.
fn log_size(value: &str) -> Result<u64, ConfigError> {
    let size = text_or(value, "10Mi");
    let parsed = Quantity::parse(&size);
    let parsed =
        parsed.map_err(|error| invalid("containerLogMaxSize", format!("{size:?}: {error}")))?;
    Ok(parsed.value().unsigned_abs())
}

/// Returns the number of log files per container, at least 2.
fn log_files(count: i32) -> usize {
    usize::try_from(count).unwrap_or(5).max(2)
}

fn lease_duration(seconds: i32) -> Duration {
    let seconds = if seconds > 0 { seconds.unsigned_abs() } else { 40 };
    Duration::from_secs(u64::from(seconds))
}

/// Returns the number of logs that are rotated at the same time.
fn log_workers(count: Option<i32>) -> Result<usize, ConfigError> {
    let count = count.unwrap_or(1);
    let workers = usize::try_from(count).ok().filter(|workers| *workers > 0);
    workers.ok_or_else(|| {
        invalid("containerLogMaxWorkers", format!("{count} must be greater than or equal to 1"))
    })
}

fn log_interval(interval: GoDuration) -> Result<Duration, ConfigError> {
    if !interval.is_zero() && interval < GoDuration::from_secs(3) {
        let message =
            format!("{interval} must be a positive time duration greater than or equal to 3s");
        return Err(invalid("containerLogMonitorInterval", message));
    }
    Ok(duration_or(interval, 10))
}

/// Returns the number of images in the Node's status, or `None` for all.
fn status_images(count: Option<i32>) -> Result<Option<usize>, ConfigError> {
    match count.unwrap_or(50) {
        -1 => Ok(None),
        count => usize::try_from(count)
            .map(Some)
            .map_err(|_| invalid("nodeStatusMaxImages", format!("{count} must be -1 or greater"))),
    }
}

fn event_rate(config: &KubeletConfiguration) -> Result<Option<Rate>, ConfigError> {
    let burst = Some(config.event_burst).filter(|burst| *burst != 0);
    Rate::new(
        &RateField { name: "eventRecordQPS", value: config.event_record_qps, default: 50 },
        &RateField { name: "eventBurst", value: burst, default: 100 },
    )
}

/// Returns the longest delay before a crashing container is restarted.
fn restart_cap(
    config: &KubeletConfiguration,
    gates: &FeatureGates,
) -> Result<Duration, ConfigError> {
    const DEFAULT: Duration = Duration::from_secs(300);
    const FIELD: &str = "crashLoopBackOff.maxContainerRestartPeriod";
    let Some(cap) = config.crash_loop_back_off.max_container_restart_period else {
        return Ok(DEFAULT);
    };
    if !gates.is_enabled("KubeletCrashLoopBackOffMax") {
        let message = "requires the feature gate KubeletCrashLoopBackOffMax".to_owned();
        return Err(invalid(FIELD, message));
    }
    if !(GoDuration::from_secs(1)..=GoDuration::from_secs(300)).contains(&cap) {
        return Err(invalid(FIELD, format!("{cap} must be set between 1s and 300s")));
    }
    Ok(cap.to_std())
}

/// Rejects fields that upstream rejects while their feature gates are off.
fn check_unsupported(config: &KubeletConfiguration) -> Result<(), ConfigError> {
    if config.qos_reserved.is_empty() {
        return Ok(());
    }
    Err(invalid("qosReserved", "requires the feature gate QOSReserved, which is not supported"))
}

impl ServerSettings {
    fn new(config: &KubeletConfiguration, gates: &FeatureGates) -> Result<Self, ConfigError> {
        let certificate = match (path(&config.tls_cert_file), path(&config.tls_private_key_file)) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => {
                let message = "tlsCertFile and tlsPrivateKeyFile must be given together".to_owned();
                return Err(invalid("tlsCertFile", message));
            }
        };
        if !config.tls_curve_preferences.is_empty() {
            let message = "key exchange is not configurable; leave it out".to_owned();
            return Err(invalid("tlsCurvePreferences", message));
        }
        let tls = serve::TlsPolicy::new(&config.tls_min_version, &config.tls_cipher_suites)
            .map_err(|error| match error {
                serve::PolicyError::Version(_) => invalid("tlsMinVersion", error),
                _ => invalid("tlsCipherSuites", error),
            })?;
        let mode = text_or(&config.authorization.mode, "Webhook");
        if mode != "Webhook" && mode != "AlwaysAllow" {
            let message = format!("{mode:?}: it must be Webhook or AlwaysAllow");
            return Err(invalid("authorization.mode", message));
        }
        let system_logs = config.enable_system_log_handler.unwrap_or(true);
        if config.enable_system_log_query && !system_logs {
            let message = "enableSystemLogHandler is required for enableSystemLogQuery".to_owned();
            return Err(invalid("enableSystemLogQuery", message));
        }
        Ok(Self {
            certificate,
            system_logs,
            log_query: config.enable_system_log_query,
            checkpoints: gates.is_enabled("ContainerCheckpoint"),
            read_only_port: Some(config.read_only_port).filter(|port| *port != 0),
            bootstrap: config.server_tls_bootstrap,
            client_ca: path(&config.authentication.x509.client_ca_file),
            anonymous: config.authentication.anonymous.enabled.unwrap_or(false),
            webhook_authentication: config.authentication.webhook.enabled.unwrap_or(true),
            authentication_ttl: duration_or(config.authentication.webhook.cache_ttl, 120),
            always_allow: mode == "AlwaysAllow",
            authorized_ttl: duration_or(config.authorization.webhook.cache_authorized_ttl, 300),
            unauthorized_ttl: duration_or(config.authorization.webhook.cache_unauthorized_ttl, 30),
            debugging_handlers: config.enable_debugging_handlers.unwrap_or(true),
            tls,
            idle: duration_or(config.streaming_connection_idle_timeout, 4 * 3600),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::parse;

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
    fn rejects_values_out_of_range() {
        for (text, words) in [
            ("containerLogMaxWorkers: 0", "0 must be greater than or equal to 1"),
            ("containerLogMonitorInterval: 2s", "greater than or equal to 3s"),
            ("nodeStatusMaxImages: -2", "-2 must be -1 or greater"),
            ("podsPerCore: -1", "podsPerCore: -1 must not be a negative number"),
            ("eventRecordQPS: -1", "eventRecordQPS: -1 must not be a negative number"),
            ("eventBurst: -1", "eventBurst: -1 must not be a negative number"),
            (
                "crashLoopBackOff: {maxContainerRestartPeriod: 301s}",
                "5m1s must be set between 1s and 300s",
            ),
            ("crashLoopBackOff: {maxContainerRestartPeriod: 0s}", "between 1s and 300s"),
            (
                "crashLoopBackOff: {maxContainerRestartPeriod: 9s}\n\
                 featureGates: {KubeletCrashLoopBackOffMax: false}",
                "requires the feature gate KubeletCrashLoopBackOffMax",
            ),
            (
                "enableSystemLogQuery: true\nenableSystemLogHandler: false",
                "enableSystemLogHandler is required",
            ),
            ("qosReserved: {memory: 50%}", "requires the feature gate QOSReserved"),
            ("featureGates: {NoSuchGate: true}", "unrecognized feature gate: NoSuchGate"),
            ("featureGates: {PodsAPI: true}", "the feature does not exist here"),
            ("featureGates: {ExecProbeTimeout: false}", "the feature is always on here"),
            ("featureGates: {ImageVolume: false}", "feature is locked to true"),
            ("userNamespaces: {idsPerPod: 65537}", "65537 must be a positive multiple of 65536"),
            ("userNamespaces: {idsPerPod: 0}", "must be a positive multiple"),
            ("userNamespaces: {idsPerPod: 4294967296}", "below 4294967296"),
        ] {
            let error = Settings::new(&parse(text).unwrap(), place()).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        let text = "nodeStatusMaxImages: -1\neventRecordQPS: 0\ncrashLoopBackOff: {maxContainerRestartPeriod: 30s}";
        let settings = Settings::new(&parse(text).unwrap(), place()).unwrap();
        assert_eq!((settings.status_images, settings.event_rate), (None, None));
        assert_eq!(settings.restart_cap, Duration::from_secs(30));
        assert_eq!(settings.kernel.ids_per_pod, 65_536);
    }

    #[test]
    fn rejects_wrong_type_and_certificate_without_key() {
        assert!(parse("maxPods: many").unwrap_err().to_string().contains("invalid type"));
        let config = parse("tlsCertFile: /x").unwrap();
        assert!(Settings::new(&config, place()).unwrap_err().to_string().contains("tlsCertFile"));
    }
}
