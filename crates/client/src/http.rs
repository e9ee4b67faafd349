mod connection;
mod kept;
mod proxy;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use http::{Request, Response, StatusCode, Uri, header};
use http_body_util::BodyExt;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::sync::Mutex;
use tokio_util::task::AbortOnDropHandle;

pub use self::connection::{Stream, connect, encrypt, exchange};
use self::kept::{Kept, Lane};
pub(crate) use self::proxy::Proxy;
use crate::{
    Error,
    credentials::Credentials,
    request::{Body, Transport},
    tls::{ClientTls, Configs},
};

/// Gives the bearer token of the next request.
pub(crate) type TokenSource = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// A server behind a socket. One that speaks HTTP/2: one connection, made anew when it breaks, and a connection of
/// its own for each request that upgrades (exec, attach, port-forward). Any other: a connection for each request in
/// flight, some of which are kept for the next ones where requests do not upgrade.
pub struct HttpTransport {
    /// `host:port`.
    authority: String,
    /// What is connected to, where that is known; otherwise the authority's host is looked up.
    address: Option<SocketAddr>,
    /// Whom the server's certificate must name.
    server_name: String,
    /// What requests call the server, if not by its address.
    host: Option<String>,
    tls: ClientTls,
    credentials: Credentials,
    /// The proxy by which the server is reached.
    proxy: Option<Proxy>,
    connections: Mutex<Connections>,
    /// Connections in HTTP/1.1 that wait for a request.
    kept: Kept,
    protocol: Protocol,
}

/// What is spoken with the server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    /// Over TLS, what the server chooses; HTTP/1.1 for upgrades.
    Negotiated,
    /// HTTP/1.1 over TLS or without, on a connection for each request.
    Http1 {
        encrypted: bool,
    },
    /// The same, and connections are used again: for servers that close none in the midst of what they say.
    KeptHttp1 {
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
                | Self::KeptHttp1 { encrypted: true }
        )
    }
}

/// The way to the server for one request.
enum Way {
    Shared(http2::SendRequest<Body>),
    Own(Box<dyn Stream>),
}

#[derive(Default)]
struct Connections {
    open: Option<Connection>,
    /// The connection before the last change of the TLS settings: what streams on it may end by itself.
    _retired: Option<AbortOnDropHandle<()>>,
}

/// The sender and the task that drives its connection, which ends with it.
struct Connection {
    sender: http2::SendRequest<Body>,
    /// What it was opened with.
    tls: Arc<Configs>,
    driver: AbortOnDropHandle<()>,
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Detects a peer that vanished without closing; the same figures as upstream's HTTP/2 health check.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(15);

impl HttpTransport {
    /// `server` is a kubeconfig's `https://host:port`. `token`, asked before each request, gives a bearer
    /// token that may rotate.
    pub fn new(
        server: &str,
        tls: impl Into<ClientTls>,
        token: Option<TokenSource>,
    ) -> Result<Self, Error> {
        let protocol =
            |scheme: Option<&str>| (scheme == Some("https")).then_some(Protocol::Negotiated);
        Ok(Self { credentials: token.into(), ..Self::of(server, tls.into(), protocol)? })
    }

    /// A server of which nothing is known but its address, `http://host:port` or `https://host:port`, such as a
    /// Pod that is reached by a proxy. It is spoken to in HTTP/1.1, which every server understands.
    pub fn http1(server: &str, tls: impl Into<ClientTls>) -> Result<Self, Error> {
        let protocol =
            |scheme: Option<&str>| Some(Protocol::Http1 { encrypted: scheme != Some("http") });
        Self::of(server, tls.into(), protocol)
    }

    /// The same, for one that is asked many things, one after the other: connections are kept for the next request. Requests
    /// do not upgrade.
    pub fn kept_http1(server: &str, tls: impl Into<ClientTls>) -> Result<Self, Error> {
        let protocol =
            |scheme: Option<&str>| Some(Protocol::KeptHttp1 { encrypted: scheme != Some("http") });
        Self::of(server, tls.into(), protocol)
    }

    /// A server at `http://host:port` that speaks HTTP/2, such as one of gRPC.
    pub fn plain_http2(server: &str) -> Result<Self, Error> {
        let protocol =
            |scheme: Option<&str>| (scheme == Some("http")).then_some(Protocol::PlainHttp2);
        Self::of(server, ClientTls::anyone(), protocol)
    }

    /// A server at an address, over TLS: nothing is looked up and no text is read as an address.
    pub fn at(address: SocketAddr, tls: impl Into<ClientTls>) -> Self {
        Self::known(address, tls.into(), Protocol::Negotiated)
    }

    /// As [`Self::http1`], at an address.
    pub fn http1_at(address: SocketAddr, encrypted: bool, tls: impl Into<ClientTls>) -> Self {
        Self::known(address, tls.into(), Protocol::Http1 { encrypted })
    }

    fn known(address: SocketAddr, tls: ClientTls, protocol: Protocol) -> Self {
        Self {
            authority: address.to_string(),
            address: Some(address),
            server_name: address.ip().to_string(),
            host: None,
            tls,
            credentials: Credentials::default(),
            proxy: None,
            connections: Mutex::default(),
            kept: Kept::default(),
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
        Ok(Self {
            authority,
            address: None,
            server_name: host,
            host: None,
            tls,
            credentials: Credentials::default(),
            proxy: None,
            connections: Mutex::default(),
            kept: Kept::default(),
            protocol,
        })
    }

    /// Sends these credentials with every request.
    pub(crate) fn with_credentials(self, credentials: Credentials) -> Self {
        Self { credentials, ..self }
    }

    /// Reaches the server by a proxy.
    pub(crate) fn by_proxy(self, proxy: Proxy) -> Self {
        Self { proxy: Some(proxy), ..self }
    }

    /// Expects the server's certificate to name `name` in place of the address's host.
    pub fn with_server_name(mut self, name: &str) -> Self {
        self.server_name = name.to_owned();
        self
    }

    /// The same, and requests call the server by that name and port, as those of a Service do.
    pub fn for_host(self, name: &str, port: u16) -> Self {
        Self { host: Some(format!("{name}:{port}")), ..self.with_server_name(name) }
    }

    fn host(&self) -> &str {
        self.host.as_deref().unwrap_or(&self.authority)
    }

    fn failed(
        &self,
        operation: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        Error::Transport { operation, target: self.authority.clone(), source: source.into() }
    }

    async fn connect(&self, tls: &Arc<rustls::ClientConfig>) -> Result<Box<dyn Stream>, Error> {
        let connect = async {
            let stream = match (&self.proxy, self.address) {
                (Some(proxy), _) => proxy.connect(&self.authority, tls).await?,
                (None, Some(address)) => connection::connect(address).await?,
                (None, None) => connection::connect(&self.authority).await?,
            };
            match self.protocol.is_encrypted() {
                true => connection::encrypt(stream, &self.server_name, tls).await,
                false => Ok(stream),
            }
        };
        match tokio::time::timeout(CONNECT_TIMEOUT, connect).await {
            Ok(connected) => connected.map_err(|error| self.failed("connecting to", error)),
            Err(_) => {
                Err(self.failed("connecting to", format!("no answer in {CONNECT_TIMEOUT:?}")))
            }
        }
    }

    fn speaks_http2(&self, stream: &dyn Stream) -> bool {
        self.protocol == Protocol::PlainHttp2 || stream.is_http2()
    }

    async fn way(&self) -> Result<Way, Error> {
        let tls = self.tls().await?;
        let offered =
            if let Protocol::KeptHttp1 { .. } = self.protocol { &tls.http1 } else { &tls.any };
        // Those who need a connection each do not wait for one another.
        if self.kept.is_used() {
            let stream = self.connect(offered).await?;
            if !stream.is_http2() {
                return Ok(Way::Own(stream));
            }
        }
        let mut connections = self.connections.lock().await;
        if let Some(open) = connections.open.as_ref().filter(|c| !c.sender.is_closed())
            && Arc::ptr_eq(&open.tls, &tls)
        {
            return Ok(Way::Shared(open.sender.clone()));
        }
        let stream = self.connect(offered).await?;
        if !self.speaks_http2(&*stream) {
            return Ok(Way::Own(stream));
        }
        let (sender, driver) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_TIMEOUT)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|e| self.failed("starting HTTP/2 with", e))?;
        let driver = driven(driver);
        let fresh = Connection { sender: sender.clone(), tls, driver };
        connections._retired = connections.open.replace(fresh).map(|old| old.driver);
        Ok(Way::Shared(sender))
    }

    async fn prepare(&self, request: &mut Request<Body>) -> Result<(), Error> {
        let authorized = self.credentials.authorize(request.headers_mut()).await;
        authorized.map_err(|error| self.failed("authenticating to", error))
    }

    /// The settings of the next connection: a plugin's certificate, or what files hold.
    async fn tls(&self) -> Result<Arc<Configs>, Error> {
        let given = self.credentials.tls().await;
        let given = given.map_err(|error| self.failed("authenticating to", error))?;
        Ok(given.unwrap_or_else(|| self.tls.current()))
    }

    async fn dispatch(&self, request: Request<Body>) -> Result<Response<Body>, Error> {
        let alone = matches!(self.protocol, Protocol::Http1 { .. });
        let response = if alone || request.headers().contains_key(header::UPGRADE) {
            self.send_alone(request).await?
        } else {
            self.send_plain(request).await?
        };
        if response.status() == StatusCode::UNAUTHORIZED {
            self.credentials.reject().await;
        }
        Ok(response)
    }

    /// Sends a request on a connection of its own, in HTTP/1.1: for what stays open, as a server bounds how much goes on
    /// at once on one connection.
    pub async fn send_alone(&self, mut request: Request<Body>) -> Result<Response<Body>, Error> {
        self.prepare(&mut request).await?;
        let stream = self.connect(&self.tls().await?.http1).await?;
        self.send_on(stream, request).await
    }

    fn address_http1(&self, request: &mut Request<Body>) -> Result<(), Error> {
        let host = self.host().parse();
        let host = host.map_err(|e: header::InvalidHeaderValue| self.failed("addressing", e))?;
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
        sent.map_err(|e| self.failed("sending a request to", e))
    }

    /// Sends a request on one of the kept connections or, where they have gone away, on a new one.
    async fn send_kept(
        &self,
        mut lane: Lane,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, Error> {
        self.address_http1(&mut request)?;
        loop {
            match lane.send(request, &self.kept).await {
                Ok(response) => return Ok(response),
                Err((_, Some(unsent))) => request = unsent,
                Err((error, None)) => return Err(self.failed("sending a request to", error)),
            }
            let tls = self.tls().await?;
            lane = match self.kept.take(&tls).await {
                Some(lane) => lane,
                None => Lane::open(self.connect(&tls.http1).await?, tls)
                    .await
                    .map_err(|e| self.failed("starting HTTP/1.1 with", e))?,
            };
        }
    }

    async fn send_plain(&self, mut request: Request<Body>) -> Result<Response<Body>, Error> {
        self.prepare(&mut request).await?;
        let tls = self.tls().await?;
        if let Some(lane) = self.kept.take(&tls).await {
            return self.send_kept(lane, request).await;
        }
        let mut sender = match self.way().await? {
            Way::Shared(sender) => sender,
            Way::Own(stream) => {
                let lane = Lane::open(stream, tls).await;
                let lane = lane.map_err(|e| self.failed("starting HTTP/1.1 with", e))?;
                return self.send_kept(lane, request).await;
            }
        };
        let path = request.uri().path_and_query().map_or("/", |p| p.as_str());
        let scheme = if self.protocol.is_encrypted() { "https" } else { "http" };
        *request.uri_mut() = format!("{scheme}://{}{path}", self.host())
            .parse()
            .map_err(|e: http::uri::InvalidUri| self.failed("addressing", e))?;
        sender.ready().await.map_err(|e| self.failed("sending a request to", e))?;
        let response = sender
            .send_request(request)
            .await
            .map_err(|e| self.failed("sending a request to", e))?;
        Ok(response.map(boxed))
    }
}

/// Has a connection's driver run for as long as somebody holds it.
fn driven<T>(driver: impl Future<Output = T> + Send + 'static) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move { drop(driver.await) }))
}

fn boxed(body: hyper::body::Incoming) -> Body {
    body.map_err(Into::into).boxed_unsync()
}

impl Transport for HttpTransport {
    fn send(&self, request: Request<Body>) -> BoxFuture<'_, Result<Response<Body>, Error>> {
        Box::pin(self.dispatch(request))
    }
}

#[cfg(test)]
pub(crate) mod tests;
