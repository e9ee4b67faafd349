//! The trait of engines, and of layers over one.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde_json::Value;

use crate::{
    error::Result,
    key_value::{KeyRange, KeyValue, RangeResult, Revision},
    watch::WatchStream,
    write::{Outcome, Write},
};

/// The future result of an operation of a store.
pub type Reply<'a, T> = BoxFuture<'a, Result<T>>;

/// The operations of an engine, or of a layer over one. Reads are linearizable: a read returns every write acknowledged
/// before it began.
pub trait Store: Send + Sync + 'static {
    /// Returns the store that the default methods delegate to. An engine implements every method and returns itself.
    fn below(&self) -> &dyn Store;

    fn get<'a>(&'a self, key: &'a str) -> Reply<'a, (Option<KeyValue>, Revision)> {
        self.below().get(key)
    }

    /// Returns at most `limit` keys (0: no limit) in key order, at `revision` (0: the newest).
    fn range(&self, range: KeyRange, limit: usize, revision: Revision) -> Reply<'_, RangeResult> {
        self.below().range(range, limit, revision)
    }

    /// Applies a write. Returns after it is durable.
    fn write(&self, write: Write) -> Reply<'_, Outcome> {
        self.below().write(write)
    }

    /// Watches changes to keys in `range` with a revision greater than `after` (0: from now on).
    fn watch(&self, range: KeyRange, after: Revision) -> Reply<'_, Box<dyn WatchStream>> {
        self.below().watch(range, after)
    }

    /// Returns the newest committed revision.
    fn revision(&self) -> Reply<'_, Revision> {
        self.below().revision()
    }

    /// Discards versions superseded before `revision`. Older reads then return [`Error::Compacted`].
    fn compact(&self, revision: Revision) -> Reply<'_, ()> {
        self.below().compact(revision)
    }

    /// Returns the bytes on disk, for the `apiserver_storage_size_bytes` metric.
    fn size_bytes(&self) -> Reply<'_, u64> {
        self.below().size_bytes()
    }

    /// Requests a [`WatchMessage::Progress`] of at least the newest revision for every watch that has not seen that
    /// revision. Without a request, watches get one about once a second.
    fn request_progress(&self) -> Reply<'_, ()> {
        self.below().request_progress()
    }

    /// Reports whether an unchanged value must be rewritten, because it is encrypted with an old key.
    fn is_stale<'a>(&'a self, key: &'a str) -> Reply<'a, bool> {
        self.below().is_stale(key)
    }

    /// Returns the encoder of a layer that stores objects in another form than their canonical JSON. A writer that has
    /// the object as a tree uses the encoder, so that the layer need not parse the JSON.
    fn object_encoder(&self) -> Option<&dyn ObjectEncoder> {
        self.below().object_encoder()
    }
}

/// Encodes objects in the form of a layer.
pub trait ObjectEncoder {
    /// Encodes an object, whose members include the apiVersion of its stored version. [`Store::write`] stores the
    /// result unchanged. Returns `None` if the object cannot be encoded; a write of its JSON returns the error.
    fn encode(&self, key: &str, object: Value) -> Option<Bytes>;
}
