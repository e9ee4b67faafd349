//! Changes on their way from the cache to those who watch.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use crate::registry::Object;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    Added,
    Modified,
    Deleted,
}

impl EventKind {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) kind: EventKind,
    /// For a deletion the last state, at the deletion's revision.
    pub(crate) object: Arc<Object>,
    pub(crate) previous: Option<Arc<Object>>,
}

impl Event {
    /// The change for whoever selects the object as it was and not as it is: what it was, at the new revision. What it has
    /// become is not theirs to see.
    pub(crate) fn left(&self) -> Option<Self> {
        let previous = self.previous.as_deref().filter(|_| self.kind != EventKind::Deleted)?;
        let object = Object { revision: self.object.revision, ..previous.clone() };
        Some(Self { kind: EventKind::Deleted, object: Arc::new(object), previous: None })
    }
}

/// A change on its way to watchers, with the encodings that they asked for: each is made once and shared,
/// and lives until the last watcher has it.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) event: Arc<Event>,
    frames: Mutex<Vec<(FrameKey, Bytes)>>,
}

/// What distinguishes one encoding of an event from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FrameKey {
    pub(crate) kind: EventKind,
    pub(crate) version: Arc<str>,
    pub(crate) encoding: u8,
}

impl Delivery {
    pub(crate) fn new(event: Arc<Event>) -> Self {
        Self { event, frames: Mutex::default() }
    }

    pub(crate) fn frame(&self, key: FrameKey, make: impl FnOnce() -> Bytes) -> Bytes {
        let mut frames = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, bytes)) = frames.iter().find(|(k, _)| *k == key) {
            return bytes.clone();
        }
        let bytes = make();
        frames.push((key, bytes.clone()));
        bytes
    }
}
