//! The error type of this crate.

/// The errors of building the image.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    File(#[from] sys::Error),
    #[error("the tree has no {0}; build it from the packages that this command installs")]
    Missing(String),
    #[error("{0}; install mmdebstrap, or give a tree with --tree")]
    Packages(#[from] sys::ProgramError),
    #[error("--ca {0}: it contains no certificate in PEM")]
    Authority(String),
}
