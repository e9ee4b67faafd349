//! The errors of reading a snapshot.

use std::io;

/// The reason why a file is not a usable snapshot.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("it is not a snapshot of etcd: {0}")]
    Foreign(&'static str),
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
    #[error(transparent)]
    Io(#[from] io::Error),
}
