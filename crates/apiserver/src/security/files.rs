//! Files that guard the server, and what happens when they change.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use super::figures::Figures;

/// How often a configuration's file is looked at.
const POLL: Duration = Duration::from_secs(5);
/// How long it is before a file is tried again that may do the next time.
const AGAIN: u32 = 12;

/// Why a file that guards the server cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecurityError {
    #[error("reading {path}, the {what}: {source}")]
    Read { what: &'static str, path: String, source: std::io::Error },
    #[error("using {path}, the {what}: {detail}")]
    Use { what: &'static str, path: String, detail: String },
    /// What upstream says of a configuration.
    #[error("{0}")]
    Configuration(String),
}

pub(super) fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, SecurityError> {
    std::fs::read(path).map_err(|source| SecurityError::Read {
        what,
        path: path.display().to_string(),
        source,
    })
}

pub(super) fn used<T, E: std::fmt::Display>(
    what: &'static str,
    path: &Path,
    result: Result<T, E>,
) -> Result<T, SecurityError> {
    result.map_err(|e| SecurityError::Use {
        what,
        path: path.display().to_string(),
        detail: e.to_string(),
    })
}

/// The text of a file.
pub(super) fn text(what: &'static str, path: &Path) -> Result<String, SecurityError> {
    used(what, path, String::from_utf8(read(what, path)?))
}

/// Why what a file says now does not come into use.
#[derive(Debug)]
pub(super) enum Unusable {
    /// It never will.
    Wrong(String),
    /// It may, the next time.
    Later(String),
}

/// A configuration that follows its file. One that cannot be used leaves the one before in use.
pub(super) struct Followed {
    /// `authentication` or `authorization`, as logs and metrics call it.
    pub(super) what: &'static str,
    pub(super) path: PathBuf,
    /// `sha256:` and the hash of this server's name.
    pub(super) server: String,
    /// What it said at the start.
    pub(super) text: String,
}

impl Followed {
    /// Looks at the file from time to time and has `reload` use what it says.
    pub(super) async fn follow<F: Future<Output = Result<(), Unusable>>>(
        &self,
        figures: &Figures,
        reload: impl Fn(String) -> F,
    ) {
        figures.config_info(self.what, &self.server, &self.text);
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
                        tracing::info!(path = %self.path.display(), "reloaded {} config", self.what);
                        figures.config_info(self.what, &self.server, &text);
                        figures.reloaded(self.what, &self.server, "success");
                        used = text;
                        continue;
                    }
                    Err(Unusable::Wrong(error)) => {
                        used = text;
                        error
                    }
                    Err(Unusable::Later(error)) => {
                        pause = AGAIN;
                        error
                    }
                },
                Err(error) => {
                    pause = AGAIN;
                    error.to_string()
                }
            };
            tracing::error!(path = %self.path.display(), error = failed, "reloading {} config; the last that was good stays in use", self.what);
            figures.reloaded(self.what, &self.server, "failure");
        }
    }
}
