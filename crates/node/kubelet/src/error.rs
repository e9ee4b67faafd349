//! The errors of the kubelet.

use std::{io, path::PathBuf, time::Duration};

use kubelet_config::ConfigError;
use kubelet_resources::{ClaimsStateError, PlacementError};
use kubelet_server::ServerError;

use crate::{
    credentials::ProvidersError,
    kernel::{HostError, KernelError},
    systemd::WatchdogError,
    user_namespaces::UserNamespacesError,
};

/// The error that prevents the kubelet's start or ends it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("this machine has no address besides loopback's; give one with --node-ip")]
    NoAddress,
    #[error("create the kubelet's directory {}: {source}", path.display())]
    Root { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Mount(#[from] sys::Error),
    #[error(transparent)]
    Kubeconfig(#[from] client::KubeconfigError),
    #[error(transparent)]
    Enroll(#[from] EnrollError),
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error("start the thread of heartbeats: {0}")]
    Thread(io::Error),
    #[error(
        "Failed to start ContainerManager: {0}; set them with sysctl, or protectKernelDefaults to false"
    )]
    Kernel(#[from] KernelError),
    #[error("Failed to start ContainerManager: {0}")]
    Placement(#[from] PlacementError),
    #[error("Failed to start ContainerManager: {0}")]
    Claims(#[from] ClaimsStateError),
    #[error("Failed to start ContainerManager: {0}")]
    Host(#[from] HostError),
    #[error(transparent)]
    UserNamespaces(#[from] UserNamespacesError),
    #[error(transparent)]
    CredentialProviders(#[from] ProvidersError),
    #[error(
        "--image-credential-provider-config and --image-credential-provider-bin-dir must be given together"
    )]
    HalfCredentialProviders,
    #[error(transparent)]
    Watchdog(#[from] WatchdogError),
    #[error("start the export of traces: {0}; correct tracing.endpoint")]
    Tracing(#[from] otlp::EndpointError),
    #[error("the container runtime does not answer: {0}")]
    Runtime(#[from] cri::Error),
}

/// The error of a TLS bootstrap. Errors that pass without intervention are retried instead.
#[derive(Debug, thiserror::Error)]
pub enum EnrollError {
    #[error("read the bootstrap kubeconfig: {0}")]
    Kubeconfig(#[from] client::KubeconfigError),
    #[error(transparent)]
    Config(#[from] api_config::Error),
    #[error("ask for a certificate: {0}")]
    Api(#[from] client::Error),
    #[error(transparent)]
    Pki(#[from] pki::Error),
    #[error("the request for a certificate, {name}, was {what}: {message}")]
    Refused { name: String, what: &'static str, message: String },
    #[error("the certificate that was issued for {name} cannot be read: {message}")]
    Unreadable { name: String, message: String },
    #[error(
        "no decision within {after:?} on a certificate request for {usage}; approve it with kubectl"
    )]
    Unanswered { usage: &'static str, after: Duration },
    #[error("link {}: {source}", path.display())]
    Link { path: PathBuf, source: io::Error },
}
