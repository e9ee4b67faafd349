//! The error of applying a cluster's manifests.

use std::path::PathBuf;

/// An error in applying a cluster's manifests. Errors of single files are recorded instead.
#[derive(Debug, thiserror::Error)]
pub enum ManifestsError {
    #[error(
        "reading the manifests in {}: {source}; the objects of its files stay as they are",
        path.display()
    )]
    Directory { path: PathBuf, source: std::io::Error },
    #[error(
        "every user may write to {}, and its files have the rights of an administrator; run chmod o-w",
        path.display()
    )]
    Writable { path: PathBuf },
    #[error("{} has more than {limit} files", path.display())]
    Files { path: PathBuf, limit: usize },
    #[error("reading the record of applied manifests {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error(
        "the record of applied manifests {}: {source}; remove it to apply all files anew",
        path.display()
    )]
    Record { path: PathBuf, source: serde_json::Error },
    #[error("writing the record of applied manifests: {0}")]
    Write(#[from] pki::Error),
    #[error("applying manifests: {0}")]
    Api(#[from] client::Error),
    #[error("reading a manifest: {0}")]
    Task(#[from] tokio::task::JoinError),
}
