//! The error type of this crate.

/// The errors of invalid configurations and tokens. Messages that kubeadm has are kubeadm's.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{field}: {text:?} is not an IP address")]
    Address { field: &'static str, text: String },

    #[error(
        "networking.serviceSubnet: {subnet:?} has no address for {wanted}; give a subnet such as 10.96.0.0/12"
    )]
    ServiceSubnet { subnet: String, wanted: &'static str },

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

    #[error("{0}")]
    Invalid(String),

    #[error("the bootstrap token {0:?} was not of the form \"[a-z0-9]{{6}}.[a-z0-9]{{16}}\"")]
    Token(String),

    #[error("the discovery information is not valid: {0}")]
    Discovery(String),

    #[error("patch {file}: {reason}")]
    Patch { file: String, reason: String },

    #[error(transparent)]
    Pki(#[from] pki::Error),

    #[error(transparent)]
    Config(#[from] api_config::Error),
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
