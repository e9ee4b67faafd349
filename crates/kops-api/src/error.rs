use api_meta::{FieldError, aggregate};

/// Why a document is no object of kOps', or is none that can be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("reading {what}: {cause}")]
    Yaml { what: String, cause: String },
    #[error("reading {what}: it is larger or deeper than an object may be: {cause}")]
    Exceeded { what: String, cause: api_meta::Exceeded },
    #[error(
        "reading {what}: apiVersion {version:?}, kind {kind:?} is none of kops.k8s.io/v1alpha2 and v1alpha3: \
         Cluster, InstanceGroup, Keyset, SSHCredential, Host"
    )]
    Kind { what: String, version: String, kind: String },
    #[error("reading {what}: {}", aggregate(problems))]
    Fields { what: String, problems: Vec<FieldError> },
}

impl Error {
    /// What is wrong with single fields, if that is what is wrong.
    pub fn problems(&self) -> &[FieldError] {
        match self {
            Self::Fields { problems, .. } => problems,
            _ => &[],
        }
    }
}
