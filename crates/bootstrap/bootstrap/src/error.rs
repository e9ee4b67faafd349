//! The error type of bootstrap commands.

mod flag;
mod join;
mod rotation;
mod snapshot;
mod upgrade;

use std::path::PathBuf;

pub use flag::FlagError;
pub use join::JoinError;
pub use rotation::RotationError;
pub use snapshot::SnapshotError;
pub use upgrade::UpgradeError;

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
    Unusable { path: PathBuf, source: pki::Error, cure: &'static str },

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

    #[error("invalid phase name: {name}; the phases are {names}")]
    NoSuchPhase { name: String, names: String },

    #[error("patch {file}: {reason}")]
    Patch { file: String, reason: String },

    #[error(transparent)]
    Flag(#[from] FlagError),

    #[error(transparent)]
    Join(#[from] JoinError),

    #[error(transparent)]
    Rotation(#[from] RotationError),

    #[error(transparent)]
    Upgrade(#[from] UpgradeError),

    #[error("aborted reset operation")]
    Aborted,

    #[error("a token with id {0:?} already exists")]
    TokenExists(String),

    #[error("unable to print {kind}: {source}")]
    Print { kind: String, source: Box<dyn std::error::Error + Send + Sync> },

    #[error("{kind} of {version} is not a kind that bootstrapping writes")]
    UnknownKind { version: String, kind: String },

    #[error("there is no certificate {0:?} in this configuration")]
    NoCertificate(String),

    #[error("there is no kubeconfig {0:?}")]
    NoKubeconfig(String),

    #[error(
        "{} is missing, which the control planes share: give --certificate-key (init phase upload-certs --upload-certs \
         prints it), or copy the files here",
        .0.display()
    )]
    NotShared(PathBuf),

    #[error(
        "{} is missing: renew the certificates where the authority's key is (certs generate-csr makes the requests)",
        .0.display()
    )]
    NoSigningKey(PathBuf),

    #[error("{} is missing; it is required to sign renewed certificates", .0.display())]
    NoSigner(PathBuf),

    #[error(
        "cannot {operation} the uploaded certificates: the certificate key is another one than they were encrypted \
         with; `init phase upload-certs --upload-certs` on a control plane makes new ones and prints their key"
    )]
    WrongCertificateKey { operation: &'static str },

    #[error("the certificate key must be 32 bytes in hexadecimal (64 characters)")]
    CertificateKey,

    #[error(
        "Secret {0:?} was not found in the \"kube-system\" Namespace. This Secret might have expired. Please, run \
         `kubeadm init phase upload-certs --upload-certs` on a control plane to generate a new one"
    )]
    NoCertificatesSecret(&'static str),

    #[error("Secret {secret}: {name} is not base64: {source}")]
    CertificatesSecret { secret: &'static str, name: String, source: base64::DecodeError },

    #[error("taking the virtual address {address}: {source}")]
    VirtualAddress { address: String, source: Box<dyn std::error::Error + Send + Sync> },

    #[error("cannot {operation}: there is no etcd endpoint")]
    NoEtcdEndpoint { operation: &'static str },

    #[error("{url} answers no JSON: {source}; is it etcd 3.4 or newer?")]
    EtcdResponse { url: String, source: serde_json::Error },

    #[error("etcd has no member at {0}: it was removed in the meantime; join again")]
    NoEtcdMember(String),

    #[error(
        "[preflight] Some fatal errors occurred:\n{0}[preflight] If you know what you are doing, you can make a check \
         non-fatal with `--ignore-preflight-errors=...`"
    )]
    Preflight(String),

    #[error("cannot {operation} {subject}: {source}")]
    Api { operation: &'static str, subject: String, source: client::Error },

    #[error("cannot reach the cluster by {}: {reason}", path.display())]
    Client { path: PathBuf, reason: String },

    #[error("cannot take a snapshot of etcd at {endpoint}: {source}")]
    Snapshot { endpoint: String, source: SnapshotError },

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
