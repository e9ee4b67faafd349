//! Events from the cache to its watchers.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use crate::{registry::Object, request::ResponseFormat};

/// The number of encodings of an event that its watchers share. It limits the memory that watchers occupy that do not
/// read.
const SHARED: usize = 8;

/// The kind of a watch event.
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

/// A change of an object, as watchers receive it.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) kind: EventKind,
    /// The object. For a deletion its last state, at the revision of the deletion.
    pub(crate) object: Arc<Object>,
    pub(crate) previous: Option<Arc<Object>>,
}

impl Event {
    /// Returns the deletion event for a watcher whose selector matches the previous object but not the new one. It
    /// contains the previous object, because the new one must not be visible to the watcher.
    pub(crate) fn left(&self) -> Option<Self> {
        let previous = self.previous.as_deref().filter(|_| self.kind != EventKind::Deleted)?;
        let object = Object { revision: self.object.revision, ..previous.clone() };
        Some(Self { kind: EventKind::Deleted, object: Arc::new(object), previous: None })
    }
}

/// An event in delivery, with its encodings. Each of the first [`SHARED`] encodings is created once, shared by all
/// watchers, and freed after the last one.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) event: Arc<Event>,
    frames: Mutex<Vec<(FrameKey, Arc<OnceCell<Bytes>>)>>,
}

/// The key of an encoding of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FrameKey {
    pub(crate) kind: EventKind,
    pub(crate) version: Arc<str>,
    pub(crate) accepted: ResponseFormat,
    /// `true` for a table with column definitions.
    pub(crate) first: bool,
}

impl Delivery {
    pub(crate) fn new(event: Arc<Event>) -> Self {
        Self { event, frames: Mutex::default() }
    }

    /// Returns the frame of a key. Watchers that need it at the same time wait for the one that makes it.
    pub(crate) async fn frame<E>(
        &self,
        key: FrameKey,
        make: impl Future<Output = Result<Bytes, E>>,
    ) -> Result<Bytes, E> {
        match self.shared(key) {
            Some(frame) => frame.get_or_try_init(|| make).await.cloned(),
            None => make.await,
        }
    }

    fn shared(&self, key: FrameKey) -> Option<Arc<OnceCell<Bytes>>> {
        let mut frames = self.frames.lock();
        if let Some((_, frame)) = frames.iter().find(|(known, _)| *known == key) {
            return Some(frame.clone());
        }
        let new = (frames.len() < SHARED).then(Arc::<OnceCell<Bytes>>::default)?;
        frames.push((key, new.clone()));
        Some(new)
    }
}
