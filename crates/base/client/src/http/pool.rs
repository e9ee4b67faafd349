//! A pool of idle HTTP/1.1 connections. Each carries one request at a time and returns to the pool when the response
//! has been read completely.

use std::{
    pin::Pin,
    sync::{
        Arc,
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
use parking_lot::Mutex;
use tokio_util::task::AbortOnDropHandle;

use super::connection::{Stream, spawn_driver};
use crate::{request::Body, tls::Configs};

/// The limits of idle connections: their number, and their age, because servers close connections that are idle for
/// longer.
const MAX_IDLE: usize = 25;
const MAX_IDLE_TIME: Duration = Duration::from_secs(30);

/// The idle connections, the newest last.
#[derive(Clone, Default)]
pub(super) struct IdleConnections {
    waiting: Arc<Mutex<Vec<Http1Connection>>>,
    /// `true` once a connection has been used.
    used: Arc<AtomicBool>,
}

/// A connection and the task that drives it. The task ends with the connection.
pub(super) struct Http1Connection {
    sender: http1::SendRequest<Body>,
    _driver: AbortOnDropHandle<()>,
    /// The TLS settings that the connection was opened with.
    tls: Arc<Configs>,
    /// The time when the connection became idle; `None` for a new one.
    since: Option<Instant>,
}

impl IdleConnections {
    /// Returns the most recently used connection that is still open and has the same TLS settings.
    pub(super) async fn take(&self, tls: &Arc<Configs>) -> Option<Http1Connection> {
        loop {
            let mut connection = self.waiting.lock().pop()?;
            let young = connection.since.is_some_and(|since| since.elapsed() < MAX_IDLE_TIME);
            if young && Arc::ptr_eq(&connection.tls, tls) && connection.sender.ready().await.is_ok()
            {
                return Some(connection);
            }
        }
    }

    /// Returns `true` if the server is known to use HTTP/1.1.
    pub(super) fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }

    fn put(&self, mut connection: Http1Connection) {
        connection.since = Some(Instant::now());
        let mut waiting = self.waiting.lock();
        waiting.retain(|connection| {
            connection.since.is_some_and(|since| since.elapsed() < MAX_IDLE_TIME)
        });
        if waiting.len() < MAX_IDLE {
            waiting.push(connection);
        }
    }
}

impl Http1Connection {
    pub(super) async fn open(
        stream: Box<dyn Stream>,
        tls: Arc<Configs>,
    ) -> Result<Self, hyper::Error> {
        let (sender, driver) = http1::handshake(TokioIo::new(stream)).await?;
        Ok(Self { sender, _driver: spawn_driver(driver), tls, since: None })
    }

    /// Sends a request; the connection becomes idle when the response has been read. If a reused connection did not
    /// send the request, the request is returned with the error: the server may have closed the idle connection.
    pub(super) async fn send(
        mut self,
        request: Request<Body>,
        idle: &IdleConnections,
    ) -> Result<Response<Body>, (hyper::Error, Option<Request<Body>>)> {
        idle.used.store(true, Ordering::Relaxed);
        match self.sender.try_send_request(request).await {
            Ok(response) => Ok(response.map(|body| {
                ResponseBody { body, connection: Some(self), idle: idle.clone() }.boxed_unsync()
            })),
            Err(mut error) => {
                let unsent = error.take_message().filter(|_| self.since.is_some());
                Err((error.into_error(), unsent))
            }
        }
    }
}

/// The body of a response. Its connection becomes idle when the body ends.
struct ResponseBody {
    body: Incoming,
    connection: Option<Http1Connection>,
    idle: IdleConnections,
}

impl ResponseBody {
    fn end(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.idle.put(connection);
        }
    }
}

impl http_body::Body for ResponseBody {
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

impl Drop for ResponseBody {
    fn drop(&mut self) {
        if self.body.is_end_stream() {
            self.end();
        }
    }
}
