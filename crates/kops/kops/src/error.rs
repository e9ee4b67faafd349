//! The errors of commands.

/// An error of a command.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Usage(String),
    #[error(transparent)]
    Store(#[from] vfs::Error),
    #[error(transparent)]
    Object(#[from] kops_api::Error),
    #[error(transparent)]
    Core(#[from] kops_core::Error),
    #[error(transparent)]
    Pki(#[from] pki::Error),
    #[error(transparent)]
    Machine(#[from] instances::Error),
    #[error(transparent)]
    Bootstrap(#[from] bootstrap::Error),
    #[error(transparent)]
    Plan(#[from] bootstrap_core::Error),
    #[error(transparent)]
    Config(#[from] api_config::Error),
    #[error(transparent)]
    Api(#[from] client::Error),
    #[error(transparent)]
    Kubeconfig(#[from] client::KubeconfigError),
    #[error(transparent)]
    Aws(#[from] aws::Error),
    #[error("{operation} {path:?}: {source}")]
    File { operation: &'static str, path: String, source: std::io::Error },
    #[error(
        "restoring backup {name:?}: {cause}; etcd-manager-ctl list-backups lists others, delete-command cancels the \
         command"
    )]
    Backup { name: String, cause: String },
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
