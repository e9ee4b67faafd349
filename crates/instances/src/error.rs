use std::path::PathBuf;

/// Why a machine on this machine could not be made, reached or ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{operation} {}: {source}", path.display())]
    File { operation: &'static str, path: PathBuf, source: std::io::Error },
    #[error("starting {program}: {source}; is it installed?")]
    Start { program: String, source: std::io::Error },
    #[error("{}: {detail}", path.display())]
    Settings { path: PathBuf, detail: String },
    #[error("{} is no directory of instances: {reason}", path.display())]
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
