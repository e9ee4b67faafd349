//! Node ports in the store. Every change of which are taken is compared with what is stored and written there before
//! anybody is given a port; what is remembered here only saves the reading.

use std::sync::Arc;

use api_meta::Status;
use store::{Expected, KeyValue, Op, Outcome, Revision, Write};
use tokio::sync::Mutex;

use super::bitmap::{Bitmap, FormError, KEY};
use crate::watch_cache::{WatchCache, store_status};

pub(crate) struct Ports {
    cache: Arc<WatchCache>,
    pub(crate) range: (u16, u16),
    /// What was stored when it was last seen. Whoever holds it is the only one of this server to change it.
    seen: Mutex<Option<Stored>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) map: Bitmap,
    /// 0: nothing is stored yet.
    pub(crate) revision: Revision,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum PortsError {
    #[error("the store: {0}")]
    Store(#[from] store::Error),
    #[error("{0}")]
    Form(#[from] FormError),
    /// Upstream's words.
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

    /// What is stored now, of whatever range; nothing, in a new cluster.
    pub(crate) async fn stored(&self) -> Result<Option<Stored>, PortsError> {
        let (found, _) = self.cache.store.get(KEY).await?;
        found.map(|kv| read(&kv)).transpose()
    }

    /// What is stored now of this server's range.
    async fn current(&self) -> Result<Stored, PortsError> {
        let Stored { map, revision } = self.stored().await?.ok_or(PortsError::NotReady)?;
        Ok(Stored { map: map.within(self.range)?, revision })
    }

    /// Tries a change on what is stored, and stores nothing.
    pub(crate) async fn try_out<T, E>(
        &self,
        change: impl FnOnce(&mut Bitmap) -> Result<T, E>,
    ) -> Result<Result<T, E>, PortsError> {
        Ok(change(&mut self.current().await?.map))
    }

    /// Changes what is stored, again if another server changes it in between. A refusal comes from what is stored, never
    /// from what is remembered.
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
                    *seen = Some(Stored { map, revision });
                    return Ok(outcome);
                }
                Err(now) => {
                    let Stored { map, revision } = now.ok_or(PortsError::NotReady)?;
                    *seen = Some(Stored { map: map.within(self.range)?, revision });
                    fresh = true;
                }
            }
        }
    }

    /// Stores a whole map in place of the one that was read. Returns whether that was still there.
    pub(crate) async fn replace(&self, map: Bitmap, read: Revision) -> Result<bool, PortsError> {
        let mut seen = self.seen.lock().await;
        *seen = None;
        match self.write(&map, read).await? {
            Ok(revision) => {
                *seen = Some(Stored { map, revision });
                Ok(true)
            }
            Err(_) => Ok(false),
        }
    }

    /// The revision of the write, or what somebody else has stored since.
    async fn write(
        &self,
        map: &Bitmap,
        over: Revision,
    ) -> Result<Result<Revision, Option<Stored>>, PortsError> {
        let op = Op::Put { value: map.encode().into(), ttl_seconds: None };
        let write = Write { key: KEY.into(), expected: Expected::ModRevision(over), op };
        match self.cache.write(write).await? {
            Outcome::Done { revision, .. } => Ok(Ok(revision)),
            Outcome::Conflict { current } => Ok(Err(current.map(|kv| read(&kv)).transpose()?)),
        }
    }
}

fn read(kv: &KeyValue) -> Result<Stored, PortsError> {
    Ok(Stored { map: Bitmap::decode(&kv.value)?, revision: kv.mod_revision })
}
