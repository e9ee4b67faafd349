//! The errors of flags, arguments and configuration files.

/// An error of a command line or of a configuration file.
#[derive(Debug, thiserror::Error)]
pub enum FlagError {
    #[error("unknown flag: --{flag}; see `{command} --help`")]
    Unknown { flag: String, command: String },
    #[error("can not mix '--config' with arguments [{0}]")]
    Mixed(String),
    #[error("feature-gates: {0:?} is not of the form name=true or name=false")]
    FeatureGate(String),
    #[error("--component-configs needs to contain some of {kinds:?}, not {unknown:?}")]
    ComponentConfig { kinds: [&'static str; 2], unknown: String },
    #[error("ignore-preflight-errors: don't specify individual checks if 'all' is used")]
    IgnoredChecks,
    #[error("--certificate-key and --apiserver-advertise-address need --control-plane")]
    NeedsControlPlane,
    #[error(
        "can't use upload-certs with an external CA or an external front-proxy CA: there are no keys to share"
    )]
    UploadOfExternalCa,
    #[error("{name:?} is not a renewable certificate; use all or one of {names}")]
    Certificate { name: String, names: String },
    #[error(
        "missing argument; 'token delete' is missing token of form \"[a-z0-9]{{6}}.[a-z0-9]{{16}}\" or its id"
    )]
    NoToken,
    #[error(
        "cannot ask for confirmation without a terminal; use --{flag} to {command} without asking"
    )]
    NoTerminal { command: &'static str, flag: &'static str },
    /// The strict decoding errors of a configuration file.
    #[error("{}", .0.join("\n"))]
    Strict(Vec<String>),
}
