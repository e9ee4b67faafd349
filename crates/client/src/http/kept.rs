//! Connections in HTTP/1.1 that are used again: each carries one request at a time, and waits for the next when the answer
//! was read to its end.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::Instant;

use http::{Request, Response};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio_util::task::AbortOnDropHandle;

use super::Stream;
use crate::{request::Body, tls::Configs};

/// How many connections wait at once, and how long: servers close what is idle for longer.
const MOST: usize = 25;
const LONGEST: Duration = Duration::from_secs(30);

/// The connections that wait, the newest last.
#[derive(Clone, Default)]
pub(super) struct Kept {
    waiting: Arc<Mutex<Vec<Lane>>>,
    /// Whether there was ever a connection.
    used: Arc<AtomicBool>,
}

/// One connection, and the task that drives it, which ends with it.
pub(super) struct Lane {
    sender: http1::SendRequest<Body>,
    _driver: AbortOnDropHandle<()>,
    /// What it was opened with.
    tls: Arc<Configs>,
    /// When it began to wait; a new one has not.
    since: Option<Instant>,
}

impl Kept {
    /// The connection that was used last, if it is still there.
    pub(super) async fn take(&self, tls: &Arc<Configs>) -> Option<Lane> {
        loop {
            let mut lane = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
            let young = lane.since.is_some_and(|since| since.elapsed() < LONGEST);
            if young && Arc::ptr_eq(&lane.tls, tls) && lane.sender.ready().await.is_ok() {
                return Some(lane);
            }
        }
    }

    /// Whether the server is known to speak HTTP/1.1.
    pub(super) fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }

    fn put(&self, mut lane: Lane) {
        lane.since = Some(Instant::now());
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|lane| lane.since.is_some_and(|since| since.elapsed() < LONGEST));
        if waiting.len() < MOST {
            waiting.push(lane);
        }
    }
}

impl Lane {
    pub(super) async fn open(
        stream: Box<dyn Stream>,
        tls: Arc<Configs>,
    ) -> Result<Self, hyper::Error> {
        let (sender, driver) = http1::handshake(TokioIo::new(stream)).await?;
        Ok(Self { sender, _driver: super::driven(driver), tls, since: None })
    }

    /// Sends a request; the connection waits again when the answer has been read. A request that was not sent at all
    /// comes back where the connection had waited: the server may have closed it in the meantime.
    pub(super) async fn send(
        mut self,
        request: Request<Body>,
        kept: &Kept,
    ) -> Result<Response<Body>, (hyper::Error, Option<Request<Body>>)> {
        kept.used.store(true, Ordering::Relaxed);
        match self.sender.try_send_request(request).await {
            Ok(response) => Ok(response
                .map(|body| Answer { body, lane: Some(self), kept: kept.clone() }.boxed_unsync())),
            Err(mut error) => {
                let unsent = error.take_message().filter(|_| self.since.is_some());
                Err((error.into_error(), unsent))
            }
        }
    }
}

/// The body of an answer, which gives its connection back when it ends.
struct Answer {
    body: Incoming,
    lane: Option<Lane>,
    kept: Kept,
}

impl Answer {
    fn end(&mut self) {
        if let Some(lane) = self.lane.take() {
            self.kept.put(lane);
        }
    }
}

impl http_body::Body for Answer {
    type Data = bytes::Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(None) = polled {
            self.end();
        }
        polled.map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if self.body.is_end_stream() {
            self.end();
        }
    }
}
