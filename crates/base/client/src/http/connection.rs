//! A connection to a server: connecting, TLS, and a single HTTP/1.1 exchange.

use std::{io, sync::Arc};

use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, ToSocketAddrs, UnixStream},
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    request::Body,
    tls::{self, HTTP2},
};

/// A bidirectional byte stream with or without TLS.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {
    /// Returns `true` if the server chose HTTP/2 in the TLS handshake.
    fn is_http2(&self) -> bool {
        false
    }
}

impl Stream for TcpStream {}
impl Stream for UnixStream {}
impl Stream for Box<dyn Stream> {}

impl<S: Stream> Stream for TlsStream<S> {
    fn is_http2(&self) -> bool {
        self.get_ref().1.alpn_protocol() == Some(HTTP2)
    }
}

/// Opens a TCP connection with `TCP_NODELAY`.
pub async fn connect(to: impl ToSocketAddrs) -> io::Result<Box<dyn Stream>> {
    let tcp = TcpStream::connect(to).await?;
    tcp.set_nodelay(true)?;
    Ok(Box::new(tcp))
}

/// Performs the TLS handshake with a server whose certificate must contain `name`.
pub async fn encrypt(
    stream: Box<dyn Stream>,
    name: &str,
    tls: &Arc<rustls::ClientConfig>,
) -> io::Result<Box<dyn Stream>> {
    let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
    let stream = TlsConnector::from(tls.clone()).connect(name, stream).await;
    Ok(Box::new(stream.map_err(|error| tls::explain(&error).unwrap_or(error))?))
}

/// Sends one request in HTTP/1.1 and returns the response. The connection closes after the response's body, or at the
/// end of the protocol that it was upgraded to.
pub async fn exchange(
    stream: Box<dyn Stream>,
    request: Request<Body>,
) -> Result<Response<Body>, hyper::Error> {
    let (mut sender, driver) = http1::handshake(TokioIo::new(stream)).await?;
    let driver = Arc::new(spawn_driver(driver.with_upgrades()));
    let mut response = sender.send_request(request).await?;
    // Keep the driver alive until the body is read or, after an upgrade, the response's head is dropped.
    response.extensions_mut().insert(driver.clone());
    Ok(response.map(|body| {
        body.map_frame(move |frame| {
            let _driver = &driver;
            frame
        })
        .map_err(Into::into)
        .boxed_unsync()
    }))
}

/// Runs a connection's driver until the returned handle is dropped.
pub(super) fn spawn_driver<T>(
    driver: impl Future<Output = T> + Send + 'static,
) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move { drop(driver.await) }))
}
