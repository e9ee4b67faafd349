//! The store layer that encrypts values.

use std::{collections::VecDeque, sync::Arc};

use api_meta::GroupResource;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use store::{
    Change, Error, KeyRange, KeyValue, Op, Outcome, RangeResult, Reply, Revision, Store,
    WatchMessage, WatchStream, Write,
};

use crate::{error::TransformError, provider, reload::Encryption};

/// Returns the resource of a storage key; `None` for bookkeeping keys, which are never encrypted.
pub type Kinds = dyn Fn(&str) -> Option<GroupResource> + Send + Sync;

/// A store that encrypts the values it writes to another store, and decrypts those it reads.
pub struct Encrypted {
    inner: Arc<dyn Store>,
    transformer: Arc<Transformer>,
}

struct Transformer {
    encryption: Arc<Encryption>,
    kinds: Arc<Kinds>,
}

impl Encrypted {
    /// Wraps a store. `kinds` returns the resource of a key, which selects the providers.
    pub fn new(inner: Arc<dyn Store>, encryption: Arc<Encryption>, kinds: Arc<Kinds>) -> Self {
        Self { inner, transformer: Arc::new(Transformer { encryption, kinds }) }
    }
}

impl Transformer {
    /// Decrypts a value. A value that fails to decrypt is logged, and replaced by [`store::unreadable`].
    async fn read(&self, mut kv: KeyValue) -> KeyValue {
        if self.encryption.is_off() && !provider::is_encrypted(&kv.value) {
            return kv;
        }
        // A deletion has no value.
        let Some(of) = (self.kinds)(&kv.key).filter(|_| !kv.value.is_empty()) else { return kv };
        // Boxed, so that a server without encryption does not move the future's space with every change.
        match Box::pin(self.encryption.decrypt(&of, &kv.value, &kv.key)).await {
            Ok(read) => kv.value = read.value.map_or(kv.value, Bytes::from),
            Err(error) => {
                tracing::error!(key = %kv.key, %error, "failed to decrypt data");
                kv.value = store::unreadable(&error.to_string());
            }
        }
        kv
    }

    async fn read_all(&self, items: Vec<KeyValue>) -> Vec<KeyValue> {
        let mut read = Vec::with_capacity(items.len());
        for kv in items {
            read.push(self.read(kv).await);
        }
        read
    }

    async fn read_some(&self, kv: Option<KeyValue>) -> Option<KeyValue> {
        match kv {
            Some(kv) => Some(self.read(kv).await),
            None => None,
        }
    }

    async fn read_change(&self, change: Change) -> Change {
        Change { kv: self.read(change.kv).await, kind: change.kind }
    }
}

impl Store for Encrypted {
    fn below(&self) -> &dyn Store {
        &*self.inner
    }

    fn get<'a>(&'a self, key: &'a str) -> Reply<'a, (Option<KeyValue>, Revision)> {
        Box::pin(async move {
            let (kv, revision) = self.inner.get(key).await?;
            Ok((self.transformer.read_some(kv).await, revision))
        })
    }

    fn range(&self, range: KeyRange, limit: usize, revision: Revision) -> Reply<'_, RangeResult> {
        Box::pin(async move {
            let mut result = self.inner.range(range, limit, revision).await?;
            result.items = self.transformer.read_all(result.items).await;
            Ok(result)
        })
    }

    fn write(&self, mut write: Write) -> Reply<'_, Outcome> {
        Box::pin(async move {
            if !self.transformer.encryption.is_off()
                && let Op::Put { value, .. } = &mut write.op
                && let Some(of) = (self.transformer.kinds)(&write.key)
            {
                let sealed = self.transformer.encryption.encrypt(&of, value, &write.key);
                let failed = |error: TransformError| {
                    let (key, detail) = (write.key.clone(), error.to_string());
                    tracing::error!(%key, %error, "failed to encrypt data");
                    Error::Transform { key, detail }
                };
                if let Some(sealed) = sealed.map_err(failed)? {
                    *value = sealed.into();
                }
            }
            Ok(match self.inner.write(write).await? {
                done @ Outcome::Done { .. } => done,
                Outcome::Conflict { current } => {
                    Outcome::Conflict { current: self.transformer.read_some(current).await }
                }
            })
        })
    }

    fn watch(&self, range: KeyRange, after: Revision) -> Reply<'_, Box<dyn WatchStream>> {
        Box::pin(async move {
            let inner = self.inner.watch(range, after).await?;
            let (waiting, read) = (VecDeque::new(), Vec::new());
            let transformer = self.transformer.clone();
            Ok(Box::new(DecryptingWatch { inner, transformer, waiting, read })
                as Box<dyn WatchStream>)
        })
    }

    fn is_stale<'a>(&'a self, key: &'a str) -> Reply<'a, bool> {
        Box::pin(async move {
            let Some(of) = (self.transformer.kinds)(key) else { return Ok(false) };
            // Without an encryption configuration for the resource no stored value needs to be rewritten.
            if !self.transformer.encryption.covers(&of) {
                return Ok(false);
            }
            let (kv, _) = self.inner.get(key).await?;
            let Some(kv) = kv else { return Ok(false) };
            let read = self.transformer.encryption.decrypt(&of, &kv.value, key).await;
            Ok(read.is_ok_and(|read| read.stale))
        })
    }
}

struct DecryptingWatch {
    inner: Box<dyn WatchStream>,
    transformer: Arc<Transformer>,
    /// The encrypted changes of one message. Dropping the future while a plugin decrypts loses none of them.
    waiting: VecDeque<Change>,
    read: Vec<Change>,
}

impl WatchStream for DecryptingWatch {
    fn next(&mut self) -> BoxFuture<'_, Option<WatchMessage>> {
        Box::pin(async move {
            if self.waiting.is_empty() && self.read.is_empty() {
                match self.inner.next().await? {
                    WatchMessage::Changes(changes) => self.waiting = changes.into(),
                    progress @ WatchMessage::Progress(_) => return Some(progress),
                }
            }
            while let Some(change) = self.waiting.front() {
                let change = self.transformer.read_change(change.clone()).await;
                self.waiting.pop_front();
                self.read.push(change);
            }
            Some(WatchMessage::Changes(std::mem::take(&mut self.read)))
        })
    }
}
