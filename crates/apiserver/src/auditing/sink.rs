//! Where events go: a file or standard output, before the request goes on or from a bounded queue.

use std::{
    io::{self, Write as _},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use api_meta::Timestamp;
use audit::{Event, Log, Stage};
use telemetry::metrics::{IntCounter, Metrics};
use tokio::sync::mpsc;

use super::options::{AuditError, AuditLogOptions, Mode};

pub(super) struct Sink {
    options: AuditLogOptions,
    file: Arc<File>,
    /// Lines that wait, where they do.
    queue: Option<mpsc::Sender<(String, Timestamp)>>,
    events: IntCounter,
    rejected: IntCounter,
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
    pub(super) fn new(
        options: &AuditLogOptions,
        metrics: &Metrics,
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
        let help = "Events that were not written.";
        let lost = metrics.counters("apiserver_audit_error_total", help, &["plugin"]);
        let file = Arc::new(File { log, lost: lost.with_label_values(&["log"]) });
        let queue = match options.mode {
            Mode::Batch { buffer } => Some(drained(file.clone(), buffer, tasks)),
            Mode::Blocking | Mode::BlockingStrict => None,
        };
        let events = metrics.counter("apiserver_audit_event_total", "Events of all requests.");
        let help = "Requests that were refused because their event could not be written.";
        let rejected = metrics.counter("apiserver_audit_requests_rejected_total", help);
        Ok(Self { options: options.clone(), file, queue, events, rejected })
    }

    /// Takes an event. False: it is lost, and the request must not go on.
    pub(super) fn take(&self, event: &Event, now: Timestamp) -> bool {
        self.events.inc();
        let taken = self.write(event, now);
        if !taken && event.stage == Stage::RequestReceived {
            self.rejected.inc();
        }
        taken
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
