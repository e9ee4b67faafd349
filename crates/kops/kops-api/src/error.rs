//! The errors of parsing objects.

use api_meta::{FieldError, aggregate};

/// The reason why a document is not a usable kOps object.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A document that is not valid YAML.
    #[error("reading {what}: {cause}")]
    Yaml { what: String, cause: String },
    /// An object that exceeds the limits of size or depth.
    #[error("reading {what}: the object is too large or too deep: {cause}")]
    Exceeded { what: String, cause: api_meta::BudgetExceeded },
    /// An object of another kind or version.
    #[error(
        "reading {what}: apiVersion {version:?}, kind {kind:?} is not one of kops.k8s.io/v1alpha2 and v1alpha3: \
         Cluster, InstanceGroup, Keyset, SSHCredential, Host"
    )]
    Kind { what: String, version: String, kind: String },
    /// An object with invalid fields.
    #[error("reading {what}: {}", aggregate(problems))]
    Fields { what: String, problems: Vec<FieldError> },
}

impl Error {
    /// Returns the errors of single fields; empty for other errors.
    pub fn problems(&self) -> &[FieldError] {
        match self {
            Self::Fields { problems, .. } => problems,
            _ => &[],
        }
    }
}
