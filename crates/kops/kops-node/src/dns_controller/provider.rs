//! The interface of DNS providers.

use futures_util::future::BoxFuture;
use kops_core::dns::{Change, Zone};

/// The future result of a request to a provider.
pub(super) type Reply<'a, T> = BoxFuture<'a, Result<T, ProviderError>>;

/// A DNS provider.
pub(super) trait Provider: Send + Sync {
    /// Returns the zones of the provider.
    fn zones(&self) -> Reply<'_, Vec<Zone>>;

    /// Makes all changes to a zone, or none.
    fn apply<'a>(&'a self, zone: &'a Zone, changes: &'a [Change]) -> Reply<'a, ()>;
}

/// The effect of a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// The provider rejected the content. Nothing has changed; other changes may succeed.
    Rejected,
    /// The provider serves no request like this. Nothing has changed.
    Refused,
    /// The outcome is unknown, because the answer is missing or cannot be used.
    Unknown,
}

/// An error of a provider, with the effect of the request.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
pub(super) struct ProviderError {
    pub(super) effect: Effect,
    cause: Box<dyn std::error::Error + Send + Sync>,
}

impl ProviderError {
    /// Creates an error.
    pub(super) fn new(
        effect: Effect,
        cause: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        Self { effect, cause: Box::new(cause) }
    }
}
