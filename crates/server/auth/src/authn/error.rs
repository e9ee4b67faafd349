//! The reasons why a request has no authenticated user.

use std::error::Error;

use api_meta::go_quote;

use super::{
    certificate::CertificateError,
    front_proxy::NotAllowed,
    jwt::Signature,
    oidc::{ClaimsError, IdTokenError},
};

/// The reason why a token was rejected. Clients get a plain 401; the reason is logged, and returned in TokenReviews.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error(transparent)]
    ServiceAccount(#[from] ServiceAccountTokenError),
    #[error(
        "bootstrap token {id} names group {group:?}, which does not begin with system:bootstrappers:"
    )]
    BootstrapGroup { id: String, group: String },
    #[error("the token is the only WebSocket protocol; offer another protocol beside it")]
    OnlyProtocol,
    #[error("the token in the WebSocket protocols is not valid base64url")]
    ProtocolEncoding,
    #[error("oidc: verify token: {0}")]
    IdToken(#[from] IdTokenError),
    #[error("oidc: {0}")]
    Claims(#[from] ClaimsError),
    /// The failure of an issuer or webhook, which the API server calls.
    #[error(transparent)]
    Remote(Box<dyn Error + Send + Sync>),
}

impl TokenError {
    /// Returns `true` if the token names a key of service account tokens that is not known.
    pub fn is_unknown_key(&self) -> bool {
        matches!(self, Self::ServiceAccount(ServiceAccountTokenError::UnknownKey))
    }
}

/// The reason why a service account token was rejected.
#[derive(Debug, thiserror::Error)]
pub enum ServiceAccountTokenError {
    #[error("the service account token's signature is not by any known key")]
    Signature,
    /// The token names a key that is not known. An external signer may have a newer one.
    #[error("invalid signature, no keys found")]
    UnknownKey,
    #[error("service account token has expired")]
    Expired,
    #[error("service account token is not valid yet")]
    NotYetValid,
    #[error("token audiences {given:?} is invalid for the target audiences {expected:?}")]
    Audiences { given: Vec<String>, expected: Vec<String> },
    #[error("{kind} {} that the token is bound to does not exist", go_quote(.name))]
    ObjectMissing { kind: &'static str, name: String },
    #[error("{kind} {} has UID {uid}, which is not the token's ({expected})", go_quote(.name))]
    ObjectUid { kind: &'static str, name: String, uid: String, expected: String },
    #[error("{kind} {} that the token is bound to has been deleted", go_quote(.name))]
    ObjectDeleted { kind: &'static str, name: String },
    #[error("service account token has been invalidated: its Secret does not hold it")]
    NotInSecret,
    #[error("the service account of the token has been deleted or recreated")]
    AccountGone,
    #[error(
        "the token in secret {namespace}/{secret} for service account {namespace}/{account} has been marked invalid. \
         Use tokens from the TokenRequest API or manually created secret-based tokens, or remove the '{label}' label \
         from the secret to temporarily allow use of this token"
    )]
    MarkedInvalid { namespace: String, secret: String, account: String, label: &'static str },
    #[error("the token is not valid for any of the requested audiences")]
    OtherAudience,
}

impl ServiceAccountTokenError {
    /// Returns the error for a token whose signature is not valid.
    pub(super) fn check(signature: Signature) -> Result<(), Self> {
        match signature {
            Signature::Valid => Ok(()),
            Signature::Invalid => Err(Self::Signature),
            Signature::UnknownKey => Err(Self::UnknownKey),
        }
    }
}

/// The reason why a request has no authenticated user.
#[derive(Debug, thiserror::Error)]
pub enum Unauthenticated {
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error(transparent)]
    FrontProxy(#[from] NotAllowed),
    #[error("invalid bearer token: {0}")]
    Token(#[from] TokenError),
    #[error("invalid bearer token: no authenticator recognizes it")]
    UnknownToken,
    #[error("the request carries no credentials, and anonymous requests are off")]
    NoCredentials,
}
