//! The TLS flags of the components that serve.

use std::path::PathBuf;

/// Flags of the serving certificate and of TLS
#[derive(clap::Args, Clone, Debug, Default)]
#[group(skip)]
pub struct TlsFlags {
    /// The serving certificate [default: self-signed]
    #[arg(long, requires = "tls_private_key_file")]
    pub tls_cert_file: Option<PathBuf>,
    /// The key of the serving certificate
    #[arg(long, requires = "tls_cert_file")]
    pub tls_private_key_file: Option<PathBuf>,
    /// The lowest TLS version: VersionTLS12 or VersionTLS13
    #[arg(long, default_value = "")]
    pub tls_min_version: String,
    /// The cipher suites of TLS 1.2; those of TLS 1.3 are always on
    #[arg(long, value_delimiter = ',')]
    pub tls_cipher_suites: Vec<String>,
}
