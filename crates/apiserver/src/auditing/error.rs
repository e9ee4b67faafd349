use audit::PolicyError;

/// Why audit cannot start. The server does not start either: who asks for a record must get one.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error("ensureLogFile: opening the audit log {path}: {source}")]
    Open { path: String, source: std::io::Error },
    #[error("initializing audit webhook {path}: {source}")]
    Webhook { path: String, source: Box<client::KubeconfigError> },
}
