//! The errors of reading a snapshot.

use std::io;

/// The reason why a file is not a usable snapshot.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of another format.
    #[error("it is not a snapshot of etcd: {0}")]
    Foreign(&'static str),
    /// A snapshot with wrong content.
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
    /// A snapshot of a store without Kubernetes' objects.
    #[error(
        "it holds none of Kubernetes' objects (keys below /registry/), so the restored cluster would be empty; choose \
         a later backup"
    )]
    NoObjects,
    /// A failed read or write of the file.
    #[error(transparent)]
    Io(#[from] io::Error),
}
