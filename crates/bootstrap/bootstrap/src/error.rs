//! The error type of bootstrap commands.

use std::path::PathBuf;

/// The errors of bootstrap commands. Preflight findings are in [`crate::preflight`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Pki(#[from] pki::Error),

    #[error(transparent)]
    Plan(#[from] bootstrap_core::Error),

    #[error(transparent)]
    Config(#[from] api_config::Error),

    #[error(transparent)]
    Duration(#[from] api_meta::ParseDurationError),

    #[error("cannot {operation} {}: {source}", path.display())]
    Io { operation: &'static str, path: PathBuf, source: std::io::Error },

    #[error("{} exists but cannot be used: {source}. It is never overwritten: {cure}", path.display())]
    Given { path: PathBuf, source: pki::Error, cure: &'static str },

    #[error(
        "{} exists but {} does not; provide both, or remove the first to have both created",
        have.display(),
        missing.display()
    )]
    HalfPair { have: PathBuf, missing: PathBuf },

    #[error(
        "{} is missing, and without {} it cannot be signed here (external CA mode): have your CA sign it \
         (`certs generate-csr` makes the request), or put the CA's key there", missing.display(), key.display()
    )]
    ExternalCa { missing: PathBuf, key: PathBuf },

    #[error("invalid or incomplete external CA:\n{0}")]
    External(String),

    #[error(
        "{} exists already, and a key is never overwritten: remove it, or give other directories with --cert-dir and \
         --kubeconfig-dir",
        .0.display()
    )]
    KeyExists(PathBuf),

    #[error("there is neither {} nor its certificate; run the phase `certs {phase}` first", key.display())]
    NoAuthority { key: PathBuf, phase: &'static str },

    #[error(
        "{} exists but cannot be used: {reason}. It is never overwritten: remove it to have it created again",
        path.display()
    )]
    Kubeconfig { path: PathBuf, reason: String },

    #[error("error execution phase {name}: {source}")]
    Phase { name: &'static str, source: Box<Error> },

    #[error("invalid phase name: {name}; the phases are {known}")]
    NoSuchPhase { name: String, known: String },

    #[error("patch {file}: {reason}")]
    Patch { file: String, reason: String },

    /// A user request that cannot be met.
    #[error("{0}")]
    Usage(String),

    #[error(
        "[preflight] Some fatal errors occurred:\n{0}[preflight] If you know what you are doing, you can make a check \
         non-fatal with `--ignore-preflight-errors=...`"
    )]
    Preflight(String),

    #[error("cannot {operation} {subject}: {source}")]
    Api { operation: &'static str, subject: String, source: client::Error },

    #[error("cannot reach the cluster by {}: {reason}", path.display())]
    Client { path: PathBuf, reason: String },

    #[error("cannot take a snapshot of etcd at {endpoint}: {cause}")]
    Snapshot { endpoint: String, cause: String },

    #[error("{what} did not come up within {waited}: {cause}")]
    NotUp { what: String, waited: String, cause: String },

    #[error("cannot {operation} the kubelet's service: {cause}")]
    Service { operation: &'static str, cause: String },

    #[error("cannot {operation} {subject} in the container runtime: {cause}")]
    Runtime { operation: &'static str, subject: String, cause: String },
}

/// Returns a function that adds operation and path to an I/O error.
pub(crate) fn io(
    operation: &'static str,
    path: &std::path::Path,
) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { operation, path, source }
}
