//! The embedded engine: an append-only log on disk, an index in memory, one writer thread.
//!
//! A write is queued. The writer drains the queue, checks the preconditions, appends all writes to the log as one frame
//! and makes it durable with one sync. Only then does it show them to readers and watchers and reply. Reads are served
//! from memory. Occasional snapshots keep the log and the start short.
//!
//! Invariants: an acknowledged write survives loss of power at any point. A read or watch returns a write only once it
//! is durable. Each write has a revision of its own, one above the last. Read [`Embedded`] first.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use tokio::sync::oneshot;

use crate::{
    disk::{Disk, RealDisk},
    engine::{ObjectEncoder, Reply, Store},
    error::{Error, Result},
    key_value::{KeyRange, KeyValue, RangeResult, Revision},
    watch::WatchStream,
    write::{Outcome, Write},
};

mod batch;
mod frame;
mod hub;
pub(crate) mod index;
mod log;
mod options;
mod queue;
mod record;
mod recover;
mod shared;
pub(crate) mod snapshot_file;
mod watch;
mod writer;

use index::Dump;
pub(crate) use log::create_segment;
pub use options::Options;
use queue::Queue;
use shared::{Request, Shared};
use writer::Writer;

/// The largest request in bytes, as in etcd.
pub const REQUEST_LIMIT: usize = 1536 * 1024;

/// A store in a local directory. Dropping it waits for queued requests and stops the writer.
pub struct Embedded {
    shared: Arc<Shared>,
    runner: Runner,
}

/// The longest time from a request to the writer's turn, in simulations.
const SIMULATED_SYNC: Duration = Duration::from_millis(4);

/// The driver of the writer.
enum Runner {
    /// A thread, joined on drop.
    Thread(Option<JoinHandle<()>>),
    /// The callers of the store, in simulations. Requests of the same moment share a batch.
    Caller(Box<Mutex<Writer>>),
}

impl Embedded {
    /// Opens the store in `directory`, creating it if needed, and locks it.
    ///
    /// Reads the whole store and blocks: do not call it on an async runtime's thread.
    pub fn open(directory: &Path, options: Options) -> Result<Self> {
        let disk = RealDisk::open(directory).map_err(|source| Error::Io {
            operation: "open the store's directory",
            path: directory.display().to_string(),
            source,
        })?;
        Self::open_on(Arc::new(disk), options)
    }

    /// Opens the store on a disk that no other store uses.
    pub fn open_on(disk: Arc<dyn Disk>, options: Options) -> Result<Self> {
        let (shared, writer) = Self::recovered(disk, options)?;
        let thread = std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || writer.run())
            .map_err(|source| Error::Io {
                operation: "start the thread",
                path: "store-writer".to_owned(),
                source,
            })?;
        Ok(Self { shared, runner: Runner::Thread(Some(thread)) })
    }

    /// Opens the store without a writer thread, which simulated time could not wait for. The writer runs a moment after
    /// each request; [`Embedded::tick`] runs the periodic work.
    pub fn simulated(disk: Arc<dyn Disk>, options: Options) -> Result<Self> {
        let (shared, writer) = Self::recovered(disk, options)?;
        Ok(Self { shared, runner: Runner::Caller(Box::new(Mutex::new(writer))) })
    }

    fn recovered(disk: Arc<dyn Disk>, options: Options) -> Result<(Arc<Shared>, Writer)> {
        let recovered = recover::recover(disk.clone(), options.history_bytes)?;
        let shared = Arc::new(Shared {
            index: RwLock::new(recovered.index),
            hub: Mutex::default(),
            queue: Queue::new(options.queue_bytes),
            disk_bytes: AtomicU64::new(0),
            options,
        });
        let writer = Writer::new(shared.clone(), disk, recovered.log, recovered.snapshot);
        Ok((shared, writer))
    }

    /// Runs one turn of the writer, if no thread drives it.
    pub fn tick(&self) {
        if let Runner::Caller(writer) = &self.runner {
            let mut writer = writer.lock();
            writer.turn(self.shared.queue.drain(Duration::ZERO).unwrap_or_default());
            writer.wait_for_snapshot();
        }
    }

    async fn submit<T>(
        &self,
        operation: &'static str,
        bytes: usize,
        request: impl FnOnce(oneshot::Sender<Result<T>>) -> Request,
    ) -> Result<T> {
        let stopped = || Error::Unavailable {
            operation,
            detail: "the store's writer has stopped; open the store again".to_owned(),
        };
        let (reply, answer) = oneshot::channel();
        self.shared.queue.push(request(reply), bytes).await.map_err(|_| stopped())?;
        if let Runner::Caller(_) = self.runner {
            tokio::time::sleep(rt::random_in(Duration::ZERO..SIMULATED_SYNC)).await;
            self.tick();
        }
        answer.await.map_err(|_| stopped())?
    }
}

impl Embedded {
    /// Returns all versions of all keys.
    pub(crate) fn dump(&self) -> Dump {
        self.shared.index().dump()
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.shared.queue.close();
        match &mut self.runner {
            Runner::Thread(thread) => drop(thread.take().map(JoinHandle::join)),
            Runner::Caller(_) => self.shared.hub().close(),
        }
    }
}

impl Store for Embedded {
    fn below(&self) -> &dyn Store {
        self
    }

    fn is_stale<'a>(&'a self, _key: &'a str) -> Reply<'a, bool> {
        // An engine encrypts nothing.
        Box::pin(async { Ok(false) })
    }

    fn object_encoder(&self) -> Option<&dyn ObjectEncoder> {
        None
    }

    fn get<'a>(&'a self, key: &'a str) -> Reply<'a, (Option<KeyValue>, Revision)> {
        Box::pin(async move {
            let index = self.shared.index();
            Ok((index.get(key), index.revision()))
        })
    }

    fn range(&self, range: KeyRange, limit: usize, revision: Revision) -> Reply<'_, RangeResult> {
        Box::pin(async move { self.shared.index().range(&range, limit, revision) })
    }

    fn write(&self, write: Write) -> Reply<'_, Outcome> {
        Box::pin(async move {
            let size = write.size();
            if size > REQUEST_LIMIT {
                return Err(Error::TooLarge { key: write.key, size, limit: REQUEST_LIMIT });
            }
            self.submit("write", size, |reply| Request::Write { write, reply }).await
        })
    }

    fn watch(&self, range: KeyRange, after: Revision) -> Reply<'_, Box<dyn WatchStream>> {
        Box::pin(async move { watch::watch(self.shared.clone(), range, after) })
    }

    fn revision(&self) -> Reply<'_, Revision> {
        Box::pin(async move { Ok(self.shared.index().revision()) })
    }

    fn compact(&self, revision: Revision) -> Reply<'_, ()> {
        Box::pin(async move {
            self.submit("compact", 0, |reply| Request::Compact { revision, reply }).await
        })
    }

    fn size_bytes(&self) -> Reply<'_, u64> {
        Box::pin(async move { Ok(self.shared.disk_bytes.load(Ordering::Relaxed)) })
    }

    fn request_progress(&self) -> Reply<'_, ()> {
        Box::pin(async move {
            self.shared.send_progress();
            Ok(())
        })
    }
}
