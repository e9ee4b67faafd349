//! The keys of service account tokens: from files, or from an external signer.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use auth::authn::{
    keys::{KeyRing, SigningKey, VerifyingKey},
    service_account::Issue,
};

use super::{
    external_signer::{ExternalSigner, ExternalSignerError},
    files::{SecurityError, read, with_file},
};
use crate::config::{Config, TokenKeys};

/// The time for which clients may cache keys from files.
const MAX_AGE: Duration = Duration::from_secs(3600);

/// The keys of service account tokens and their signer.
pub(crate) struct Signing {
    pub(super) keys: KeyRing,
    signer: TokenSigner,
}

enum TokenSigner {
    Local(Box<SigningKey>),
    External(Arc<ExternalSigner>),
}

impl Signing {
    /// Reads the key files, or connects to the external signer and follows its keys.
    pub(crate) async fn start(config: &Config, tasks: &rt::Tasks) -> Result<Self, SecurityError> {
        match &config.token_keys {
            TokenKeys::Files { signing, verifying } => Ok(Self {
                keys: KeyRing::new(verifying_keys(verifying)?),
                signer: TokenSigner::Local(Box::new(signing_key(signing)?)),
            }),
            TokenKeys::External(socket) => {
                let signer = ExternalSigner::connect(socket, config.max_token_expiration).await?;
                let signer = Arc::new(signer);
                let followed = signer.clone();
                tasks.keep("keys of the token signer", move || {
                    let followed = followed.clone();
                    async move { followed.follow().await }
                });
                Ok(Self { keys: signer.keys.clone(), signer: TokenSigner::External(signer) })
            }
        }
    }

    /// Returns the longest validity of a token in seconds, or `None` without a limit.
    pub(super) fn max_expiration(&self, config: &Config) -> Option<i64> {
        match &self.signer {
            TokenSigner::Local(_) => config.max_token_expiration.map(|max| max.as_secs() as i64),
            TokenSigner::External(signer) => Some(signer.max_expiration),
        }
    }

    /// Signs a token.
    pub(super) async fn sign(&self, issue: &Issue) -> Result<String, ExternalSignerError> {
        match &self.signer {
            TokenSigner::Local(key) => issue.sign(key).map_err(ExternalSignerError::Local),
            TokenSigner::External(signer) => signer.sign(issue).await,
        }
    }

    /// Fetches the keys because a token names an unknown one. Returns `false` if they were not fetched.
    pub(super) async fn look_up_key(&self) -> bool {
        match &self.signer {
            TokenSigner::Local(_) => false,
            TokenSigner::External(signer) => signer.look_up_key().await,
        }
    }

    /// Returns the time for which clients may cache the keys.
    pub(super) fn max_age(&self) -> Duration {
        match &self.signer {
            TokenSigner::Local(_) => MAX_AGE,
            TokenSigner::External(signer) => signer.max_age(),
        }
    }
}

fn verifying_keys(paths: &[PathBuf]) -> Result<Vec<VerifyingKey>, SecurityError> {
    let mut keys = Vec::new();
    for path in paths {
        let pem = read("service-account key", path)?;
        keys.extend(with_file("service-account key", path, VerifyingKey::all_from_pem(&pem))?);
    }
    Ok(keys)
}

fn signing_key(path: &Path) -> Result<SigningKey, SecurityError> {
    let purpose = "service-account signing key";
    with_file(purpose, path, SigningKey::from_pem(&read(purpose, path)?))
}
