//! The URL from which static Pods are read (`staticPodURL`).

use std::{collections::BTreeMap, time::Duration};

use api_config::GoDuration;
use serde::Deserialize;

use crate::{defaults::duration_or, error::ConfigError};

/// The fields of the URL in the configuration file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StaticUrlConfiguration {
    #[serde(rename = "staticPodURL")]
    static_pod_url: String,
    #[serde(rename = "staticPodURLHeader")]
    static_pod_url_header: BTreeMap<String, Vec<String>>,
    http_check_frequency: GoDuration,
}

/// A URL from which static Pods are read.
#[derive(Clone, PartialEq, Eq)]
pub struct StaticUrl {
    /// The URL, with the scheme `http` or `https`.
    pub url: String,
    /// The headers of requests.
    pub headers: Vec<(String, String)>,
    /// The interval of requests.
    pub interval: Duration,
}

/// Hides the headers, which may contain credentials.
impl std::fmt::Debug for StaticUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StaticUrl").field("url", &self.url).finish_non_exhaustive()
    }
}

pub(crate) fn of(config: &StaticUrlConfiguration) -> Result<Option<StaticUrl>, ConfigError> {
    let url = &config.static_pod_url;
    if url.is_empty() {
        return Ok(None);
    }
    if !url.starts_with("http://") && !url.starts_with("https://") {
        let message = format!("{url:?} must begin with http:// or https://");
        return Err(ConfigError::Invalid { field: "staticPodURL", message });
    }
    let headers = config.static_pod_url_header.iter();
    let headers =
        headers.flat_map(|(name, values)| values.iter().map(|value| (name.clone(), value.clone())));
    Ok(Some(StaticUrl {
        url: url.clone(),
        headers: headers.collect(),
        interval: duration_or(config.http_check_frequency, 20),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_url_and_hides_its_headers() {
        let read = |text: &str| of(&crate::load::parse(text).unwrap().static_url);
        assert!(read("{}").unwrap().is_none());
        let url = "staticPodURL: http://127.0.0.1/pods\nstaticPodURLHeader: {x-token: [secret]}";
        let url = read(url).unwrap().unwrap();
        assert_eq!(url.headers, [("x-token".to_owned(), "secret".to_owned())]);
        assert_eq!(url.interval, Duration::from_secs(20));
        assert!(!format!("{url:?}").contains("secret"));
        let error = read("staticPodURL: ftp://x").unwrap_err().to_string();
        assert!(error.contains("must begin with http://"), "{error}");
    }
}
