//! The plain HTTP port, from which a rack fetches its files.
//!
//! Files are sent by `sendfile(2)`, so that a download costs a socket and no buffer, however slow it is. All other
//! requests are answered by hyper, a bounded number at a time. A client without a complete request head occupies none
//! of these slots, and each request has a deadline.

use std::{future::Future, io, net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

use bytes::{Buf, BytesMut};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Uri, Version, header,
};
use rt::Shutdown;
use serve::{BoxError, ClientLimits, Connection, Handler, Limits};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};

use super::{
    assets::Content,
    sendfile,
    web::{ASSETS, WebHandler},
};

/// The maximum number of connections; more wait in the kernel's backlog.
const CONNECTIONS: usize = 10_000;
/// The maximum number of concurrent requests in hyper, in total and per client.
const REQUESTS: usize = 64;
const OF_ONE_CLIENT: usize = 16;
/// The maximum length of a request head, in bytes.
const HEAD: usize = 8 << 10;
/// The deadlines for a request head, for a request that is not for a file, and for progress of a download.
const HEAD_TIME: Duration = Duration::from_secs(32);
const REQUEST_TIME: Duration = Duration::from_secs(30);
const STALLED: Duration = Duration::from_secs(120);

struct Port {
    handler: Arc<WebHandler>,
    client_limits: Arc<ClientLimits>,
    shutdown: Shutdown,
}

/// Serves connections until shutdown.
pub(crate) async fn serve(listener: TcpListener, handler: Arc<WebHandler>, tasks: rt::Tasks) {
    let client_limits = ClientLimits::new(REQUESTS, OF_ONE_CLIENT);
    let port = Arc::new(Port { handler, client_limits, shutdown: tasks.shutdown().clone() });
    let work = move |stream, peer| {
        let port = port.clone();
        async move { port.converse(stream, peer).await }
    };
    serve::accept(listener, CONNECTIONS, tasks, work).await;
}

/// A request for a file.
#[derive(Debug)]
struct Request {
    method: Method,
    path: String,
    headers: HeaderMap,
    keep_alive: bool,
}

#[derive(Debug)]
enum Head {
    Unfinished,
    /// A request for a file, and the length of its head in bytes.
    File(Box<Request>, usize),
    /// Any other request, valid or not.
    Other,
}

fn head(bytes: &[u8]) -> Head {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => match file(&request) {
            Some(request) => Head::File(Box::new(request), length),
            None => Head::Other,
        },
        Ok(httparse::Status::Partial) if bytes.len() < HEAD => Head::Unfinished,
        _ => Head::Other,
    }
}

/// Returns a plain request for a file: HTTP/1.1 without a body or upgrade.
fn file(request: &httparse::Request<'_, '_>) -> Option<Request> {
    let method = match request.method? {
        "GET" => Method::GET,
        "HEAD" => Method::HEAD,
        _ => return None,
    };
    let target = request.path.filter(|path| path.starts_with(ASSETS))?;
    if request.version != Some(1) {
        return None;
    }
    let mut headers = HeaderMap::new();
    for field in request.headers.iter() {
        let name = HeaderName::from_bytes(field.name.as_bytes()).ok()?;
        headers.append(name, HeaderValue::from_bytes(field.value).ok()?);
    }
    let plain = headers.get(header::CONTENT_LENGTH).is_none_or(|length| length == "0")
        && [header::TRANSFER_ENCODING, header::UPGRADE, header::EXPECT]
            .iter()
            .all(|name| !headers.contains_key(name));
    let keep_alive = !headers
        .get_all(header::CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .any(|word| word.trim_ascii().eq_ignore_ascii_case(b"close"));
    let path = target.parse::<Uri>().ok()?.path().to_owned();
    plain.then_some(Request { method, path, headers, keep_alive })
}

/// Encodes the head of a response. `length` is the length of a body that is not a file.
fn begin(response: &Response<Content>, length: usize, keep_alive: bool) -> Vec<u8> {
    let (status, headers) = (response.status(), response.headers());
    let mut out = format!("{:?} {status}\r\n", Version::HTTP_11).into_bytes();
    for (name, value) in headers {
        out.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    if !headers.contains_key(header::CONTENT_LENGTH) && status != StatusCode::NOT_MODIFIED {
        out.extend(format!("content-length: {length}\r\n").bytes());
    }
    if !keep_alive {
        out.extend(b"connection: close\r\n");
    }
    out.extend(b"\r\n");
    out
}

impl Port {
    async fn converse(&self, stream: TcpStream, peer: SocketAddr) -> Result<(), BoxError> {
        stream.set_nodelay(true)?;
        // Boxed, because each enclosing future would reserve room for it again.
        let files = Box::pin(self.files(stream, peer));
        match self.shutdown.unless_stopping(files).await {
            Some(Ok(Some((stream, read)))) => self.others(stream, read, peer).await,
            Some(Err(error)) => Err(error.into()),
            Some(Ok(None)) | None => Ok(()),
        }
    }

    /// Sends files until another kind of request arrives. Returns the stream and the bytes read of that request.
    async fn files(
        &self,
        mut stream: TcpStream,
        peer: SocketAddr,
    ) -> io::Result<Option<(TcpStream, BytesMut)>> {
        let mut read = BytesMut::new();
        loop {
            let request = match timeout(HEAD_TIME, next(&mut stream, &mut read)).await {
                Ok(head) => match head? {
                    Head::File(request, length) if self.serves_files() => {
                        read.advance(length);
                        request
                    }
                    Head::Unfinished => return Ok(None),
                    Head::File(..) | Head::Other => return Ok(Some((stream, read))),
                },
                Err(_) => return Ok(None),
            };
            if read.is_empty() {
                // Free the buffer while the file is sent.
                read = BytesMut::new();
            }
            self.send(&mut stream, &request, peer).await?;
            if !request.keep_alive {
                stream.shutdown().await?;
                return Ok(None);
            }
        }
    }

    fn serves_files(&self) -> bool {
        self.handler.matchbox.settings.assets.is_some()
    }

    async fn send(
        &self,
        stream: &mut TcpStream,
        request: &Request,
        peer: SocketAddr,
    ) -> io::Result<()> {
        let matchbox = &self.handler.matchbox;
        let Request { method, path, headers, keep_alive } = request;
        let response = Box::pin(matchbox.asset(method, path, headers, Some(peer.ip()))).await;
        let response = response.ok_or(io::ErrorKind::NotFound)?;
        let text = if let Content::Text(text) = response.body() { text.as_ref() } else { &[] };
        let mut head = begin(&response, text.len(), *keep_alive);
        if *method != Method::HEAD {
            head.extend(text);
        }
        timeout(STALLED, stream.write_all(&head)).await??;
        drop(head);
        if let Content::File(file, from, to) = response.into_body() {
            let _transfer = matchbox.transfers.begin();
            sendfile::send(stream, Arc::new(file), from..to, STALLED).await?;
        }
        Ok(())
    }

    /// Answers one request by hyper; `read` has the bytes already received.
    fn others(
        &self,
        stream: TcpStream,
        read: BytesMut,
        peer: SocketAddr,
    ) -> Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send + '_>> {
        Box::pin(async move {
            let _permit = self.client_limits.enter(peer.ip()).await;
            let (reader, writer) = stream.into_split();
            let reader = AsyncReadExt::chain(io::Cursor::new(read), reader);
            let stream = tokio::io::join(reader, writer);
            let connection = Connection { peer: Some(peer), ..Connection::default() };
            let handler: Arc<dyn Handler> = self.handler.clone();
            let limits = Limits { keep_alive: false, ..Limits::default() };
            let shutdown = self.shutdown.clone();
            let answered = serve::serve_stream(stream, connection, handler, &limits, shutdown);
            timeout(REQUEST_TIME, answered).await?
        })
    }
}

/// Reads until a request head is complete or is known not to be for a file. Returns `Unfinished` after the peer has
/// closed.
async fn next(stream: &mut TcpStream, read: &mut BytesMut) -> io::Result<Head> {
    loop {
        if !read.is_empty() {
            match head(read) {
                Head::Unfinished => {}
                complete => return Ok(complete),
            }
        }
        stream.readable().await?;
        // Reserved only now, so that an idle connection holds no buffer.
        read.reserve(512);
        match stream.try_read_buf(read) {
            Ok(0) => return Ok(Head::Unfinished),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matchbox::{Matchbox, Settings, Store};

    #[test]
    fn recognises_plain_file_requests() {
        for (text, want) in [
            ("GET /assets/a%20b?x HTTP/1.1\r\nhost: m\r\n\r\n", "/assets/a%20b keep"),
            ("HEAD /assets/ HTTP/1.1\r\nConnection: TE, Close\r\n\r\n", "/assets/ close"),
            ("GET /assets/a HTTP/1.1\r\nContent-Length: 0\r\n\r\nGET", "/assets/a keep GET"),
            ("GET /assets/a HTTP/1.1\r\nhost: m\r\n", "unfinished"),
            ("GET /assets/a HTTP/1.0\r\n\r\n", "other"),
            ("GET /assets/a HTTP/1.1\r\nContent-Length: 1\r\n\r\n", "other"),
            ("GET /assets/a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", "other"),
            ("GET /assets/a HTTP/1.1\r\nUpgrade: h2c\r\n\r\n", "other"),
            ("POST /assets/a HTTP/1.1\r\n\r\n", "other"),
            ("GET /boot.ipxe HTTP/1.1\r\n\r\n", "other"),
            ("GET http://m/assets/a HTTP/1.1\r\n\r\n", "other"),
            ("\x16\x03\x01\x02\0\x01", "other"),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "other"),
        ] {
            let known = match head(text.as_bytes()) {
                Head::Unfinished => "unfinished".to_owned(),
                Head::Other => "other".to_owned(),
                Head::File(request, length) => {
                    let after = if request.keep_alive { "keep" } else { "close" };
                    format!("{} {after} {}", request.path, &text[length..]).trim().to_owned()
                }
            };
            assert_eq!(known, want, "{text:?}");
        }
        let long = format!("GET /assets/a HTTP/1.1\r\nx: {}", "y".repeat(HEAD));
        assert!(matches!(head(long.as_bytes()), Head::Other));
    }

    /// The memory per connection of a rack's machines, besides the kernel's.
    #[test]
    fn download_future_is_small() {
        let tasks = rt::Tasks::new(Shutdown::new());
        let store = Arc::new(Store::new("/"));
        let matchbox = Arc::new(Matchbox::new(store, Settings::default()));
        let handler = Arc::new(WebHandler { matchbox, tls: false });
        let client_limits = ClientLimits::new(1, 1);
        let port = Port { handler, client_limits, shutdown: tasks.shutdown().clone() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let stream = TcpStream::connect(address).await.unwrap();
            let one = size_of_val(&port.files(stream, address));
            let stream = TcpStream::connect(address).await.unwrap();
            let size = one + size_of_val(&port.converse(stream, address));
            assert!(size <= 2048, "{size}, {one} of them for files");
        });
    }

    proptest::proptest! {
        #[test]
        fn parses_arbitrary_heads_without_panic(bytes in proptest::collection::vec(0u8..=255, 0..200)) {
            head(&bytes);
            head(&[&b"GET /assets/"[..], &bytes].concat());
        }
    }
}
