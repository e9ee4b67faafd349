//! The errors of the state store's objects.

use crate::layout::ETCD;

/// An error of reading or changing a cluster's objects in the state store.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Store(#[from] vfs::Error),
    #[error(transparent)]
    Parse(#[from] kops_api::Error),
    #[error(transparent)]
    Core(#[from] kops_core::Error),
    #[error(transparent)]
    Pki(#[from] pki::Error),
    #[error(transparent)]
    Disk(#[from] sys::Error),
    #[error("{operation} {path:?}: {source}")]
    File { operation: &'static str, path: String, source: std::io::Error },
    #[error("{kind} {name:?} {problem}")]
    Object { kind: &'static str, name: String, problem: &'static str },
    #[error("reading {path} of the state store: it is {actual}, not {expected}")]
    Mismatch { path: String, actual: String, expected: String },
    #[error("{path} of the state store is not {expected}")]
    Malformed { path: String, expected: &'static str },
    #[error("{path} of the state store: {source}")]
    Json { path: String, source: serde_json::Error },
    #[error(
        "channel {name} cannot be downloaded yet: set --kubernetes-version, or use a file with --channel /path"
    )]
    Channel { name: String },
    #[error("interrupted; run the same command again to continue")]
    Interrupted,
    #[error("the first keypair added to a keyset must be primary")]
    FirstKeypair,
    #[error("private key not provided for primary item")]
    PrimaryWithoutKey,
    #[error("cannot distrust the primary keypair")]
    PrimaryDistrusted,
    #[error("keypair {id}: {problem}")]
    Keypair { id: String, problem: &'static str },
    #[error("{what} {problem}")]
    SshKey { what: String, problem: &'static str },
    #[error("keypair {id} of keyset {keyset} has no private key in the state store")]
    MissingKey { keyset: String, id: String },
    #[error("cluster spec was not found - is this a new cluster?")]
    MissingEtcdSpec,
    #[error(
        "backup {name:?} does not exist; etcd-manager-ctl list-backups lists the existing ones"
    )]
    MissingBackup { name: String },
    #[error(
        "restoring backup {name:?}: {cause}; etcd-manager-ctl list-backups lists others, delete-command cancels the \
         command"
    )]
    Restore { name: String, cause: RestoreError },
    #[error("the new backup cannot be restored, so it is not stored: {cause}")]
    Archive { cause: RestoreError },
    #[error("{member} is not one of the founding members")]
    Founder { member: String },
}

/// The reason why a backup cannot be restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error("it is of etcd {0}, but only 3 can be restored")]
    EtcdVersion(String),
    #[error("its {0} is missing")]
    MissingArchive(&'static str),
    #[error("its archive is damaged: {0}")]
    Archive(std::io::Error),
    #[error("it is of {owner:?}, not of {cluster}/{ETCD}")]
    Owner { owner: String, cluster: String },
    #[error("it needs {size} bytes; the limit for a database is {limit}, and {room} are free")]
    Size { size: u64, limit: u64, room: u64 },
    #[error(transparent)]
    Snapshot(#[from] kops_core::snapshot::Error),
    #[error(transparent)]
    Room(sys::Error),
    #[error(transparent)]
    Write(std::io::Error),
}

impl Error {
    /// Returns the conversion of an I/O error of an operation on a file.
    pub fn file(
        operation: &'static str,
        path: &str,
    ) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::File { operation, path, source }
    }

    /// Reports whether the error is the fault of a backup, which another attempt would not restore either.
    pub fn is_of_backup(&self) -> bool {
        match self {
            Self::Restore { cause, .. } => !matches!(
                cause,
                RestoreError::Room(_)
                    | RestoreError::Write(_)
                    | RestoreError::Snapshot(kops_core::snapshot::Error::Io(_))
            ),
            Self::MissingBackup { .. } | Self::Malformed { .. } => true,
            _ => false,
        }
    }

    /// Returns the error of an object that a command cannot use.
    pub fn object(kind: &'static str, name: &str, problem: &'static str) -> Self {
        Self::Object { kind, name: name.to_owned(), problem }
    }
}
