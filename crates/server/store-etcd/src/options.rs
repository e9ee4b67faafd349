//! The location of etcd, and the limits of requests to it.

use std::{path::PathBuf, sync::Arc, time::Duration};

/// The largest request in bytes: etcd's default limit.
pub const REQUEST_LIMIT: usize = 1536 * 1024;

/// The location of etcd and the access to it.
#[derive(Clone)]
pub struct Options {
    /// The URLs of the members' client ports, with `http://` or `https://`.
    pub endpoints: Vec<String>,
    /// The TLS files, required for `https://` endpoints.
    pub tls: Option<TlsFiles>,
    /// The proxy to the members.
    pub proxy: Option<client::Proxy>,
    /// The time for which members are tried before an operation fails.
    pub patience: Duration,
    /// The number of keys per page of a list, so that no page takes a member too long.
    pub page: usize,
    /// The clock for leases.
    pub clock: Arc<dyn rt::Clock>,
}

/// PEM files, as in kube-apiserver's `--etcd-cafile`, `--etcd-certfile` and `--etcd-keyfile`.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The CA of the servers' certificates.
    pub ca: PathBuf,
    /// The client's certificate and key; `None` for no client certificate.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl Options {
    /// Creates options for endpoints, any of which may answer. Operations fail after ten seconds, and lists are read in
    /// pages of 5,000 keys.
    pub fn new(endpoints: Vec<String>, tls: Option<TlsFiles>) -> Self {
        let patience = Duration::from_secs(10);
        Self { endpoints, tls, proxy: None, patience, page: 5000, clock: Arc::new(rt::SystemClock) }
    }
}
