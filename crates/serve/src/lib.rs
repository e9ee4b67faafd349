//! HTTP/1.1 and HTTP/2 over TLS for every component that listens, with upgrades; and DNS over TCP.
//!
//! The number of connections is bounded and every connection is an owned task. A bad client certificate does
//! not fail the handshake: Kubernetes answers it with 401, so that the certificates are handed to the handler
//! unverified (see [`Connection`]) and authentication decides.

pub mod dns;
mod tls;
pub mod websocket;

use std::{
    any::Any,
    net::SocketAddr,
    sync::{Arc, OnceLock},
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
use rustls_pki_types::CertificateDer;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_rustls::TlsAcceptor;

pub use tls::{ServerTls, TlsError};

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
}

/// Answers requests. It must not fail: whatever goes wrong is an answer.
pub trait Handler: Send + Sync + 'static {
    fn handle(&self, request: Request<Body>) -> BoxFuture<'_, Response<Body>>;
}

#[derive(Clone, Debug)]
pub struct Limits {
    pub connections: usize,
    pub streams_per_connection: u32,
    pub handshake: Duration,
    pub request_head: Duration,
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
            streams_per_connection: 250,
            handshake: Duration::from_secs(10),
            request_head: Duration::from_secs(32),
            send_buffer: None,
            keep_alive: true,
        }
    }
}

/// Serves until shutdown, which ends open connections gracefully.
pub async fn serve(
    listener: TcpListener,
    tls: Option<ServerTls>,
    limits: Limits,
    handler: Arc<dyn Handler>,
    tasks: rt::Tasks,
) {
    let (connections, limits) = (limits.connections, Arc::new(limits));
    let shutdown = tasks.shutdown().clone();
    accept(listener, connections, tasks, move |stream, peer| {
        let (tls, handler, limits) = (tls.clone(), handler.clone(), limits.clone());
        greet(stream, peer, tls, handler, limits, shutdown.clone())
    })
    .await;
}

/// Takes connections until shutdown, so many at a time, and gives each a task that sees to its own shutdown.
pub async fn accept<F>(
    listener: TcpListener,
    connections: usize,
    tasks: rt::Tasks,
    work: impl Fn(TcpStream, SocketAddr) -> F,
) where
    F: Future<Output = Result<(), BoxError>> + Send + 'static,
{
    let slots = Arc::new(Semaphore::new(connections));
    loop {
        let Some(Ok(slot)) = tasks.shutdown().unless_stopping(slots.clone().acquire_owned()).await
        else {
            return;
        };
        let accepted = match tasks.shutdown().unless_stopping(listener.accept()).await {
            None => return,
            Some(accepted) => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors, mostly: wait for some to be closed instead of spinning.
                tracing::warn!(%error, "accepting a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let work = work(stream, peer);
        let work = async move {
            let _slot = slot;
            if let Err(error) = work.await {
                tracing::debug!(%peer, %error, "connection ended");
            }
        };
        // On the heap, as each layer of futures around it would have room for it once more.
        tasks.spawn("connection", Box::pin(work));
    }
}

async fn greet(
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<ServerTls>,
    handler: Arc<dyn Handler>,
    limits: Arc<Limits>,
    shutdown: rt::Shutdown,
) -> Result<(), BoxError> {
    stream.set_nodelay(true)?;
    let Some(tls) = tls else {
        let connection = Connection { peer: Some(peer), ..Connection::default() };
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
    let connection = Connection { peer: Some(peer), client_certificates, ..Connection::default() };
    converse(stream, connection, handler, &limits, shutdown).await
}

/// Speaks HTTP on one stream until the peer leaves or shutdown ends it.
pub async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    connection: Connection,
    handler: Arc<dyn Handler>,
    limits: &Limits,
    shutdown: rt::Shutdown,
) -> Result<(), BoxError> {
    let connection = Arc::new(connection);
    let service = service_fn(move |mut request: Request<hyper::body::Incoming>| {
        let handler = handler.clone();
        request.extensions_mut().insert(connection.clone());
        async move {
            let request = request.map(|body| body.map_err(Into::into).boxed_unsync());
            Ok::<_, std::convert::Infallible>(handler.handle(request).await)
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .keep_alive(limits.keep_alive)
        // No `pipeline_flush`: with it hyper takes all of a body, however slowly the peer reads.
        .header_read_timeout(limits.request_head);
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
    tokio::select! {
        result = serving.as_mut() => return result,
        () = shutdown.stopping() => serving.as_mut().graceful_shutdown(),
    }
    serving.await
}
