//! The flags of kube-controller-manager.

mod signers;

use std::{
    collections::BTreeMap,
    path::{Path as FilePath, PathBuf},
    time::Duration,
};

use api_config::{
    FeatureGateError, FeatureGateFlags, GoDuration, GoFlag as _, LeaderElectionFlags, PageFlags,
    known::{self, Flag, KnownFlags},
};
use api_meta::{Cidr, ErrorList, Path, aggregate};
use auth::authn::keys::{KeyError, SigningKey};
use client::LeaderElectionConfig;

use self::signers::{SignerFiles, SignerFlags};
use crate::{
    config::{Autoscaling, Config, EvictionRates, LoadBalancerSource},
    registry::registry,
};

/// The flags that have an effect. [`Tables`] lists the others.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Kubeconfig file with the address and credentials of the API server
    #[arg(long)]
    pub kubeconfig: PathBuf,
    /// Flags of the pages for operators
    #[command(flatten)]
    pub pages: PageFlags,
    /// Port to serve metrics and health checks on
    #[arg(long, default_value_t = 10257)]
    pub secure_port: u16,
    /// CA file that verifies client certificates of requests for metrics and health
    #[arg(long)]
    pub client_ca_file: Option<PathBuf>,
    /// Run the controllers only while holding the lease kube-system/kube-controller-manager
    #[arg(long, go_bool(), default_value = "true")]
    pub leader_elect: bool,
    /// Controllers to run: `*` for those on by default, a name for one more, `-name` for one less
    #[arg(long, value_delimiter = ',', default_value = "*")]
    pub controllers: Vec<String>,
    /// Allocate Pod CIDRs to nodes
    #[arg(long, go_bool(), default_value = "false")]
    pub allocate_node_cidrs: bool,
    /// Pod CIDRs of the cluster, at most one of each family
    #[arg(long, value_delimiter = ',')]
    pub cluster_cidr: Vec<String>,
    /// Name of the cluster
    #[arg(long, default_value = "kubernetes")]
    pub cluster_name: String,
    /// Service CIDRs, from which nodes get no Pod CIDRs
    #[arg(long, value_delimiter = ',')]
    pub service_cluster_ip_range: Vec<String>,
    /// Prefix length of a node's Pod CIDR in both families
    #[arg(long)]
    pub node_cidr_mask_size: Option<u8>,
    /// Prefix length of a node's IPv4 Pod CIDR
    #[arg(long)]
    pub node_cidr_mask_size_ipv4: Option<u8>,
    /// Prefix length of a node's IPv6 Pod CIDR
    #[arg(long)]
    pub node_cidr_mask_size_ipv6: Option<u8>,
    /// File with the CA certificate that Pods are to trust
    #[arg(long)]
    pub root_ca_file: Option<PathBuf>,
    /// File with the CA certificate that signs certificate requests
    #[arg(long)]
    pub cluster_signing_cert_file: Option<PathBuf>,
    /// File with the key of the CA that signs certificate requests
    #[arg(long)]
    pub cluster_signing_key_file: Option<PathBuf>,
    /// Longest validity of signed certificates
    #[arg(long)]
    pub cluster_signing_duration: Option<GoDuration>,
    /// File with the private key that signs the tokens of service accounts in Secrets
    #[arg(long)]
    pub service_account_private_key_file: Option<PathBuf>,
    /// Time without use after which a token Secret of a former release is invalidated, and then deleted
    #[arg(long)]
    pub legacy_service_account_token_clean_up_period: Option<GoDuration>,
    /// Every controller writes as its own service account; `false` is refused
    #[arg(long, go_bool(), default_value = "true")]
    pub use_service_account_credentials: bool,
    /// Interval between two checks of node health
    #[arg(long)]
    pub node_monitor_period: Option<GoDuration>,
    /// Time without a heartbeat after which a node is unhealthy
    #[arg(long)]
    pub node_monitor_grace_period: Option<GoDuration>,
    /// Time until the first report of its kubelet after which a node is unhealthy
    #[arg(long)]
    pub node_startup_grace_period: Option<GoDuration>,
    /// Number of terminated Pods above which the oldest are deleted; 0 for no limit
    #[arg(long)]
    pub terminated_pod_gc_threshold: Option<usize>,
    /// Number of autoscalers that are reconciled at the same time
    #[arg(long)]
    pub concurrent_horizontal_pod_autoscaler_syncs: Option<usize>,
    /// Interval between two evaluations of an autoscaler
    #[arg(long)]
    pub horizontal_pod_autoscaler_sync_period: Option<GoDuration>,
    /// Window in which a target shrinks only to the largest recommended size
    #[arg(long)]
    pub horizontal_pod_autoscaler_downscale_stabilization: Option<GoDuration>,
    /// Deviation from the target ratio that causes no scaling
    #[arg(long)]
    pub horizontal_pod_autoscaler_tolerance: Option<f64>,
    /// Time after a Pod's start in which its CPU usage counts only if the Pod is ready
    #[arg(long)]
    pub horizontal_pod_autoscaler_cpu_initialization_period: Option<GoDuration>,
    /// A Pod that became unready within this time after its start counts as never ready
    #[arg(long)]
    pub horizontal_pod_autoscaler_initial_readiness_delay: Option<GoDuration>,
    /// Never detach a volume by force from a node that reports it in use
    #[arg(long, go_bool(), default_value = "false")]
    pub disable_force_detach_on_timeout: bool,
    /// Accepted for kubeadm: external, or empty without a cloud. The loops of a cloud run in its own controller manager
    #[arg(long, default_value = "")]
    pub cloud_provider: String,
    /// Number of nodes per second that are tainted for eviction in a zone
    #[arg(long, default_value_t = 0.1, allow_hyphen_values = true)]
    pub node_eviction_rate: f64,
    /// The same in a large zone whose nodes are mostly unhealthy
    #[arg(long, default_value_t = 0.01, allow_hyphen_values = true)]
    pub secondary_node_eviction_rate: f64,
    /// Number of nodes above which a zone is large
    #[arg(long, default_value_t = 50)]
    pub large_cluster_size_threshold: usize,
    /// Share of unhealthy nodes from which a zone is mostly unhealthy
    #[arg(long, default_value_t = 0.55, allow_hyphen_values = true)]
    pub unhealthy_zone_threshold: f64,
    /// Number of endpoints in an EndpointSlice, at most 1000
    #[arg(long, default_value_t = 100, allow_hyphen_values = true)]
    pub max_endpoints_per_slice: i64,
    /// Number of addresses of a subset of Endpoints that are mirrored to EndpointSlices, at most 1000
    #[arg(long, default_value_t = 1000, allow_hyphen_values = true)]
    pub mirroring_max_endpoints_per_subset: i64,
    /// Delete the dependents of deleted objects; must be the same for the API server
    #[arg(long, go_bool(), default_value = "true")]
    pub enable_garbage_collector: bool,
    /// Request volumes for claims from the provisioners of their classes
    #[arg(long, go_bool(), default_value = "true")]
    pub enable_dynamic_provisioning: bool,
    /// Time that the controllers have to stop
    #[arg(long)]
    pub controller_shutdown_timeout: Option<GoDuration>,
    /// Ranges of addresses for Services of type LoadBalancer. Without them service-lb-controller, which --controllers
    /// switches on, gives the nodes' own addresses
    #[arg(long, value_delimiter = ',')]
    pub load_balancer_ranges: Vec<Cidr>,
    /// The flag of feature gates
    #[command(flatten)]
    pub features: FeatureGateFlags,
    /// Flags of the lease
    #[command(flatten)]
    pub lease: LeaderElectionFlags,
    /// Certificates and keys of single signers
    #[command(flatten)]
    pub signers: SignerFlags,
    /// Flags that are accepted without effect
    #[command(flatten)]
    pub ignored: KnownFlags<Tables>,
}

/// Lists the flags that are accepted without effect.
#[derive(Clone, Debug, Default)]
pub struct Tables;

const BATCHES: &str = "changes are batched as they come";
const NO_CLOUD: &str = "clouds have controller managers of their own";
const DRIVERS: &str = "volumes are made by drivers' own provisioners";
const WORKERS: &str = "the number of workers is fixed";

impl known::Tables for Tables {
    const TABLES: &'static [&'static [Flag]] = &[
        &[
            ("allow-untagged-cloud", false, NO_CLOUD),
            ("attach-detach-reconcile-sync-period", true, "changes are watched, not polled"),
            ("cidr-allocator-type", true, NO_CLOUD),
            ("cloud-config", true, NO_CLOUD),
            ("concurrent-cron-job-syncs", true, WORKERS),
            ("concurrent-daemonset-syncs", true, WORKERS),
            ("concurrent-deployment-syncs", true, WORKERS),
            ("concurrent-device-taint-eviction-syncs", true, WORKERS),
            ("concurrent-endpoint-syncs", true, WORKERS),
            ("concurrent-ephemeralvolume-syncs", true, WORKERS),
            ("concurrent-gc-syncs", true, WORKERS),
            ("concurrent-job-syncs", true, WORKERS),
            ("concurrent-namespace-syncs", true, WORKERS),
            ("concurrent-rc-syncs", true, WORKERS),
            ("concurrent-replicaset-syncs", true, WORKERS),
            ("concurrent-resource-quota-syncs", true, WORKERS),
            ("concurrent-resourceclaim-syncs", true, WORKERS),
            ("concurrent-service-endpoint-syncs", true, WORKERS),
            ("concurrent-service-syncs", true, WORKERS),
            ("concurrent-serviceaccount-token-syncs", true, WORKERS),
            ("concurrent-statefulset-syncs", true, WORKERS),
            ("concurrent-ttl-after-finished-syncs", true, WORKERS),
            ("concurrent-validating-admission-policy-status-syncs", true, WORKERS),
            ("configure-cloud-routes", false, NO_CLOUD),
            ("controller-start-interval", true, "all controllers start at once"),
            ("disable-attach-detach-reconcile-sync", false, "changes are watched, not polled"),
            ("enable-hostpath-provisioner", false, DRIVERS),
            ("enable-leader-migration", false, "there is no other instance to migrate from"),
            ("endpoint-updates-batch-period", true, BATCHES),
            ("endpointslice-updates-batch-period", true, BATCHES),
            ("external-cloud-volume-plugin", true, NO_CLOUD),
            ("flex-volume-plugin-dir", true, DRIVERS),
            ("leader-migration-config", true, "there is no other instance to migrate from"),
            ("min-resync-period", true, "changes are watched, not polled"),
            ("mirroring-concurrent-service-endpoint-syncs", true, WORKERS),
            ("mirroring-endpointslice-updates-batch-period", true, BATCHES),
            ("namespace-sync-period", true, "changes are watched, not polled"),
            ("pv-recycler-increment-timeout-nfs", true, DRIVERS),
            ("pv-recycler-minimum-timeout-hostpath", true, DRIVERS),
            ("pv-recycler-minimum-timeout-nfs", true, DRIVERS),
            ("pv-recycler-pod-template-filepath-hostpath", true, DRIVERS),
            ("pv-recycler-pod-template-filepath-nfs", true, DRIVERS),
            ("pv-recycler-timeout-increment-hostpath", true, DRIVERS),
            ("pvclaimbinder-sync-period", true, DRIVERS),
            ("requestheader-client-ca-file", true, "front proxies are not trusted"),
            ("resource-quota-sync-period", true, "changes are watched, not polled"),
            ("node-sync-period", true, "upstream ignores it too"),
            ("route-reconciliation-period", true, NO_CLOUD),
        ],
        known::CLIENT,
        known::COMMON,
    ];
}

/// The controller of LoadBalancer Services.
const SERVICE_LB: &str = "service-lb-controller";

/// An error in the flags; nothing has been started.
#[derive(Debug, thiserror::Error)]
pub enum FlagError {
    #[error("reading --{flag} {path}: {source}")]
    Read { flag: &'static str, path: PathBuf, source: std::io::Error },
    #[error(
        "--cluster-signing-cert-file and --cluster-signing-key-file go together; give both or neither"
    )]
    Signing,
    #[error(
        "--use-service-account-credentials=false is not supported: every controller acts as its own account"
    )]
    Credentials,
    #[error(
        "--cloud-provider={0}: only external is supported, or no provider; run the cloud's own controller manager"
    )]
    CloudProvider(String),
    #[error(
        "cannot specify --cluster-signing-{{cert,key}}-file and other --cluster-signing-*-file flags at the same time"
    )]
    SigningTwice,
    #[error(
        "--cluster-signing-{signer}-{{cert,key}}-file: cannot specify {given} without {missing}"
    )]
    Signer { signer: &'static str, given: &'static str, missing: &'static str },
    #[error(
        "--service-account-private-key-file: {0}; give the private key of the API server's tokens"
    )]
    TokenKey(KeyError),
    #[error("{flag} must not be {bound}, but got {given}")]
    Endpoints { flag: &'static str, bound: &'static str, given: i64 },
    #[error("using the flags --leader-elect-*: {}; correct them", aggregate(.0))]
    LeaderElection(ErrorList),
    #[error(
        "--controllers switches on {SERVICE_LB}, which runs in the cloud's controller manager with \
         --cloud-provider=external; leave it out"
    )]
    LoadBalancerOfCloud,
    #[error("--load-balancer-ranges needs {SERVICE_LB}; add it to --controllers")]
    LoadBalancerRanges,
    #[error("--controllers: {0:?} is not the name of a controller")]
    Controller(String),
    #[error(transparent)]
    Features(#[from] FeatureGateError),
}

impl Args {
    /// Converts the flags to a configuration and reads the files that they name.
    pub fn config(&self) -> Result<Config, FlagError> {
        if !self.use_service_account_credentials {
            return Err(FlagError::Credentials);
        }
        if !matches!(self.cloud_provider.as_str(), "" | "external") {
            return Err(FlagError::CloudProvider(self.cloud_provider.clone()));
        }
        let defaults = Config::default();
        let mask = |of_family: Option<u8>| of_family.or(self.node_cidr_mask_size);
        let config = Config {
            controllers: self.controllers.clone(),
            leader_election: self.leader_elect,
            cluster_name: self.cluster_name.clone(),
            cluster_cidrs: self.cluster_cidr.clone(),
            service_cidrs: self.service_cluster_ip_range.clone(),
            node_cidr_mask_v4: mask(self.node_cidr_mask_size_ipv4)
                .unwrap_or(defaults.node_cidr_mask_v4),
            node_cidr_mask_v6: mask(self.node_cidr_mask_size_ipv6)
                .unwrap_or(defaults.node_cidr_mask_v6),
            allocate_node_cidrs: self.allocate_node_cidrs,
            root_ca: read("root-ca-file", self.root_ca_file.as_deref())?,
            token_key: self.token_key()?,
            token_clean_up_period: duration(
                self.legacy_service_account_token_clean_up_period,
                defaults.token_clean_up_period,
            ),
            node_monitor_period: duration(self.node_monitor_period, defaults.node_monitor_period),
            node_monitor_grace_period: duration(
                self.node_monitor_grace_period,
                defaults.node_monitor_grace_period,
            ),
            node_startup_grace_period: duration(
                self.node_startup_grace_period,
                defaults.node_startup_grace_period,
            ),
            terminated_pod_threshold: self
                .terminated_pod_gc_threshold
                .unwrap_or(defaults.terminated_pod_threshold),
            signing: self.signing()?,
            signers: self.signers()?,
            lease: self.lease(defaults.lease)?,
            eviction: EvictionRates {
                usual: self.node_eviction_rate,
                secondary: self.secondary_node_eviction_rate,
                large: self.large_cluster_size_threshold,
                threshold: self.unhealthy_zone_threshold,
            },
            max_endpoints_per_slice: endpoints(
                "max-endpoints-per-slice",
                self.max_endpoints_per_slice,
            )?,
            max_mirrored_per_subset: endpoints(
                "mirroring-max-endpoints-per-subset",
                self.mirroring_max_endpoints_per_subset,
            )?,
            garbage_collection: self.enable_garbage_collector,
            dynamic_provisioning: self.enable_dynamic_provisioning,
            features: self.features.gates()?,
            signing_duration: duration(self.cluster_signing_duration, defaults.signing_duration),
            disable_force_detach: self.disable_force_detach_on_timeout,
            autoscaling: self.autoscaling(&defaults.autoscaling),
            load_balancer: self.load_balancer(),
            metrics: defaults.metrics,
        };
        let names: Vec<_> = registry().iter().map(|controller| controller.name).collect();
        if config.enables(SERVICE_LB) && self.cloud_provider == "external" {
            return Err(FlagError::LoadBalancerOfCloud);
        }
        if !self.load_balancer_ranges.is_empty() && !config.enables(SERVICE_LB) {
            return Err(FlagError::LoadBalancerRanges);
        }
        match config.unknown_controller(&names) {
            Some(unknown) => Err(FlagError::Controller(unknown.to_owned())),
            None => Ok(config),
        }
    }

    /// Reads the key that signs the tokens of Secrets.
    fn token_key(&self) -> Result<Option<String>, FlagError> {
        let flag = "service-account-private-key-file";
        let pem = read(flag, self.service_account_private_key_file.as_deref())?;
        if let Some(pem) = &pem {
            SigningKey::from_pem(pem.as_bytes()).map_err(FlagError::TokenKey)?;
        }
        Ok(pem)
    }

    /// Reads the certificate and the key of the signing CA; `None` without both flags.
    fn signing(&self) -> Result<Option<(String, String)>, FlagError> {
        let certificate =
            read("cluster-signing-cert-file", self.cluster_signing_cert_file.as_deref())?;
        let key = read("cluster-signing-key-file", self.cluster_signing_key_file.as_deref())?;
        match (certificate, key) {
            (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
            (None, None) => Ok(None),
            _ => Err(FlagError::Signing),
        }
    }

    /// Reads the certificates and keys of single signers, which the common ones exclude.
    fn signers(&self) -> Result<BTreeMap<&'static str, (String, String)>, FlagError> {
        let mut signers = BTreeMap::new();
        let files = self.signers.files();
        let common =
            self.cluster_signing_cert_file.is_some() || self.cluster_signing_key_file.is_some();
        if common && files.iter().any(|f| f.certificate.is_some() || f.key.is_some()) {
            return Err(FlagError::SigningTwice);
        }
        for SignerFiles { signer, flag, certificate, key } in files {
            let (given, missing) = match (certificate, key) {
                (None, None) => continue,
                (Some(certificate), Some(key)) => {
                    let certificate = read("cluster-signing-*-cert-file", Some(certificate))?;
                    let key = read("cluster-signing-*-key-file", Some(key))?;
                    signers.extend(certificate.zip(key).map(|pair| (signer, pair)));
                    continue;
                }
                (Some(_), None) => ("cert", "key"),
                (None, Some(_)) => ("key", "cert"),
            };
            return Err(FlagError::Signer { signer: flag, given, missing });
        }
        Ok(signers)
    }

    fn lease(&self, mut lease: LeaderElectionConfig) -> Result<LeaderElectionConfig, FlagError> {
        let mut errors = ErrorList::new();
        lease.apply(&self.lease.settings(), &Path::new("leaderElection"), &mut errors);
        if errors.is_empty() { Ok(lease) } else { Err(FlagError::LeaderElection(errors)) }
    }

    /// Returns the time that the controllers have to stop.
    pub fn shutdown_timeout(&self) -> Duration {
        duration(self.controller_shutdown_timeout, Duration::from_secs(10))
    }

    fn load_balancer(&self) -> LoadBalancerSource {
        if self.load_balancer_ranges.is_empty() {
            LoadBalancerSource::Nodes
        } else {
            LoadBalancerSource::Ranges(self.load_balancer_ranges.clone())
        }
    }

    /// Returns the settings of the autoscaler, with `defaults` for absent flags.
    fn autoscaling(&self, defaults: &Autoscaling) -> Autoscaling {
        let workers = self.concurrent_horizontal_pod_autoscaler_syncs.unwrap_or(defaults.workers);
        Autoscaling {
            workers: workers.max(1),
            period: duration(self.horizontal_pod_autoscaler_sync_period, defaults.period),
            downscale_stabilization: duration(
                self.horizontal_pod_autoscaler_downscale_stabilization,
                defaults.downscale_stabilization,
            ),
            tolerance: self.horizontal_pod_autoscaler_tolerance.unwrap_or(defaults.tolerance),
            cpu_initialization: duration(
                self.horizontal_pod_autoscaler_cpu_initialization_period,
                defaults.cpu_initialization,
            ),
            initial_readiness: duration(
                self.horizontal_pod_autoscaler_initial_readiness_delay,
                defaults.initial_readiness,
            ),
        }
    }
}

/// Checks a limit of the endpoints in one object.
fn endpoints(flag: &'static str, given: i64) -> Result<usize, FlagError> {
    let wrong = |bound| Err(FlagError::Endpoints { flag, bound, given });
    match usize::try_from(given) {
        Ok(number @ 1..=1000) => Ok(number),
        Ok(1001..) => wrong("more than 1000"),
        _ => wrong("less than 1"),
    }
}

/// Returns the duration of a flag, or the default without the flag. A negative duration is zero.
fn duration(flag: Option<GoDuration>, default: Duration) -> Duration {
    flag.map_or(default, |d| Duration::from_nanos(u64::try_from(d.nanos()).unwrap_or(0)))
}

/// Reads the file that a flag names; `None` without the flag.
fn read(flag: &'static str, path: Option<&FilePath>) -> Result<Option<String>, FlagError> {
    let Some(path) = path else { return Ok(None) };
    let text = std::fs::read_to_string(path);
    text.map(Some).map_err(|source| FlagError::Read { flag, path: path.to_owned(), source })
}

#[cfg(test)]
mod tests;
