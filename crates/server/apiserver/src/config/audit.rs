//! Configuration of auditing.

use std::{path::PathBuf, time::Duration};

use audit::{Format, Rotation};

/// The audit policy and its backends. Without a policy no events are recorded.
#[derive(Clone, Debug, Default)]
pub struct AuditOptions {
    /// The file with the audit policy.
    pub policy: Option<PathBuf>,
    /// The log backend.
    pub log: Option<AuditLogOptions>,
    /// The webhook backend.
    pub webhook: Option<AuditWebhookOptions>,
}

/// The configuration of the audit webhook.
#[derive(Clone, Debug)]
pub struct AuditWebhookOptions {
    /// The kubeconfig of the webhook.
    pub kubeconfig: PathBuf,
    /// The time at which events are sent, relative to the request.
    pub mode: WebhookMode,
    /// The delay before the first retry of a failed call.
    pub initial_backoff: Duration,
    /// The limit for the JSON of an event. Larger events are sent without their objects, or dropped.
    pub max_event_bytes: Option<usize>,
    /// The limit for a batch. Larger batches are split.
    pub max_batch_bytes: Option<usize>,
}

/// The time at which an event is sent.
#[derive(Clone, Debug)]
pub enum WebhookMode {
    /// Before the request continues. A failure does not affect the request.
    Blocking,
    /// Before the request continues. The request fails if its first event cannot be sent.
    BlockingStrict,
    /// Later, in batches.
    Batch(Batch),
}

/// The batching of events.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The number of events that may wait. Further events are dropped.
    pub buffer: usize,
    /// The maximum number of events in a batch.
    pub max_size: usize,
    /// The time that the first event of a batch waits for others.
    pub max_wait: Duration,
    /// The rate limit of batches. `None` sends without a limit.
    pub throttle: Option<Throttle>,
}

/// A rate limit for batches.
#[derive(Clone, Copy, Debug)]
pub struct Throttle {
    /// The average number of batches per second.
    pub qps: f64,
    /// The number of batches that may be sent at once after a pause.
    pub burst: u32,
}

/// Upstream's defaults.
impl Default for Batch {
    fn default() -> Self {
        let throttle = Some(Throttle { qps: 10.0, burst: 15 });
        let (buffer, max_size, max_wait) = (10_000, 400, Duration::from_secs(30));
        Self { buffer, max_size, max_wait, throttle }
    }
}

impl AuditWebhookOptions {
    /// Returns upstream's defaults for a kubeconfig.
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

/// The configuration of the audit log.
#[derive(Clone, Debug)]
pub struct AuditLogOptions {
    /// The path of the log file. `-` is standard output.
    pub path: PathBuf,
    /// The format of the lines.
    pub format: Format,
    /// The rotation of the log file.
    pub rotation: Rotation,
    /// The time at which events are written, relative to the request.
    pub mode: Mode,
    /// The limit for the JSON of an event. Larger events are written without their objects, or dropped.
    pub max_event_bytes: Option<usize>,
}

/// The time at which an event is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Before the request continues. A failure does not affect the request.
    Blocking,
    /// Before the request continues. The request fails if its first event cannot be written.
    BlockingStrict,
    /// Later. `buffer` events may wait; further events are dropped.
    /// The number of events that may wait.
    Batch { buffer: usize },
}

impl AuditLogOptions {
    /// Returns upstream's defaults for a path.
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
