//! The error type of this crate.

use std::{io, path::Path};

/// The errors of building the image.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{operation} {path}: {source}")]
    File { operation: &'static str, path: String, source: io::Error },
    #[error("the tree has no {0}; build it from the packages that this command installs")]
    Missing(String),
    #[error("{0}; install mmdebstrap, or give a tree with --tree")]
    Packages(#[from] sys::ProgramError),
    #[error("--ca {0}: it contains no certificate in PEM")]
    Authority(String),
}

impl Error {
    pub(crate) fn file<P: AsRef<Path>>(
        operation: &'static str,
        path: P,
    ) -> impl FnOnce(io::Error) -> Self + use<P> {
        let path = path.as_ref().display().to_string();
        move |source| Self::File { operation, path, source }
    }
}
