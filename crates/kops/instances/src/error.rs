//! The crate's error.

use std::path::PathBuf;

/// An error in creating, reaching or ending a machine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{operation} {}: {source}", path.display())]
    File { operation: &'static str, path: PathBuf, source: std::io::Error },
    #[error("starting {program}: {source}; is it installed?")]
    Start { program: String, source: std::io::Error },
    #[error("{}: {detail}", path.display())]
    Settings { path: PathBuf, detail: String },
    #[error("{} does not belong to this fleet: {reason}", path.display())]
    Foreign { path: PathBuf, reason: String },
    #[error(transparent)]
    Pki(#[from] pki::Error),
    #[error("{0}")]
    Other(String),
}

impl Error {
    pub(crate) fn file(
        operation: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { operation, path, source }
    }
}
