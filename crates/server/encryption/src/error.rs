//! The errors of configurations and of encryption.

use std::path::PathBuf;

/// The reason why a configuration is rejected, with upstream's messages, so that users can look them up.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error(
        "error while parsing file: error while loading file: error reading encryption provider configuration file \
         {path:?}: {source}"
    )]
    Read { path: PathBuf, source: std::io::Error },
    #[error(
        "error while parsing file: error while loading file: encryption provider configuration file {path:?} is empty"
    )]
    Empty { path: PathBuf },
    #[error(
        "error while parsing file: error decoding encryption provider configuration file {path:?}: {detail}"
    )]
    Decode { path: PathBuf, detail: String },
    #[error("error while parsing file: {0}")]
    Invalid(String),
    #[error(
        "error while building transformers: resource {resource:?} is masked by earlier rule {by:?}"
    )]
    Masked { resource: String, by: String },
    #[error(
        "error while building transformers: KMSv1 is deprecated and will only receive security updates going forward. \
         Use KMSv2 instead.  Set --feature-gates=KMSv1=true to use the deprecated KMSv1 feature."
    )]
    KmsV1,
    #[error("error while building transformers: error while creating cipher for named key {name}")]
    Cipher { name: String },
    #[error("health check for new transformers failed: {0}")]
    Unhealthy(String),
}

/// The reason why a value cannot be encrypted or decrypted, with upstream's messages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransformError {
    #[error("no matching prefix found")]
    NoPrefix,
    #[error("no matching key was found for the provided {0} transformer")]
    NoKey(&'static str),
    #[error("identity transformer tried to read encrypted data")]
    Encrypted,
    #[error("the stored data was shorter than the required size")]
    TooShort,
    #[error("the stored data is not a multiple of the block size")]
    BlockSize,
    #[error("invalid PKCS7 data (empty or not padded)")]
    NotPadded,
    #[error("invalid padding on input")]
    Padding,
    #[error("cipher: message authentication failed")]
    Authentication,
    /// Upstream's message for a secretbox that was sealed with another key.
    #[error("output array was not large enough for encryption")]
    Secretbox,
    #[error("sealing the value failed")]
    Seal,
    #[error("{0}")]
    Kms(String),
    #[error("[{}]", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Several(Vec<TransformError>),
}

impl TransformError {
    /// Combines errors into one, without duplicates.
    pub(crate) fn of(errors: Vec<Self>) -> Option<Self> {
        let mut distinct: Vec<Self> = Vec::new();
        for error in errors {
            if !distinct.contains(&error) {
                distinct.push(error);
            }
        }
        match distinct.len() {
            0 => None,
            1 => distinct.pop(),
            _ => Some(Self::Several(distinct)),
        }
    }
}
