//! The errors of configurations and of encryption.

use std::path::PathBuf;

use api_meta::Timestamp;

/// The reason why a configuration is rejected, with upstream's messages, so that users can search for them.
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
    Unhealthy(#[from] HealthError),
}

/// The failed health checks of KMS plugins.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HealthError {
    /// The failed check of a plugin, by its position in the configuration.
    #[error("kms-provider-{index}: {source}")]
    Plugin { index: usize, source: KmsError },
    #[error("[{}]", joined(.0))]
    Several(Vec<HealthError>),
}

/// The failure of a KMS plugin, with upstream's messages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KmsError {
    #[error("rpc error: code = {code:?} desc = {message}")]
    Rpc { code: tonic::Code, message: String },
    #[error("failed to {operation}, error: {source}")]
    Call { operation: String, source: Box<KmsError> },
    /// The plugin has not yet been healthy.
    #[error("got unexpected nil transformer")]
    NoSeed,
    #[error(
        "encryptedDEKSource with keyID hash {key_id_hash:?} expired at {expires} (current time is {now})"
    )]
    ExpiredSeed { key_id_hash: String, expires: Timestamp, now: Timestamp },
    #[error("could not create a seed")]
    RandomSeed,
    #[error("invalid seed length {0} used for key generation")]
    SeedLength(usize),
    #[error("crypto/aes: invalid key size {0}")]
    KeySize(usize),
    #[error("proto: cannot parse: {0}")]
    Decode(#[from] prost::DecodeError),
    #[error("unknown encryptedDEKSourceType: {0}")]
    SourceType(i32),
    #[error("encrypted data is empty")]
    NoData,
    #[error("failed to validate {field}: {problem}")]
    Invalid { field: &'static str, problem: String },
    #[error("keyID is empty")]
    NoKeyId,
    #[error("keyID is {length} bytes, which exceeds the max size of {limit}")]
    LongKeyId { length: usize, limit: usize },
    #[error("the keys of Encrypt and Status differ")]
    KeyIdsDiffer,
    #[error(
        "failed to rotate DEK, errGen={source}, statusKeyIDHash={status_hash:?}, stateKeyIDHash={state_hash:?}"
    )]
    Rotation { source: Box<KmsError>, status_hash: String, state_hash: String },
    #[error("kmsv2 Provider {plugin} is not healthy, error: {problems}")]
    Unhealthy { plugin: String, problems: String },
}

fn joined(errors: &[impl ToString]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
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
    #[error(transparent)]
    Kms(#[from] KmsError),
    #[error("[{}]", joined(.0))]
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
