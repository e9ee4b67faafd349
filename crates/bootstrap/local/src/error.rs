//! The crate's error.

use std::path::PathBuf;

/// An error in starting, running or removing a local cluster.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{operation} {}: {source}", path.display())]
    File { operation: &'static str, path: PathBuf, source: std::io::Error },
    #[error("starting {program}: {source}; is it installed?")]
    Start { program: String, source: std::io::Error },
    #[error("preflight: {} of the machine's conditions are not met:\n{}", .0.len(), lines(.0))]
    Preflight(Vec<crate::preflight::Problem>),
    #[error("the cluster's settings {}: {detail}", path.display())]
    Settings { path: PathBuf, detail: String },
    #[error("there is no cluster at {}: run `windlass up` first", .0.display())]
    NoCluster(PathBuf),
    #[error(
        "{} contains other files and is not a cluster's root: give an empty directory with --root, because `down` \
         removes it entirely",
        .0.display()
    )]
    Occupied(PathBuf),
    #[error("{} is the root of the cluster {owner}: give --name {owner}, or another --root", root.display())]
    OthersRoot { root: PathBuf, owner: String },
    #[error(
        "there is no {}, the mark that lets `down` remove the directory: if it contains only the cluster's files, run \
         `windlass up` with the same --name and --root to create the mark; otherwise remove the cluster's files by \
         hand",
        .0.display()
    )]
    Unmarked(PathBuf),
    #[error("{what} did not come up in time{pods}\nlast lines of {process}'s log:\n{log}")]
    NotUp {
        what: &'static str,
        /// The conditions of the Pods that are waited for, a line each.
        pods: String,
        process: &'static str,
        log: String,
    },
    #[error(transparent)]
    Bootstrap(#[from] bootstrap::Error),
    #[error(transparent)]
    Plan(#[from] bootstrap_core::Error),
    #[error(transparent)]
    Pki(#[from] pki::Error),
    #[error(transparent)]
    Config(#[from] api_config::Error),
    #[error(transparent)]
    Api(#[from] client::Error),
    #[error(transparent)]
    Kubeconfig(#[from] client::KubeconfigError),
    #[error(transparent)]
    ApiServer(#[from] apiserver::StartError),
    #[error("opening the store: {0}")]
    Store(#[from] store::Error),
    #[error(transparent)]
    Kubelet(#[from] kubelet::Error),
    #[error(transparent)]
    Proxy(#[from] proxy::RunError),
    #[error(transparent)]
    Image(#[from] oci::Error),
    #[error(transparent)]
    Import(#[from] oci::ImportError),
    #[error(transparent)]
    Network(#[from] cni::InstallError),
    #[error(transparent)]
    Machine(#[from] instances::Error),
    #[error("{0}")]
    Other(String),
}

fn lines(problems: &[crate::preflight::Problem]) -> String {
    problems.iter().map(|p| format!("  {p}")).collect::<Vec<_>>().join("\n")
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
