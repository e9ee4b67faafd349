//! The writer: one thread that turns queued requests into frames, and expires, trims and snapshots between them.
//!
//! Invariant: a change enters the index, and a request is answered, only after its frame is durable.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use tokio::{sync::oneshot, time::Instant};

use super::{
    batch::{Batch, SealedBatch, StagedChange, unix_millis},
    log::{Failure, Log},
    queue::QueuedItem,
    shared::{Request, Shared},
    snapshot_file,
};
use crate::{disk::Disk, error::Result, key_value::Revision, watch::Change, write::Outcome};

/// The number of revisions discarded per lock, so that readers are not blocked for long.
const COMPACT_STEPS: usize = 4096;
const EXPIRE_AT_ONCE: usize = 1024;
const PROGRESS: Duration = Duration::from_secs(1);
/// The largest frame buffer that is reused for the next batch.
const KEEP_BUFFER: usize = 1 << 20;

/// A reply that waits for the frame it depends on.
enum Reply {
    Write(oneshot::Sender<Result<Outcome>>, Outcome),
    Compact(oneshot::Sender<Result<()>>, Revision),
}

/// The only writer of a store.
pub(super) struct Writer {
    shared: Arc<Shared>,
    disk: Arc<dyn Disk>,
    log: Log,
    snapshot: Option<(String, u64)>,
    job: Option<SnapshotJob>,
    /// The log length before which no snapshot is tried.
    snapshot_at: u64,
    expiries: BTreeSet<(u64, Revision, Arc<str>)>,
    buffer: Vec<u8>,
    last_progress: Instant,
    failing: bool,
}

struct SnapshotJob {
    thread: JoinHandle<std::io::Result<(String, u64)>>,
    cancel: Arc<AtomicBool>,
    /// The segments that the snapshot replaces.
    segments: Vec<String>,
}

impl Writer {
    pub(super) fn new(
        shared: Arc<Shared>,
        disk: Arc<dyn Disk>,
        log: Log,
        snapshot: Option<(String, u64)>,
    ) -> Self {
        let expiries = shared.index().expiring().collect();
        let writer = Self {
            shared,
            disk,
            log,
            snapshot,
            job: None,
            snapshot_at: 0,
            expiries,
            buffer: Vec::new(),
            last_progress: Instant::now(),
            failing: false,
        };
        writer.publish_size();
        writer
    }

    /// Runs until the queue is closed and empty.
    pub(super) fn run(mut self) {
        let _exit = WriterExit(self.shared.clone());
        while let Some(requests) = self.shared.queue.drain(self.shared.options.tick) {
            self.turn(requests);
        }
        if let Some(job) = self.job.take() {
            job.cancel.store(true, Ordering::Relaxed);
            let _ = job.thread.join();
        }
    }

    /// Commits the requests and runs the periodic work.
    pub(super) fn turn(&mut self, requests: Vec<QueuedItem<Request>>) {
        self.expire();
        self.commit_all(requests);
        self.trim_history();
        self.update_snapshot();
        self.publish_size();
        if self.last_progress.elapsed() >= PROGRESS {
            self.last_progress = Instant::now();
            self.shared.send_progress();
        }
    }

    fn commit_all(&mut self, requests: Vec<QueuedItem<Request>>) {
        let mut requests = requests.into_iter().peekable();
        while requests.peek().is_some() {
            let mut replies = Vec::new();
            let sealed = {
                let index = self.shared.index();
                let mut batch = self.shared.batch(&index, std::mem::take(&mut self.buffer));
                while !batch.is_full()
                    && let Some(queued) = requests.next()
                {
                    stage(&mut batch, queued, &mut replies);
                }
                batch.seal()
            };
            match self.commit(sealed) {
                Ok(()) => self.send_replies(replies),
                Err(failure) => send_failures(replies, &failure),
            }
        }
    }

    /// Makes a batch durable, then visible.
    fn commit(&mut self, sealed: SealedBatch) -> Result<(), Failure> {
        let SealedBatch { mut frame, first, staged, writes } = sealed;
        let result = if writes { self.log.append(&mut frame, first) } else { Ok(()) };
        if frame.capacity() <= KEEP_BUFFER {
            self.buffer = frame;
        }
        self.note_health(writes, &result);
        if result.is_ok() && !staged.is_empty() {
            self.publish(staged);
        }
        result
    }

    /// Logs the first failure and the recovery, but not every rejected write in between.
    fn note_health(&mut self, writes: bool, result: &Result<(), Failure>) {
        match result {
            Err(failure) if !self.failing => {
                tracing::error!(%failure, "the store cannot write its log; rejecting writes");
            }
            Ok(()) if self.failing && writes => {
                tracing::info!("the store can write its log again");
            }
            _ => {}
        }
        self.failing = result.is_err() || (self.failing && !writes);
    }

    fn publish(&mut self, staged: Vec<StagedChange>) {
        // Watches register under the hub's lock, so each sees these changes exactly once: in its replay or in its
        // queue.
        let mut hub = self.shared.hub();
        let mut index = self.shared.index_mut();
        let mut changes: Vec<Change> = Vec::with_capacity(staged.len());
        for StagedChange { change, expires } in staged {
            index.apply(&change, expires);
            if expires != 0 {
                self.expiries.insert((expires, change.kv.mod_revision, change.kv.key.clone()));
            }
            changes.push(change);
        }
        drop(index);
        hub.publish(&changes);
    }

    fn send_replies(&mut self, replies: Vec<(Reply, QueuedItem<()>)>) {
        for (answer, _room) in replies {
            match answer {
                Reply::Write(reply, outcome) => drop(reply.send(Ok(outcome))),
                Reply::Compact(reply, revision) => {
                    while !self.shared.index_mut().compact(revision, COMPACT_STEPS) {}
                    let _ = reply.send(Ok(()));
                }
            }
        }
    }

    /// Deletes expired keys; if the log fails, they are tried again.
    fn expire(&mut self) {
        let now = unix_millis(&*self.shared.options.clock);
        let mut due = Vec::new();
        while due.len() < EXPIRE_AT_ONCE
            && self.expiries.first().is_some_and(|(expires, ..)| *expires <= now)
        {
            due.extend(self.expiries.pop_first());
        }
        if due.is_empty() {
            return;
        }
        let sealed = {
            let index = self.shared.index();
            let mut batch = self.shared.batch(&index, std::mem::take(&mut self.buffer));
            for (_, revision, key) in &due {
                batch.expire(key, *revision);
            }
            batch.seal()
        };
        if self.commit(sealed).is_err() {
            self.expiries.extend(due);
        }
    }

    /// Trims history to three quarters of its limit, so that this does not run at every write.
    fn trim_history(&self) {
        let limit = self.shared.options.history_bytes;
        if self.shared.index().superseded() > limit {
            let target = limit / 4 * 3;
            while !self.shared.index_mut().compact_to_bytes(target, COMPACT_STEPS) {}
        }
    }

    fn update_snapshot(&mut self) {
        match self.job.take_if(|job| job.thread.is_finished()) {
            Some(job) => self.finish_snapshot(job),
            None if self.job.is_none() => self.begin_snapshot(),
            None => {}
        }
    }

    /// Starts a snapshot when the log has outgrown the data.
    fn begin_snapshot(&mut self) {
        let options = &self.shared.options;
        let wanted = options.snapshot_log_bytes.max(self.shared.index().bytes());
        if self.log.bytes() < wanted.max(self.snapshot_at) {
            return;
        }
        self.snapshot_at = self.log.bytes() + options.snapshot_log_bytes;
        let revision = self.shared.index().revision();
        if let Err(failure) = self.log.rotate(revision + 1) {
            tracing::warn!(%failure, "could not begin a new log segment; retrying later");
            return;
        }
        let dump = self.shared.index().dump();
        let name = snapshot_file::name(revision);
        let segments = self.log.sealed_names();
        let obsolete: Vec<String> = segments
            .iter()
            .cloned()
            .chain(self.snapshot.iter().map(|(name, _)| name.clone()))
            .collect();
        let cancel = Arc::new(AtomicBool::new(false));
        let (disk, stop) = (self.disk.clone(), cancel.clone());
        let work = move || {
            let length = snapshot_file::write(&*disk, &name, &dump, &stop)?;
            for name in obsolete.iter().filter(|old| **old != name) {
                disk.remove(name)?;
            }
            Ok((name, length))
        };
        match std::thread::Builder::new().name("store-snapshot".to_owned()).spawn(work) {
            Ok(thread) => self.job = Some(SnapshotJob { thread, cancel, segments }),
            Err(error) => tracing::warn!(%error, "could not start the snapshot thread"),
        }
    }

    /// Waits for a running snapshot, so that a simulation does not depend on the speed of a thread.
    pub(super) fn wait_for_snapshot(&mut self) {
        if let Some(job) = self.job.take() {
            self.finish_snapshot(job);
        }
    }

    fn finish_snapshot(&mut self, job: SnapshotJob) {
        match job.thread.join() {
            Ok(Ok(snapshot)) => {
                tracing::debug!(name = %snapshot.0, bytes = snapshot.1, "wrote a snapshot");
                self.snapshot = Some(snapshot);
                self.log.forget(&job.segments);
                self.snapshot_at = 0;
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "could not write a snapshot; retrying later")
            }
            Err(_) => tracing::error!("the snapshot thread panicked; retrying later"),
        }
    }

    fn publish_size(&self) {
        let snapshot = self.snapshot.as_ref().map_or(0, |(_, length)| *length);
        self.shared.disk_bytes.store(self.log.bytes() + snapshot, Ordering::Relaxed);
    }
}

/// Stages one request. A request that needs no log entry is answered at once.
fn stage(
    batch: &mut Batch<'_>,
    queued: QueuedItem<Request>,
    replies: &mut Vec<(Reply, QueuedItem<()>)>,
) {
    let (request, room) = queued.split();
    let answer = match request {
        Request::Write { write, reply } => match batch.write(write) {
            Ok(outcome) => Reply::Write(reply, outcome),
            Err(error) => return drop(reply.send(Err(error))),
        },
        Request::Compact { revision, reply } => match batch.compact(revision) {
            Ok(true) => Reply::Compact(reply, revision),
            Ok(false) => return drop(reply.send(Ok(()))),
            Err(error) => return drop(reply.send(Err(error))),
        },
    };
    replies.push((answer, room));
}

fn send_failures(replies: Vec<(Reply, QueuedItem<()>)>, failure: &Failure) {
    for (answer, _room) in replies {
        match answer {
            Reply::Write(reply, _) => drop(reply.send(Err(failure.to_error()))),
            Reply::Compact(reply, _) => drop(reply.send(Err(failure.to_error()))),
        }
    }
}

/// Closes the queue and the watches however the writer ends, so that no caller keeps waiting.
struct WriterExit(Arc<Shared>);

impl Drop for WriterExit {
    fn drop(&mut self) {
        self.0.queue.abandon();
        self.0.hub().close();
    }
}
