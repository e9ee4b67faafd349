//! The error of a step of a Pod's plan.

use kubelet_resources::ClaimsError;

use crate::steps::{ResizeError, SandboxError};

/// The error of a step that is executed again later.
#[derive(Debug, thiserror::Error)]
pub(super) enum StepError {
    #[error("Failed to prepare dynamic resources: prepare dynamic resources: {0}")]
    Claims(#[from] ClaimsError),
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    #[error(transparent)]
    Resize(#[from] ResizeError),
    #[error(transparent)]
    Runtime(#[from] cri::Error),
}
