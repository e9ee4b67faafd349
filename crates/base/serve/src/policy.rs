//! TLS versions and cipher suites of a server.

use std::sync::Arc;

use rustls::{
    SupportedCipherSuite, SupportedProtocolVersion,
    crypto::{CryptoProvider, aws_lc_rs},
    version::{TLS12, TLS13},
};

/// The error for a value of `tlsMinVersion` or `tlsCipherSuites` (flags `--tls-min-version`, `--tls-cipher-suites`)
/// that is not supported.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    #[error("unknown tls version {0:?}")]
    Version(String),
    #[error("Cipher suite {0} not supported or doesn't exist")]
    Suite(String),
    #[error("none of the cipher suites {0} is supported; name one of {1}")]
    NoSuite(String, String),
}

type Versions = &'static [&'static SupportedProtocolVersion];

static VERSIONS: Versions = &[&TLS13, &TLS12];
static LATEST: Versions = &[&TLS13];

/// The TLS versions and cipher suites that a server accepts.
#[derive(Clone, Debug)]
pub struct TlsPolicy {
    versions: Versions,
    pub(crate) provider: Arc<CryptoProvider>,
}

impl Default for TlsPolicy {
    fn default() -> Self {
        let provider = Arc::new(aws_lc_rs::default_provider());
        Self { versions: VERSIONS, provider }
    }
}

/// Weak suites that Go supports and rustls does not. They may be listed beside others.
const WEAK: &[&str] = &[
    "TLS_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
];

impl TlsPolicy {
    /// Builds a policy from upstream's names. Empty values mean the defaults. As in Go, versions before 1.2 are never
    /// used, and all suites of 1.3 are enabled.
    pub fn new(least: &str, suites: &[String]) -> Result<Self, PolicyError> {
        let mut policy = Self::default();
        policy.versions = match least {
            "" | "VersionTLS10" | "VersionTLS11" | "VersionTLS12" => policy.versions,
            "VersionTLS13" => LATEST,
            other => return Err(PolicyError::Version(other.to_owned())),
        };
        if suites.is_empty() {
            return Ok(policy);
        }
        let all = &policy.provider.cipher_suites;
        let is_known = |name: &&String| {
            WEAK.contains(&name.as_str()) || all.iter().any(|suite| is_named(suite, name))
        };
        if let Some(unknown) = suites.iter().find(|name| !is_known(name)) {
            return Err(PolicyError::Suite(unknown.clone()));
        }
        let is_wanted = |suite: &&SupportedCipherSuite| suites.iter().any(|n| is_named(suite, n));
        if !all.iter().any(|suite| is_wanted(&suite)) {
            let there: Vec<String> = all.iter().map(name).collect();
            return Err(PolicyError::NoSuite(suites.join(","), there.join(",")));
        }
        let enabled = all.iter().filter(|suite| suite.tls13().is_some() || is_wanted(suite));
        let cipher_suites: Vec<_> = enabled.copied().collect();
        if cipher_suites.iter().all(|suite| suite.tls13().is_some()) {
            policy.versions = LATEST;
        }
        policy.provider =
            Arc::new(CryptoProvider { cipher_suites, ..CryptoProvider::clone(&policy.provider) });
        Ok(policy)
    }

    pub(crate) fn versions(&self) -> Versions {
        self.versions
    }
}

/// Returns the name in the spelling of Go and IANA.
fn name(suite: &SupportedCipherSuite) -> String {
    format!("{:?}", suite.suite()).replacen("TLS13_", "TLS_", 1)
}

fn is_named(suite: &SupportedCipherSuite, wanted: &str) -> bool {
    let own = name(suite);
    // Go accepts older names for two suites.
    own == wanted
        || own
            .strip_suffix("_SHA256")
            .is_some_and(|older| older.ends_with("CHACHA20_POLY1305") && older == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(least: &str, suites: &[&str]) -> Result<TlsPolicy, PolicyError> {
        TlsPolicy::new(least, &suites.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    fn suites(policy: &TlsPolicy) -> Vec<String> {
        let older = policy.provider.cipher_suites.iter().filter(|s| s.tls13().is_none());
        older.map(name).collect()
    }

    #[test]
    fn enables_listed_suites_and_all_of_tls13() {
        let all = policy("", &[]).unwrap();
        assert_eq!((all.versions().len(), suites(&all).len()), (2, 6));
        let some = policy(
            "VersionTLS12",
            &[
                "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
                "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
                "TLS_RSA_WITH_AES_128_CBC_SHA",
            ],
        )
        .unwrap();
        assert_eq!(
            suites(&some),
            [
                "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
                "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
            ]
        );
        assert_eq!(some.provider.cipher_suites.len(), 2 + 3);
        for latest in [policy("VersionTLS13", &[]), policy("", &["TLS_AES_128_GCM_SHA256"])] {
            assert_eq!(latest.unwrap().versions().len(), 1);
        }
    }

    #[test]
    fn rejects_unsupported_values_in_upstreams_words() {
        for (least, named, words) in [
            ("TLS1.3", &[][..], "unknown tls version \"TLS1.3\""),
            ("", &["TLS_NONE"], "Cipher suite TLS_NONE not supported or doesn't exist"),
            ("", &["TLS_RSA_WITH_AES_128_CBC_SHA"], "none of the cipher suites TLS_RSA_WITH_AES"),
        ] {
            let error = policy(least, named).unwrap_err().to_string();
            assert!(error.starts_with(words), "{error}");
        }
    }
}
