//! The API server's configuration, parsed once.

mod access;
mod audit;
mod runtime;

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use api_meta::Cidr;
use data_encoding::BASE32_NOPAD;
use sha2::{Digest as _, Sha256};

pub use self::access::{
    AuthenticationOptions, AuthorizationOptions, OidcOptions, TokenWebhookOptions,
};
pub use self::audit::{
    AuditLogOptions, AuditOptions, AuditWebhookOptions, Batch, Mode, Throttle, WebhookMode,
};
pub use self::runtime::{RuntimeConfig, RuntimeConfigError};

/// What `apiserver::Server` needs, whichever way it was said.
#[derive(Clone, Debug)]
pub struct Config {
    pub bind: SocketAddr,
    /// Where the `kubernetes` Service sends its clients.
    pub advertise: IpAddr,
    /// Other API servers may use the same store: this one tells them of itself, and is an endpoint of the
    /// `kubernetes` Service beside them.
    pub shares_store: bool,
    pub service_cidrs: Vec<Cidr>,
    /// Inclusive.
    pub node_ports: (u16, u16),
    /// Whether containers may be privileged.
    pub allow_privileged: bool,
    pub event_ttl: Duration,
    pub compaction_interval: Duration,
    pub tls_certificate: PathBuf,
    pub tls_key: PathBuf,
    /// Whether the server makes the two files above itself, where they hold nothing of use.
    pub self_signed: bool,
    /// Verifies client certificates; without it nobody is known by one.
    pub client_ca: Option<PathBuf>,
    /// PEM public (or private) keys that verify service-account tokens.
    pub service_account_keys: Vec<PathBuf>,
    pub service_account_signing_key: PathBuf,
    /// The first one's name is in tokens that are issued; those of all are accepted.
    pub service_account_issuers: Vec<String>,
    /// Whether a Pod's token for the API server holds for a year, with a warning where its use goes on for longer than was
    /// asked for.
    pub extend_token_expiration: bool,
    /// Which built-in APIs are served.
    pub runtime_config: RuntimeConfig,
    /// The audiences that tokens are accepted for; the issuers if empty.
    pub api_audiences: Vec<String>,
    /// The certificate that kubelets are shown, and its key.
    pub kubelet_client: Option<(PathBuf, PathBuf)>,
    /// Verifies the kubelets' serving certificates; without it they are not checked, as upstream.
    pub kubelet_ca: Option<PathBuf>,
    pub front_proxy: Option<FrontProxy>,
    /// By what API servers of other groups know this one, and believe whom it asks for.
    pub proxy_client: Option<ProxyClient>,
    /// What is recorded of requests, and where.
    pub audit: AuditOptions,
    /// What the store is encrypted with, whose plugins health checks ask.
    pub encryption: Option<Arc<encryption::Encryption>>,
    pub authentication: AuthenticationOptions,
    pub authorization: AuthorizationOptions,
    pub anonymous: bool,
    pub bootstrap_tokens: bool,
    /// Tokens and whose they are, which hold until the server starts again.
    pub token_auth_file: Option<PathBuf>,
    pub enable_admission: Vec<String>,
    pub disable_admission: Vec<String>,
    /// What plugins are configured with: an AdmissionConfiguration.
    pub admission_file: Option<PathBuf>,
    /// How much may be at work at once; flow control shares it out.
    pub seats: u32,
    /// How long a request may take to come, and four times as long as it may wait for its turn.
    pub request_timeout: Duration,
    /// The most processor time that one request may take.
    pub processor_time: Duration,
}

impl Config {
    /// Upstream's `--max-requests-inflight` and `--max-mutating-requests-inflight`, together.
    pub const SEATS: u32 = 400 + 200;
    /// Upstream's `--request-timeout`.
    pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
    /// The processor time of one request. The largest that people send, an object of a megabyte and a half, takes a tenth
    /// of it.
    pub const PROCESSOR_TIME: Duration = Duration::from_secs(1);

    /// What this server is called among those that share a store. It is the same at every start: of the machine, and of
    /// where it listens, as there may be several.
    pub fn identity(&self) -> String {
        identity_of(&rt::hostname(), &self.bind.to_string())
    }
}

/// Who may speak for others, and in which headers (`--requestheader-*`).
#[derive(Clone, Debug)]
pub struct FrontProxy {
    /// The file with the authorities of such proxies.
    pub ca: PathBuf,
    /// Common names that a proxy's certificate may have; empty allows any that the authority signed.
    pub allowed_names: Vec<String>,
    pub username_headers: Vec<String>,
    pub uid_headers: Vec<String>,
    pub group_headers: Vec<String>,
    pub extra_prefixes: Vec<String>,
}

/// A client certificate and its key, as PEM; they are read again when they change.
#[derive(Clone, Debug)]
pub struct ProxyClient {
    pub certificate: PathBuf,
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
    fn a_servers_name_is_its_own_and_stays() {
        let name = identity_of("a", "0.0.0.0:6443");
        assert_eq!(name, identity_of("a", "0.0.0.0:6443"));
        assert_ne!(name, identity_of("b", "0.0.0.0:6443"));
        assert_ne!(name, identity_of("a", "0.0.0.0:6444"));
        assert_eq!(name.len(), "apiserver-".len() + 26);
        assert!(api_meta::validation::dns1123_subdomain(&name).is_empty());
    }
}
