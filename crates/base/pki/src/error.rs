use std::path::PathBuf;

use crate::fault::Fault;

/// The errors of keys, certificates and requests.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {operation} {}: {source}", path.display())]
    Io { operation: &'static str, path: PathBuf, source: std::io::Error },

    #[error("{}: {source}", path.display())]
    In { path: PathBuf, source: Box<Error> },

    #[error("no PEM block of type {wanted} found; the input is {found}")]
    NoPemBlock { wanted: &'static str, found: String },

    #[error("the PEM text is malformed: {0}")]
    MalformedPem(String),

    #[error("cannot {operation} the private key: {reason}")]
    Key { operation: &'static str, reason: String },

    #[error("the private key is neither RSA (2048 to 8192 bits) nor ECDSA (P-256, P-384, P-521)")]
    UnsupportedKey,

    #[error(
        "unknown encryption algorithm {0:?}; use one of RSA-2048, RSA-3072, RSA-4096, ECDSA-P256, ECDSA-P384"
    )]
    UnknownAlgorithm(String),

    #[error("the certificate cannot be parsed: {0}")]
    MalformedCertificate(Fault),

    #[error("the certificate request cannot be parsed: {0}")]
    MalformedRequest(Fault),

    // Upstream's API server uses these exact words.
    #[error("PEM block type must be CERTIFICATE REQUEST")]
    NoRequest,

    #[error(
        "there is something {0} the CERTIFICATE REQUEST block; the request must be exactly one PEM block, \
         with no other before it and nothing after it"
    )]
    BesideRequest(&'static str),

    #[error("the certificate request is refused: {0}")]
    RefusedRequest(Fault),

    #[error("the certificate request is not signed by the key that it names")]
    RequestSignature,

    #[error("certificate {subject:?} does not belong to the given private key")]
    KeyMismatch { subject: String },

    #[error("certificate {subject:?} is not signed by {issuer:?}")]
    NotSignedBy { subject: String, issuer: String },

    #[error("certificate {subject:?} is not a certificate authority")]
    NotAnAuthority { subject: String },

    #[error("certificate {subject:?} is not valid for {missing:?}")]
    MissingName { subject: String, missing: String },

    #[error(
        "certificate {subject:?} has expired: it was valid until {until}; if that is in the future, check this \
         machine's clock"
    )]
    Expired { subject: String, until: String },

    #[error("certificate {subject:?} is not valid before {from}; check this machine's clock")]
    NotYetValid { subject: String, from: String },

    #[error("certificate {subject:?} lacks the extended key usage {usage}")]
    MissingUsage { subject: String, usage: &'static str },

    #[error("a certificate cannot contain this time; its year must be 1950 to 9999")]
    TimeRange,

    #[error("{0:?} cannot be used in a certificate: DNS names are ASCII")]
    UnsuitableName(String),
}
