//! HTTP/1.1 and HTTP/2 over TLS for every component that listens, with upgrades, and DNS over TCP. Start with [`serve`]
//! and [`Handler`]. Not responsible for routing and authentication.
//!
//! Invariants:
//! - The number of connections is limited, in total and by source. Idle connections are closed after a while, or
//!   earlier if their slots are needed.
//! - Every connection is a task that its owner can drain.
//! - An invalid client certificate does not fail the handshake, because Kubernetes responds with 401. The handler
//!   receives the unverified certificates ([`Connection`]) and authentication verifies them.

mod client_certificate;
mod contained;
pub mod dns;
mod held;
mod policy;
mod slots;
mod tls;
pub mod websocket;

use std::{
    any::Any,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use nix::sys::socket::{setsockopt, sockopt};
use rustls_pki_types::CertificateDer;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;

use crate::{
    held::SlotStream,
    slots::{Admission, Slot, Slots},
};
pub use contained::contained;
pub use policy::{PolicyError, TlsPolicy};
pub use slots::{ConnectionActivity, Standing};
pub use tls::{ServerTls, TlsError};

/// The error of a body or a stream.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a request or response. It is the API client's type, so that in-process requests need no conversion.
pub type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, BoxError>;

/// Returns a body that is complete in memory.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// Returns a response with a complete body.
pub fn answer(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(full(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// The connection of a request, available in the request's extensions as `Arc<Connection>`.
#[derive(Debug, Default)]
pub struct Connection {
    /// The address of the peer; `None` for in-memory streams.
    pub peer: Option<SocketAddr>,
    /// The certificate chain that the client presented. Only the possession of the leaf's key was verified.
    pub client_certificates: Vec<CertificateDer<'static>>,
    /// The result of verifying the certificates, cached for the whole connection by authentication.
    pub judged: OnceLock<Arc<dyn Any + Send + Sync>>,
    /// The activity of the connection. The server maintains it.
    pub life: Arc<ConnectionActivity>,
}

impl Connection {
    /// Records the standing of the peer, which decides what is closed first if there are too many connections.
    pub fn stand(&self, standing: Standing) {
        self.life.stand(standing);
    }
}

/// Handles requests. It cannot fail: errors are responses.
pub trait Handler: Send + Sync + 'static {
    /// Returns the response to a request.
    fn handle(&self, request: Request<Body>) -> BoxFuture<'_, Response<Body>>;

    /// Returns the response for a request whose handler panicked.
    fn panicked(&self) -> Response<Body> {
        let text = "Internal Server Error\n";
        answer(StatusCode::INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", text)
    }
}

/// The limits of a listener.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The number of connections, limited further by the file descriptors of the process.
    pub connections: usize,
    /// The number of unauthenticated connections of one address (for IPv6: of one /64).
    pub connections_of_a_source: usize,
    /// The number of concurrent requests on a connection of HTTP/2.
    pub streams_per_connection: u32,
    /// The timeout of the TLS handshake.
    pub handshake: Duration,
    /// The time until the first request must arrive.
    pub request_head: Duration,
    /// The time that a connection may be idle between requests.
    pub idle: Duration,
    /// The number of bytes of responses that a connection may buffer. `None` uses the default, which suits large lists.
    pub send_buffer: Option<usize>,
    /// `true` if a connection of HTTP/1.1 may serve several requests.
    pub keep_alive: bool,
}

/// The minimum size of a buffer that can hold a request's head.
const SMALLEST_BUFFER: usize = 8 << 10;

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            connections_of_a_source: 1_000,
            streams_per_connection: 250,
            handshake: Duration::from_secs(10),
            request_head: Duration::from_secs(32),
            idle: Duration::from_secs(90),
            send_buffer: None,
            keep_alive: true,
        }
    }
}

/// The time that a closing connection has to complete its requests.
const LAST_WORDS: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
enum CloseReason {
    #[error("the connection was idle for too long")]
    Idle,
    #[error("the connection was closed for a new one: there are too many")]
    Replaced,
}

/// Serves until shutdown, which closes open connections gracefully.
pub async fn serve(
    listener: TcpListener,
    tls: Option<ServerTls>,
    limits: Limits,
    handler: Arc<dyn Handler>,
    tasks: rt::Tasks,
) {
    let slots = Slots::new(limits.connections, limits.connections_of_a_source);
    let limits = Arc::new(limits);
    let shutdown = tasks.shutdown().clone();
    take(listener, slots, tasks, move |stream, peer, slot| {
        let (tls, handler, limits) = (tls.clone(), handler.clone(), limits.clone());
        let (life, shutdown) = (slot.life.clone(), shutdown.clone());
        async move {
            tokio::select! {
                done = greet(stream, peer, slot, tls, handler, limits, shutdown) => done,
                () = life.closed() => Err(CloseReason::Replaced.into()),
            }
        }
    })
    .await;
}

/// Accepts up to `connections` connections until shutdown, each in its own task. `work` must handle shutdown and silent
/// peers itself.
pub async fn accept<F>(
    listener: TcpListener,
    connections: usize,
    tasks: rt::Tasks,
    work: impl Fn(TcpStream, SocketAddr) -> F,
) where
    F: Future<Output = Result<(), BoxError>> + Send + 'static,
{
    take(listener, Slots::new(connections, connections), tasks, |stream, peer, slot| {
        slot.life.pin();
        let work = work(stream, peer);
        async move {
            let _slot = slot;
            work.await
        }
    })
    .await;
}

async fn take<F>(
    listener: TcpListener,
    slots: Arc<Slots>,
    tasks: rt::Tasks,
    work: impl Fn(TcpStream, SocketAddr, Slot) -> F,
) where
    F: Future<Output = Result<(), BoxError>> + Send + 'static,
{
    loop {
        let accepted = match tasks.shutdown().unless_stopping(listener.accept()).await {
            None => return,
            Some(accepted) => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Mostly a lack of file descriptors: close a connection and wait instead of spinning.
                tracing::warn!(%error, "failed to accept a connection; retrying");
                slots.close_one();
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let Some(admitted) = tasks.shutdown().unless_stopping(admit(&slots, peer)).await else {
            return;
        };
        let Some(slot) = admitted else { continue };
        if let Err(error) = keep_alive(&stream) {
            tracing::debug!(%peer, %error, "failed to enable TCP keep-alive");
        }
        let work = work(stream, peer, slot);
        let work = async move {
            if let Err(error) = work.await {
                tracing::debug!(%peer, %error, "connection ended");
            }
        };
        // Boxed, because otherwise each layer of futures would reserve space for it.
        tasks.spawn("connection", Box::pin(work));
    }
}

/// Waits for a slot for a new connection. Returns `None` if its source has too many connections.
async fn admit(slots: &Arc<Slots>, peer: SocketAddr) -> Option<Slot> {
    loop {
        match slots.admit(peer) {
            Admission::Admitted(slot) => return Some(slot),
            Admission::Wait => slots.changed().await,
            Admission::Refused => {
                tracing::debug!(%peer, "rejected a connection: its source has too many");
                return None;
            }
        }
    }
}

/// Enables TCP keep-alive, which detects a vanished peer after two minutes.
fn keep_alive(stream: &TcpStream) -> nix::Result<()> {
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &60)?;
    setsockopt(stream, sockopt::TcpKeepInterval, &15)?;
    setsockopt(stream, sockopt::TcpKeepCount, &4)
}

async fn greet(
    stream: TcpStream,
    peer: SocketAddr,
    slot: Slot,
    tls: Option<ServerTls>,
    handler: Arc<dyn Handler>,
    limits: Arc<Limits>,
    shutdown: rt::Shutdown,
) -> Result<(), BoxError> {
    stream.set_nodelay(true)?;
    let life = slot.life.clone();
    let connection = Connection { peer: Some(peer), life, ..Connection::default() };
    let Some(tls) = tls else {
        let stream = SlotStream { stream, _slot: slot };
        return converse(stream, connection, handler, &limits, shutdown).await;
    };
    let handshake = TlsAcceptor::from(tls.current()).accept(stream);
    let stream = tokio::time::timeout(limits.handshake, handshake).await??;
    let client_certificates = stream
        .get_ref()
        .1
        .peer_certificates()
        .map(|chain| chain.iter().map(|c| c.clone().into_owned()).collect())
        .unwrap_or_default();
    let connection = Connection { client_certificates, ..connection };
    let stream = SlotStream { stream, _slot: slot };
    converse(stream, connection, handler, &limits, shutdown).await
}

/// A body that keeps a value until it has ended or is dropped.
pub struct BodyWithGuard<T> {
    body: Body,
    _held: T,
}

impl<T> BodyWithGuard<T> {
    /// Wraps a body with a value that is dropped after it.
    pub fn new(body: Body, held: T) -> Self {
        Self { body, _held: held }
    }
}

impl<T: Unpin> http_body::Body for BodyWithGuard<T> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

/// Serves HTTP on a stream until the peer disconnects, is idle for too long, or shutdown.
pub async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    connection: Connection,
    handler: Arc<dyn Handler>,
    limits: &Limits,
    shutdown: rt::Shutdown,
) -> Result<(), BoxError> {
    let connection = Arc::new(connection);
    let life = connection.life.clone();
    let service = service_fn(move |mut request: Request<hyper::body::Incoming>| {
        let (handler, busy) = (handler.clone(), connection.life.begin());
        request.extensions_mut().insert(connection.clone());
        let connection = connection.clone();
        async move {
            let request = request.map(|body| body.map_err(Into::into).boxed_unsync());
            let response = contained(&*handler, request).await;
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                connection.life.pin();
            }
            // The request is in progress until the peer has taken the response.
            let response = response.map(|body| BodyWithGuard::new(body, busy));
            Ok::<_, std::convert::Infallible>(response)
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        // An incomplete head counts as idle time, for both versions of HTTP.
        .header_read_timeout(None)
        // No `pipeline_flush`: with it, hyper would buffer a whole body for a slow peer.
        .keep_alive(limits.keep_alive);
    if let Some(size) = limits.send_buffer {
        builder.http1().max_buf_size(size.max(SMALLEST_BUFFER));
    }
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams_per_connection)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20)
        .max_header_list_size(1 << 20)
        .max_send_buf_size(limits.send_buffer.unwrap_or(1 << 20))
        .keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(30));
    let serving = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    tokio::pin!(serving);
    let idle = tokio::select! {
        result = serving.as_mut() => return result,
        () = shutdown.stopping() => false,
        () = life.idle_too_long(limits) => true,
    };
    serving.as_mut().graceful_shutdown();
    if !idle {
        return serving.await;
    }
    // A request may have arrived just now. Do not wait for a connection without requests.
    loop {
        match tokio::time::timeout(LAST_WORDS, serving.as_mut()).await {
            Ok(result) => return result,
            Err(_) if life.is_busy() => {}
            Err(_) => return Err(CloseReason::Idle.into()),
        }
    }
}

#[cfg(test)]
mod cves_tests;
#[cfg(test)]
mod tests;
