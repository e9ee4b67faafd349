//! The reasons for which the claims of a Pod cannot be allocated. The messages are upstream's.

use crate::pod::PodRef;

/// An error of one of the Pod's claims, which keeps the Pod from every node.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClaimError {
    #[error("pod \"{pod}\": ResourceClaim not created yet")]
    NotCreated { pod: PodRef },
    #[error("could not find v1.ResourceClaim \"{claim}\"")]
    NotFound { claim: String },
    #[error("resourceclaim \"{claim}\" is being deleted")]
    Terminating { claim: String },
    #[error("ResourceClaim {claim} was not created for Pod {pod} (Pod is not owner)")]
    NotOwned { claim: String, pod: PodRef },
    #[error("resource claim {claim} is in the process of being allocated")]
    InFlight { claim: String },
    #[error("resourceclaim {claim}: nodeSelector cannot be read")]
    NodeSelector { claim: String },
    #[error("device binding failed: claim={claim}, reason={reason}, message={message:?}")]
    Binding { claim: String, reason: Box<str>, message: Box<str> },
    #[error("resource claim {claim}, request {request}: unknown request type")]
    RequestType { claim: String, request: String },
    #[error("claim {claim}, request {request}: unsupported count mode {mode}")]
    CountMode { claim: String, request: Box<str>, mode: Box<str> },
    #[error("claim {claim}, constraint #{index}: empty constraint (unsupported constraint type?)")]
    Constraint { claim: String, index: usize },
    #[error(
        "claim {claim}: number of requested devices {devices} exceeds the claim limit of {limit}"
    )]
    TooManyDevices { claim: String, devices: usize, limit: usize },
    #[error("request {request}: device class {class} does not exist")]
    NoClass { request: Box<str>, class: Box<str> },
    #[error("{selector}: CEL expression empty (unsupported selector type?)")]
    NoExpression { selector: String },
}
