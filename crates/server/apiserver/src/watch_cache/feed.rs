//! A store, and the state of the watch that feeds the caches of its resources. Requests wait here for the caches to
//! reach a revision. Each feed has revisions of its own.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::RwLock;
use store::{Outcome, Revision, Store, Write};
use tokio::sync::{Semaphore, SemaphorePermit, mpsc, oneshot};

use crate::registry::Definition;

/// The time that a read waits for the caches to reach the store's revision.
const CATCH_UP: Duration = Duration::from_secs(3);

/// The number of requests that may wait for a store of single resources whose watch has ended. All others fail at once:
/// they would hold seats that requests for other resources need.
const WAITING: usize = 16;

/// A command to the follower of a feed.
pub(super) enum Command {
    Add(Arc<Definition>, oneshot::Sender<()>),
    Remove { group: Arc<str>, plural: Arc<str>, done: oneshot::Sender<()> },
}

/// A store and the state of its watch.
pub(crate) struct Feed {
    pub(crate) store: Arc<dyn Store>,
    /// The resources of the store, for error messages; `None` for the main store.
    resources: Option<String>,
    applied: rt::Level<Revision>,
    pub(super) commands: mpsc::Sender<Command>,
    /// The size of the store in bytes, as of the last query.
    pub(crate) size: AtomicU64,
    /// The revision up to which the store is compacted. Lists at older ones have expired, even if nothing has changed.
    compacted: AtomicU64,
    following: AtomicBool,
    /// The newest revision that this server has written.
    written: AtomicU64,
    /// The cause, while the store cannot be watched.
    lost: RwLock<Option<String>>,
    waiters: Semaphore,
}

impl Feed {
    pub(super) fn new(
        store: Arc<dyn Store>,
        resources: Option<String>,
        commands: mpsc::Sender<Command>,
    ) -> Arc<Self> {
        Arc::new(Self {
            store,
            resources,
            applied: rt::Level::default(),
            commands,
            size: AtomicU64::new(0),
            compacted: AtomicU64::new(0),
            following: AtomicBool::new(false),
            written: AtomicU64::new(0),
            lost: RwLock::default(),
            waiters: Semaphore::new(WAITING),
        })
    }

    /// Returns `true` while the caches follow the store.
    pub(crate) fn is_following(&self) -> bool {
        self.following.load(Ordering::Relaxed)
    }

    /// Returns `true` if the store no longer has all objects as of a revision.
    pub(crate) fn is_compacted(&self, revision: Revision) -> bool {
        revision < self.compacted.load(Ordering::Relaxed)
    }

    pub(super) fn set_compacted(&self, revision: Revision) {
        self.compacted.fetch_max(revision, Ordering::Relaxed);
    }

    /// Records that the watch has begun.
    pub(super) fn found(&self) {
        *self.lost.write() = None;
        self.following.store(true, Ordering::Relaxed);
    }

    /// Records that the watch has ended.
    pub(super) fn ended(&self) {
        self.following.store(false, Ordering::Relaxed);
    }

    /// Records that the watch cannot begin.
    pub(super) fn lost(&self, error: &store::Error) {
        *self.lost.write() = Some(error.to_string());
    }

    /// Fails at once while a store of single resources is down, but for a few requests that may wait for it. All
    /// requests wait for the main store, because nothing works without it.
    fn enter(&self, operation: &'static str) -> Result<Option<SemaphorePermit<'_>>, store::Error> {
        let Some(resources) = self.resources.as_ref().filter(|_| !self.is_following()) else {
            return Ok(None);
        };
        let failed = |cause: &str| {
            let detail = format!("the etcd of {resources} does not answer: {cause}");
            store::Error::Unavailable { operation, detail }
        };
        if let Some(cause) = &*self.lost.read() {
            return Err(failed(cause));
        }
        let waiter = self.waiters.try_acquire();
        waiter.map(Some).map_err(|_| failed("its watch has ended, and other requests wait for it"))
    }

    /// Returns the revision up to which the caches are complete.
    pub(crate) fn applied(&self) -> Revision {
        self.applied.get()
    }

    /// Records that the caches are complete up to a revision.
    pub(super) fn advance(&self, revision: Revision) {
        self.applied.raise(revision);
    }

    /// Waits until the caches contain everything that was committed before the call.
    pub(crate) async fn consistent(&self) -> Result<Revision, store::Error> {
        let _waiting = self.enter("read")?;
        let revision = self.store.revision().await?;
        self.wait_for_revision(revision).await?;
        Ok(revision)
    }

    /// Writes to the store, and records the revision for [`Self::wait_for_own_writes`].
    pub(crate) async fn write(&self, write: Write) -> Result<Outcome, store::Error> {
        let _waiting = self.enter("write")?;
        let outcome = self.store.write(write).await?;
        if let Outcome::Done { revision, .. } = &outcome {
            self.written.fetch_max(*revision, Ordering::Relaxed);
        }
        Ok(outcome)
    }

    /// Waits until the caches contain all acknowledged writes of this server.
    pub(super) async fn wait_for_own_writes(&self) -> Result<(), store::Error> {
        self.wait_for_revision(self.written.load(Ordering::Relaxed)).await
    }

    /// Waits until the caches have reached a revision.
    pub(crate) async fn wait_for_revision(&self, revision: Revision) -> Result<(), store::Error> {
        if self.applied() >= revision {
            return Ok(());
        }
        // Revisions of keys without a cache only arrive as progress notifications.
        self.store.request_progress().await?;
        match tokio::time::timeout(CATCH_UP, self.applied.reached(revision)).await {
            Ok(()) => Ok(()),
            Err(_) => {
                Err(store::Error::FutureRevision { requested: revision, current: self.applied() })
            }
        }
    }
}
