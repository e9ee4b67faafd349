//! Watches: one gRPC stream per watch, read at its consumer's pace, so that no watch blocks another.

use std::time::Duration;

use futures_util::{future::BoxFuture, stream};
use parking_lot::Mutex;
use store::{Change, KeyRange, Result, Revision, WatchMessage, WatchStream};
use tokio::sync::mpsc;
use tonic::{Request, Status, Streaming, metadata::MetadataValue};

use crate::{
    channel::{Channels, Connection},
    convert,
    proto::{
        WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse,
        watch_client::WatchClient, watch_request::RequestUnion,
    },
    status,
};

/// The time limit for a member to accept a watch.
const ACCEPT: Duration = Duration::from_secs(5);
/// The queue's capacity: the request that creates a watch, and one for progress. A second progress request adds
/// nothing.
const OUTBOX: usize = 2;

/// The open watches, for progress requests.
pub(crate) struct Watches {
    outboxes: Mutex<Vec<mpsc::WeakSender<WatchRequest>>>,
    /// `true` if progress may be requested from this etcd.
    ordered: bool,
}

struct Watch {
    inbound: Streaming<WatchResponse>,
    /// The request queue. etcd ends the watch when it is dropped.
    outbox: mpsc::Sender<WatchRequest>,
}

impl Watches {
    pub(crate) fn new(ordered: bool) -> Self {
        Self { outboxes: Mutex::default(), ordered }
    }

    /// Opens a watch of the changes after `after`.
    pub(crate) async fn open(
        &self,
        channels: &Channels,
        range: &KeyRange,
        after: Revision,
    ) -> Result<Box<dyn WatchStream>> {
        let (key, range_end) = convert::bounds(range);
        let create = WatchCreateRequest {
            key,
            range_end,
            start_revision: after as i64 + 1,
            // Without ordered progress, etcd could also send unrequested progress too early.
            progress_notify: self.ordered,
            ..Default::default()
        };
        let watch = create_watch(channels, create).await?;
        let mut outboxes = self.outboxes.lock();
        outboxes.retain(|outbox| outbox.strong_count() > 0);
        outboxes.push(watch.outbox.downgrade());
        Ok(Box::new(watch))
    }

    pub(crate) fn request_progress(&self) {
        if !self.ordered {
            return;
        }
        let outboxes = self.outboxes.lock();
        for outbox in outboxes.iter().filter_map(mpsc::WeakSender::upgrade) {
            let request = RequestUnion::ProgressRequest(WatchProgressRequest {});
            // A full queue already contains such a request.
            let _ = outbox.try_send(WatchRequest { request_union: Some(request) });
        }
    }
}

/// Returns the oldest readable revision, which etcd reports to a watch of an older one.
pub(crate) async fn oldest_revision(channels: &Channels) -> Result<Revision> {
    let create = WatchCreateRequest { key: b"/".to_vec(), start_revision: 1, ..Default::default() };
    let mut watch = create_watch(channels, create).await?;
    let oldest = tokio::time::timeout(ACCEPT, async {
        while let Ok(Some(response)) = watch.inbound.message().await {
            if response.compact_revision > 0 {
                return u64::try_from(response.compact_revision).unwrap_or(0);
            }
        }
        0
    });
    Ok(oldest.await.unwrap_or(0))
}

async fn create_watch(channels: &Channels, create: WatchCreateRequest) -> Result<Watch> {
    let (member, channel) = channels.current();
    let opened = tokio::time::timeout(ACCEPT, open_stream(channel, create)).await;
    let late =
        || Status::deadline_exceeded(format!("the watch was not accepted within {ACCEPT:?}"));
    opened.unwrap_or_else(|_| Err(late())).map_err(|status| {
        channels.leave(member);
        status::error("watch", &channels.failed(member, status))
    })
}

/// Opens a stream and waits until etcd has created the watch.
async fn open_stream(channel: Connection, create: WatchCreateRequest) -> Result<Watch, Status> {
    let (outbox, mut requests) = mpsc::channel(OUTBOX);
    let first = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    outbox.try_send(first).map_err(|_| Status::internal("a new queue is full"))?;
    let mut request = Request::new(stream::poll_fn(move |context| requests.poll_recv(context)));
    // With this header, a member cut off from the others ends the watch instead of staying silent.
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    let mut client = WatchClient::new(channel).max_decoding_message_size(usize::MAX);
    let mut inbound = client.watch(request).await?.into_inner();
    match inbound.message().await? {
        Some(response) if response.created && !response.canceled => Ok(Watch { inbound, outbox }),
        Some(response) => Err(Status::unavailable(response.cancel_reason)),
        None => Err(Status::unavailable("the stream ended")),
    }
}

impl WatchStream for Watch {
    fn next(&mut self) -> BoxFuture<'_, Option<WatchMessage>> {
        Box::pin(async move {
            let response = match self.inbound.message().await {
                Ok(Some(response)) if !response.canceled => response,
                Ok(Some(response)) => {
                    tracing::debug!(
                        reason = %response.cancel_reason, compacted = response.compact_revision,
                        "etcd ended a watch"
                    );
                    return None;
                }
                Ok(None) => return None,
                Err(status) => {
                    tracing::debug!(%status, "a watch of etcd was interrupted");
                    return None;
                }
            };
            if response.events.is_empty() {
                return Some(WatchMessage::Progress(convert::revision(response.header.as_ref())));
            }
            let changes: Result<Vec<Change>> =
                response.events.into_iter().map(convert::change).collect();
            match changes {
                Ok(changes) => Some(WatchMessage::Changes(changes)),
                Err(error) => {
                    tracing::error!(%error, "ended a watch");
                    None
                }
            }
        })
    }
}
