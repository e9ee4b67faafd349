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

/// The operations of an engine, or of a layer over one. Reads are linearizable: a read returns every write acknowledged
/// before it began.
pub trait Store: Send + Sync + 'static {
    /// Returns the store that the default methods delegate to. An engine implements every method and returns itself.
    fn below(&self) -> &dyn Store;

    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(Option<KeyValue>, Revision)>> {
        self.below().get(key)
    }

    /// Returns at most `limit` keys (0: no limit) in key order, at `revision` (0: the newest).
    fn range<'a>(
        &'a self,
        range: KeyRange,
        limit: usize,
        revision: Revision,
    ) -> BoxFuture<'a, Result<RangeResult>> {
        self.below().range(range, limit, revision)
    }

    /// Applies a write. Returns after it is durable.
    fn write<'a>(&'a self, write: Write) -> BoxFuture<'a, Result<Outcome>> {
        self.below().write(write)
    }

    /// Watches changes to keys in `range` with a revision greater than `after` (0: from now on).
    fn watch<'a>(
        &'a self,
        range: KeyRange,
        after: Revision,
    ) -> BoxFuture<'a, Result<Box<dyn WatchStream>>> {
        self.below().watch(range, after)
    }

    /// Returns the newest committed revision.
    fn revision<'a>(&'a self) -> BoxFuture<'a, Result<Revision>> {
        self.below().revision()
    }

    /// Discards versions superseded before `revision`. Older reads then return [`Error::Compacted`].
    fn compact<'a>(&'a self, revision: Revision) -> BoxFuture<'a, Result<()>> {
        self.below().compact(revision)
    }

    /// Returns the bytes on disk, for the `apiserver_storage_size_bytes` metric.
    fn size_bytes<'a>(&'a self) -> BoxFuture<'a, Result<u64>> {
        self.below().size_bytes()
    }

    /// Requests a [`WatchMessage::Progress`] of at least the newest revision for every watch that has not seen that
    /// revision. Without a request, watches get one about once a second.
    fn request_progress<'a>(&'a self) -> BoxFuture<'a, Result<()>> {
        self.below().request_progress()
    }

    /// Reports whether an unchanged value must be rewritten, because it is encrypted with an old key.
    fn is_stale<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<bool>> {
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
