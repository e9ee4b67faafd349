use tracing_subscriber::{EnvFilter, fmt, util::SubscriberInitExt};

/// Why logs cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    #[error(
        "the log filter {filter:?} is not understood: {reason}; write it like info,kubelet=debug"
    )]
    Filter { filter: String, reason: String },
    #[error("logging was already set up: {0}")]
    Again(String),
}

/// Sends logs to standard error. `filter` is in tracing's form (`info,kubelet=debug`).
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

/// The filter that comes closest to klog's `-v`: details from 2 on, requests from 6 on.
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
    fn every_verbosity_is_a_filter_and_a_wrong_filter_is_explained() {
        for verbosity in 0..=10 {
            assert!(EnvFilter::try_new(filter_for_verbosity(verbosity)).is_ok());
        }
        let error = init_logging("test", "a=b=c").unwrap_err().to_string();
        assert!(error.contains("a=b=c") && error.contains("kubelet=debug"), "{error}");
    }
}
