//! HTTP/1.1 and HTTP/2 over TLS for every component that listens, with upgrades; and DNS over TCP.
//!
//! The number of connections is bounded, in all and by source, and every connection is an owned task; one on which
//! nobody asks anything is closed after a while, or sooner when others want its place. A bad client certificate does
//! not fail the handshake: Kubernetes answers it with 401, so that the certificates are handed to the handler
//! unverified (see [`Connection`]) and authentication decides.

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
    held::Held,
    slots::{Admission, Slot, Slots},
};
pub use contained::contained;
pub use policy::{PolicyError, TlsPolicy};
pub use slots::{Life, Standing};
pub use tls::{ServerTls, TlsError};

/// Whatever a body or a stream failed of.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A request's or answer's body; the same type as the API client's, so that in process nothing is converted.
pub type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, BoxError>;

/// A body that is there as a whole.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// An answer that is there as a whole.
pub fn answer(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(full(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// What is known of the connection that a request came on; found in the request's extensions as
/// `Arc<Connection>`.
#[derive(Debug, Default)]
pub struct Connection {
    pub peer: Option<SocketAddr>,
    /// The chain that the client presented. It proved that it holds the leaf's key, and nothing else has
    /// been checked.
    pub client_certificates: Vec<CertificateDer<'static>>,
    /// What authentication made of the certificates: they are judged once for the whole connection.
    pub judged: OnceLock<Arc<dyn Any + Send + Sync>>,
    /// Whether requests are under way, which nobody needs to set.
    pub life: Arc<Life>,
}

impl Connection {
    /// Says who is at the other end, which decides who gives way when there are too many connections.
    pub fn stand(&self, standing: Standing) {
        self.life.stand(standing);
    }
}

/// Answers requests. It must not fail: whatever goes wrong is an answer.
pub trait Handler: Send + Sync + 'static {
    fn handle(&self, request: Request<Body>) -> BoxFuture<'_, Response<Body>>;

    /// What a client is told whose request has panicked.
    fn panicked(&self) -> Response<Body> {
        let text = "Internal Server Error\n";
        answer(StatusCode::INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", text)
    }
}

/// What one listener lets strangers take.
#[derive(Clone, Debug)]
pub struct Limits {
    /// All of a listener's, though no more than the process has file descriptors for.
    pub connections: usize,
    /// Those of one address (for IPv6: of one /64) that are not authenticated.
    pub connections_of_a_source: usize,
    /// Requests at a time on a connection of HTTP/2.
    pub streams_per_connection: u32,
    /// How long TLS may take to be agreed on.
    pub handshake: Duration,
    /// How long the first request may take to come.
    pub request_head: Duration,
    /// How long a connection may be without a request between two of them.
    pub idle: Duration,
    /// Bytes of answers that a connection may hold until the peer takes them. `None`: what lists of objects need.
    pub send_buffer: Option<usize>,
    /// Whether another request may follow on a connection of HTTP/1.1.
    pub keep_alive: bool,
}

/// Below this HTTP/1.1 could not take a request's head.
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

/// How long a connection that is told to end may take for what is under way on it.
const LAST_WORDS: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("the connection was idle for too long")]
    Idle,
    #[error("the connection had to give way to another: there are too many")]
    GaveWay,
}

/// Serves until shutdown, which ends open connections gracefully.
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
                () = life.closed() => Err(Ended::GaveWay.into()),
            }
        }
    })
    .await;
}

/// Takes connections until shutdown, so many at a time, and gives each a task that sees to its own shutdown and to
/// its peer's silence.
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
                // Out of file descriptors, mostly: wait for some to be closed instead of spinning.
                tracing::warn!(%error, "accepting a connection");
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
            tracing::debug!(%peer, %error, "having the kernel ask whether the peer is there");
        }
        let work = work(stream, peer, slot);
        let work = async move {
            if let Err(error) = work.await {
                tracing::debug!(%peer, %error, "connection ended");
            }
        };
        // On the heap, as each layer of futures around it would have room for it once more.
        tasks.spawn("connection", Box::pin(work));
    }
}

/// A place for a new connection, as soon as there is one; none if its source has too many.
async fn admit(slots: &Arc<Slots>, peer: SocketAddr) -> Option<Slot> {
    loop {
        match slots.admit(peer) {
            Admission::Taken(slot) => return Some(slot),
            Admission::Wait => slots.changed().await,
            Admission::Refused => {
                tracing::debug!(%peer, "refusing a connection: its source has too many");
                return None;
            }
        }
    }
}

/// Has the kernel ask a silent peer whether it is there, so that one which vanished is known to be gone after two
/// minutes.
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
        let stream = Held { stream, _slot: slot };
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
    let stream = Held { stream, _slot: slot };
    converse(stream, connection, handler, &limits, shutdown).await
}

/// A body that keeps something until it has ended, or until whoever takes it is gone.
pub struct Holding<T> {
    body: Body,
    _held: T,
}

impl<T> Holding<T> {
    /// The body with what is dropped after it.
    pub fn new(body: Body, held: T) -> Self {
        Self { body, _held: held }
    }
}

impl<T: Unpin> http_body::Body for Holding<T> {
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

/// Speaks HTTP on one stream until the peer leaves, is silent for too long, or shutdown ends it.
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
            // Its request is under way until the peer has taken the answer.
            let response = response.map(|body| Holding::new(body, busy));
            Ok::<_, std::convert::Infallible>(response)
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        // A head that does not come to its end is silence, and what ends silence does so in either version.
        .header_read_timeout(None)
        // No `pipeline_flush`: with it hyper takes all of a body, however slowly the peer reads.
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
    // A request may have come at the same moment; who has none to the end is not waited for.
    loop {
        match tokio::time::timeout(LAST_WORDS, serving.as_mut()).await {
            Ok(result) => return result,
            Err(_) if life.is_busy() => {}
            Err(_) => return Err(Ended::Idle.into()),
        }
    }
}

#[cfg(test)]
mod cves_tests;
#[cfg(test)]
mod tests;
