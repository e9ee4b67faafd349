//! One watch on its way to a client: what each change is for it, and its bookmarks.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use store::Revision;
use tokio::time::Instant;

use crate::{
    answer,
    cache::{Delivery, Event, EventKind, FrameKey, Watcher},
    filter::Filter,
};

pub(crate) const BOOKMARK_EVERY: Duration = Duration::from_secs(60);

/// One watch on its way to a client.
pub(crate) struct Stream {
    pub(crate) hub: Arc<crate::hub::Hub>,
    pub(crate) resource: crate::definition::Resource,
    pub(crate) version: usize,
    pub(crate) watcher: Watcher,
    pub(crate) filter: Filter,
    pub(crate) prefix: String,
    /// Changes up to here are not for this watcher.
    pub(crate) floor: Revision,
    pub(crate) accepted: answer::Accepted,
    pub(crate) bookmarks: bool,
    pub(crate) ends: Instant,
    pub(crate) next_bookmark: Instant,
    /// The bookmark that ends the initial events is still to be sent, with this revision.
    pub(crate) initial_end: Option<Revision>,
    pub(crate) sent_columns: bool,
}

impl Stream {
    /// The next frame; `None` ends the watch.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(event) = self.watcher.backlog.pop_front() {
                if let Some(kind) = self.kind_for(&event) {
                    return Some(self.encode(kind, &Delivery::new(event)));
                }
                continue;
            }
            if let Some(revision) = self.initial_end.take() {
                return Some(answer::bookmark(self.served(), self.accepted, revision, true));
            }
            tokio::select! {
                biased;
                delivery = self.watcher.queue.recv() => {
                    let delivery = delivery?;
                    if let Some(kind) = self.kind_for(&delivery.event) {
                        return Some(self.encode(kind, &delivery));
                    }
                }
                () = tokio::time::sleep_until(self.ends) => return None,
                () = tokio::time::sleep_until(self.next_bookmark), if self.bookmarks => {
                    self.next_bookmark += BOOKMARK_EVERY;
                    // What the caches have applied was queued before: an empty queue means all of it was sent.
                    let revision = self.hub.applied().max(self.floor);
                    if self.watcher.queue.is_empty() {
                        return Some(answer::bookmark(self.served(), self.accepted, revision, false));
                    }
                }
            }
        }
    }

    fn served(&self) -> &crate::definition::Served {
        &self.resource.definition.served[self.version]
    }

    /// What the change is for this watcher: an object may enter or leave what its selectors match.
    fn kind_for(&self, event: &Event) -> Option<EventKind> {
        let object = &event.object;
        if !object.key.starts_with(&self.prefix)
            || (self.floor > 0 && object.revision <= self.floor)
        {
            return None;
        }
        if self.filter.is_everything() {
            return Some(event.kind);
        }
        let now = event.kind != EventKind::Deleted && self.filter.matches(object);
        let before = event.previous.as_ref().is_some_and(|p| self.filter.matches(p));
        match (before, now) {
            (false, true) => Some(EventKind::Added),
            (true, true) => Some(EventKind::Modified),
            (true, false) => Some(EventKind::Deleted),
            (false, false) => None,
        }
    }

    fn encode(&mut self, kind: EventKind, delivery: &Delivery) -> Bytes {
        let first = !std::mem::replace(&mut self.sent_columns, true);
        let (definition, served) = (&self.resource.definition, self.served());
        match self.accepted.shape {
            // Whole objects are what nearly every watcher asks for; these frames are shared.
            answer::Shape::Whole => {
                let key = FrameKey {
                    kind,
                    version: served.api_version.clone(),
                    encoding: self.accepted.encoding as u8,
                };
                delivery.frame(key, || {
                    answer::frame(definition, served, self.accepted, kind, &delivery.event, first)
                })
            }
            _ => answer::frame(definition, served, self.accepted, kind, &delivery.event, first),
        }
    }
}
