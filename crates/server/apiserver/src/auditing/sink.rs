//! The destinations of audit events: a file or standard output, and a webhook.

use std::{
    io::{self, Write as _},
    path::Path,
    sync::Arc,
};

use api_meta::Timestamp;
use audit::{Event, Level, Log, Stage};
use client::Proxy;
use parking_lot::Mutex;
use telemetry::metrics::{IntCounter, IntCounterVec, Metrics};
use tokio::sync::mpsc;

use super::{
    error::AuditError,
    webhook::{Delivery, Webhook},
};
use crate::config::{AuditLogOptions, AuditOptions, Mode};

/// All destinations.
pub(super) struct Sinks {
    log: Option<Sink>,
    webhook: Option<Webhook>,
    events: IntCounter,
    rejected: IntCounter,
    pub(super) levels: Levels,
}

/// The numbers of requests by audit level.
pub(super) struct Levels([IntCounter; 4]);

impl Levels {
    pub(super) fn count(&self, level: Level) {
        self.0[level as usize].inc();
    }
}

/// A submitted event that may still be in delivery.
pub(super) struct Submission {
    /// `false` if the log lost the event and its mode is strict.
    logged: bool,
    sending: Option<Delivery>,
    /// `true` for the first event of a request.
    first: bool,
}

impl Sinks {
    pub(super) fn new(
        options: &AuditOptions,
        proxy: Option<Proxy>,
        metrics: &Metrics,
        tasks: &rt::Tasks,
    ) -> Result<Self, AuditError> {
        let help = "Events that were not written.";
        let lost = metrics.counters("apiserver_audit_error_total", help, &["plugin"]);
        let log = options.log.as_ref().map(|log| Sink::new(log, &lost, tasks)).transpose()?;
        let webhook = options.webhook.as_ref();
        let webhook =
            webhook.map(|webhook| Webhook::new(webhook, proxy, &lost, tasks)).transpose()?;
        let events = metrics.counter("apiserver_audit_event_total", "Events of all requests.");
        let help = "Requests that were refused because their event could not be written.";
        let rejected = metrics.counter("apiserver_audit_requests_rejected_total", help);
        let help = "Requests by how much of them is recorded.";
        let levels = metrics.counters("apiserver_audit_level_total", help, &["level"]);
        let levels = ["None", "Metadata", "Request", "RequestResponse"]
            .map(|level| levels.with_label_values(&[level]));
        Ok(Self { log, webhook, events, rejected, levels: Levels(levels) })
    }

    /// Submits an event to all destinations.
    pub(super) fn take(&self, event: &Event, now: Timestamp) -> Submission {
        self.events.inc();
        let logged = self.log.as_ref().is_none_or(|log| log.write(event, now));
        let sending = self.webhook.as_ref().and_then(|webhook| webhook.take(event));
        Submission { logged, sending, first: event.stage == Stage::RequestReceived }
    }

    /// Waits for the delivery if the mode requires that. Returns `false` if the event is lost and the request must
    /// fail.
    pub(super) async fn settle(&self, taken: Submission) -> bool {
        let sent = match taken.sending {
            Some(sending) => sending.settled().await,
            None => true,
        };
        let kept = taken.logged && sent;
        if !kept && taken.first {
            self.rejected.inc();
        }
        kept
    }

    /// Leaves the delivery of an event to the webhook without waiting.
    pub(super) fn leave(&self, taken: Submission) {
        if let (Some(webhook), Some(sending)) = (&self.webhook, taken.sending) {
            webhook.leave(sending);
        }
    }
}

struct Sink {
    options: AuditLogOptions,
    file: Arc<File>,
    /// The queue of lines, in batch mode.
    queue: Option<mpsc::Sender<(String, Timestamp)>>,
}

struct File {
    /// `None` for standard output.
    log: Option<Mutex<Log>>,
    lost: IntCounter,
}

impl File {
    fn write(&self, line: &str, now: Timestamp) -> bool {
        let written = match &self.log {
            Some(log) => log.lock().write(line, now),
            None => io::stdout().lock().write_all(line.as_bytes()),
        };
        let Err(error) = written else { return true };
        self.record_loss(&error.to_string(), line);
        false
    }

    /// Counts and logs a lost event, as upstream does.
    fn record_loss(&self, why: &str, line: &str) {
        self.lost.inc();
        tracing::error!(%why, event = %line.trim_end(), "Error in audit plugin 'log' affecting 1 audit events");
    }
}

impl Sink {
    fn new(
        options: &AuditLogOptions,
        lost: &IntCounterVec,
        tasks: &rt::Tasks,
    ) -> Result<Self, AuditError> {
        let open = |path: &Path| {
            Log::open(path, options.rotation)
                .map_err(|source| AuditError::Open { path: path.display().to_string(), source })
        };
        let log = if options.path.as_os_str() == "-" {
            None
        } else {
            Some(Mutex::new(open(&options.path)?))
        };
        let file = Arc::new(File { log, lost: lost.with_label_values(&["log"]) });
        let queue = match options.mode {
            Mode::Batch { buffer } => Some(spawn_line_writer(file.clone(), buffer, tasks)),
            Mode::Blocking | Mode::BlockingStrict => None,
        };
        Ok(Self { options: options.clone(), file, queue })
    }

    /// Writes an event. Returns `false` if it is lost and the mode is strict.
    fn write(&self, event: &Event, now: Timestamp) -> bool {
        let event = match self.options.max_event_bytes {
            None => Some(event.clone()),
            Some(limit) => event.clone().truncated(limit),
        };
        let Some(event) = event else {
            self.file.record_loss("event is too large even after truncating", "");
            return true;
        };
        let line = match self.options.format.line(&event) {
            Ok(line) => line,
            Err(error) => {
                self.file.record_loss(&error.to_string(), "");
                return self.options.mode != Mode::BlockingStrict;
            }
        };
        match &self.queue {
            None => self.file.write(&line, now) || self.options.mode != Mode::BlockingStrict,
            Some(queue) => {
                if let Err(refused) = queue.try_send((line, now)) {
                    let (line, _) = refused.into_inner();
                    self.file.record_loss("audit buffer queue blocked", &line);
                }
                true
            }
        }
    }
}

/// Spawns the task that writes queued lines. At shutdown it writes the rest of the queue.
fn spawn_line_writer(
    file: Arc<File>,
    buffer: usize,
    tasks: &rt::Tasks,
) -> mpsc::Sender<(String, Timestamp)> {
    let (queue, mut lines) = mpsc::channel::<(String, Timestamp)>(buffer.max(1));
    let shutdown = tasks.shutdown().clone();
    tasks.spawn("audit log", async move {
        loop {
            let next = match shutdown.unless_stopping(lines.recv()).await {
                Some(next) => next,
                None => lines.try_recv().ok(),
            };
            let Some((line, now)) = next else { return };
            let file = file.clone();
            let _ = tokio::task::spawn_blocking(move || file.write(&line, now)).await;
        }
    });
    queue
}
