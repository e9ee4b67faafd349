//! The reasons why an authorization configuration cannot be used.

use api_meta::ErrorList;
use client::KubeconfigError;

/// The reason why an authorization configuration cannot be used, with upstream's messages.
#[derive(Debug, thiserror::Error)]
pub enum AuthorizationError {
    #[error("failed to load AuthorizationConfiguration from file: {0}")]
    Parse(#[from] api_config::Error),
    #[error("{}", api_meta::aggregate(.0))]
    Invalid(ErrorList),
    /// The chain of authorizers is invalid.
    #[error("{}", joined(.0))]
    Chain(Vec<String>),
    #[error(
        "authorizer type {kind} is not allowed if it was not enabled at initial server startup"
    )]
    NotEnabled { kind: String },
    #[error("authorization-mode ABAC's authorization policy file not passed")]
    NoPolicyFile,
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
}

fn joined(errors: &[String]) -> String {
    match errors {
        [error] => error.clone(),
        errors => format!("[{}]", errors.join(", ")),
    }
}
