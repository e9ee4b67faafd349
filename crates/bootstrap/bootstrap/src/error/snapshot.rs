//! The errors of a snapshot of etcd.

/// The reason why a snapshot is not complete.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error(transparent)]
    Request(#[from] client::Error),
    #[error(transparent)]
    Body(Box<dyn std::error::Error + Send + Sync>),
    #[error("it answers {0}")]
    Status(http::StatusCode),
    #[error("a part of the snapshot is longer than 4 MiB")]
    TooLong,
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Base64(#[from] base64::DecodeError),
    #[error("it ended the snapshot: {0}")]
    Ended(String),
    #[error("writing it: {0}")]
    Write(#[source] std::io::Error),
    #[error("the snapshot ends after {received} bytes, and {remaining} are missing")]
    Truncated { received: u64, remaining: u64 },
}
