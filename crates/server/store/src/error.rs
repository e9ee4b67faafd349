//! The failures of a store.

use std::sync::Arc;

use crate::key_value::Revision;

/// A failure of the store. A write conflict is not an error: see [`Outcome`](crate::Outcome).
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("revision {requested} has been compacted; the oldest that can be read is {oldest}")]
    Compacted { requested: Revision, oldest: Revision },
    #[error("revision {requested} is in the future; the store is at {current}")]
    FutureRevision { requested: Revision, current: Revision },
    #[error("the request for {key} is {size} bytes; the store's limit is {limit}")]
    TooLarge { key: Arc<str>, size: usize, limit: usize },
    #[error("the store is out of space: {detail}")]
    NoSpace { detail: String },
    /// The outcome of a write that failed this way is unknown.
    #[error("the store is unavailable during {operation}: {detail}")]
    Unavailable { operation: &'static str, detail: String },
    #[error("the store's data is corrupt in {file} at offset {offset}: {detail}")]
    Corrupt { file: String, offset: u64, detail: String },
    #[error("the store to copy into holds {keys} keys already; name an empty one")]
    NotEmpty { keys: u64 },
    /// The value was not written, because encryption at rest is configured and failed.
    #[error("encrypting the value of {key}: {detail}")]
    Transform { key: Arc<str>, detail: String },
    #[error("{operation} on {path}: {source}")]
    Io { operation: &'static str, path: String, source: std::io::Error },
}

/// The result of a store operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;
