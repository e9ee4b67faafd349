//! The errors of starting the audit.

use audit::PolicyError;

/// The error of starting the audit. The server does not start then: no request may be served unaudited if auditing is
/// configured.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error("ensureLogFile: opening the audit log {path}: {source}")]
    Open { path: String, source: std::io::Error },
    #[error("initializing audit webhook {path}: {source}")]
    Webhook { path: String, source: Box<client::KubeconfigError> },
}
