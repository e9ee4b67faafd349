//! The error of a document.

/// An error in the document.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("reading {path}: {source}")]
    Read { path: String, source: std::io::Error },
    #[error("{path}: {source}")]
    Decode { path: String, source: api_config::Error },
    #[error(
        "{path} contains {count} documents, expected: one of kind Cluster, windlass.io/v1alpha1"
    )]
    Documents { path: String, count: usize },
    #[error("{section}: {source}")]
    Section { section: &'static str, source: api_config::Error },
    #[error("{section}.{field} is set by `up` itself; leave it out")]
    Managed { section: &'static str, field: String },
    #[error("{section}.extraArgs: {message}")]
    Flags { section: &'static str, message: String },
    #[error("{field} cannot change after the cluster's creation; run `windlass down` first")]
    Fixed { field: &'static str },
    #[error("{field}: {value:?} is not {expected}")]
    Value { field: String, value: String, expected: &'static str },
}
