/// Why a command did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Usage(String),
    #[error(transparent)]
    Store(#[from] vfs::Error),
    #[error(transparent)]
    Object(#[from] kops_api::Error),
    #[error("{operation} {path:?}: {source}")]
    File { operation: &'static str, path: String, source: std::io::Error },
    #[error("{kind} {name:?} {problem}")]
    Known { kind: &'static str, name: String, problem: &'static str },
    #[error("writing the output: {0}")]
    Output(#[from] std::io::Error),
}

impl Error {
    pub(crate) fn file(
        operation: &'static str,
        path: &str,
    ) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::File { operation, path, source }
    }

    pub(crate) fn known(kind: &'static str, name: &str, problem: &'static str) -> Self {
        Self::Known { kind, name: name.to_owned(), problem }
    }
}
