//! One watch on its way to a client: what each change is for it, and its bookmarks.

use std::{sync::Arc, time::Duration};

use api_meta::Status;
use bytes::Bytes;
use store::Revision;
use tokio::time::Instant;

use crate::{
    answer,
    registry::Served,
    request::{Accepted, Shape},
    watch_cache::{Delivery, Event, EventKind, Filter, FrameKey, Resource, WatchCache, Watcher},
};

pub(crate) const BOOKMARK_EVERY: Duration = Duration::from_secs(60);

/// One watch on its way to a client.
pub(crate) struct Stream {
    pub(crate) cache: Arc<WatchCache>,
    pub(crate) resource: Resource,
    pub(crate) version: usize,
    pub(crate) watcher: Watcher,
    /// Held until the client has what the watch begins with.
    pub(crate) seat: Option<flow::Permit>,
    pub(crate) filter: Arc<Filter>,
    pub(crate) prefix: String,
    /// Changes up to here are not for this watcher.
    pub(crate) floor: Revision,
    pub(crate) accepted: Accepted,
    pub(crate) bookmarks: bool,
    pub(crate) ends: Instant,
    pub(crate) next_bookmark: Instant,
    /// The bookmark that ends the initial events is still to be sent, with this revision.
    pub(crate) initial_end: Option<Revision>,
    pub(crate) sent_columns: bool,
    /// The client was told that the watch cannot go on.
    pub(crate) failed: bool,
}

impl Stream {
    /// The next frame; `None` ends the watch.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        while !self.failed {
            // Of many changes the watch may want none: other tasks get their turn all the same.
            tokio::task::coop::consume_budget().await;
            if let Some(event) = self.watcher.backlog.pop_front() {
                match self.frame(Arc::new(Delivery::new(event))).await {
                    Some(frame) => return Some(frame),
                    None => continue,
                }
            }
            if let Some(revision) = self.initial_end.take() {
                return Some(answer::bookmark(self.served(), self.accepted, revision, true));
            }
            self.seat = None;
            tokio::select! {
                biased;
                delivery = self.watcher.queue.recv() => {
                    if let Some(frame) = self.frame(delivery?).await {
                        return Some(frame);
                    }
                }
                () = tokio::time::sleep_until(self.ends) => return None,
                () = tokio::time::sleep_until(self.next_bookmark), if self.bookmarks => {
                    self.next_bookmark += BOOKMARK_EVERY;
                    // What the caches have applied was queued before: an empty queue means all of it was sent.
                    let revision = self.cache.applied().max(self.floor);
                    if self.watcher.queue.is_empty() {
                        return Some(answer::bookmark(self.served(), self.accepted, revision, false));
                    }
                }
            }
        }
        None
    }

    /// What this watcher is to see of a change, if anything.
    async fn frame(&mut self, delivery: Arc<Delivery>) -> Option<Bytes> {
        if self.resource.definition.converter.is_none() {
            let kind = self.kind_for(&delivery.event)?;
            return Some(self.encode(kind, &delivery, &delivery.event));
        }
        if !self.is_here(&delivery.event) {
            return None;
        }
        match self.shown(&delivery.event).await {
            Ok(event) => {
                let kind = self.kind_for(&event)?;
                Some(self.encode(kind, &delivery, &event))
            }
            // The watcher cannot be told of this change, and must not believe that there was none.
            Err(status) => {
                self.failed = true;
                Some(answer::error_frame(self.accepted, &status))
            }
        }
    }

    /// The change as the watched version shows it.
    async fn shown(&self, event: &Event) -> Result<Event, Box<Status>> {
        let definition = &self.resource.definition;
        let object = definition.shown_in_turn(self.version, event.object.clone()).await?;
        let previous = match &event.previous {
            // Only selectors look at what was before.
            Some(previous) if !self.filter.is_everything() => {
                Some(definition.shown_in_turn(self.version, previous.clone()).await?)
            }
            other => other.clone(),
        };
        Ok(Event { kind: event.kind, object, previous })
    }

    fn served(&self) -> &Served {
        &self.resource.definition.served[self.version]
    }

    /// Whether the change is in the watched namespace, and newer than what the watcher knows.
    fn is_here(&self, event: &Event) -> bool {
        let object = &event.object;
        object.key.starts_with(&self.prefix) && !(self.floor > 0 && object.revision <= self.floor)
    }

    /// What the change is for this watcher, if anything.
    fn kind_for(&self, event: &Event) -> Option<EventKind> {
        self.is_here(event).then(|| self.filter.kind_of(event)).flatten()
    }

    fn encode(&mut self, kind: EventKind, delivery: &Delivery, event: &Event) -> Bytes {
        let left = (kind == EventKind::Deleted).then(|| event.left()).flatten();
        let event = left.as_ref().unwrap_or(event);
        let first = !std::mem::replace(&mut self.sent_columns, true);
        let (definition, served) = (&self.resource.definition, self.served());
        match self.accepted.shape {
            // Whole objects are what nearly every watcher asks for; these frames are shared.
            Shape::Whole => {
                let key = FrameKey {
                    kind,
                    version: served.api_version.clone(),
                    encoding: self.accepted.encoding as u8,
                };
                delivery.frame(key, || {
                    answer::frame(definition, served, self.accepted, kind, event, first)
                })
            }
            _ => answer::frame(definition, served, self.accepted, kind, event, first),
        }
    }
}
