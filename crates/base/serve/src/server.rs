//! Accepts connections, admits them to slots and serves HTTP on them.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, Version, header};
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::service::service_fn;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use nix::sys::socket::{setsockopt, sockopt};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::Notify,
};
use tokio_rustls::TlsAcceptor;

use crate::{
    body::{Body, BodyWithGuard, BoxError, full},
    handler::{Connection, Handler},
    limits::Limits,
    panic_guard::handle_guarded,
    slot_stream::SlotStream,
    slots::{Admission, Slot, Slots},
    tls::ServerTls,
};

/// The minimum size of a buffer that can hold a request's head.
const SMALLEST_BUFFER: usize = 8 << 10;

/// The time that a closing connection has to complete its requests.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

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
    let server = Arc::new(Server { tls, handler, limits, shutdown: tasks.shutdown().clone() });
    accept_loop(listener, slots, tasks, move |stream, peer, slot| {
        let (server, activity) = (server.clone(), slot.activity.clone());
        async move {
            tokio::select! {
                done = server.serve_socket(stream, peer, slot) => done,
                () = activity.closed() => Err(CloseReason::Replaced.into()),
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
    accept_loop(listener, Slots::new(connections, connections), tasks, |stream, peer, slot| {
        slot.activity.pin();
        let work = work(stream, peer);
        async move {
            let _slot = slot;
            work.await
        }
    })
    .await;
}

/// Accepts connections until shutdown and waits for a slot for each.
pub(crate) async fn accept_loop<F>(
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

/// The settings that all connections of a listener share.
struct Server {
    tls: Option<ServerTls>,
    handler: Arc<dyn Handler>,
    limits: Limits,
    shutdown: rt::Shutdown,
}

impl Server {
    async fn serve_socket(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        slot: Slot,
    ) -> Result<(), BoxError> {
        stream.set_nodelay(true)?;
        let activity = slot.activity.clone();
        let connection = Connection { peer: Some(peer), activity, ..Connection::default() };
        let Some(tls) = &self.tls else {
            return self.serve_slot(stream, slot, connection).await;
        };
        let address = stream.local_addr().ok().map(|address| address.ip());
        let handshake = TlsAcceptor::from(tls.current(address)).accept(stream);
        let stream = tokio::time::timeout(self.limits.handshake, handshake).await??;
        let client_certificates = stream
            .get_ref()
            .1
            .peer_certificates()
            .map(|chain| chain.iter().map(|c| c.clone().into_owned()).collect())
            .unwrap_or_default();
        self.serve_slot(stream, slot, Connection { client_certificates, ..connection }).await
    }

    async fn serve_slot(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        slot: Slot,
        connection: Connection,
    ) -> Result<(), BoxError> {
        let stream = SlotStream { stream, _slot: slot };
        let (handler, shutdown) = (self.handler.clone(), self.shutdown.clone());
        serve_stream(stream, connection, handler, &self.limits, shutdown).await
    }
}

/// Serves HTTP on a stream until the peer disconnects, is idle for too long, or shutdown.
pub async fn serve_stream(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    connection: Connection,
    handler: Arc<dyn Handler>,
    limits: &Limits,
    shutdown: rt::Shutdown,
) -> Result<(), BoxError> {
    let connection = Arc::new(connection);
    let activity = connection.activity.clone();
    let (chance, leaving) = (limits.goaway_chance, Arc::new(Notify::new()));
    let goaway = leaving.clone();
    let service = service_fn(move |mut request: Request<hyper::body::Incoming>| {
        let (handler, busy) = (handler.clone(), connection.activity.begin());
        request.extensions_mut().insert(connection.clone());
        if request.version() == Version::HTTP_2 && chance > 0.0 && rt::random::<f64>() < chance {
            goaway.notify_one();
        }
        let connection = connection.clone();
        // hyper removes the bodies of these responses for HTTP/1 only.
        let bodiless = request.version() == Version::HTTP_2 && request.method() == Method::HEAD;
        async move {
            let request = request.map(|body| body.map_err(Into::into).boxed_unsync());
            let mut response = handle_guarded(&*handler, request).await;
            if bodiless {
                remove_body(&mut response);
            }
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                connection.activity.pin();
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
        () = leaving.notified() => false,
        () = activity.idle_too_long(limits) => true,
    };
    serving.as_mut().graceful_shutdown();
    if !idle {
        return serving.await;
    }
    // A request may have arrived just now. Do not wait for a connection without requests.
    loop {
        match tokio::time::timeout(CLOSE_TIMEOUT, serving.as_mut()).await {
            Ok(result) => return result,
            Err(_) if activity.is_busy() => {}
            Err(_) => return Err(CloseReason::Idle.into()),
        }
    }
}

/// Removes the body and keeps its length as a header.
fn remove_body(response: &mut Response<Body>) {
    let body = std::mem::replace(response.body_mut(), full(Bytes::new()));
    if let Some(length) = body.size_hint().exact() {
        response.headers_mut().entry(header::CONTENT_LENGTH).or_insert(length.into());
    }
}

#[cfg(test)]
mod cves_tests;
#[cfg(test)]
mod tests;
