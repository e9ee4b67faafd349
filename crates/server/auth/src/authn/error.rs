//! The reasons why a request has no authenticated user.

use super::certificate::CertificateError;

/// The reason why a token was rejected. Clients get a plain 401; the reason is logged, and returned in TokenReviews.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TokenError(pub String);

/// The reason why a request has no authenticated user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unauthenticated {
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error("invalid bearer token: {0}")]
    Token(#[from] TokenError),
    #[error("invalid bearer token: no authenticator recognizes it")]
    UnknownToken,
    #[error("the request carries no credentials, and anonymous requests are off")]
    NoCredentials,
}
