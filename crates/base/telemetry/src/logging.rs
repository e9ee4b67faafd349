//! Logging to standard error.

use tracing_subscriber::{EnvFilter, fmt, util::SubscriberInitExt};

/// The error of setting up logging.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    #[error("the log filter {filter:?} is invalid: {reason}; write it like info,kubelet=debug")]
    Filter { filter: String, reason: String },
    #[error("logging was already set up: {0}")]
    Again(String),
}

/// Writes logs to standard error. `filter` is in the format of `tracing` (`info,kubelet=debug`).
pub fn init_logging(component: &'static str, filter: &str) -> Result<(), InitError> {
    let parsed = EnvFilter::try_new(filter)
        .map_err(|e| InitError::Filter { filter: filter.to_owned(), reason: e.to_string() })?;
    fmt::Subscriber::builder()
        .with_env_filter(parsed)
        .with_writer(std::io::stderr)
        .finish()
        .try_init()
        .map_err(|e| InitError::Again(e.to_string()))?;
    tracing::debug!(component, "logging is set up");
    Ok(())
}

/// Returns the filter closest to klog's `-v`: debug messages from 2, trace messages from 6.
pub fn filter_for_verbosity(verbosity: u8) -> &'static str {
    match verbosity {
        0..=1 => "info,h2=warn,hyper=warn,rustls=warn",
        2..=5 => "debug,h2=warn,hyper=warn,rustls=warn,tower=warn",
        6..=8 => "trace,h2=info,hyper=info,rustls=info,tower=info",
        _ => "trace",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_verbosities_and_rejects_invalid_filter() {
        for verbosity in 0..=10 {
            assert!(EnvFilter::try_new(filter_for_verbosity(verbosity)).is_ok());
        }
        let error = init_logging("test", "a=b=c").unwrap_err().to_string();
        assert!(error.contains("a=b=c") && error.contains("kubelet=debug"), "{error}");
    }
}
