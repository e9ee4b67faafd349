use std::path::PathBuf;

/// The errors of reading, writing and using configurations. [`Error::In`] adds the name of a file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {operation} {}: {source}", path.display())]
    Io { operation: &'static str, path: PathBuf, source: std::io::Error },

    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: pki::Error },

    #[error("{}: {source}", path.display())]
    In { path: PathBuf, source: Box<Error> },

    #[error("not valid YAML: {0}")]
    Yaml(String),

    #[error("cannot write as YAML: {0}")]
    Emit(String),

    #[error("{kind}: {reason}")]
    Decode { kind: &'static str, reason: String },

    #[error(
        "strict decoding error: {}",
        fields.iter().map(|f| format!("unknown field {f:?}")).collect::<Vec<_>>().join(", ")
    )]
    UnknownFields { fields: Vec<String> },

    #[error("no kind {expected} of {group} but {found}; set apiVersion and kind")]
    WrongKind { expected: &'static str, group: &'static str, found: String },

    #[error(transparent)]
    Duration(#[from] api_meta::ParseDurationError),

    #[error("the kubeconfig has no {entry} {name:?}; it has {have}")]
    NoSuchEntry { entry: &'static str, name: String, have: String },

    // The message is client-go's.
    #[error("invalid configuration: {0}")]
    InvalidKubeconfig(String),

    #[error(
        "error converting *[]Named{kind} into *map[string]*api.{kind}: duplicate name {name:?} in list"
    )]
    DuplicateEntry { kind: &'static str, name: String },

    #[error("the kubeconfig names no current context; set current-context to one of {have}")]
    NoCurrentContext { have: String },

    #[error("field {field} of {owner:?} is not base64: {reason}")]
    Base64 { field: &'static str, owner: String, reason: String },

    #[error(
        "{} is locked by {}; another process is changing it, or one failed while it did: remove the lock then",
        path.display(), lock.display()
    )]
    Locked { path: PathBuf, lock: PathBuf },
}
