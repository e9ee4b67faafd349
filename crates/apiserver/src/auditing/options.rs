//! What the flags say of audit.

use std::{path::PathBuf, time::Duration};

use audit::{Format, PolicyError, Rotation};

/// Where requests are recorded; without a policy nothing is.
#[derive(Clone, Debug, Default)]
pub struct AuditOptions {
    pub policy: Option<PathBuf>,
    pub log: Option<AuditLogOptions>,
}

/// How the log is written.
#[derive(Clone, Debug)]
pub struct AuditLogOptions {
    /// `-` is standard output.
    pub path: PathBuf,
    pub format: Format,
    pub rotation: Rotation,
    pub mode: Mode,
    /// Events with longer JSON lose their objects, or are not written.
    pub max_event_bytes: Option<usize>,
}

/// When an event is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Before the request goes on; it does, whatever comes of it.
    Blocking,
    /// Before the request goes on, which it does not if its first event is lost.
    BlockingStrict,
    /// Later. So many events wait; more are lost.
    Batch { buffer: usize },
}

/// Why audit cannot start. The server does not start either: who asks for a record must get one.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error("ensureLogFile: opening the audit log {path}: {source}")]
    Open { path: String, source: std::io::Error },
}

impl AuditLogOptions {
    /// Upstream's defaults for a path.
    pub fn at(path: PathBuf) -> Self {
        let rotation = Rotation {
            max_bytes: 100 << 20,
            max_age: Duration::from_secs(366 * 86_400),
            max_backups: 100,
            compress: false,
        };
        let (format, mode) = (Format::Json, Mode::Blocking);
        Self { path, format, rotation, mode, max_event_bytes: None }
    }
}
