//! The audit webhook: sends events in batches from a bounded queue, or one at a time while requests wait.
//!
//! A slow or failing webhook fills only the queue. Events that do not fit are dropped, counted and logged. In the
//! blocking modes, requests wait instead.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use api_meta::TokenBucket;
use audit::Event;
use bytes::Bytes;
use client::Proxy;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use telemetry::metrics::{IntCounter, IntCounterVec};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::error::AuditError;
use crate::{
    config::{AuditWebhookOptions, Throttle, WebhookMode},
    outbound::reviewer::{self, ATTEMPTS, ReviewError, Reviewer},
};

/// The timeout of one attempt.
const TIME: Duration = Duration::from_secs(30);
/// The maximum number of concurrent calls. Further events wait in the queue.
const CALLS: usize = 16;
/// The maximum memory of queued events in bytes, regardless of their number.
const LONGEST_QUEUE: usize = 256 << 20;

/// The sending end of the queue, and the options of the webhook.
pub(super) struct Webhook {
    queue: mpsc::Sender<QueuedEvent>,
    held: Arc<AtomicUsize>,
    max_event_bytes: Option<usize>,
    mode: WebhookMode,
    lost: IntCounterVec,
}

/// An encoded event in the queue, and the channel for its outcome.
struct QueuedEvent {
    event: String,
    done: Option<oneshot::Sender<bool>>,
    _held: QueueShare,
}

/// The share of a queued event in the queue's memory.
struct QueueShare(Arc<AtomicUsize>, usize);

impl Drop for QueueShare {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

/// An event in delivery, for a request that waits for it.
pub(super) struct Delivery {
    queue: mpsc::Sender<QueuedEvent>,
    /// The event, if the queue was full.
    late: Option<QueuedEvent>,
    done: oneshot::Receiver<bool>,
    strict: bool,
}

impl Delivery {
    /// Waits until the event is sent. Returns `false` if it is lost and the mode is strict.
    pub(super) async fn settled(self) -> bool {
        if let Some(waiting) = self.late {
            // If the queue is closed, `done` fails as well.
            let _ = self.queue.send(waiting).await;
        }
        self.done.await.unwrap_or(false) || !self.strict
    }
}

impl Webhook {
    pub(super) fn new(
        options: &AuditWebhookOptions,
        proxy: Option<Proxy>,
        lost: &IntCounterVec,
        tasks: &rt::Tasks,
    ) -> Result<Self, AuditError> {
        let reviewer = Reviewer::new(&options.kubeconfig, proxy).map_err(|source| {
            let (path, source) = (options.kubeconfig.display().to_string(), Box::new(source));
            AuditError::Webhook { path, source }
        })?;
        let (queue, events) = mpsc::channel(options.buffer());
        let (shutdown, failed) = (tasks.shutdown().clone(), lost.with_label_values(&["webhook"]));
        let first_wait = options.initial_backoff;
        let sender =
            Sender { reviewer, first_wait, shutdown, failed, bound: options.max_batch_bytes };
        let work = deliver(events, sender, options.mode.clone());
        tasks.spawn("audit webhook", work);
        Ok(Self {
            queue,
            held: Arc::default(),
            max_event_bytes: options.max_event_bytes,
            mode: options.mode.clone(),
            lost: lost.clone(),
        })
    }

    /// Submits an event. Returns the pending delivery in the blocking modes.
    pub(super) fn take(&self, event: &Event) -> Option<Delivery> {
        let event = event.clone().listed();
        let event = match self.max_event_bytes {
            None => Some(event),
            Some(limit) => event.truncated(limit),
        };
        let json = event.as_ref().and_then(|event| serde_json::to_string(event).ok());
        let Some(json) = json else {
            self.record_loss("truncate", "event is too large even after truncating");
            return None;
        };
        let size = json.len();
        if self.held.fetch_add(size, Ordering::Relaxed) + size > LONGEST_QUEUE {
            self.held.fetch_sub(size, Ordering::Relaxed);
            self.record_loss("buffered", "audit buffer queue blocked");
            return None;
        }
        let held = QueueShare(self.held.clone(), size);
        let strict = match self.mode {
            WebhookMode::Batch(_) => {
                let waiting = QueuedEvent { event: json, done: None, _held: held };
                if self.queue.try_send(waiting).is_err() {
                    self.record_loss("buffered", "audit buffer queue blocked");
                }
                return None;
            }
            WebhookMode::Blocking => false,
            WebhookMode::BlockingStrict => true,
        };
        let (tell, done) = oneshot::channel();
        let waiting = QueuedEvent { event: json, done: Some(tell), _held: held };
        let late = self.queue.try_send(waiting).err().map(mpsc::error::TrySendError::into_inner);
        Some(Delivery { queue: self.queue.clone(), late, done, strict })
    }

    /// Leaves an event to the queue without waiting for it.
    pub(super) fn leave(&self, sending: Delivery) {
        if sending.late.is_some() {
            self.record_loss("buffered", "audit buffer queue blocked");
        }
    }

    fn record_loss(&self, plugin: &str, why: &str) {
        self.lost.with_label_values(&[plugin]).inc();
        tracing::error!(why, "Error in audit plugin '{plugin}' affecting 1 audit events");
    }
}

/// Sends batches.
struct Sender {
    reviewer: Reviewer,
    first_wait: Duration,
    shutdown: rt::Shutdown,
    failed: IntCounter,
    /// The limit for a batch in bytes. Larger batches are split.
    bound: Option<usize>,
}

/// Sends events until shutdown, then the rest of the queue.
async fn deliver(mut events: mpsc::Receiver<QueuedEvent>, sender: Sender, mode: WebhookMode) {
    let (most, max_wait, throttle) = match &mode {
        WebhookMode::Batch(batch) => (batch.max_size, batch.max_wait, batch.throttle),
        WebhookMode::Blocking | WebhookMode::BlockingStrict => (1, Duration::ZERO, None),
    };
    let mut bucket = throttle.map(Bucket::new);
    let (mut calls, shutdown) = (FuturesUnordered::new(), sender.shutdown.clone());
    loop {
        let batch = collected(&mut events, most, max_wait, &shutdown);
        let batch = beside(&mut calls, batch).await;
        if batch.is_empty() {
            break;
        }
        if let Some(bucket) = &mut bucket {
            let wait = tokio::time::sleep(bucket.take(Instant::now()));
            beside(&mut calls, shutdown.unless_stopping(wait)).await;
        }
        for part in parts(batch, sender.bound) {
            if calls.len() >= CALLS {
                calls.next().await;
            }
            calls.push(sender.send(part));
        }
    }
    while calls.next().await.is_some() {}
}

/// Awaits `work` while polling the calls in progress.
async fn beside<T, F: Future<Output = ()>>(
    calls: &mut FuturesUnordered<F>,
    work: impl Future<Output = T>,
) -> T {
    tokio::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            Some(()) = calls.next() => {}
        }
    }
}

/// Collects the next batch, limited by number and time. It is empty at shutdown after the last event.
async fn collected(
    events: &mut mpsc::Receiver<QueuedEvent>,
    most: usize,
    max_wait: Duration,
    shutdown: &rt::Shutdown,
) -> Vec<QueuedEvent> {
    let mut batch = Vec::new();
    match shutdown.unless_stopping(events.recv()).await {
        Some(Some(first)) => batch.push(first),
        Some(None) => return batch,
        None => {}
    }
    let until = Instant::now() + max_wait;
    while batch.len() < most {
        let more = tokio::time::timeout_at(until, events.recv());
        match shutdown.unless_stopping(more).await {
            Some(Ok(Some(event))) => batch.push(event),
            Some(_) => break,
            None => match events.try_recv() {
                Ok(event) => batch.push(event),
                Err(_) => break,
            },
        }
    }
    batch
}

/// Splits a batch into parts within the bound. A single larger event forms its own part.
fn parts(batch: Vec<QueuedEvent>, bound: Option<usize>) -> Vec<Vec<QueuedEvent>> {
    let Some(bound) = bound else { return vec![batch] };
    let (mut parts, mut size) = (vec![Vec::new()], 0);
    for event in batch {
        size += event.event.len();
        if size > bound && parts.last().is_some_and(|part: &Vec<_>| !part.is_empty()) {
            size = event.event.len();
            parts.push(Vec::new());
        }
        if let Some(part) = parts.last_mut() {
            part.push(event);
        }
    }
    parts
}

impl Sender {
    /// Sends a body, with retries after any failure. At shutdown it makes one last attempt without a delay.
    async fn attempts(&self, body: Bytes) -> Result<Bytes, ReviewError> {
        for before in 0..ATTEMPTS - 1 {
            let sent = self.reviewer.call_once(body.clone(), TIME).await;
            if sent.is_ok() {
                return sent;
            }
            let pause = tokio::time::sleep(reviewer::pause(self.first_wait, before));
            if self.shutdown.unless_stopping(pause).await.is_none() {
                break;
            }
        }
        self.reviewer.call_once(body, TIME).await
    }

    async fn send(&self, batch: Vec<QueuedEvent>) {
        let items: Vec<&str> = batch.iter().map(|waiting| waiting.event.as_str()).collect();
        let body = format!(
            "{{\"kind\":\"EventList\",\"apiVersion\":\"audit.k8s.io/v1\",\"metadata\":{{}},\"items\":[{}]}}\n",
            items.join(",")
        );
        let sent = self.attempts(body.into()).await;
        if let Err(error) = &sent {
            self.failed.inc_by(batch.len() as u64);
            let words = &error.words;
            let count = batch.len();
            tracing::error!(
                "Error in audit plugin 'webhook' affecting {count} audit events: {words}"
            );
        }
        for done in batch.into_iter().filter_map(|waiting| waiting.done) {
            let _ = done.send(sent.is_ok());
        }
    }
}

/// The rate limit of batches.
struct Bucket {
    tokens: TokenBucket,
    qps: f64,
    at: Instant,
}

impl Bucket {
    fn new(throttle: Throttle) -> Self {
        let tokens = TokenBucket::new(f64::from(throttle.burst));
        Self { tokens, qps: throttle.qps, at: Instant::now() }
    }

    /// Takes a token and returns the time to wait for it.
    fn take(&mut self, now: Instant) -> Duration {
        self.tokens.refill(now.saturating_duration_since(self.at), self.qps);
        self.at = now;
        self.tokens.reserve(self.qps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn limits_rate_of_batches() {
        let mut bucket = Bucket::new(Throttle { qps: 10.0, burst: 2 });
        let (now, millis) = (bucket.at, Duration::from_millis);
        let waits = [0, 0, 0, 50, 1000].map(|after| bucket.take(now + millis(after)));
        let waits = waits.map(|wait| wait.as_millis());
        assert_eq!(waits, [0, 0, 100, 150, 0]);
    }

    #[test]
    fn splits_batch_by_bytes() {
        let held = || QueueShare(Arc::new(AtomicUsize::new(9)), 0);
        let of = |size: usize| QueuedEvent { event: "x".repeat(size), done: None, _held: held() };
        let sizes = |bound: Option<usize>, sizes: &[usize]| -> Vec<Vec<usize>> {
            let parts = parts(sizes.iter().map(|size| of(*size)).collect(), bound);
            parts.iter().map(|part| part.iter().map(|w| w.event.len()).collect()).collect()
        };
        assert_eq!(sizes(None, &[5, 5, 5]), [vec![5, 5, 5]]);
        assert_eq!(sizes(Some(10), &[5, 5, 5]), [vec![5, 5], vec![5]]);
        assert_eq!(sizes(Some(10), &[50, 1, 50]), [vec![50], vec![1], vec![50]]);
    }
}
