//! Turns the events of a watch into frames for a client, with bookmarks.

use std::{sync::Arc, time::Duration};

use api_meta::Status;
use bytes::Bytes;
use rt::ComputePool;
use store::Revision;
use telemetry::metrics::Histogram;
use tokio::time::Instant;

use crate::{
    registry::ServedVersion,
    request::{ResponseFormat, Shape},
    response,
    watch_cache::{Delivery, Event, EventKind, Filter, FrameKey, Resource, Watcher},
};

/// The size of an object, in bytes, from which other encodings than the stored one are made on the compute pool.
const LONG: usize = 16 << 10;

pub(crate) const BOOKMARK_EVERY: Duration = Duration::from_secs(60);

/// The response stream of one watch.
pub(crate) struct Stream {
    pub(crate) resource: Resource,
    pub(crate) pool: Arc<ComputePool>,
    pub(crate) version: usize,
    pub(crate) watcher: Watcher,
    /// The seat in flow control, held until the initial events are sent.
    pub(crate) seat: Option<flow::Permit>,
    pub(crate) filter: Arc<Filter>,
    pub(crate) prefix: String,
    /// Events up to this revision are skipped.
    pub(crate) floor: Revision,
    pub(crate) accepted: ResponseFormat,
    pub(crate) bookmarks: bool,
    pub(crate) ends: Instant,
    pub(crate) next_bookmark: Instant,
    /// The revision of the bookmark that ends the initial events, while it is still to be sent.
    pub(crate) initial_end: Option<Revision>,
    /// The time of the request, and the durations of streaming lists.
    pub(crate) started: Instant,
    pub(crate) list_seconds: Option<Histogram>,
    pub(crate) sent_columns: bool,
    /// `true` after an error was sent to the client, which ends the watch.
    pub(crate) failed: bool,
}

impl Stream {
    /// Returns the next frame; `None` ends the watch.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        while !self.failed {
            // Yield regularly, because the filter may skip many events in a row.
            tokio::task::coop::consume_budget().await;
            if let Some(event) = self.watcher.backlog.pop_front() {
                match self.frame(Arc::new(Delivery::new(event))).await {
                    Some(frame) => return Some(frame),
                    None => continue,
                }
            }
            if let Some(revision) = self.initial_end.take() {
                if let Some(seconds) = self.list_seconds.take() {
                    seconds.observe(self.started.elapsed().as_secs_f64());
                }
                return Some(response::bookmark(self.served(), self.accepted, revision, true));
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
                    // Everything up to the applied revision was queued before: if the queue is empty, all of it was
                    // sent.
                    let revision = self.resource.feed.applied().max(self.floor);
                    if self.watcher.queue.is_empty() {
                        return Some(response::bookmark(self.served(), self.accepted, revision, false));
                    }
                }
            }
        }
        None
    }

    /// Returns the frame of an event, or `None` if the watch does not match it.
    async fn frame(&mut self, delivery: Arc<Delivery>) -> Option<Bytes> {
        if self.resource.definition.converter.is_none() {
            let kind = self.kind_for(&delivery.event)?;
            return self.encode(kind, &delivery, delivery.event.clone()).await;
        }
        if !self.is_in_scope(&delivery.event) {
            return None;
        }
        match self.shown(&delivery.event).await {
            Ok(event) => {
                let kind = self.kind_for(&event)?;
                self.encode(kind, &delivery, Arc::new(event)).await
            }
            // The conversion failed. End the watch, because the client must not miss the event.
            Err(status) => {
                self.failed = true;
                Some(response::error_frame(self.accepted, &status))
            }
        }
    }

    /// Converts an event to the watched version.
    async fn shown(&self, event: &Event) -> Result<Event, Box<Status>> {
        let definition = &self.resource.definition;
        let object = definition.shown_in_turn(self.version, event.object.clone()).await?;
        let previous = match &event.previous {
            // Only selectors use the previous object.
            Some(previous) if !self.filter.is_everything() => {
                Some(definition.shown_in_turn(self.version, previous.clone()).await?)
            }
            other => other.clone(),
        };
        Ok(Event { kind: event.kind, object, previous })
    }

    fn served(&self) -> &ServedVersion {
        &self.resource.definition.served[self.version]
    }

    /// Returns `true` if the event is in the watched namespace and newer than the watch's start.
    fn is_in_scope(&self, event: &Event) -> bool {
        let object = &event.object;
        object.key.starts_with(&self.prefix) && !(self.floor > 0 && object.revision <= self.floor)
    }

    /// Returns the type of the event for this watch, or `None` if it does not match.
    fn kind_for(&self, event: &Event) -> Option<EventKind> {
        self.is_in_scope(event).then(|| self.filter.kind_of(event)).flatten()
    }

    /// Encodes an event. Returns `None` if the process stops.
    async fn encode(
        &mut self,
        kind: EventKind,
        delivery: &Delivery,
        event: Arc<Event>,
    ) -> Option<Bytes> {
        let left = (kind == EventKind::Deleted).then(|| event.left()).flatten();
        let event = left.map_or(event, Arc::new);
        let first = !std::mem::replace(&mut self.sent_columns, true);
        let first = first && matches!(self.accepted.shape, Shape::Table(_));
        let accepted = ResponseFormat { pretty: false, ..self.accepted };
        let version = self.served().api_version.clone();
        let key = FrameKey { kind, version, accepted, first };
        let on_pool = is_long(accepted, event.object.bytes.len());
        let (resource, version) = (self.resource.clone(), self.version);
        let made = async move {
            let definition = &resource.definition;
            response::frame(definition, &definition.served[version], accepted, kind, &event, first)
        };
        let pool = self.pool.clone();
        let made = async move { if on_pool { pool.run(made).await } else { Ok(made.await) } };
        let made = delivery.frame(key, made).await;
        self.failed = made.is_err();
        made.ok()
    }
}

/// Reports whether encoding an object of this size takes long, so that other requests would wait for it.
fn is_long(accepted: ResponseFormat, bytes: usize) -> bool {
    !accepted.is_stored_form() && bytes >= LONG
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Include;

    #[test]
    fn encodes_large_tables_on_the_pool() {
        let table =
            ResponseFormat { shape: Shape::Table(Include::Metadata), ..ResponseFormat::JSON };
        assert!(is_long(table, LONG) && !is_long(table, LONG - 1));
        assert!(!is_long(ResponseFormat::JSON, 10 * LONG));
    }
}
