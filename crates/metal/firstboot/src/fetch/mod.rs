//! Fetches the resources of a config from `http`, `https`, `tftp` and `data` URLs. Read `Fetcher` first.

mod http;
mod proxy;
mod settings;
mod tftp;
mod tls;
mod tpm;
pub(crate) mod url;

use std::time::Duration;

use data_encoding::HEXLOWER;
use ignition::spec::{Ignition, Resource};
use sha2::{Digest, Sha256, Sha512};

pub use tpm::public_key;

use self::{
    settings::{LIMIT, Settings},
    url::displayed,
};
use crate::error::FetchError;

/// Fetches resources with the settings of the configs that were read so far.
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
        tracing::info!(url = displayed(url), "fetching");
        let mut bytes = self.raw(url, resource).await?;
        if resource.compression.as_deref() == Some("gzip") {
            bytes = ignition::decompress(&bytes, LIMIT)
                .map_err(|source| FetchError::Data { url: displayed(url), source })?;
        }
        verify(url, resource.verification.hash.as_deref(), &bytes)?;
        Ok(bytes)
    }

    async fn raw(&self, url: &str, resource: &Resource) -> Result<Vec<u8>, FetchError> {
        let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme).to_ascii_lowercase();
        if scheme != "data" && !self.settings.online {
            return Err(FetchError::NeedsNetwork { url: displayed(url) });
        }
        match scheme.as_str() {
            "data" => ignition::decode_url(url)
                .map_err(|source| FetchError::Data { url: displayed(url), source }),
            "http" | "https" => http::get(url, &resource.http_headers, &self.settings).await,
            "tftp" => tftp::get(url, self.settings.total).await,
            other => Err(FetchError::Url {
                url: url.to_owned(),
                reason: format!("{other} is not served here; use http, https, tftp or data"),
            }),
        }
    }
}

fn verify(url: &str, expected: Option<&str>, bytes: &[u8]) -> Result<(), FetchError> {
    let Some(expected) = expected.filter(|expected| !expected.is_empty()) else { return Ok(()) };
    let actual = match expected.split_once('-') {
        Some(("sha256", _)) => format!("sha256-{}", HEXLOWER.encode(&Sha256::digest(bytes))),
        _ => format!("sha512-{}", HEXLOWER.encode(&Sha512::digest(bytes))),
    };
    if actual.eq_ignore_ascii_case(expected) {
        Ok(())
    } else {
        Err(FetchError::Hash { url: displayed(url), expected: expected.to_owned(), actual })
    }
}

#[cfg(test)]
mod tests;
