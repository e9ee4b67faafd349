//! The state that a store's callers share with its writer.

use std::sync::atomic::AtomicU64;

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::sync::oneshot;

use super::{batch::Batch, hub::Hub, index::Index, options::Options, queue::Queue};
use crate::{
    error::Result,
    key_value::Revision,
    write::{Outcome, Write},
};

/// A request to the writer, with the channel of its reply.
pub(super) enum Request {
    Write { write: Write, reply: oneshot::Sender<Result<Outcome>> },
    Compact { revision: Revision, reply: oneshot::Sender<Result<()>> },
}

/// The parts of an [`Embedded`](super::Embedded) store.
pub(super) struct Shared {
    pub(super) index: RwLock<Index>,
    /// Locked before `index` where both are.
    pub(super) hub: Mutex<Hub>,
    pub(super) queue: Queue<Request>,
    pub(super) disk_bytes: AtomicU64,
    pub(super) options: Options,
}

impl Shared {
    pub(super) fn index(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read()
    }

    pub(super) fn index_mut(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write()
    }

    pub(super) fn hub(&self) -> MutexGuard<'_, Hub> {
        self.hub.lock()
    }

    pub(super) fn batch<'a>(&'a self, index: &'a Index, buffer: Vec<u8>) -> Batch<'a> {
        Batch::new(index, &*self.options.clock, self.options.quota_bytes, buffer)
    }

    /// Sends every watcher a progress message of the newest revision.
    pub(super) fn send_progress(&self) {
        let mut hub = self.hub();
        let revision = self.index().revision();
        hub.progress(revision);
    }
}
