//! The bitmap of node ports in the store. Every change is a compare-and-swap on the stored value before a port is
//! handed out. The cached copy only saves reads.

use std::sync::Arc;

use api_meta::Status;
use store::{Expected, KeyValue, Op, Outcome, Revision, Write};
use tokio::sync::Mutex;

use super::bitmap::{Bitmap, FormError, KEY};
use crate::watch_cache::{WatchCache, store_status};

/// The node ports, allocated in a bitmap in the store.
pub(crate) struct Ports {
    cache: Arc<WatchCache>,
    pub(crate) range: (u16, u16),
    /// The last known stored value. Its lock serializes the changes of this server.
    seen: Mutex<Option<StoredBitmap>>,
}

/// A bitmap as it is stored.
#[derive(Clone, Debug)]
pub(crate) struct StoredBitmap {
    pub(crate) map: Bitmap,
    /// The revision of the stored value; 0 if none is stored.
    pub(crate) revision: Revision,
}

/// The error of allocating node ports.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PortsError {
    #[error("the store: {0}")]
    Store(#[from] store::Error),
    #[error(transparent)]
    Form(#[from] FormError),
    /// No bitmap is stored yet; upstream's words.
    #[error("cannot allocate resources of type servicenodeportallocations at this time")]
    NotReady,
}

impl PortsError {
    pub(crate) fn status(self) -> Box<Status> {
        match self {
            Self::Store(error) => store_status(error),
            other => Box::new(Status::internal(other)),
        }
    }
}

impl Ports {
    pub(crate) fn new(cache: Arc<WatchCache>, range: (u16, u16)) -> Self {
        Self { cache, range, seen: Mutex::default() }
    }

    /// Returns the stored bitmap, of any range, or `None` in a new cluster.
    pub(crate) async fn stored(&self) -> Result<Option<StoredBitmap>, PortsError> {
        let (found, _) = self.cache.main().store.get(KEY).await?;
        found.map(|kv| read(&kv)).transpose()
    }

    /// Returns the stored bitmap if it has this server's range.
    async fn current(&self) -> Result<StoredBitmap, PortsError> {
        let StoredBitmap { map, revision } = self.stored().await?.ok_or(PortsError::NotReady)?;
        Ok(StoredBitmap { map: map.within(self.range)?, revision })
    }

    /// Applies a change to the stored bitmap without storing it, for dry runs.
    pub(crate) async fn try_out<T, E>(
        &self,
        change: impl FnOnce(&mut Bitmap) -> Result<T, E>,
    ) -> Result<Result<T, E>, PortsError> {
        Ok(change(&mut self.current().await?.map))
    }

    /// Applies a change and stores it, with retries on conflicts. An error of `change` is only returned after it was
    /// applied to the stored value, not to the cached one.
    pub(crate) async fn change<T, E>(
        &self,
        change: impl Fn(&mut Bitmap) -> Result<T, E>,
    ) -> Result<Result<T, E>, PortsError> {
        let mut seen = self.seen.lock().await;
        let mut fresh = seen.is_none();
        loop {
            let stored = match seen.take() {
                Some(stored) => stored,
                None => self.current().await?,
            };
            let mut map = stored.map.clone();
            let outcome = change(&mut map);
            if outcome.is_err() || map == stored.map {
                if fresh {
                    *seen = Some(stored);
                    return Ok(outcome);
                }
                fresh = true;
                continue;
            }
            match self.write(&map, stored.revision).await? {
                Ok(revision) => {
                    *seen = Some(StoredBitmap { map, revision });
                    return Ok(outcome);
                }
                Err(now) => {
                    let StoredBitmap { map, revision } = now.ok_or(PortsError::NotReady)?;
                    *seen = Some(StoredBitmap { map: map.within(self.range)?, revision });
                    fresh = true;
                }
            }
        }
    }

    /// Replaces the bitmap that was read at revision `read`. Returns `false` if it has changed since.
    pub(crate) async fn replace(&self, map: Bitmap, read: Revision) -> Result<bool, PortsError> {
        let mut seen = self.seen.lock().await;
        *seen = None;
        match self.write(&map, read).await? {
            Ok(revision) => {
                *seen = Some(StoredBitmap { map, revision });
                Ok(true)
            }
            Err(_) => Ok(false),
        }
    }

    /// Returns the revision of the write, or the current value after a conflict.
    async fn write(
        &self,
        map: &Bitmap,
        over: Revision,
    ) -> Result<Result<Revision, Option<StoredBitmap>>, PortsError> {
        let op = Op::Put { value: map.encode().into(), ttl_seconds: None };
        let write = Write { key: KEY.into(), expected: Expected::ModRevision(over), op };
        match self.cache.main().write(write).await? {
            Outcome::Done { revision, .. } => Ok(Ok(revision)),
            Outcome::Conflict { current } => Ok(Err(current.map(|kv| read(&kv)).transpose()?)),
        }
    }
}

fn read(kv: &KeyValue) -> Result<StoredBitmap, PortsError> {
    Ok(StoredBitmap { map: Bitmap::decode(&kv.value)?, revision: kv.mod_revision })
}
