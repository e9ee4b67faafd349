//! The command line of kube-apiserver: upstream's flags, divided into those with an effect, those that are refused and
//! those that are accepted without effect. [`Args::config`] converts them to a [`Config`].

mod access;
mod audit;
mod elections;
mod peers;
mod serving;
mod storage;
mod tokens;
mod tracing;

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    path::PathBuf,
    time::Duration,
};

use admission::DefaultTolerationSeconds;
use api_config::{
    FeatureGateError, FeatureGateFlags, GoDuration, GoFlag as _, TlsFlags,
    known::{self, Flag, KnownFlags},
};
use api_meta::Cidr;

pub use self::storage::{EtcdOverride, Storage};
use self::{
    access::{AccessFlagError, AccessFlags},
    audit::{AuditFlagError, AuditFlags},
    elections::{ElectionFlagError, ElectionFlags},
    peers::{PeerFlagError, PeerFlags},
    serving::{ServingFlagError, ServingFlags},
    storage::OverrideError,
    tokens::{TokenFlagError, TokenFlags},
    tracing::{TracingFlagError, TracingFlags},
};
use crate::config::{
    Config, Egress, EgressError, FrontProxy, InFlightLimits, ProxyClient, TokenKeys,
};
pub use crate::config::{RuntimeConfig, RuntimeConfigError};

/// Runs kube-apiserver: serves the Kubernetes API.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The address at which members of the cluster reach this server [default: that of the default route]
    #[arg(long)]
    pub advertise_address: Option<IpAddr>,
    /// The address to listen on
    #[arg(long, default_value = "0.0.0.0")]
    pub bind_address: IpAddr,
    /// The port to listen on
    #[arg(long, default_value_t = 6443)]
    pub secure_port: u16,
    /// Allow privileged containers, as the static Pods of kubeadm need them
    #[arg(long, go_bool(), default_value = "false")]
    pub allow_privileged: bool,
    /// Allow requests without credentials as system:anonymous [default: true]
    #[arg(long, go_bool())]
    pub anonymous_auth: Option<bool>,
    /// Audiences that tokens are accepted for [default: the issuers]
    #[arg(long, value_delimiter = ',')]
    pub api_audiences: Vec<String>,
    /// Flags of authentication and authorization
    #[command(flatten)]
    pub access: AccessFlags,
    /// The directory for the self-signed certificate of a server without --tls-cert-file
    #[arg(long, default_value = "/var/run/kubernetes")]
    pub cert_dir: PathBuf,
    /// Authorities that verify client certificates; without it certificates authenticate no user
    #[arg(long)]
    pub client_ca_file: Option<PathBuf>,
    /// Admission plugins to enable besides those that are on by default
    #[arg(long, value_delimiter = ',')]
    pub enable_admission_plugins: Vec<String>,
    /// Admission plugins to disable
    #[arg(long, value_delimiter = ',')]
    pub disable_admission_plugins: Vec<String>,
    /// The configuration of admission plugins: an AdmissionConfiguration
    #[arg(long)]
    pub admission_control_config_file: Option<PathBuf>,
    /// Seconds for which Pods tolerate a node that is not ready, unless they say otherwise
    #[arg(long, default_value_t = 300, allow_hyphen_values = true)]
    pub default_not_ready_toleration_seconds: i64,
    /// The same for an unreachable node
    #[arg(long, default_value_t = 300, allow_hyphen_values = true)]
    pub default_unreachable_toleration_seconds: i64,
    /// Accept the tokens in Secrets of type bootstrap.kubernetes.io/token
    #[arg(long, go_bool(), default_value = "false")]
    pub enable_bootstrap_token_auth: bool,
    /// Flags of the store
    #[command(flatten)]
    pub storage: Storage,
    /// Flags of auditing
    #[command(flatten)]
    pub audit: AuditFlags,
    /// The encryption at rest of the store: an EncryptionConfiguration
    #[arg(long)]
    pub encryption_provider_config: Option<PathBuf>,
    /// Reload the file of --encryption-provider-config when it changes
    #[arg(long, go_bool(), default_value = "false")]
    pub encryption_provider_config_automatic_reload: bool,
    /// The time that Events are kept
    #[arg(long, default_value = "1h0m0s")]
    pub event_ttl: GoDuration,
    /// The maximum duration of a request
    #[arg(long, default_value = "1m0s", allow_hyphen_values = true)]
    pub request_timeout: GoDuration,
    /// Authorities that verify the kubelets' serving certificates
    #[arg(long)]
    pub kubelet_certificate_authority: Option<PathBuf>,
    /// The client certificate for kubelets
    #[arg(long, requires = "kubelet_client_key")]
    pub kubelet_client_certificate: Option<PathBuf>,
    /// The key of the client certificate for kubelets
    #[arg(long, requires = "kubelet_client_certificate")]
    pub kubelet_client_key: Option<PathBuf>,
    /// The types of a node's addresses, in the order in which they are tried [default: InternalIP,ExternalIP,Hostname]
    #[arg(long, value_delimiter = ',')]
    pub kubelet_preferred_address_types: Vec<String>,
    /// The proxies through which the server reaches networks: an EgressSelectorConfiguration
    #[arg(long)]
    pub egress_selector_config_file: Option<PathBuf>,
    /// Flags of authenticating proxies and aggregated API servers
    #[command(flatten)]
    pub front_proxy: RequestHeader,
    /// Flags of the proxy between API servers
    #[command(flatten)]
    pub peers: PeerFlags,
    /// Built-in APIs to enable or disable: GROUP/VERSION[/RESOURCE]=true|false, api/all, api/ga, api/beta, api/alpha
    #[arg(long, value_delimiter = ',')]
    pub runtime_config: Vec<String>,
    /// Flags of service account tokens
    #[command(flatten)]
    pub tokens: TokenFlags,
    /// The issuer of service account tokens; if given several times, the first one issues and all are accepted
    #[arg(long, required = true)]
    pub service_account_issuer: Vec<String>,
    /// Keys that verify service account tokens; may be given several times
    #[arg(long)]
    pub service_account_key_file: Vec<PathBuf>,
    /// The key that signs service account tokens
    #[arg(long, required_unless_present = "service_account_signing_endpoint")]
    pub service_account_signing_key_file: Option<PathBuf>,
    /// The socket of an external signer of service account tokens, instead of key files
    #[arg(long)]
    pub service_account_signing_endpoint: Option<PathBuf>,
    /// The ranges of cluster IPs, the primary range first
    #[arg(long, value_delimiter = ',')]
    pub service_cluster_ip_range: Vec<Cidr>,
    /// The range of node ports: FIRST-LAST
    #[arg(long, default_value = "30000-32767")]
    pub service_node_port_range: PortRange,
    /// Static tokens, read at the start: lines of token,user,uid and, in quotes, groups
    #[arg(long)]
    pub token_auth_file: Option<PathBuf>,
    /// Flags of the serving certificate and of TLS
    #[command(flatten)]
    pub tls: TlsFlags,
    /// Flags of the listener
    #[command(flatten)]
    pub serving: ServingFlags,
    /// Flags of tracing
    #[command(flatten)]
    pub tracing: TracingFlags,
    /// Flags of coordinated leader election
    #[command(flatten)]
    pub elections: ElectionFlags,
    /// The flag of feature gates
    #[command(flatten)]
    pub features: FeatureGateFlags,
    /// Flags that are refused
    #[command(flatten)]
    pub refused: KnownFlags<Refused>,
    /// Queue requests by priority and fairly. Without it, the two limits count requests, and 0 is no limit
    #[arg(long, go_bool(), default_value = "true")]
    pub enable_priority_and_fairness: bool,
    /// Let deletions wait for the garbage collector; must be the same for the controller manager
    #[arg(long, go_bool(), default_value = "true")]
    pub enable_garbage_collector: bool,
    /// The number of concurrent read requests; added to that of mutating ones
    #[arg(long, default_value_t = 400)]
    pub max_requests_inflight: u32,
    /// The number of concurrent mutating requests
    #[arg(long, default_value_t = 200)]
    pub max_mutating_requests_inflight: u32,
    /// Flags that are accepted without effect
    #[command(flatten)]
    pub ignored: KnownFlags<Ignored>,
}

/// Flags of authenticating proxies, and of this server's credentials for aggregated API servers
#[derive(clap::Args, Clone, Debug)]
pub struct RequestHeader {
    /// Authorities that verify the client certificates of authenticating proxies
    #[arg(long)]
    pub requestheader_client_ca_file: Option<PathBuf>,
    /// Common names of these certificates [default: any]
    #[arg(long, value_delimiter = ',')]
    pub requestheader_allowed_names: Vec<String>,
    /// Headers with the user name
    #[arg(long, value_delimiter = ',')]
    pub requestheader_username_headers: Vec<String>,
    /// Headers with the UID
    #[arg(long, value_delimiter = ',')]
    pub requestheader_uid_headers: Vec<String>,
    /// Headers with the groups
    #[arg(long, value_delimiter = ',')]
    pub requestheader_group_headers: Vec<String>,
    /// Prefixes of headers with extra values
    #[arg(long, value_delimiter = ',')]
    pub requestheader_extra_headers_prefix: Vec<String>,
    /// The client certificate for aggregated API servers
    #[arg(long, requires = "proxy_client_key_file")]
    pub proxy_client_cert_file: Option<PathBuf>,
    /// The key of the client certificate for aggregated API servers
    #[arg(long, requires = "proxy_client_cert_file")]
    pub proxy_client_key_file: Option<PathBuf>,
}

/// The first and last port of a range, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange(pub u16, pub u16);

/// The error for a text that is not a range of ports.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a range of ports such as 30000-32767")]
pub struct ParsePortRangeError(String);

impl std::str::FromStr for PortRange {
    type Err = ParsePortRangeError;

    /// Parses `30000-32767` or, as upstream, `30000+2767`.
    fn from_str(text: &str) -> Result<Self, ParsePortRangeError> {
        let number = |text: &str| text.parse::<u16>().ok();
        let ends = match (text.split_once('-'), text.split_once('+')) {
            (Some((first, last)), _) => number(first).zip(number(last)),
            (None, Some((first, more))) => number(first)
                .zip(number(more))
                .and_then(|(first, more)| Some((first, first.checked_add(more)?))),
            (None, None) => number(text).map(|only| (only, only)),
        };
        match ends {
            Some((first, last)) if 0 < first && first <= last => Ok(Self(first, last)),
            _ => Err(ParsePortRangeError(text.to_owned())),
        }
    }
}

/// The error for flags that the API server cannot start with.
#[derive(Debug, thiserror::Error)]
pub enum FlagError {
    /// A flag of upstream that this server does not support.
    #[error("--{flag} is not supported: {reason}; start without it")]
    Refused { flag: &'static str, reason: &'static str },
    /// A supported flag with an unsupported value.
    #[error("--{flag}={value} is not supported: {reason}")]
    Value { flag: &'static str, value: String, reason: &'static str },
    #[error(transparent)]
    RuntimeConfig(#[from] RuntimeConfigError),
    #[error(transparent)]
    Access(#[from] AccessFlagError),
    #[error(transparent)]
    Audit(#[from] AuditFlagError),
    #[error(transparent)]
    Egress(#[from] EgressError),
    #[error(transparent)]
    Elections(#[from] ElectionFlagError),
    #[error(transparent)]
    Features(#[from] FeatureGateError),
    #[error(transparent)]
    Peers(#[from] PeerFlagError),
    #[error(transparent)]
    Serving(#[from] ServingFlagError),
    #[error(transparent)]
    Storage(#[from] OverrideError),
    #[error(transparent)]
    Tokens(#[from] TokenFlagError),
    #[error(transparent)]
    Tracing(#[from] TracingFlagError),
    /// Flow control without a seat.
    #[error(
        "invalid configuration: MaxRequestsInFlight={reading} and MaxMutatingRequestsInFlight={mutating}; they must \
         add up to something positive"
    )]
    Seats { reading: u32, mutating: u32 },
    /// A duration below zero.
    #[error("--{0} can not be negative value")]
    Negative(&'static str),
    /// A required flag is missing.
    #[error("--{flag} is required: {reason}")]
    Missing { flag: &'static str, reason: &'static str },
    #[error("finding the address to advertise: {source}; give --advertise-address")]
    Advertise { source: std::io::Error },
}

/// The types of a node's addresses.
const ADDRESS_TYPES: &[&str] =
    &["Hostname", "InternalDNS", "InternalIP", "ExternalDNS", "ExternalIP"];

impl Args {
    /// Converts the flags to a configuration. A flag that promises unsupported security is an error.
    pub fn config(&self) -> Result<Config, FlagError> {
        self.check()?;
        let file = |given: &Option<PathBuf>, own: &str| {
            given.clone().unwrap_or_else(|| self.cert_dir.join(own))
        };
        let (certificate, key) = (&self.kubelet_client_certificate, &self.kubelet_client_key);
        let features = self.features.gates()?;
        Ok(Config {
            bind: SocketAddr::new(self.bind_address, self.secure_port),
            advertise: self.advertise()?,
            shares_store: self.storage.store_dir.is_none(),
            service_cidrs: self.service_cluster_ip_range.clone(),
            node_ports: (self.service_node_port_range.0, self.service_node_port_range.1),
            allow_privileged: self.allow_privileged,
            event_ttl: self.event_ttl.to_std(),
            request_timeout: self.request_timeout.to_std(),
            processor_time: Config::PROCESSOR_TIME,
            compaction_interval: self.compaction_interval(),
            tls_certificate: file(&self.tls.tls_cert_file, "apiserver.crt"),
            tls_key: file(&self.tls.tls_private_key_file, "apiserver.key"),
            self_signed: self.tls.tls_cert_file.is_none(),
            client_ca: self.client_ca_file.clone(),
            token_keys: self.token_keys()?,
            service_account_issuers: self.service_account_issuer.clone(),
            extend_token_expiration: self.tokens.service_account_extend_token_expiration,
            jwks_uri: self.tokens.jwks_uri()?,
            max_token_expiration: self.tokens.max_expiration()?,
            egress: self.egress()?,
            serving: self.serving.options(&self.tls)?,
            peers: self.peers.options(&features)?,
            features,
            runtime_config: RuntimeConfig::parse(&self.runtime_config)?,
            api_audiences: self.api_audiences.clone(),
            kubelet_client: certificate.clone().zip(key.clone()),
            kubelet_address_types: self.kubelet_preferred_address_types.clone(),
            kubelet_ca: self.kubelet_certificate_authority.clone(),
            front_proxy: self.front_proxy.config(),
            proxy_client: self.front_proxy.client(),
            audit: self.audit.options()?,
            encryption: None,
            authentication: self.access.authentication(self.anonymous_auth.is_some())?,
            authorization: self.access.authorization()?,
            anonymous: self.anonymous_auth.unwrap_or(true),
            bootstrap_tokens: self.enable_bootstrap_token_auth,
            token_auth_file: self.token_auth_file.clone(),
            enable_admission: self.enable_admission_plugins.clone(),
            disable_admission: self.disable_admission_plugins.clone(),
            admission_file: self.admission_control_config_file.clone(),
            default_tolerations: DefaultTolerationSeconds {
                not_ready: self.default_not_ready_toleration_seconds,
                unreachable: self.default_unreachable_toleration_seconds,
            },
            components: Default::default(),
            seats: self.seats()?,
            in_flight: self.in_flight(),
            garbage_collection: self.enable_garbage_collector,
            election_lease: self.elections.lease()?,
            tracing: self.tracing.exporter()?,
        })
    }

    fn egress(&self) -> Result<Egress, EgressError> {
        let given = self.egress_selector_config_file.as_deref();
        given.map_or_else(|| Ok(Egress::default()), Egress::load)
    }

    fn token_keys(&self) -> Result<TokenKeys, FlagError> {
        let verifying = self.service_account_key_file.clone();
        match (&self.service_account_signing_key_file, &self.service_account_signing_endpoint) {
            (None, Some(socket)) if verifying.is_empty() => Ok(TokenKeys::External(socket.clone())),
            (_, Some(_)) => Err(TokenFlagError::KeysAndEndpoint.into()),
            (Some(signing), None) if verifying.is_empty() => {
                Ok(TokenKeys::Files { signing: signing.clone(), verifying: vec![signing.clone()] })
            }
            (Some(signing), None) => Ok(TokenKeys::Files { signing: signing.clone(), verifying }),
            (None, None) => Err(FlagError::Missing {
                flag: "service-account-signing-key-file",
                reason: "it signs the tokens of service accounts",
            }),
        }
    }

    fn check(&self) -> Result<(), FlagError> {
        if let Some((flag, reason)) = self.refused.given().next() {
            return Err(FlagError::Refused { flag, reason });
        }
        let mut types = self.kubelet_preferred_address_types.iter();
        let refuse = |flag, value: String, reason| Err(FlagError::Value { flag, value, reason });
        if let Some(unknown) = types.find(|name| !ADDRESS_TYPES.contains(&name.as_str())) {
            let reason = "types are Hostname, InternalDNS, InternalIP, ExternalDNS and ExternalIP";
            return refuse("kubelet-preferred-address-types", unknown.clone(), reason);
        }
        if self.storage.etcd_prefix != "/registry" {
            let reason = "keys begin with /registry";
            return refuse("etcd-prefix", self.storage.etcd_prefix.clone(), reason);
        }
        self.storage.overrides()?;
        if self.encryption_provider_config_automatic_reload
            && self.encryption_provider_config.is_none()
        {
            let reason = "--encryption-provider-config-automatic-reload must be set with --encryption-provider-config";
            return Err(FlagError::Missing { flag: "encryption-provider-config", reason });
        }
        if self.request_timeout.nanos() < 0 {
            return Err(FlagError::Negative("request-timeout"));
        }
        if self.service_cluster_ip_range.is_empty() {
            let reason = "Services get their addresses from it";
            return Err(FlagError::Missing { flag: "service-cluster-ip-range", reason });
        }
        self.front_proxy.check()
    }

    /// Returns the number of seats. As upstream, flow control distributes the sum of both limits.
    fn seats(&self) -> Result<u32, FlagError> {
        let (reading, mutating) = (self.max_requests_inflight, self.max_mutating_requests_inflight);
        match reading.saturating_add(mutating) {
            0 if self.enable_priority_and_fairness => Err(FlagError::Seats { reading, mutating }),
            seats => Ok(seats),
        }
    }

    /// Returns the limits that replace flow control.
    fn in_flight(&self) -> Option<InFlightLimits> {
        let (reading, mutating) = (self.max_requests_inflight, self.max_mutating_requests_inflight);
        (!self.enable_priority_and_fairness).then_some(InFlightLimits { reading, mutating })
    }

    fn advertise(&self) -> Result<IpAddr, FlagError> {
        match self.advertise_address {
            Some(address) => Ok(address),
            // As upstream: a bind address other than the unspecified one and loopback is advertised.
            None if !self.bind_address.is_unspecified() && !self.bind_address.is_loopback() => {
                Ok(self.bind_address)
            }
            None => {
                default_address(self.bind_address).map_err(|source| FlagError::Advertise { source })
            }
        }
    }

    fn compaction_interval(&self) -> Duration {
        match self.storage.etcd_compaction_interval.to_std() {
            // Zero turns compaction off.
            Duration::ZERO => Duration::from_secs(u64::from(u32::MAX)),
            interval => interval,
        }
    }
}

/// Returns the source address of the default route. Connecting a datagram socket sends no packet.
fn default_address(family: IpAddr) -> std::io::Result<IpAddr> {
    let (any, elsewhere): (IpAddr, IpAddr) = match family {
        IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 1).into()),
        IpAddr::V6(_) => (Ipv6Addr::UNSPECIFIED.into(), [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into()),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect((elsewhere, 9))?;
    Ok(socket.local_addr()?.ip())
}

impl RequestHeader {
    fn check(&self) -> Result<(), FlagError> {
        if self.requestheader_client_ca_file.is_some()
            && self.requestheader_username_headers.is_empty()
        {
            let reason = "the front proxy's CA is given";
            return Err(FlagError::Missing { flag: "requestheader-username-headers", reason });
        }
        Ok(())
    }

    fn client(&self) -> Option<ProxyClient> {
        let (certificate, key) = (&self.proxy_client_cert_file, &self.proxy_client_key_file);
        Some(ProxyClient { certificate: certificate.clone()?, key: key.clone()? })
    }

    fn config(&self) -> Option<FrontProxy> {
        Some(FrontProxy {
            ca: self.requestheader_client_ca_file.clone()?,
            allowed_names: self.requestheader_allowed_names.clone(),
            username_headers: self.requestheader_username_headers.clone(),
            uid_headers: self.requestheader_uid_headers.clone(),
            group_headers: self.requestheader_group_headers.clone(),
            extra_prefixes: self.requestheader_extra_headers_prefix.clone(),
        })
    }
}

/// Flags that promise security, or a storage location, that is not supported. The server does not start with them.
const REFUSED: &[Flag] = &[
    ("admission-control", true, "use --enable-admission-plugins and --disable-admission-plugins"),
    ("disable-http2-serving", false, "clients choose between HTTP/1.1 and HTTP/2"),
    ("kubernetes-service-node-port", true, "the Service kubernetes has a cluster address only"),
    ("tls-curve-preferences", true, "curves are X25519, P-256 and P-384"),
];

const ONE_LINE: &str = "each event is a line of the audit log, written by itself";
const TUNING: &str = "this server needs no such tuning";
const LEASES: &str = "servers register themselves by leases, as with upstream's default";

/// Upstream's flags that are accepted without effect.
const IGNORED: &[Flag] = &[
    ("aggregator-reject-forwarding-redirect", false, "redirections are never passed on"),
    ("apiserver-count", true, LEASES),
    ("audit-log-batch-max-size", true, ONE_LINE),
    ("audit-log-batch-max-wait", true, ONE_LINE),
    ("audit-log-batch-throttle-burst", true, ONE_LINE),
    ("audit-log-batch-throttle-enable", false, ONE_LINE),
    ("audit-log-batch-throttle-qps", true, ONE_LINE),
    ("audit-log-truncate-max-batch-size", true, ONE_LINE),
    ("debug-socket-path", true, "there is no Go profiler here"),
    ("default-watch-cache-size", true, "the watch cache is bounded by bytes"),
    ("delete-collection-workers", true, TUNING),
    ("emulation-forward-compatible", false, "one version of the API is served"),
    ("enable-aggregator-routing", false, "requests are always sent to the endpoints of a Service"),
    ("enable-logs-handler", false, "/logs is not served"),
    ("endpoint-reconciler-type", true, LEASES),
    ("etcd-count-metric-poll-period", true, "objects are counted as they change"),
    ("etcd-db-metric-poll-interval", true, "the size is read with every compaction"),
    ("etcd-healthcheck-timeout", true, TUNING),
    ("etcd-readycheck-timeout", true, TUNING),
    ("external-hostname", true, "the server generates no URLs with its own name"),
    ("kubelet-port", true, "each node says where its kubelet listens"),
    ("kubelet-read-only-port", true, "kubelets have no port without authentication"),
    ("kubelet-timeout", true, TUNING),
    ("lease-reuse-duration-seconds", true, TUNING),
    ("max-connection-bytes-per-sec", true, TUNING),
    ("permit-address-sharing", false, "the address is not shared"),
    ("permit-port-sharing", false, "the port is not shared"),
    ("runtime-config-emulation-forward-compatible", false, "one version of the API is served"),
    ("send-retry-after-while-not-ready-once", false, "the server listens when it is ready"),
    ("service-account-lookup", false, "accounts are always looked up"),
    ("shutdown-watch-termination-grace-period", true, "watches resume elsewhere at once"),
    ("storage-backend", true, "etcd3 is the only one"),
    ("storage-initialization-timeout", true, TUNING),
    ("storage-media-type", true, "objects in etcd are protobuf, custom ones JSON"),
    ("watch-cache", false, "it is always on"),
    ("watch-cache-sizes", true, "the watch cache is bounded by bytes"),
];

/// The tables of refused flags.
#[derive(Clone, Debug, Default)]
pub struct Refused;

impl known::Tables for Refused {
    const TABLES: &'static [&'static [Flag]] = &[REFUSED];
}

/// The tables of ignored flags.
#[derive(Clone, Debug, Default)]
pub struct Ignored;

impl known::Tables for Ignored {
    const TABLES: &'static [&'static [Flag]] = &[IGNORED, known::COMMON];
}

#[cfg(test)]
mod tests;
