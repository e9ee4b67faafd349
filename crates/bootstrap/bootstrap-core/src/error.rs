//! The error type of this crate.

use api_config::kubeadm::V1BETA4;
use api_meta::{ErrorList, field::aggregate};

/// The errors of invalid configurations and tokens. Messages that kubeadm has are kubeadm's.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{field}: {text:?} is not an IP address")]
    Address { field: &'static str, text: String },

    #[error(
        "networking.serviceSubnet: {subnet:?} has no address for {purpose}; give a subnet such as 10.96.0.0/12"
    )]
    ServiceSubnet { subnet: String, purpose: &'static str },

    #[error("invalid configuration: every document needs an apiVersion and a kind")]
    NoKind,

    #[error("invalid configuration: kind {kind:?} is specified twice in YAML file")]
    Twice { kind: String },

    #[error("no kind {kind:?} is registered for version {version:?}")]
    UnknownKind { version: String, kind: String },

    #[error(
        "your configuration file uses an old API spec: {version:?} (kind: {kind:?}). Please use a kubeadm of that \
         time instead and run 'kubeadm config migrate --old-config old-config-file --new-config new-config-file', \
         which will write the new, similar spec using a newer API version."
    )]
    OldVersion { version: String, kind: String },

    /// The fields that validation rejected.
    #[error("{}", aggregate(.0))]
    Fields(ErrorList),

    #[error("there is no local etcd in this configuration")]
    NoLocalEtcd,

    #[error(
        "the ConfigMap kubeadm-config has no ClusterConfiguration ({V1BETA4}); kubeadm or Windlass did not create this \
         cluster"
    )]
    NoKubeadmConfig,

    #[error("kubeadm-config holds no ClusterConfiguration")]
    NoClusterConfiguration,

    #[error("the bootstrap token {0:?} was not of the form \"[a-z0-9]{{6}}.[a-z0-9]{{16}}\"")]
    Token(String),

    #[error("the bootstrap token Secret {secret:?} is not valid: {reason}")]
    TokenSecret { secret: String, reason: &'static str },

    #[error("the discovery information is not valid: {0}")]
    Discovery(#[from] DiscoveryError),

    #[error("{text:?} is not a version of Kubernetes such as v1.36.2: {source}")]
    Version { text: String, source: semver::Error },

    #[error("patch {file}: {reason}")]
    Patch { file: String, reason: String },

    #[error(transparent)]
    Pki(#[from] pki::Error),

    #[error(transparent)]
    Config(#[from] api_config::Error),
}

/// The error of cluster-info that cannot be trusted or used.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    #[error(
        "none of the public keys {0:?} are pinned; the pin belongs to another cluster, or it was copied incorrectly"
    )]
    Unpinned(Vec<String>),
    #[error("there is no kubeconfig in the cluster-info ConfigMap")]
    NoKubeconfig,
    #[error(
        "there is no JWS signed token in the cluster-info ConfigMap for token {0:?}. This token id is invalid for this \
         cluster or it has expired. Use \"kubeadm token create\" on the control-plane node to create a new valid token"
    )]
    NoSignature(String),
    #[error(
        "failed to verify JWS signature of received cluster info object, can't trust this API Server: the secret of \
         token {0:?} differs from the cluster's"
    )]
    WrongSignature(String),
    #[error("its kubeconfig has {0} clusters instead of one")]
    Clusters(usize),
    #[error("its cluster names no certificate authority")]
    NoAuthority,
}

impl Error {
    pub(crate) fn deprecated(version: &str, kind: &str) -> String {
        format!(
            "your configuration file uses a deprecated API spec: {version:?} (kind: {kind:?}). Please use 'kubeadm \
             config migrate --old-config old-config-file --new-config new-config-file', which will write the new, \
             similar spec using a newer API version."
        )
    }
}
