//! The configuration of the API server after parsing: [`Config`]. The flags that it is parsed from are in
//! [`crate::flags`].

mod access;
mod audit;
pub(crate) mod egress;
mod peers;
mod runtime;
mod serving;

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use admission::DefaultTolerationSeconds;
use api_config::FeatureGates;
use api_meta::Cidr;
use client::LeaderElectionConfig;
use data_encoding::BASE32_NOPAD;
use sha2::{Digest as _, Sha256};

pub use self::access::{
    AuthenticationOptions, AuthorizationOptions, OidcOptions, TokenWebhookOptions,
};
pub use self::audit::{
    AuditLogOptions, AuditOptions, AuditWebhookOptions, Batch, Mode, Throttle, WebhookMode,
};
pub(crate) use self::egress::Network;
pub use self::egress::{Egress, EgressError};
pub(crate) use self::peers::PEER_GATE;
pub use self::peers::PeerOptions;
pub(crate) use self::runtime::{COORDINATION_GATE, gate_of};
pub use self::runtime::{RuntimeConfig, RuntimeConfigError};
pub use self::serving::ServingOptions;

/// The addresses of the components that ComponentStatuses show.
#[derive(Clone, Copy, Debug)]
pub struct ComponentAddresses {
    /// The address of the controller manager.
    pub controller_manager: SocketAddr,
    /// The address of the scheduler.
    pub scheduler: SocketAddr,
}

impl Default for ComponentAddresses {
    fn default() -> Self {
        let local = |port| SocketAddr::from(([127, 0, 0, 1], port));
        Self { controller_manager: local(10257), scheduler: local(10259) }
    }
}

/// The numbers of concurrent requests; zero is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlightLimits {
    /// The limit of requests that only read.
    pub reading: u32,
    /// The limit of other requests.
    pub mutating: u32,
}

/// The configuration of an API server, independent of its source (flags or an embedding program).
#[derive(Clone, Debug)]
pub struct Config {
    /// The address to listen on. A port of 0 is replaced by the chosen one.
    pub bind: SocketAddr,
    /// The address that the `kubernetes` Service routes to.
    pub advertise: IpAddr,
    /// `true` if other API servers may use the same store. This server then writes its identity lease, and is one of
    /// several endpoints of the `kubernetes` Service.
    pub shares_store: bool,
    /// The ranges of cluster IPs, the primary range first.
    pub service_cidrs: Vec<Cidr>,
    /// The first and last port of the range for NodePorts, inclusive.
    pub node_ports: (u16, u16),
    /// `true` if privileged containers are allowed.
    pub allow_privileged: bool,
    /// The time that Events are kept.
    pub event_ttl: Duration,
    /// The interval of compaction of the store.
    pub compaction_interval: Duration,
    /// The serving certificate, as a PEM file.
    pub tls_certificate: PathBuf,
    /// The key of the serving certificate, as a PEM file.
    pub tls_key: PathBuf,
    /// `true` if the server writes a self-signed certificate and its key to the two files above unless they hold a
    /// valid pair.
    pub self_signed: bool,
    /// The authorities that verify client certificates. Without it certificates authenticate no user.
    pub client_ca: Option<PathBuf>,
    /// The keys of service account tokens.
    pub token_keys: TokenKeys,
    /// The issuers whose tokens are accepted. New tokens name the first one.
    pub service_account_issuers: Vec<String>,
    /// `true` if a Pod's token for the API server is valid for a year. Its use after the requested lifetime is
    /// reported.
    pub extend_token_expiration: bool,
    /// The URI of the keys in the discovery document of the issuer. `None` for the issuer's path `/openid/v1/jwks`.
    pub jwks_uri: Option<String>,
    /// The longest validity of a service account token; `None` for no limit.
    pub max_token_expiration: Option<Duration>,
    /// The proxies through which the server reaches networks.
    pub egress: Egress,
    /// The settings of the listener.
    pub serving: ServingOptions,
    /// The feature gates.
    pub features: FeatureGates,
    /// The built-in APIs that are served.
    pub runtime_config: RuntimeConfig,
    /// The audiences that tokens are accepted for. If empty, the issuers.
    pub api_audiences: Vec<String>,
    /// The client certificate for kubelets, and its key.
    pub kubelet_client: Option<(PathBuf, PathBuf)>,
    /// The types of a node's addresses in the order in which they are tried. If empty, kubeadm's order.
    pub kubelet_address_types: Vec<String>,
    /// The authorities that verify the kubelets' serving certificates. Without it they are not verified, as upstream.
    pub kubelet_ca: Option<PathBuf>,
    /// The authenticating proxies that are trusted.
    pub front_proxy: Option<FrontProxy>,
    /// The client certificate for aggregated API servers. They trust the user headers of requests that use it.
    pub proxy_client: Option<ProxyClient>,
    /// The proxy to the other API servers of the cluster.
    pub peers: PeerOptions,
    /// The audit policy and its backends.
    pub audit: AuditOptions,
    /// The encryption at rest of the store. Health checks query its KMS plugins.
    pub encryption: Option<Arc<encryption::Encryption>>,
    /// Authentication besides certificates and service accounts.
    pub authentication: AuthenticationOptions,
    /// The authorizers.
    pub authorization: AuthorizationOptions,
    /// `true` if anonymous requests are allowed.
    pub anonymous: bool,
    /// `true` if bootstrap tokens authenticate.
    pub bootstrap_tokens: bool,
    /// The file with static tokens and their users, read at the start.
    pub token_auth_file: Option<PathBuf>,
    /// The admission plugins of `--enable-admission-plugins`.
    pub enable_admission: Vec<String>,
    /// The admission plugins of `--disable-admission-plugins`.
    pub disable_admission: Vec<String>,
    /// The file with the plugins' configuration, an AdmissionConfiguration.
    pub admission_file: Option<PathBuf>,
    /// The time for which Pods tolerate a lost node, unless they set their own.
    pub default_tolerations: DefaultTolerationSeconds,
    /// The components that ComponentStatuses show.
    pub components: ComponentAddresses,
    /// The number of seats that flow control distributes.
    pub seats: u32,
    /// The limits of concurrent requests instead of flow control.
    pub in_flight: Option<InFlightLimits>,
    /// `false` if nothing collects the dependents of deleted objects, so that deletions do not wait for it.
    pub garbage_collection: bool,
    /// The maximum duration of a request. It waits in a queue for at most a quarter of it.
    pub request_timeout: Duration,
    /// The maximum processor time of one request.
    pub processor_time: Duration,
    /// The lease of the API server that elects leaders (gate `CoordinatedLeaderElection`). The identity is set at the
    /// start.
    pub election_lease: LeaderElectionConfig,
    /// The export of traces; `None` if requests are not traced.
    pub tracing: Option<otlp::Exporter>,
}

/// The keys that sign and verify service account tokens.
#[derive(Clone, Debug)]
pub enum TokenKeys {
    /// PEM files.
    Files {
        /// The key that signs tokens.
        signing: PathBuf,
        /// Public or private keys that verify tokens.
        verifying: Vec<PathBuf>,
    },
    /// The socket of an external signer, which also has the keys that verify tokens.
    External(PathBuf),
}

impl Config {
    /// The sum of upstream's `--max-requests-inflight` and `--max-mutating-requests-inflight`.
    pub const SEATS: u32 = 400 + 200;
    /// The default of upstream's `--request-timeout`.
    pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
    /// The default processor time of one request. The largest accepted object, of a megabyte and a half, takes a tenth
    /// of it.
    pub const PROCESSOR_TIME: Duration = Duration::from_secs(1);

    /// Returns the lease of the API server that elects leaders, with upstream's name and times.
    pub fn election_lease() -> LeaderElectionConfig {
        LeaderElectionConfig::new("kube-system", "leader-election-controller", String::new())
    }

    /// Returns the name of this server among those that share a store. It depends on host name and address only, so
    /// that it survives restarts and differs between servers on one machine.
    pub fn identity(&self) -> String {
        identity_of(&rt::hostname(), &self.bind.to_string())
    }

    /// Returns the file with the authorities of the other API servers, or `None` if no request is forwarded to them.
    pub(crate) fn peer_authorities(&self) -> Option<&Path> {
        self.peers.ca.as_deref().filter(|_| self.features.is_enabled(PEER_GATE))
    }

    /// Returns the address at which the other API servers reach this one, or `None` if the feature is off.
    pub(crate) fn peer_address(&self) -> Option<SocketAddr> {
        let ip = self.peers.advertise_ip.unwrap_or(self.advertise);
        let port = self.peers.advertise_port.unwrap_or(self.bind.port());
        self.features.is_enabled(PEER_GATE).then(|| SocketAddr::new(ip, port))
    }
}

/// The proxies that may assert users, and the headers for it (`--requestheader-*`).
#[derive(Clone, Debug)]
pub struct FrontProxy {
    /// The file with the authorities of the proxies' certificates.
    pub ca: PathBuf,
    /// Common names that a proxy's certificate may have. If empty, any certificate signed by the authorities.
    pub allowed_names: Vec<String>,
    /// The headers with the user name.
    pub username_headers: Vec<String>,
    /// The headers with the UID.
    pub uid_headers: Vec<String>,
    /// The headers with the groups.
    pub group_headers: Vec<String>,
    /// The prefixes of the headers with extra values.
    pub extra_prefixes: Vec<String>,
}

/// A client certificate and its key, as PEM files. They are reloaded when they change.
#[derive(Clone, Debug)]
pub struct ProxyClient {
    /// The file with the certificate.
    pub certificate: PathBuf,
    /// The file with the key.
    pub key: PathBuf,
}

fn identity_of(hostname: &str, address: &str) -> String {
    let hash = Sha256::digest(format!("{hostname}\n{address}"));
    format!("apiserver-{}", BASE32_NOPAD.encode(&hash[..16]).to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derives_stable_unique_identity_of_server() {
        let name = identity_of("a", "0.0.0.0:6443");
        assert_eq!(name, identity_of("a", "0.0.0.0:6443"));
        assert_ne!(name, identity_of("b", "0.0.0.0:6443"));
        assert_ne!(name, identity_of("a", "0.0.0.0:6444"));
        assert_eq!(name.len(), "apiserver-".len() + 26);
        assert!(api_meta::validation::dns1123_subdomain(&name).is_empty());
    }
}
