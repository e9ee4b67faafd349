//! Proxies between the client and a server: HTTP CONNECT (RFC 9110 §9.3.6) over TCP, TLS or a Unix socket, and SOCKS5
//! (RFC 1928).

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use futures_util::future::BoxFuture;
use http::{HeaderValue, Uri};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
};

use super::connection::{self, Stream};
use crate::{credentials, tls::ClientTls};

/// The limit of a proxy's response to CONNECT, in bytes.
const MAX_HEAD: usize = 16 * 1024;

/// A proxy between the client and a server.
#[derive(Clone)]
pub struct Proxy {
    kind: Kind,
    host: String,
    /// `host:port`, or the path of a socket.
    authority: String,
    /// The name and password for the proxy.
    login: Option<(String, String)>,
}

impl fmt::Debug for Proxy {
    /// Does not show the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({})", self.authority)
    }
}

#[derive(Clone, Debug)]
enum Kind {
    Http,
    /// TLS with settings for the proxy; `None` for those of the server.
    Https(Option<ClientTls>),
    Socks5,
    Socket(PathBuf),
    /// Another protocol.
    Dialer(Arc<dyn Dialer>),
}

/// A way to open connections by a protocol that this crate does not have.
pub trait Dialer: fmt::Debug + Send + Sync {
    /// Connects to `target` (`host:port`). The caller limits the time.
    fn dial<'a>(&'a self, target: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Stream>>>;
}

/// The error of a `proxy-url`.
#[derive(Debug, thiserror::Error)]
pub enum ProxyUrlError {
    #[error("could not parse: {0}")]
    Syntax(#[source] http::uri::InvalidUri),
    /// The message is client-go's.
    #[error("unsupported scheme {0:?}, must be http, https, or socks5")]
    Scheme(String),
    #[error("it has no host")]
    NoHost,
}

impl Proxy {
    /// Parses the URL of a proxy for HTTP CONNECT. `tls` are the settings for an `https` proxy.
    pub fn http_connect(url: &str, tls: Option<ClientTls>) -> Result<Self, ProxyUrlError> {
        let proxy = Self::parse(url)?;
        match proxy.kind {
            Kind::Https(_) => Ok(Self { kind: Kind::Https(tls), ..proxy }),
            Kind::Http => Ok(proxy),
            Kind::Socks5 | Kind::Socket(_) | Kind::Dialer(_) => {
                Err(ProxyUrlError::Scheme("socks5".to_owned()))
            }
        }
    }

    /// Returns a proxy for HTTP CONNECT at a Unix socket.
    pub fn unix(socket: &Path) -> Self {
        let (host, authority) = (String::new(), socket.display().to_string());
        Self { kind: Kind::Socket(socket.to_owned()), host, authority, login: None }
    }

    /// Returns a proxy of another protocol. `name` is for messages.
    pub fn dialer(name: &str, dialer: Arc<dyn Dialer>) -> Self {
        let (host, authority) = (String::new(), name.to_owned());
        Self { kind: Kind::Dialer(dialer), host, authority, login: None }
    }

    /// Returns the URL of a proxy for messages: without the name and password of the user.
    pub fn shown_url(url: &str) -> String {
        let Some((before, host)) = url.rsplit_once('@') else { return url.to_owned() };
        match before.split_once("://") {
            Some((scheme, _)) => format!("{scheme}://{host}"),
            None => host.to_owned(),
        }
    }

    /// Parses the URL of a proxy.
    pub(crate) fn parse(url: &str) -> Result<Self, ProxyUrlError> {
        let uri: Uri = url.parse().map_err(ProxyUrlError::Syntax)?;
        let (kind, port) = match uri.scheme_str() {
            Some("http") => (Kind::Http, 80),
            Some("https") => (Kind::Https(None), 443),
            Some("socks5" | "socks5h") => (Kind::Socks5, 1080),
            other => {
                return Err(ProxyUrlError::Scheme(other.unwrap_or_default().to_owned()));
            }
        };
        let authority = uri.authority().ok_or(ProxyUrlError::NoHost)?;
        let host = authority.host();
        let name = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let login = authority.as_str().rsplit_once('@').map(|(login, _)| {
            let (user, password) = login.split_once(':').unwrap_or((login, ""));
            (unescape(user), unescape(password))
        });
        let authority = format!("{host}:{}", uri.port_u16().unwrap_or(port));
        Ok(Self { kind, host: name, authority, login })
    }

    /// Connects to `target` (`host:port`) through a proxy that has TLS settings of its own or needs none.
    pub async fn open(&self, target: &str) -> io::Result<Box<dyn Stream>> {
        self.connect(target, None).await
    }

    /// Connects to `target` (`host:port`) through the proxy. `tls` is used if the proxy needs TLS and has no settings.
    pub(crate) async fn connect(
        &self,
        target: &str,
        tls: Option<&Arc<rustls::ClientConfig>>,
    ) -> io::Result<Box<dyn Stream>> {
        let reach = async {
            let tcp = || connection::connect(&self.authority);
            match &self.kind {
                Kind::Http => self.tunnel(tcp().await?, target).await,
                Kind::Https(own) => {
                    let own = own.as_ref().map(|own| own.current().http1.clone());
                    let tls = own.as_ref().or(tls);
                    let tls = tls.ok_or_else(|| io::Error::other("it has no TLS settings"))?;
                    let stream = connection::encrypt(tcp().await?, &self.host, tls).await?;
                    self.tunnel(stream, target).await
                }
                Kind::Socks5 => self.socks(tcp().await?, target).await,
                Kind::Socket(path) => {
                    let stream = Box::new(UnixStream::connect(path).await?);
                    self.tunnel(stream, target).await
                }
                Kind::Dialer(dialer) => dialer.dial(target).await,
            }
        };
        let explain = |error: io::Error| {
            io::Error::new(error.kind(), format!("through the proxy {}: {error}", self.authority))
        };
        reach.await.map_err(explain)
    }

    async fn tunnel(
        &self,
        mut stream: Box<dyn Stream>,
        target: &str,
    ) -> io::Result<Box<dyn Stream>> {
        let mut head = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n").into_bytes();
        if let Some((name, password)) = &self.login {
            let value: HeaderValue = credentials::basic(name, password)?;
            head.extend_from_slice(b"Proxy-Authorization: ");
            head.extend_from_slice(value.as_bytes());
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(b"\r\n");
        stream.write_all(&head).await?;
        stream.flush().await?;
        // Read byte by byte, because the bytes after the head belong to the server.
        let mut response = Vec::new();
        while !response.ends_with(b"\r\n\r\n") {
            if response.len() == MAX_HEAD {
                return Err(io::Error::other("the head of its answer is too long"));
            }
            response.push(stream.read_u8().await?);
        }
        let line = String::from_utf8_lossy(&response);
        let line = line.lines().next().unwrap_or_default();
        match line.split_once(' ') {
            Some((version, status))
                if version.starts_with("HTTP/1.") && status.starts_with('2') =>
            {
                Ok(stream)
            }
            _ => Err(io::Error::other(format!("it answered {line:?}"))),
        }
    }

    async fn socks(
        &self,
        mut stream: Box<dyn Stream>,
        target: &str,
    ) -> io::Result<Box<dyn Stream>> {
        let wrong = |what: &str| io::Error::other(what.to_owned());
        let (host, port) =
            target.rsplit_once(':').ok_or_else(|| wrong("the target has no port"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port: u16 = port.parse().map_err(io::Error::other)?;
        let methods: &[u8] = if self.login.is_some() { &[5, 2, 0, 2] } else { &[5, 1, 0] };
        stream.write_all(methods).await?;
        let mut chosen = [0; 2];
        stream.read_exact(&mut chosen).await?;
        match (chosen, &self.login) {
            ([5, 0], _) => {}
            ([5, 2], Some((name, password))) => {
                let mut login = vec![1];
                push_short(&mut login, name.as_bytes())?;
                push_short(&mut login, password.as_bytes())?;
                stream.write_all(&login).await?;
                let mut accepted = [0; 2];
                stream.read_exact(&mut accepted).await?;
                if accepted[1] != 0 {
                    return Err(wrong("it does not accept the name and password"));
                }
            }
            _ => return Err(wrong("it offers no supported authentication method")),
        }
        let mut request = vec![5, 1, 0];
        match host.parse() {
            Ok(std::net::IpAddr::V4(ip)) => {
                request.push(1);
                request.extend(ip.octets());
            }
            Ok(std::net::IpAddr::V6(ip)) => {
                request.push(4);
                request.extend(ip.octets());
            }
            Err(_) => {
                request.push(3);
                push_short(&mut request, host.as_bytes())?;
            }
        }
        request.extend(port.to_be_bytes());
        stream.write_all(&request).await?;
        let mut head = [0; 4];
        stream.read_exact(&mut head).await?;
        if head[1] != 0 {
            return Err(io::Error::other(format!("it answered with the SOCKS error {}", head[1])));
        }
        let length = match head[3] {
            1 => 4,
            4 => 16,
            3 => usize::from(stream.read_u8().await?),
            _ => return Err(wrong("its answer is not SOCKS5")),
        };
        let mut bound = vec![0; length + 2];
        stream.read_exact(&mut bound).await?;
        Ok(stream)
    }
}

/// Decodes percent escapes. A text with invalid escapes is returned unchanged.
fn unescape(text: &str) -> String {
    let bytes = api_meta::percent_decode(text).ok();
    bytes.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_else(|| text.to_owned())
}

/// Appends a text of at most 255 bytes, preceded by its length.
fn push_short(into: &mut Vec<u8>, text: &[u8]) -> io::Result<()> {
    into.push(u8::try_from(text.len()).map_err(io::Error::other)?);
    into.extend_from_slice(text);
    Ok(())
}

#[cfg(test)]
mod tests;
