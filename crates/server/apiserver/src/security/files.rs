//! Reads the files of authentication and authorization, and reloads those that change.

use std::{
    error::Error,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    authentication_error::AuthenticationError, authorization_error::AuthorizationError,
    external_signer::ExternalSignerError, metrics::SecurityMetrics,
};

/// The interval at which a configuration file is checked.
const POLL: Duration = Duration::from_secs(5);
/// The number of intervals before a retry after a temporary error.
const AGAIN: u32 = 12;

/// The error for a file of authentication or authorization that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecurityError {
    /// A file cannot be read.
    #[error("reading {path}, the {purpose}: {source}")]
    Read { purpose: &'static str, path: String, source: std::io::Error },
    /// A file has invalid content.
    #[error("using {path}, the {purpose}: {source}")]
    Use { purpose: &'static str, path: String, source: Box<dyn Error + Send + Sync> },
    #[error(transparent)]
    Authentication(#[from] AuthenticationError),
    #[error(transparent)]
    Authorization(#[from] AuthorizationError),
    #[error(transparent)]
    ExternalSigner(#[from] ExternalSignerError),
}

pub(super) fn read(purpose: &'static str, path: &Path) -> Result<Vec<u8>, SecurityError> {
    std::fs::read(path).map_err(|source| SecurityError::Read {
        purpose,
        path: path.display().to_string(),
        source,
    })
}

/// Names the file and its purpose in an error about its content.
pub(super) fn with_file<T, E: Into<Box<dyn Error + Send + Sync>>>(
    purpose: &'static str,
    path: &Path,
    result: Result<T, E>,
) -> Result<T, SecurityError> {
    result.map_err(|error| SecurityError::Use {
        purpose,
        path: path.display().to_string(),
        source: error.into(),
    })
}

/// Reads a file as text.
pub(super) fn text(purpose: &'static str, path: &Path) -> Result<String, SecurityError> {
    with_file(purpose, path, String::from_utf8(read(purpose, path)?))
}

/// The error of a reload.
#[derive(Debug)]
pub(super) enum ReloadError {
    /// The configuration is invalid. Do not retry until it changes.
    Invalid(Box<dyn Error + Send + Sync>),
    /// A temporary problem. Retry later.
    Retry(String),
}

/// A configuration file that is reloaded when it changes. If the new one cannot be used, the previous one stays in use.
pub(super) struct ConfigFile {
    /// `authentication` or `authorization`, for logs and metrics.
    pub(super) purpose: &'static str,
    pub(super) path: PathBuf,
    /// `sha256:` and the hash of this server's name.
    pub(super) server: String,
    /// The text at the start.
    pub(super) text: String,
}

impl ConfigFile {
    /// Checks the file periodically and passes changed text to `reload`.
    pub(super) async fn follow<F: Future<Output = Result<(), ReloadError>>>(
        &self,
        metrics: &SecurityMetrics,
        reload: impl Fn(String) -> F,
    ) {
        metrics.set_config_info(self.purpose, &self.server, &self.text);
        let (mut used, mut pause) = (self.text.clone(), 0);
        loop {
            tokio::time::sleep(POLL).await;
            if pause > 0 {
                pause -= 1;
                continue;
            }
            let failed = match text("configuration", &self.path) {
                Ok(text) if text == used => continue,
                Ok(text) => match reload(text.clone()).await {
                    Ok(()) => {
                        tracing::info!(path = %self.path.display(), "reloaded {} config", self.purpose);
                        metrics.set_config_info(self.purpose, &self.server, &text);
                        metrics.record_reload(self.purpose, &self.server, "success");
                        used = text;
                        continue;
                    }
                    Err(ReloadError::Invalid(error)) => {
                        used = text;
                        error.to_string()
                    }
                    Err(ReloadError::Retry(error)) => {
                        pause = AGAIN;
                        error
                    }
                },
                Err(error) => {
                    pause = AGAIN;
                    error.to_string()
                }
            };
            tracing::error!(
                path = %self.path.display(),
                error = failed,
                "failed to reload the {} config; the previous one stays in use",
                self.purpose
            );
            metrics.record_reload(self.purpose, &self.server, "failure");
        }
    }
}
