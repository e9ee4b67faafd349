//! The flags of the listener, of answers to browsers, and of the shutdown.

use std::{path::PathBuf, time::Duration};

use api_config::{GoDuration, GoFlag as _, TlsFlags};
use api_meta::goregex;

use crate::config::ServingOptions;

/// Flags of the listener
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
pub struct ServingFlags {
    /// Origins of browsers that may read answers (CORS), as regular expressions that match the whole host
    #[arg(long, value_delimiter = ',')]
    pub cors_allowed_origins: Vec<String>,
    /// Directives of the header Strict-Transport-Security: max-age=SECONDS, includeSubDomains, preload
    #[arg(long, value_delimiter = ',')]
    pub strict_transport_security_directives: Vec<String>,
    /// Probability that a request closes its HTTP/2 connection, so that clients spread over servers; at most 0.02
    #[arg(long, default_value_t = 0.0, allow_hyphen_values = true)]
    pub goaway_chance: f64,
    /// Number of concurrent requests on a connection of HTTP/2; 0 for the default
    #[arg(long, default_value_t = 0, allow_hyphen_values = true)]
    pub http2_max_streams_per_connection: i64,
    /// Shortest time in seconds after which a watch without a timeout of its own ends
    #[arg(long, default_value_t = 1800, allow_hyphen_values = true)]
    pub min_request_timeout: i64,
    /// A further certificate: CERT,KEY or CERT,KEY:NAME,*.NAME,ADDRESS; may be given several times
    #[arg(long)]
    pub tls_sni_cert_key: Vec<String>,
    /// Time after the start in which /livez passes although the start is not complete
    #[arg(long, default_value = "0s", allow_hyphen_values = true)]
    pub livez_grace_period: GoDuration,
    /// Time between the signal to stop and the end of the listener; /readyz fails meanwhile
    #[arg(long, default_value = "0s", allow_hyphen_values = true)]
    pub shutdown_delay_duration: GoDuration,
    /// Answer new requests with 429 and Retry-After after the delay, until open requests are answered
    #[arg(long, go_bool(), default_value = "false")]
    pub shutdown_send_retry_after: bool,
}

/// The error for invalid flags of the listener, in upstream's words.
#[derive(Debug, thiserror::Error)]
pub enum ServingFlagError {
    #[error("--cors-allowed-origins has an invalid regular expression: {0}")]
    Origin(#[from] goregex::PatternError),
    #[error(
        "--cors-allowed-origins has an invalid regular expression: regular expression does not pin to \
         start/end of host in the origin header: {0:?}"
    )]
    UnpinnedOrigin(String),
    #[error(
        "--strict-transport-security-directives invalid, allowed values: max-age=expireTime, \
         includeSubDomains, preload. see https://tools.ietf.org/html/rfc6797#section-6.1 for more information"
    )]
    TransportSecurity,
    #[error("--goaway-chance can not be less than 0 or greater than 0.02")]
    GoawayChance,
    #[error("--livez-grace-period can not be a negative value")]
    NegativeGrace,
    #[error("--{0} can not be negative value")]
    Negative(&'static str),
    #[error(transparent)]
    Policy(#[from] serve::PolicyError),
    #[error("--tls-sni-cert-key={0}: {1}")]
    NamedCertificate(String, NamedCertificateError),
}

/// The error for a value of `--tls-sni-cert-key`.
#[derive(Debug, thiserror::Error)]
pub enum NamedCertificateError {
    #[error("expected comma separated certificate and key file paths")]
    Files,
    #[error("empty names list is not allowed")]
    NoPatterns,
    #[error(
        "{0:?} is not an IP address or a DNS name, optionally with wildcard segments at its beginning"
    )]
    Pattern(String),
}

impl ServingFlags {
    /// Converts the flags to the settings of the listener.
    pub(super) fn options(&self, tls: &TlsFlags) -> Result<ServingOptions, ServingFlagError> {
        if !(0.0..=0.02).contains(&self.goaway_chance) {
            return Err(ServingFlagError::GoawayChance);
        }
        let streams = not_negative(
            "http2-max-streams-per-connection",
            self.http2_max_streams_per_connection,
        )?;
        let least = not_negative("min-request-timeout", self.min_request_timeout)?;
        not_negative("shutdown-delay-duration", self.shutdown_delay_duration.nanos())?;
        if self.livez_grace_period.nanos() < 0 {
            return Err(ServingFlagError::NegativeGrace);
        }
        let defaults = ServingOptions::default();
        let named = self.tls_sni_cert_key.iter().map(|text| named_certificate(text));
        let origins = self.cors_allowed_origins.iter().map(|pattern| origin(pattern));
        Ok(ServingOptions {
            tls: serve::TlsPolicy::new(&tls.tls_min_version, &tls.tls_cipher_suites)?,
            named_certificates: named.collect::<Result<_, _>>()?,
            strict_transport_security: self.transport_security()?,
            allowed_origins: origins.collect::<Result<_, _>>()?,
            goaway_chance: self.goaway_chance,
            streams_per_connection: match u32::try_from(streams) {
                Ok(0) => defaults.streams_per_connection,
                streams => streams.unwrap_or(u32::MAX),
            },
            min_request_timeout: Duration::from_secs(least).min(rt::FAR),
            livez_grace: self.livez_grace_period.to_std(),
            shutdown_delay: self.shutdown_delay_duration.to_std(),
            shutdown_retry_after: self.shutdown_send_retry_after,
        })
    }

    fn transport_security(&self) -> Result<String, ServingFlagError> {
        let known = |directive: &str| match directive.split_once('=') {
            Some(("max-age", seconds)) => seconds.parse::<u64>().is_ok(),
            _ => matches!(directive, "includeSubDomains" | "preload"),
        };
        let given = &self.strict_transport_security_directives;
        if given.iter().all(|directive| known(directive)) {
            Ok(given.join("; "))
        } else {
            Err(ServingFlagError::TransportSecurity)
        }
    }
}

fn not_negative(flag: &'static str, value: i64) -> Result<u64, ServingFlagError> {
    u64::try_from(value).map_err(|_| ServingFlagError::Negative(flag))
}

/// Compiles an allowed origin. It must fix both ends of the host (CVE-2022-1996).
fn origin(pattern: &str) -> Result<regex::Regex, ServingFlagError> {
    let compiled = goregex::compile(pattern)?;
    let starts = pattern.contains('^') || pattern.contains("//");
    let ends = pattern.contains('$') || pattern.contains(':');
    if starts && ends {
        Ok(compiled)
    } else {
        Err(ServingFlagError::UnpinnedOrigin(pattern.to_owned()))
    }
}

/// Parses `CERT,KEY` with optional patterns after a colon.
fn named_certificate(text: &str) -> Result<serve::NamedCertificate, ServingFlagError> {
    let wrong = |error| ServingFlagError::NamedCertificate(text.to_owned(), error);
    let (files, patterns) = match text.split_once(':') {
        Some((_, patterns)) if patterns.trim().is_empty() => {
            return Err(wrong(NamedCertificateError::NoPatterns));
        }
        Some(parts) => parts,
        None => (text, ""),
    };
    let (certificate, key) = files
        .split_once(',')
        .filter(|(certificate, key)| {
            !certificate.is_empty() && !key.is_empty() && !key.contains(',')
        })
        .ok_or_else(|| wrong(NamedCertificateError::Files))?;
    let patterns: Vec<String> =
        patterns.split(',').map(str::trim).filter(|p| !p.is_empty()).map(str::to_owned).collect();
    let is_name = |pattern: &&String| {
        let name = pattern.trim_start_matches("*.");
        pattern.parse::<std::net::IpAddr>().is_ok()
            || name.parse::<std::net::IpAddr>().is_err()
                && api_meta::validation::dns1123_subdomain(&name.to_ascii_lowercase()).is_empty()
    };
    if let Some(pattern) = patterns.iter().find(|pattern| !is_name(pattern)) {
        return Err(wrong(NamedCertificateError::Pattern(pattern.clone())));
    }
    let (certificate, key) = (PathBuf::from(certificate), PathBuf::from(key));
    Ok(serve::NamedCertificate { files: serve::KeyPairFiles { certificate, key }, patterns })
}
