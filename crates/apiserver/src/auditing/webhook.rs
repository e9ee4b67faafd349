//! Events that go to a webhook: in batches from a bounded queue, or one by one with requests that wait for it.
//!
//! A webhook that is slow or dead fills the queue and nothing else: what does not fit is lost, counted and logged. In the
//! blocking modes it is the requests that wait, as their audience asked for.

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
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use telemetry::metrics::{IntCounter, IntCounterVec};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::error::AuditError;
use crate::{
    config::{AuditWebhookOptions, Throttle, WebhookMode},
    outbound::reviewer::{self, ATTEMPTS, Reviewer, Unanswered},
};

/// What one attempt may take.
const TIME: Duration = Duration::from_secs(30);
/// So many calls go on at once; events wait for them in the queue.
const CALLS: usize = 16;
/// What waits may take of memory, whatever its number.
const LONGEST_QUEUE: usize = 256 << 20;

/// The way to the webhook.
pub(super) struct Webhook {
    queue: mpsc::Sender<Waiting>,
    held: Arc<AtomicUsize>,
    max_event_bytes: Option<usize>,
    mode: WebhookMode,
    lost: IntCounterVec,
}

/// An event as it is sent, and who waits for that.
struct Waiting {
    event: String,
    done: Option<oneshot::Sender<bool>>,
    _held: Held,
}

/// Its part of the queue's memory.
struct Held(Arc<AtomicUsize>, usize);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

/// An event that is being sent, for who waits for it.
pub(super) struct Sending {
    queue: mpsc::Sender<Waiting>,
    /// What the queue had no room for.
    late: Option<Waiting>,
    done: oneshot::Receiver<bool>,
    strict: bool,
}

impl Sending {
    /// Waits until it is sent. False: the event is lost, and the mode is one that minds.
    pub(super) async fn settled(self) -> bool {
        if let Some(waiting) = self.late {
            // A queue that is gone has no answer, either.
            let _ = self.queue.send(waiting).await;
        }
        self.done.await.unwrap_or(false) || !self.strict
    }
}

impl Webhook {
    pub(super) fn new(
        options: &AuditWebhookOptions,
        lost: &IntCounterVec,
        tasks: &rt::Tasks,
    ) -> Result<Self, AuditError> {
        let reviewer = Reviewer::new(&options.kubeconfig).map_err(|source| {
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

    /// Takes an event, and gives what to wait for where the mode says that requests do.
    pub(super) fn take(&self, event: &Event) -> Option<Sending> {
        let event = event.clone().listed();
        let event = match self.max_event_bytes {
            None => Some(event),
            Some(limit) => event.truncated(limit),
        };
        let json = event.as_ref().and_then(|event| serde_json::to_string(event).ok());
        let Some(json) = json else {
            self.lose("truncate", "event is too large even after truncating");
            return None;
        };
        let size = json.len();
        if self.held.fetch_add(size, Ordering::Relaxed) + size > LONGEST_QUEUE {
            self.held.fetch_sub(size, Ordering::Relaxed);
            self.lose("buffered", "audit buffer queue blocked");
            return None;
        }
        let held = Held(self.held.clone(), size);
        let strict = match self.mode {
            WebhookMode::Batch(_) => {
                let waiting = Waiting { event: json, done: None, _held: held };
                if self.queue.try_send(waiting).is_err() {
                    self.lose("buffered", "audit buffer queue blocked");
                }
                return None;
            }
            WebhookMode::Blocking => false,
            WebhookMode::BlockingStrict => true,
        };
        let (tell, done) = oneshot::channel();
        let waiting = Waiting { event: json, done: Some(tell), _held: held };
        let late = self.queue.try_send(waiting).err().map(mpsc::error::TrySendError::into_inner);
        Some(Sending { queue: self.queue.clone(), late, done, strict })
    }

    /// Leaves an event to be sent that nobody waits for.
    pub(super) fn leave(&self, sending: Sending) {
        if sending.late.is_some() {
            self.lose("buffered", "audit buffer queue blocked");
        }
    }

    fn lose(&self, plugin: &str, why: &str) {
        self.lost.with_label_values(&[plugin]).inc();
        tracing::error!(why, "Error in audit plugin '{plugin}' affecting 1 audit events");
    }
}

/// Who sends batches.
struct Sender {
    reviewer: Reviewer,
    first_wait: Duration,
    shutdown: rt::Shutdown,
    failed: IntCounter,
    /// A longer batch is sent in parts.
    bound: Option<usize>,
}

/// Sends what comes until the server stops, and then what is left.
async fn deliver(mut events: mpsc::Receiver<Waiting>, sender: Sender, mode: WebhookMode) {
    let (most, patience, throttle) = match &mode {
        WebhookMode::Batch(batch) => (batch.max_size, batch.max_wait, batch.throttle),
        WebhookMode::Blocking | WebhookMode::BlockingStrict => (1, Duration::ZERO, None),
    };
    let mut bucket = throttle.map(Bucket::new);
    let (mut calls, shutdown) = (FuturesUnordered::new(), sender.shutdown.clone());
    loop {
        let batch = collected(&mut events, most, patience, &shutdown);
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

/// Does one thing while calls that go on go on.
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

/// The events of the next batch: as many as may be, or as come in time. None, when the server stops and all are sent.
async fn collected(
    events: &mut mpsc::Receiver<Waiting>,
    most: usize,
    patience: Duration,
    shutdown: &rt::Shutdown,
) -> Vec<Waiting> {
    let mut batch = Vec::new();
    match shutdown.unless_stopping(events.recv()).await {
        Some(Some(first)) => batch.push(first),
        Some(None) => return batch,
        None => {}
    }
    let until = Instant::now() + patience;
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

/// Parts of a batch that are no longer than the bound, but for what is longer by itself.
fn parts(batch: Vec<Waiting>, bound: Option<usize>) -> Vec<Vec<Waiting>> {
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
    /// Sends, again whatever went wrong. A server that stops tries once more and waits no longer.
    async fn attempts(&self, body: Bytes) -> Result<Bytes, Unanswered> {
        for before in 0..ATTEMPTS - 1 {
            let sent = self.reviewer.ask_once(body.clone(), TIME).await;
            if sent.is_ok() {
                return sent;
            }
            let pause = tokio::time::sleep(reviewer::pause(self.first_wait, before));
            if self.shutdown.unless_stopping(pause).await.is_none() {
                break;
            }
        }
        self.reviewer.ask_once(body, TIME).await
    }

    async fn send(&self, batch: Vec<Waiting>) {
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

/// How many batches may go at present.
struct Bucket {
    left: TokenBucket,
    qps: f64,
    at: Instant,
}

impl Bucket {
    fn new(throttle: Throttle) -> Self {
        let left = TokenBucket::new(f64::from(throttle.burst));
        Self { left, qps: throttle.qps, at: Instant::now() }
    }

    /// Takes one, and says how long it is until there is one.
    fn take(&mut self, now: Instant) -> Duration {
        self.left.refill(now.saturating_duration_since(self.at), self.qps);
        self.at = now;
        self.left.reserve(self.qps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn batches_go_as_often_as_the_throttle_lets_them() {
        let mut bucket = Bucket::new(Throttle { qps: 10.0, burst: 2 });
        let (now, millis) = (bucket.at, Duration::from_millis);
        let waits = [0, 0, 0, 50, 1000].map(|after| bucket.take(now + millis(after)));
        let waits = waits.map(|wait| wait.as_millis());
        assert_eq!(waits, [0, 0, 100, 150, 0]);
    }

    #[test]
    fn a_batch_is_sent_in_parts_that_are_not_too_long() {
        let held = || Held(Arc::new(AtomicUsize::new(9)), 0);
        let of = |size: usize| Waiting { event: "x".repeat(size), done: None, _held: held() };
        let sizes = |bound: Option<usize>, sizes: &[usize]| -> Vec<Vec<usize>> {
            let parts = parts(sizes.iter().map(|size| of(*size)).collect(), bound);
            parts.iter().map(|part| part.iter().map(|w| w.event.len()).collect()).collect()
        };
        assert_eq!(sizes(None, &[5, 5, 5]), [vec![5, 5, 5]]);
        assert_eq!(sizes(Some(10), &[5, 5, 5]), [vec![5, 5], vec![5]]);
        assert_eq!(sizes(Some(10), &[50, 1, 50]), [vec![50], vec![1], vec![50]]);
    }
}
