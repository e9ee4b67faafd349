//! The settings of requests, which configs change.

use std::time::Duration;

use super::{proxy::Proxies, tls::Roots, tpm::Signer};

/// The maximum size of a resource in bytes, compressed or not.
pub(super) const LIMIT: u64 = 4 << 30;

/// The settings of requests.
#[derive(Clone)]
pub(crate) struct Settings {
    /// The time to wait for the headers of a response.
    pub(crate) response_headers: Option<Duration>,
    /// The time that fetching a resource may take with all retries.
    pub(crate) total: Option<Duration>,
    pub(crate) proxy: Proxies,
    pub(crate) roots: Roots,
    pub(crate) tpm: Option<Signer>,
    /// `false` if there is no network yet.
    pub(crate) online: bool,
}
