//! The flags of the pages that the controller manager and the scheduler serve over TLS. `diagnostics` serves the pages.

use std::path::PathBuf;

use api_config::{
    TlsFlags,
    known::{self, Flag, KnownFlags},
};

use crate::failure::Failure;

/// The flags of every component that serves diagnostics, except the address.
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
pub(crate) struct Args {
    #[command(flatten)]
    tls: TlsFlags,
    #[command(flatten)]
    refused: KnownFlags<RefusedFlags>,
    #[command(flatten)]
    ignored: KnownFlags<IgnoredFlags>,
}

/// The flags that request security features that do not exist here.
const REFUSED: &[Flag] = &[
    ("authorization-always-allow-paths", true, "only health is public"),
    ("requestheader-uid-headers", true, "front proxies are not trusted"),
    ("disable-http2-serving", false, "clients choose between HTTP/1.1 and HTTP/2"),
    ("master", true, "the kubeconfig names the API server and its CA"),
    ("tls-curve-preferences", true, "the curves are X25519, P-256 and P-384"),
    ("tls-sni-cert-key", true, "there is one serving certificate"),
];

const NO_PROXY: &str = "front proxies are not trusted";
const NO_CACHE: &str = "the API server decides every request";

/// Upstream's flags that are accepted without effect.
const IGNORED: &[Flag] = &[
    ("authentication-skip-lookup", false, "the API server's configuration is not read"),
    ("authentication-token-webhook-cache-ttl", true, NO_CACHE),
    ("authentication-tolerate-lookup-failure", false, "there is no lookup at the start"),
    ("authorization-webhook-cache-authorized-ttl", true, NO_CACHE),
    ("authorization-webhook-cache-unauthorized-ttl", true, NO_CACHE),
    ("cert-dir", true, "a generated certificate stays in memory"),
    ("http2-max-streams-per-connection", true, "there are few connections"),
    ("permit-address-sharing", false, "the address is not shared"),
    ("permit-port-sharing", false, "the port is not shared"),
    ("requestheader-allowed-names", true, NO_PROXY),
    ("requestheader-extra-headers-prefix", true, NO_PROXY),
    ("requestheader-group-headers", true, NO_PROXY),
    ("requestheader-username-headers", true, NO_PROXY),
    ("unsupported-kube-api-over-localhost", false, "the API server is the kubeconfig's"),
];

/// The table of refused flags.
#[derive(Clone, Debug, Default)]
pub(crate) struct RefusedFlags;

impl known::Tables for RefusedFlags {
    const TABLES: &'static [&'static [Flag]] = &[REFUSED];
}

/// The table of ignored flags.
#[derive(Clone, Debug, Default)]
pub(crate) struct IgnoredFlags;

impl known::Tables for IgnoredFlags {
    const TABLES: &'static [&'static [Flag]] = &[IGNORED];
}

impl Args {
    /// Returns the serving certificate and its key. Flags that request missing security features are errors, and
    /// ignored flags are logged.
    pub(crate) fn identity(&self) -> Result<Option<(PathBuf, PathBuf)>, Failure> {
        if let Some((flag, reason)) = self.refused.given().next() {
            return Err(format!("--{flag} is not supported: {reason}; start without it").into());
        }
        self.ignored.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
        Ok(self.tls.tls_cert_file.clone().zip(self.tls.tls_private_key_file.clone()))
    }

    /// Returns the permitted TLS versions and cipher suites.
    pub(crate) fn policy(&self) -> Result<diagnostics::TlsPolicy, Failure> {
        Ok(diagnostics::TlsPolicy::new(&self.tls.tls_min_version, &self.tls.tls_cipher_suites)?)
    }
}
