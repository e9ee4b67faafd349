//! The errors of carrying a machine's tasks out.

use std::{io, path::PathBuf};

use crate::download::DownloadError;

/// An error of carrying a machine's tasks out.
#[derive(Debug, thiserror::Error)]
pub enum SystemdError {
    #[error("cannot {operation} {path}: {source}", path = path.display())]
    Io { operation: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot get {url}: {source}; store it there, or correct the assets of the spec")]
    Download { url: String, source: Box<DownloadError> },
    #[error(
        "{path} is a symbolic link, so writing it would replace or change another file; remove the link, or name its \
         target in the spec", path = path.display()
    )]
    Link { path: PathBuf },
    #[error("{path} is {found}, but the configuration wants {wanted} there; move it away", path = path.display())]
    Kind { path: PathBuf, found: &'static str, wanted: &'static str },
    #[error("{path}: the {kind} {name:?} does not exist on this machine", path = path.display())]
    Owner { path: PathBuf, kind: &'static str, name: String },
    #[error(
        "the environment variable {name} has white space, quotes or other characters that the unit's environment file \
         cannot hold"
    )]
    Variable { name: &'static str },
    #[error("{path}: the mode {mode:?} is not octal", path = path.display())]
    Mode { path: PathBuf, mode: String },
    #[error("the hosts file cannot hold {value:?}: it is not {wanted}")]
    HostRecord { value: String, wanted: &'static str },
    #[error("{what} has more than {limit} bytes; nodeup does not read it")]
    TooLarge { what: String, limit: u64 },
    #[error(
        "the task for {name:?} is missing in the list of tasks, which is a fault of this release"
    )]
    MissingTask { name: String },
    #[error(
        "the key pair {id:?} of keyset {name:?} is not in the state store; run kops update cluster --yes"
    )]
    MissingKeypair { name: String, id: String },
    #[error(
        "instance groups of role {0:?} cannot be set up on machines with systemd yet; use the roles ControlPlane and \
         Node"
    )]
    Role(String),
    #[error(
        "{path} is not a key of the curve P-256, which kops-controller requires; remove it, and the next run creates \
         one",
        path = path.display()
    )]
    MachineKey { path: PathBuf },
    #[error("{server} did not answer within {seconds} s; is kops-controller running there?")]
    Silent { server: String, seconds: u64 },
    #[error(
        "{server} refused this machine with status {status}: {reason}; create the Host {host} in the namespace \
         kops-system, with the instance group {group} and the public key in \
         /etc/kubernetes/kops/pki/machine/public.pem"
    )]
    Refused { server: String, status: u16, reason: String, host: String, group: String },
    #[error("building a request for kops-controller: {0}")]
    Request(http::Error),
    #[error(
        "kops-controller issues no certificates, because the machine's Node is ready; delete the Node and run nodeup \
         again"
    )]
    Registered,
    #[error(
        "kops-controller did not issue the certificate {name:?} as it is needed; check that kops-controller is of the \
         cluster's release"
    )]
    MissingCertificate { name: String },
    #[error("the manifest {path} is not in the cluster's directory {base} of the state store")]
    ForeignPath { path: String, base: String },
    #[error("{unit}: systemd reports the start time {value:?}, which is not a time")]
    StartTime { unit: String, value: String },
}

impl SystemdError {
    /// Returns a function that adds the operation and the path to an error of the file system.
    pub(crate) fn io(
        operation: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { operation, path, source }
    }
}
