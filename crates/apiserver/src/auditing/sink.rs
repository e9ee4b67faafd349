//! Where events go: to a file or standard output, before the request goes on or from a bounded queue, and to a webhook.

use std::{
    io::{self, Write as _},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use api_meta::Timestamp;
use audit::{Event, Level, Log, Stage};
use telemetry::metrics::{IntCounter, IntCounterVec, Metrics};
use tokio::sync::mpsc;

use super::{
    error::AuditError,
    webhook::{Sending, Webhook},
};
use crate::config::{AuditLogOptions, AuditOptions, Mode};

/// All of them.
pub(super) struct Sinks {
    log: Option<Sink>,
    webhook: Option<Webhook>,
    events: IntCounter,
    rejected: IntCounter,
    pub(super) levels: Levels,
}

/// How many requests the policy wants to know how much of.
pub(super) struct Levels([IntCounter; 4]);

impl Levels {
    pub(super) fn count(&self, level: Level) {
        self.0[level as usize].inc();
    }
}

/// What became of an event so far.
pub(super) struct Taken {
    /// False: it is lost, and the log's mode is one that minds.
    logged: bool,
    sending: Option<Sending>,
    /// It is the first of its request.
    first: bool,
}

impl Sinks {
    pub(super) fn new(
        options: &AuditOptions,
        metrics: &Metrics,
        tasks: &rt::Tasks,
    ) -> Result<Self, AuditError> {
        let help = "Events that were not written.";
        let lost = metrics.counters("apiserver_audit_error_total", help, &["plugin"]);
        let log = options.log.as_ref().map(|log| Sink::new(log, &lost, tasks)).transpose()?;
        let webhook = options.webhook.as_ref();
        let webhook = webhook.map(|webhook| Webhook::new(webhook, &lost, tasks)).transpose()?;
        let events = metrics.counter("apiserver_audit_event_total", "Events of all requests.");
        let help = "Requests that were refused because their event could not be written.";
        let rejected = metrics.counter("apiserver_audit_requests_rejected_total", help);
        let help = "Requests by how much of them is recorded.";
        let levels = metrics.counters("apiserver_audit_level_total", help, &["level"]);
        let levels = ["None", "Metadata", "Request", "RequestResponse"]
            .map(|level| levels.with_label_values(&[level]));
        Ok(Self { log, webhook, events, rejected, levels: Levels(levels) })
    }

    /// Takes an event.
    pub(super) fn take(&self, event: &Event, now: Timestamp) -> Taken {
        self.events.inc();
        let logged = self.log.as_ref().is_none_or(|log| log.write(event, now));
        let sending = self.webhook.as_ref().and_then(|webhook| webhook.take(event));
        Taken { logged, sending, first: event.stage == Stage::RequestReceived }
    }

    /// Waits for what has to be waited for. False: the event is lost, and the request must not go on.
    pub(super) async fn settle(&self, taken: Taken) -> bool {
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

    /// Lets an event be sent that nobody can wait for.
    pub(super) fn leave(&self, taken: Taken) {
        if let (Some(webhook), Some(sending)) = (&self.webhook, taken.sending) {
            webhook.leave(sending);
        }
    }
}

struct Sink {
    options: AuditLogOptions,
    file: Arc<File>,
    /// Lines that wait, where they do.
    queue: Option<mpsc::Sender<(String, Timestamp)>>,
}

struct File {
    /// None: standard output.
    log: Option<Mutex<Log>>,
    lost: IntCounter,
}

impl File {
    fn write(&self, line: &str, now: Timestamp) -> bool {
        let written = match &self.log {
            Some(log) => log.lock().unwrap_or_else(PoisonError::into_inner).write(line, now),
            None => io::stdout().lock().write_all(line.as_bytes()),
        };
        let Err(error) = written else { return true };
        self.lose(&error.to_string(), line);
        false
    }

    /// As upstream, an event that is not written is logged.
    fn lose(&self, why: &str, line: &str) {
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
        let log = match options.path.as_os_str() == "-" {
            true => None,
            false => Some(Mutex::new(open(&options.path)?)),
        };
        let file = Arc::new(File { log, lost: lost.with_label_values(&["log"]) });
        let queue = match options.mode {
            Mode::Batch { buffer } => Some(drained(file.clone(), buffer, tasks)),
            Mode::Blocking | Mode::BlockingStrict => None,
        };
        Ok(Self { options: options.clone(), file, queue })
    }

    /// False: the event is lost, and the mode is one that minds.
    fn write(&self, event: &Event, now: Timestamp) -> bool {
        let event = match self.options.max_event_bytes {
            None => Some(event.clone()),
            Some(limit) => event.clone().truncated(limit),
        };
        let Some(event) = event else {
            self.file.lose("event is too large even after truncating", "");
            return true;
        };
        let line = match self.options.format.line(&event) {
            Ok(line) => line,
            Err(error) => {
                self.file.lose(&error.to_string(), "");
                return self.options.mode != Mode::BlockingStrict;
            }
        };
        match &self.queue {
            None => self.file.write(&line, now) || self.options.mode != Mode::BlockingStrict,
            Some(queue) => {
                if let Err(refused) = queue.try_send((line, now)) {
                    let (line, _) = refused.into_inner();
                    self.file.lose("audit buffer queue blocked", &line);
                }
                true
            }
        }
    }
}

/// Writes what is queued, to the end when the server stops.
fn drained(file: Arc<File>, buffer: usize, tasks: &rt::Tasks) -> mpsc::Sender<(String, Timestamp)> {
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
