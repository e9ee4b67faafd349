//! What the flags say of audit.

use std::{path::PathBuf, time::Duration};

use audit::{Format, Rotation};

/// Where requests are recorded; without a policy nothing is.
#[derive(Clone, Debug, Default)]
pub struct AuditOptions {
    pub policy: Option<PathBuf>,
    pub log: Option<AuditLogOptions>,
    pub webhook: Option<AuditWebhookOptions>,
}

/// Where events are sent, and how.
#[derive(Clone, Debug)]
pub struct AuditWebhookOptions {
    pub kubeconfig: PathBuf,
    pub mode: WebhookMode,
    /// How long before an event is sent again that could not be.
    pub initial_backoff: Duration,
    /// Events with longer JSON lose their objects, or are not sent.
    pub max_event_bytes: Option<usize>,
    /// A longer batch is sent in parts.
    pub max_batch_bytes: Option<usize>,
}

/// When an event is sent.
#[derive(Clone, Debug)]
pub enum WebhookMode {
    /// Before the request goes on; it does, whatever comes of it.
    Blocking,
    /// Before the request goes on, which it does not if its first event is lost.
    BlockingStrict,
    /// Later, with others.
    Batch(Batch),
}

/// How events are sent together.
#[derive(Clone, Debug)]
pub struct Batch {
    /// So many events wait; more are lost.
    pub buffer: usize,
    pub max_size: usize,
    /// How long the first of a batch waits for others.
    pub max_wait: Duration,
    pub throttle: Option<Throttle>,
}

/// How often batches are sent.
#[derive(Clone, Copy, Debug)]
pub struct Throttle {
    /// A second, on average.
    pub qps: f64,
    /// At once, after a pause.
    pub burst: u32,
}

/// Upstream's.
impl Default for Batch {
    fn default() -> Self {
        let throttle = Some(Throttle { qps: 10.0, burst: 15 });
        let (buffer, max_size, max_wait) = (10_000, 400, Duration::from_secs(30));
        Self { buffer, max_size, max_wait, throttle }
    }
}

impl AuditWebhookOptions {
    /// Upstream's defaults for a kubeconfig.
    pub fn to(kubeconfig: PathBuf) -> Self {
        let (mode, initial_backoff) =
            (WebhookMode::Batch(Batch::default()), Duration::from_secs(10));
        Self { kubeconfig, mode, initial_backoff, max_event_bytes: None, max_batch_bytes: None }
    }

    pub(crate) fn buffer(&self) -> usize {
        match &self.mode {
            WebhookMode::Batch(batch) => batch.buffer.max(1),
            WebhookMode::Blocking | WebhookMode::BlockingStrict => Batch::default().buffer,
        }
    }
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
