//! The transport over sockets, in HTTP/1.1 and HTTP/2.

mod connection;
mod pool;
mod proxy;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use http::{Request, Response, StatusCode, Uri, header};
use http_body_util::BodyExt;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use otlp::{Span, SpanKind};
use tokio::sync::Mutex;
use tokio_util::task::AbortOnDropHandle;

use self::connection::spawn_driver;
pub use self::connection::{Stream, connect, encrypt, exchange};
use self::pool::{Http1Connection, IdleConnections};
pub use self::proxy::{Dialer, Proxy, ProxyUrlError};
use crate::{
    credentials::{Credentials, TokenSource},
    error::Error,
    request::{Body, Transport},
    tls::{ClientTls, Configs},
};

/// The transport to a server behind a socket.
///
/// HTTP/2 servers get one connection, which is opened again when it breaks, and one more for each upgrade request
/// (exec, attach, port-forward). HTTP/1.1 servers get one connection per request in flight. They are reused if
/// requests do not upgrade.
pub struct HttpTransport {
    /// `host:port`.
    authority: String,
    /// The address to connect to; `None` if the authority's host must be resolved.
    address: Option<SocketAddr>,
    /// The name that the server's certificate must contain.
    server_name: String,
    /// The `Host` of requests; `None` for the authority.
    host: Option<String>,
    tls: ClientTls,
    credentials: Credentials,
    /// The proxy between the client and the server.
    proxy: Option<Proxy>,
    connections: Mutex<Connections>,
    /// The idle HTTP/1.1 connections.
    idle: IdleConnections,
    protocol: Protocol,
}

/// The protocol of the connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    /// The protocol that the server chooses in the TLS handshake; HTTP/1.1 for upgrades.
    Negotiated,
    /// HTTP/1.1 with or without TLS, and one connection per request.
    Http1 {
        encrypted: bool,
    },
    /// HTTP/1.1 with reused connections, for servers that do not close a connection in the middle of a response.
    ReusedHttp1 {
        encrypted: bool,
    },
    PlainHttp2,
}

impl Protocol {
    fn is_encrypted(self) -> bool {
        matches!(
            self,
            Self::Negotiated
                | Self::Http1 { encrypted: true }
                | Self::ReusedHttp1 { encrypted: true }
        )
    }
}

/// The connection for one request.
enum Channel {
    Shared(http2::SendRequest<Body>),
    Dedicated(Box<dyn Stream>),
}

#[derive(Default)]
struct Connections {
    open: Option<Connection>,
    /// The connection before the last change of the TLS settings. It stays open so that its streams can end.
    _retired: Option<AbortOnDropHandle<()>>,
}

/// The sender of an HTTP/2 connection and the task that drives it. The task ends with the connection.
struct Connection {
    sender: http2::SendRequest<Body>,
    /// The TLS settings that the connection was opened with.
    tls: Arc<Configs>,
    driver: AbortOnDropHandle<()>,
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Detects a peer that vanished without closing the connection. The values are those of upstream's HTTP/2 health check.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(15);

impl HttpTransport {
    /// Creates a transport to `server`, a kubeconfig's `https://host:port`. `token` is called before each request,
    /// because a bearer token may rotate.
    pub fn new(
        server: &str,
        tls: impl Into<ClientTls>,
        token: Option<TokenSource>,
    ) -> Result<Self, Error> {
        let protocol =
            |scheme: Option<&str>| (scheme == Some("https")).then_some(Protocol::Negotiated);
        Ok(Self { credentials: token.into(), ..Self::of(server, tls.into(), protocol)? })
    }

    /// Creates a transport to `http://host:port` or `https://host:port` for a server whose protocol is unknown, such as
    /// a Pod behind the API server's proxy. It uses HTTP/1.1, which every server supports.
    pub fn http1(server: &str, tls: impl Into<ClientTls>) -> Result<Self, Error> {
        let protocol =
            |scheme: Option<&str>| Some(Protocol::Http1 { encrypted: scheme != Some("http") });
        Self::of(server, tls.into(), protocol)
    }

    /// Creates a transport like [`Self::http1`] that reuses connections, for a server that receives many requests in
    /// sequence. Requests must not upgrade.
    pub fn reused_http1(server: &str, tls: impl Into<ClientTls>) -> Result<Self, Error> {
        let protocol = |scheme: Option<&str>| {
            Some(Protocol::ReusedHttp1 { encrypted: scheme != Some("http") })
        };
        Self::of(server, tls.into(), protocol)
    }

    /// Creates a transport to `http://host:port` that uses HTTP/2 without TLS, such as for gRPC.
    pub fn plain_http2(server: &str) -> Result<Self, Error> {
        let protocol =
            |scheme: Option<&str>| (scheme == Some("http")).then_some(Protocol::PlainHttp2);
        Self::of(server, ClientTls::anyone(), protocol)
    }

    /// Creates a TLS transport to a socket address. No name is resolved.
    pub fn at(address: SocketAddr, tls: impl Into<ClientTls>) -> Self {
        Self::known(address, tls.into(), Protocol::Negotiated)
    }

    /// Creates a transport like [`Self::http1`] to a socket address.
    pub fn http1_at(address: SocketAddr, encrypted: bool, tls: impl Into<ClientTls>) -> Self {
        Self::known(address, tls.into(), Protocol::Http1 { encrypted })
    }

    fn known(address: SocketAddr, tls: ClientTls, protocol: Protocol) -> Self {
        let (authority, server_name) = (address.to_string(), address.ip().to_string());
        Self { address: Some(address), ..Self::named(authority, server_name, tls, protocol) }
    }

    fn named(authority: String, server_name: String, tls: ClientTls, protocol: Protocol) -> Self {
        Self {
            authority,
            address: None,
            server_name,
            host: None,
            tls,
            credentials: Credentials::default(),
            proxy: None,
            connections: Mutex::default(),
            idle: IdleConnections::default(),
            protocol,
        }
    }

    fn of(
        server: &str,
        tls: ClientTls,
        protocol: impl FnOnce(Option<&str>) -> Option<Protocol>,
    ) -> Result<Self, Error> {
        let invalid = |source: Box<dyn std::error::Error + Send + Sync>| Error::Transport {
            operation: "parsing the server's address",
            target: server.to_owned(),
            source,
        };
        let uri: Uri = server.parse().map_err(|e: http::uri::InvalidUri| invalid(e.into()))?;
        let protocol = protocol(uri.scheme_str());
        let protocol = protocol.ok_or_else(|| invalid("it must begin with https://".into()))?;
        let host = uri.host().ok_or_else(|| invalid("it has no host".into()))?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = uri.port_u16().unwrap_or(if protocol.is_encrypted() { 443 } else { 80 });
        let authority =
            if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        Ok(Self::named(authority, host, tls, protocol))
    }

    /// Sets the credentials that are sent with every request.
    pub(crate) fn with_credentials(self, credentials: Credentials) -> Self {
        Self { credentials, ..self }
    }

    /// Sets the proxy between the client and the server, unless a kubeconfig has set one.
    pub fn by_proxy(self, proxy: Option<Proxy>) -> Self {
        Self { proxy: self.proxy.or(proxy), ..self }
    }

    /// Sets the name that the server's certificate must contain, instead of the address's host.
    pub fn with_server_name(mut self, name: &str) -> Self {
        self.server_name = name.to_owned();
        self
    }

    /// Sets the server name and the `Host` of requests, such as the name and port of a Service.
    pub fn for_host(self, name: &str, port: u16) -> Self {
        Self { host: Some(format!("{name}:{port}")), ..self.with_server_name(name) }
    }

    fn host(&self) -> &str {
        self.host.as_deref().unwrap_or(&self.authority)
    }

    fn transport_error(
        &self,
        operation: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        Error::Transport { operation, target: self.authority.clone(), source: source.into() }
    }

    async fn connect(&self, tls: &Arc<rustls::ClientConfig>) -> Result<Box<dyn Stream>, Error> {
        let connect = async {
            let stream = match (&self.proxy, self.address) {
                (Some(proxy), _) => proxy.connect(&self.authority, Some(tls)).await?,
                (None, Some(address)) => connection::connect(address).await?,
                (None, None) => connection::connect(&self.authority).await?,
            };
            if self.protocol.is_encrypted() {
                connection::encrypt(stream, &self.server_name, tls).await
            } else {
                Ok(stream)
            }
        };
        match tokio::time::timeout(CONNECT_TIMEOUT, connect).await {
            Ok(connected) => {
                connected.map_err(|error| self.transport_error("connecting to", error))
            }
            Err(_) => {
                Err(self
                    .transport_error("connecting to", format!("no answer in {CONNECT_TIMEOUT:?}")))
            }
        }
    }

    fn speaks_http2(&self, stream: &dyn Stream) -> bool {
        self.protocol == Protocol::PlainHttp2 || stream.is_http2()
    }

    async fn channel(&self) -> Result<Channel, Error> {
        let tls = self.tls().await?;
        let offered =
            if let Protocol::ReusedHttp1 { .. } = self.protocol { &tls.http1 } else { &tls.any };
        // HTTP/1.1 requests need one connection each, so they do not wait for the lock.
        if self.idle.is_used() {
            let stream = self.connect(offered).await?;
            if !stream.is_http2() {
                return Ok(Channel::Dedicated(stream));
            }
        }
        let mut connections = self.connections.lock().await;
        if let Some(open) = connections.open.as_ref().filter(|c| !c.sender.is_closed())
            && Arc::ptr_eq(&open.tls, &tls)
        {
            return Ok(Channel::Shared(open.sender.clone()));
        }
        let stream = self.connect(offered).await?;
        if !self.speaks_http2(&*stream) {
            return Ok(Channel::Dedicated(stream));
        }
        let (sender, driver) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_TIMEOUT)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|e| self.transport_error("starting HTTP/2 with", e))?;
        let driver = spawn_driver(driver);
        let fresh = Connection { sender: sender.clone(), tls, driver };
        connections._retired = connections.open.replace(fresh).map(|old| old.driver);
        Ok(Channel::Shared(sender))
    }

    async fn prepare(&self, request: &mut Request<Body>) -> Result<(), Error> {
        let authorized = self.credentials.authorize(request.headers_mut()).await;
        authorized.map_err(|error| self.transport_error("authenticating to", error))
    }

    /// Returns the TLS settings of the next connection, from a credential plugin or from the transport.
    async fn tls(&self) -> Result<Arc<Configs>, Error> {
        let plugin_tls = self.credentials.tls().await;
        let plugin_tls =
            plugin_tls.map_err(|error| self.transport_error("authenticating to", error))?;
        Ok(plugin_tls.unwrap_or_else(|| self.tls.current()))
    }

    /// Starts the span of a request as a part of the task's current one. The request carries its context.
    fn span(&self, request: &mut Request<Body>) -> Span {
        let method = request.method().clone();
        let mut span = otlp::span(|| format!("HTTP {method}"), SpanKind::Client);
        span.inject(request.headers_mut());
        if span.is_recording() {
            let scheme = if self.protocol.is_encrypted() { "https" } else { "http" };
            let url = format!("{scheme}://{}{}", self.host(), request.uri().path());
            span.set("http.request.method", method.as_str());
            span.set("server.address", self.host());
            span.set("url.full", url.as_str());
        }
        span
    }

    async fn dispatch(&self, request: Request<Body>) -> Result<Response<Body>, Error> {
        let alone = matches!(self.protocol, Protocol::Http1 { .. });
        let response = if alone || request.headers().contains_key(header::UPGRADE) {
            self.send_on_new(request).await?
        } else {
            self.send_plain(request).await?
        };
        if response.status() == StatusCode::UNAUTHORIZED {
            self.credentials.reject().await;
        }
        Ok(response)
    }

    /// Sends a request in HTTP/1.1 on a new connection. Long-running requests need this, because a server limits the
    /// number of streams on one connection.
    pub async fn send_alone(&self, mut request: Request<Body>) -> Result<Response<Body>, Error> {
        let mut span = self.span(&mut request);
        let sent = self.send_on_new(request).await;
        finish(&mut span, &sent);
        sent
    }

    async fn send_on_new(&self, mut request: Request<Body>) -> Result<Response<Body>, Error> {
        self.prepare(&mut request).await?;
        let stream = self.connect(&self.tls().await?.http1).await?;
        self.send_on(stream, request).await
    }

    fn address_http1(&self, request: &mut Request<Body>) -> Result<(), Error> {
        let host = self.host().parse();
        let host =
            host.map_err(|e: header::InvalidHeaderValue| self.transport_error("addressing", e))?;
        request.headers_mut().entry(header::HOST).or_insert(host);
        Ok(())
    }

    async fn send_on(
        &self,
        stream: Box<dyn Stream>,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, Error> {
        self.address_http1(&mut request)?;
        let sent = exchange(stream, request).await;
        sent.map_err(|e| self.transport_error("sending a request to", e))
    }

    /// Sends a request on an idle connection, or on a new one if the server has closed the idle ones.
    async fn send_reusing(
        &self,
        mut connection: Http1Connection,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, Error> {
        self.address_http1(&mut request)?;
        loop {
            match connection.send(request, &self.idle).await {
                Ok(response) => return Ok(response),
                Err((_, Some(unsent))) => request = unsent,
                Err((error, None)) => {
                    return Err(self.transport_error("sending a request to", error));
                }
            }
            let tls = self.tls().await?;
            connection = match self.idle.take(&tls).await {
                Some(connection) => connection,
                None => Http1Connection::open(self.connect(&tls.http1).await?, tls)
                    .await
                    .map_err(|e| self.transport_error("starting HTTP/1.1 with", e))?,
            };
        }
    }

    async fn send_plain(&self, mut request: Request<Body>) -> Result<Response<Body>, Error> {
        self.prepare(&mut request).await?;
        let tls = self.tls().await?;
        if let Some(connection) = self.idle.take(&tls).await {
            return self.send_reusing(connection, request).await;
        }
        let mut sender = match self.channel().await? {
            Channel::Shared(sender) => sender,
            Channel::Dedicated(stream) => {
                let connection = Http1Connection::open(stream, tls).await;
                let connection =
                    connection.map_err(|e| self.transport_error("starting HTTP/1.1 with", e))?;
                return self.send_reusing(connection, request).await;
            }
        };
        let path = request.uri().path_and_query().map_or("/", |p| p.as_str());
        let scheme = if self.protocol.is_encrypted() { "https" } else { "http" };
        *request.uri_mut() = format!("{scheme}://{}{path}", self.host())
            .parse()
            .map_err(|e: http::uri::InvalidUri| self.transport_error("addressing", e))?;
        sender.ready().await.map_err(|e| self.transport_error("sending a request to", e))?;
        let response = sender
            .send_request(request)
            .await
            .map_err(|e| self.transport_error("sending a request to", e))?;
        Ok(response.map(box_body))
    }
}

/// Records the result of a request.
fn finish(span: &mut Span, sent: &Result<Response<Body>, Error>) {
    match sent {
        Ok(response) => span.set("http.response.status_code", response.status().as_u16()),
        Err(error) if span.is_recording() => span.fail(&error.to_string()),
        Err(_) => {}
    }
}

fn box_body(body: hyper::body::Incoming) -> Body {
    body.map_err(Into::into).boxed_unsync()
}

impl Transport for HttpTransport {
    fn send(&self, mut request: Request<Body>) -> BoxFuture<'_, Result<Response<Body>, Error>> {
        Box::pin(async move {
            let mut span = self.span(&mut request);
            let sent = self.dispatch(request).await;
            finish(&mut span, &sent);
            sent
        })
    }

    fn host(&self) -> &str {
        &self.authority
    }
}

#[cfg(test)]
pub(crate) mod tests;
