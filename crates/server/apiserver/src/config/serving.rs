//! The settings of the listener and of the answers to browsers.

use std::time::Duration;

use regex::Regex;

/// The settings of the listener, and the headers of all answers.
#[derive(Clone, Debug)]
pub struct ServingOptions {
    /// The TLS versions and cipher suites.
    pub tls: serve::TlsPolicy,
    /// The certificates for names that clients request (SNI).
    pub named_certificates: Vec<serve::NamedCertificate>,
    /// The header `Strict-Transport-Security`; empty for none.
    pub strict_transport_security: String,
    /// The origins of browsers that may read answers (CORS).
    pub allowed_origins: Vec<Regex>,
    /// The probability that a request closes its HTTP/2 connection.
    pub goaway_chance: f64,
    /// The number of concurrent requests on a connection of HTTP/2.
    pub streams_per_connection: u32,
    /// The shortest time after which a watch without a timeout of its own ends.
    pub min_request_timeout: Duration,
    /// The time after the start in which `/livez` passes although the start is not complete.
    pub livez_grace: Duration,
    /// The time between the signal to stop and the end of the listener. `/readyz` fails meanwhile.
    pub shutdown_delay: Duration,
    /// `true` if requests after the delay are rejected with 429 until the open ones are answered.
    pub shutdown_retry_after: bool,
}

impl Default for ServingOptions {
    fn default() -> Self {
        let limits = serve::Limits::default();
        Self {
            tls: serve::TlsPolicy::default(),
            named_certificates: Vec::new(),
            strict_transport_security: String::new(),
            allowed_origins: Vec::new(),
            goaway_chance: 0.0,
            streams_per_connection: limits.streams_per_connection,
            min_request_timeout: Duration::from_secs(1800),
            livez_grace: Duration::ZERO,
            shutdown_delay: Duration::ZERO,
            shutdown_retry_after: false,
        }
    }
}

impl ServingOptions {
    /// Returns the limits of the listener.
    pub(crate) fn limits(&self) -> serve::Limits {
        serve::Limits {
            streams_per_connection: self.streams_per_connection,
            goaway_chance: self.goaway_chance,
            ..serve::Limits::default()
        }
    }
}
