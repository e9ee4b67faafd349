//! The field `tracing`: the export of traces.

use otlp::Exporter;
use serde::Deserialize;

use crate::error::{ConfigError, invalid};

/// The export of traces.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TracingConfiguration {
    /// The address of the collector, with OTLP over gRPC; `None` for `localhost:4317`.
    pub endpoint: Option<String>,
    /// The number of traces per million that are sampled.
    pub sampling_rate_per_million: Option<i32>,
}

impl TracingConfiguration {
    pub(crate) fn exporter(&self) -> Result<Exporter, ConfigError> {
        let exporter = Exporter::new(self.endpoint.as_deref(), self.sampling_rate_per_million);
        exporter.map_err(|error| invalid("tracing", error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validates_endpoint_and_rate() {
        let exporter = |endpoint: &str, rate| {
            let endpoint = Some(endpoint.to_owned());
            TracingConfiguration { endpoint, sampling_rate_per_million: rate }.exporter()
        };
        assert_eq!(exporter("c:1", Some(7)).unwrap().rate_per_million, 7);
        for (endpoint, rate, words) in [
            (
                "http://c:1",
                None,
                "tracing: endpoint: Invalid value: \"http://c:1\": unsupported scheme: http.",
            ),
            (
                "c:1",
                Some(-7),
                "tracing: samplingRatePerMillion: Invalid value: -7: sampling rate must be positive",
            ),
        ] {
            let error = exporter(endpoint, rate).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
