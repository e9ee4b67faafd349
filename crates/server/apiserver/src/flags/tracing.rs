//! The flag of tracing.

use std::path::PathBuf;

use api_config::TracingConfiguration;

/// Flags of tracing
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
pub struct TracingFlags {
    /// The collector of traces: a TracingConfiguration
    #[arg(long)]
    pub tracing_config_file: Option<PathBuf>,
}

/// The error for the file of `--tracing-config-file`.
#[derive(Debug, thiserror::Error)]
pub enum TracingFlagError {
    #[error("failed to read tracing configuration from {path:?}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("failed to decode tracing configuration data in {path:?}: {source}")]
    Decode { path: PathBuf, source: api_config::Error },
    #[error("failed to validate tracing configuration: {0}")]
    Invalid(#[from] otlp::ExporterError),
}

impl TracingFlags {
    /// Reads the file. Returns `None` without one.
    pub(super) fn exporter(&self) -> Result<Option<otlp::Exporter>, TracingFlagError> {
        let Some(path) = &self.tracing_config_file else { return Ok(None) };
        let text = std::fs::read_to_string(path)
            .map_err(|source| TracingFlagError::Read { path: path.clone(), source })?;
        let config = TracingConfiguration::parse(&text)
            .map_err(|source| TracingFlagError::Decode { path: path.clone(), source })?;
        let (endpoint, rate) = (config.endpoint.as_deref(), config.sampling_rate_per_million);
        Ok(Some(otlp::Exporter::new(endpoint, rate)?))
    }
}
