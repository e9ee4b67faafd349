//! `TracingConfiguration` (apiserver.config.k8s.io): the collector of traces, and the share of traces that is sampled.

use serde::Deserialize;

use crate::{authentication::strict, error::Error};

/// The root of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TracingConfiguration {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    /// The address of the collector, with OTLP over gRPC; `None` for `localhost:4317`.
    pub endpoint: Option<String>,
    /// The number of traces per million that are sampled if the caller does not decide.
    pub sampling_rate_per_million: Option<i32>,
}

impl TracingConfiguration {
    /// Parses a file's text without validating it.
    pub fn parse(text: &str) -> Result<Self, Error> {
        strict("TracingConfiguration", text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_every_version_strictly() {
        for version in ["v1", "v1beta1", "v1alpha1"] {
            let head = format!(
                "apiVersion: apiserver.config.k8s.io/{version}\nkind: TracingConfiguration\n"
            );
            let parsed = TracingConfiguration::parse(&format!(
                "{head}endpoint: c:1\nsamplingRatePerMillion: 100\n"
            ))
            .unwrap();
            assert_eq!(parsed.endpoint.as_deref(), Some("c:1"));
            assert_eq!(parsed.sampling_rate_per_million, Some(100));
            let error = TracingConfiguration::parse(&format!("{head}samplingRate: 1\n"));
            assert!(error.unwrap_err().to_string().contains("samplingRate"));
        }
        for other in ["", "kind: TracingConfiguration", "apiVersion: v1\nkind: Pod", "[", "\0"] {
            assert!(TracingConfiguration::parse(other).is_err(), "{other}");
        }
    }
}
