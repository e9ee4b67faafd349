//! Fetches the resources of a config from `http`, `https`, `tftp` and `data` URLs. Read `Fetcher` first.

mod http;
mod proxy;
mod tftp;
mod tls;
mod tpm;

use std::time::Duration;

use data_encoding::HEXLOWER;
use ignition::spec::{Ignition, Resource};
use sha2::{Digest, Sha256, Sha512};

pub use tpm::public_key;

/// The maximum size of a resource in bytes, compressed or not.
const LIMIT: u64 = 4 << 30;

/// The errors of fetching a resource.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error("{url:?} is not a URL that can be fetched: {reason}")]
    Url { url: String, reason: String },
    #[error("fetching {url}: {reason}")]
    Transfer { url: String, reason: String },
    #[error("fetching {url}: the server answered {status}{}{text}", if text.is_empty() { "" } else { ": " })]
    Status { url: String, status: u16, text: String },
    #[error("{url} wants the signature of the machine's TPM: {source}")]
    Tpm { url: String, source: Box<crate::Error> },
    #[error("{url}: hash verification failed: wanted {wanted}, got {found}")]
    Hash { url: String, wanted: String, found: String },
    #[error("{url}: {source}")]
    Data { url: String, source: ignition::DataError },
    #[error("{url} needs the network, which is not up yet")]
    NeedsNetwork { url: String },
    #[error("certificates from {origin}: {reason}")]
    Certificates { origin: String, reason: String },
}

/// The settings of requests.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) response_headers: Option<Duration>,
    pub(crate) total: Option<Duration>,
    pub(crate) proxy: proxy::Proxies,
    pub(crate) roots: tls::Roots,
    pub(crate) tpm: Option<tpm::Signer>,
    /// `false` if there is no network yet.
    pub(crate) online: bool,
}

pub(crate) struct Fetcher {
    settings: Settings,
}

impl Fetcher {
    pub(crate) fn new(online: bool) -> Self {
        Self {
            settings: Settings {
                response_headers: Some(Duration::from_secs(10)),
                total: None,
                proxy: proxy::Proxies::default(),
                roots: tls::Roots::system(),
                tpm: tpm::Signer::of_command_line().filter(|_| online),
                online,
            },
        }
    }

    /// Posts a text to a server.
    pub(crate) async fn post(&self, url: &str, body: String) -> Result<(), FetchError> {
        http::post(url, body, &self.settings).await
    }

    /// Applies the timeouts, proxies and authorities of a config.
    pub(crate) async fn configure(&mut self, ignition: &Ignition) -> Result<(), FetchError> {
        let limit = |seconds: u64| (seconds > 0).then(|| Duration::from_secs(seconds));
        if let Some(seconds) = ignition.timeouts.http_response_headers {
            self.settings.response_headers = limit(seconds);
        }
        if let Some(seconds) = ignition.timeouts.http_total {
            self.settings.total = limit(seconds);
        }
        self.settings.proxy = proxy::Proxies::new(&ignition.proxy);
        for authority in &ignition.security.tls.certificate_authorities {
            let bundle = self.fetch(authority).await?;
            self.settings.roots.add(authority.url().unwrap_or_default(), &bundle)?;
        }
        Ok(())
    }

    /// Fetches a resource, decompresses it and verifies its hash.
    pub(crate) async fn fetch(&self, resource: &Resource) -> Result<Vec<u8>, FetchError> {
        let Some(url) = resource.url() else { return Ok(Vec::new()) };
        tracing::info!(url = shown(url), "fetching");
        let mut bytes = self.raw(url, resource).await?;
        if resource.compression.as_deref() == Some("gzip") {
            bytes = ignition::unpacked(&bytes, LIMIT)
                .map_err(|source| FetchError::Data { url: shown(url), source })?;
        }
        verify(url, resource.verification.hash.as_deref(), &bytes)?;
        Ok(bytes)
    }

    async fn raw(&self, url: &str, resource: &Resource) -> Result<Vec<u8>, FetchError> {
        let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme).to_ascii_lowercase();
        if scheme != "data" && !self.settings.online {
            return Err(FetchError::NeedsNetwork { url: shown(url) });
        }
        match scheme.as_str() {
            "data" => ignition::decode_url(url)
                .map_err(|source| FetchError::Data { url: shown(url), source }),
            "http" | "https" => http::get(url, &resource.http_headers, &self.settings).await,
            "tftp" => tftp::get(url, self.settings.total).await,
            other => Err(FetchError::Url {
                url: url.to_owned(),
                reason: format!("{other} is not served here; use http, https, tftp or data"),
            }),
        }
    }
}

/// Returns a URL for messages, in which `data:` URLs are truncated.
pub(crate) fn shown(url: &str) -> String {
    if url.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:")) && url.len() > 40 {
        format!("{}…", url.chars().take(40).collect::<String>())
    } else {
        url.to_owned()
    }
}

fn verify(url: &str, wanted: Option<&str>, bytes: &[u8]) -> Result<(), FetchError> {
    let Some(wanted) = wanted.filter(|wanted| !wanted.is_empty()) else { return Ok(()) };
    let found = match wanted.split_once('-') {
        Some(("sha256", _)) => format!("sha256-{}", HEXLOWER.encode(&Sha256::digest(bytes))),
        _ => format!("sha512-{}", HEXLOWER.encode(&Sha512::digest(bytes))),
    };
    if found.eq_ignore_ascii_case(wanted) {
        Ok(())
    } else {
        Err(FetchError::Hash { url: shown(url), wanted: wanted.to_owned(), found })
    }
}

#[cfg(test)]
mod tests;
