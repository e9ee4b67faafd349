//! The failures of an external signer.

/// The failure of an external signer, with upstream's messages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignerError {
    #[error("rpc error: code = {code:?} desc = {message}")]
    Rpc { code: tonic::Code, message: String },
    #[error("while signing jwt: {0}")]
    Sign(#[source] Box<SignerError>),
    #[error("while getting externally supported jwt signing keys: {0}")]
    Fetch(#[source] Box<SignerError>),
    #[error("while validating header: {0}")]
    Header(#[from] HeaderError),
    #[error("empty signature returned")]
    NoSignature,
    /// The signature is not base64url, so that the token would have another form than `HEADER.CLAIMS.SIGNATURE`.
    #[error("while unwrapping signature: {0}")]
    Signature(base64::DecodeError),
    #[error("found invalid refresh hint ({0}s)")]
    RefreshHint(i64),
    #[error("found no keys")]
    NoKeys,
    #[error("invalid data timestamp")]
    DataTimestamp,
    #[error("found invalid public key id {0:?}")]
    KeyId(String),
    #[error("found empty public key")]
    EmptyKey,
}

/// The reason why the header of a signed token is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    #[error("while unwrapping header: {0}")]
    Encoding(base64::DecodeError),
    #[error("while parsing header JSON: {0}")]
    Json(String),
    #[error("bad type")]
    Type,
    #[error("key id missing")]
    NoKeyId,
    #[error("key id longer than 1 kb")]
    LongKeyId,
    #[error("bad signing algorithm {0:?}")]
    Algorithm(String),
}
