//! Clients that read slowly or never: the server holds a bounded amount of data for them, and other clients are not
//! delayed.
//!
//! The responses are those of the API server. They pass through a listener of the same kind and with the same limits,
//! which counts every piece of a body while a connection holds it.

use std::{
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicIsize, AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::{future::BoxFuture, task::AtomicWaker};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::BodyExt as _;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use serve::{Body, Limits, ServerTls};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::client::TlsStream;

use crate::{
    harness::{Api, Identity, TestServer, config_map, start},
    watches::{Events, version},
};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// The kernel's buffers of a connection: the send buffer and the small receive buffer of these clients.
const KERNEL: usize = 5 * MIB;

/// The bytes of responses, counted by the listener.
#[derive(Default)]
struct Gauge {
    /// Taken from bodies by connections, in total.
    taken: AtomicUsize,
    /// Held by connections, currently and at most.
    held: AtomicUsize,
    most: AtomicUsize,
    /// The number of started responses, and of bodies that still exist.
    begun: AtomicUsize,
    bodies: AtomicUsize,
}

/// A piece of a response while a connection holds it.
struct Piece(Bytes, Arc<Gauge>);

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.1.held.fetch_sub(self.0.len(), SeqCst);
    }
}

/// Counts the frames of a body, and the body while it exists.
struct Counted(Arc<Gauge>);

impl Counted {
    fn count(&self, frame: Frame<Bytes>) -> Frame<Bytes> {
        let gauge = &self.0;
        frame.map_data(|data| {
            gauge.taken.fetch_add(data.len(), SeqCst);
            let held = gauge.held.fetch_add(data.len(), SeqCst) + data.len();
            gauge.most.fetch_max(held, SeqCst);
            Bytes::from_owner(Piece(data, gauge.clone()))
        })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.bodies.fetch_sub(1, SeqCst);
    }
}

struct Counting(Api, Arc<Gauge>);

impl serve::Handler for Counting {
    fn handle(&self, request: Request<Body>) -> BoxFuture<'_, Response<Body>> {
        Box::pin(async move {
            let response = self.0.0.request(request).await.unwrap();
            self.1.begun.fetch_add(1, SeqCst);
            self.1.bodies.fetch_add(1, SeqCst);
            let counted = Counted(self.1.clone());
            response.map(|body| body.map_frame(move |frame| counted.count(frame)).boxed_unsync())
        })
    }
}

/// A counting listener in front of a server with a list.
struct Front {
    server: TestServer,
    address: SocketAddr,
    gauge: Arc<Gauge>,
    maps: String,
}

/// A list of 50 MB.
const OBJECTS: usize = 500;
const OBJECT: usize = 100 * KIB;
const LIST: usize = OBJECTS * OBJECT;
/// Responses consist of pieces of 64 KiB, each ending with a whole object.
const PIECE: usize = 64 * KIB + OBJECT + KIB;
/// The maximum that a stream of HTTP/2 takes in advance: it stops at one mebibyte, while holding the next piece.
const STREAM: usize = MIB + 2 * PIECE;
/// The same for a connection of HTTP/1.1, which has one response at a time. A partly sent piece counts whole.
const BUFFER: usize = 8 * KIB + 400 * KIB + 2 * PIECE;

impl Front {
    async fn open(objects: usize) -> Self {
        let server = start(|_| {}).await;
        let admin = server.admin();
        let maps = format!("/api/v1/namespaces/{}/configmaps", admin.namespace().await);
        for n in 0..objects {
            let map = config_map(&format!("m{n}"), json!({"k": "x".repeat(OBJECT)}));
            admin.post(&maps, &map).await.ok();
        }
        let at = server.directory.path();
        let files = (at.join("apiserver.crt"), at.join("apiserver.key"));
        let tls = ServerTls::from_files(&files.0, &files.1, Vec::new()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let gauge = Arc::new(Gauge::default());
        let counting = Arc::new(Counting(admin, gauge.clone()));
        let serving =
            serve::serve(listener, Some(tls), Limits::default(), counting, server.tasks.clone());
        server.tasks.spawn_until_shutdown("a listener that counts", serving);
        Self { server, address, gauge, maps }
    }

    async fn dial(&self, protocol: &str) -> TlsStream<TcpStream> {
        self.server.dial(self.address, protocol).await
    }

    /// Returns a well-behaved client of the same listener.
    fn other(&self) -> Api {
        self.server.tls_to(self.address, Identity::Nobody)
    }

    /// Waits until connections take nothing more, while serving another client. Returns the bytes taken without those
    /// of the other client.
    async fn settled(&self) -> usize {
        let other = self.other();
        let (mut mine, mut last, mut since) = (0, 0, Instant::now());
        while since.elapsed() < Duration::from_secs(1) {
            let started = Instant::now();
            let answer = other.get(&format!("{}/m1", self.maps)).await;
            assert_eq!(answer.code, 200);
            assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
            mine += answer.body.len();
            let taken = self.gauge.taken.load(SeqCst) - mine;
            if taken != last {
                (last, since) = (taken, Instant::now());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        last
    }

    async fn until(&self, what: &str, reached: impl Fn(&Gauge) -> bool) {
        for _ in 0..3000 {
            if reached(&self.gauge) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{what}: {:?} bodies, {:?} held", self.gauge.bodies, self.gauge.held);
    }

    async fn until_idle(&self) {
        let idle = |gauge: &Gauge| gauge.bodies.load(SeqCst) == 0 && gauge.held.load(SeqCst) == 0;
        self.until("all is let go", idle).await;
    }
}

/// The number of bytes that a client may still read.
#[derive(Default)]
struct Allowance(AtomicIsize, AtomicWaker);

impl Allowance {
    fn set(&self, bytes: usize) {
        self.0.store(bytes as isize, SeqCst);
        self.1.wake();
    }

    /// Closes the connection.
    fn leave(&self) {
        self.0.store(isize::MIN, SeqCst);
        self.1.wake();
    }
}

/// A stream that reads no more than is allowed.
struct Reluctant(TlsStream<TcpStream>, Arc<Allowance>);

impl AsyncRead for Reluctant {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        self.1.1.register(cx.waker());
        let allowed = self.1.0.load(SeqCst);
        if allowed == isize::MIN {
            return Poll::Ready(Err(std::io::ErrorKind::ConnectionAborted.into()));
        }
        if allowed <= 0 {
            return Poll::Pending;
        }
        let before = into.filled().len();
        ready!(Pin::new(&mut self.0).poll_read(cx, into))?;
        self.1.0.fetch_sub((into.filled().len() - before) as isize, SeqCst);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Reluctant {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

fn get(path: &str) -> Request<Body> {
    Request::get(format!("https://127.0.0.1{path}")).body(client::full("")).unwrap()
}

/// A connection of HTTP/2 that reads only when allowed to.
struct Stuck {
    sender: http2::SendRequest<Body>,
    allowance: Arc<Allowance>,
}

impl Stuck {
    /// Opens its flow-control windows to the maximum, so that only the server's limits apply.
    async fn open(front: &Front) -> Self {
        let allowance = Arc::new(Allowance::default());
        let stream = Reluctant(front.dial("h2").await, allowance.clone());
        let (mut sender, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(1 << 30)
            .initial_connection_window_size(1 << 30)
            .handshake(TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        allowance.set(MIB);
        let alive = sender.send_request(get("/livez/etcd")).await.unwrap();
        assert_eq!(alive.collect().await.unwrap().to_bytes(), "ok");
        allowance.set(0);
        Self { sender, allowance }
    }

    /// Sends a request. The task returns the number of bytes received.
    fn ask(&self, path: &str) -> tokio::task::JoinHandle<usize> {
        let (mut sender, request) = (self.sender.clone(), get(path));
        tokio::spawn(async move {
            let mut body = sender.send_request(request).await.unwrap().into_body();
            let mut size = 0;
            while let Some(Ok(frame)) = body.frame().await {
                size += frame.into_data().map_or(0, |data| data.len());
            }
            size
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bounds_unread_lists_over_http2() {
    let front = Front::open(OBJECTS).await;
    never_over_http2(&front).await;
    slowly_over_http2(&front).await;
    front.server.tasks.shutdown().stop();
}

async fn never_over_http2(front: &Front) {
    const ASKED: usize = 100;
    let client = Stuck::open(front).await;
    let mut asked: Vec<_> = (0..ASKED).map(|_| client.ask(&front.maps)).collect();
    front.until("all answers begin", |gauge| gauge.begun.load(SeqCst) > ASKED).await;
    let taken = front.settled().await;
    let most = front.gauge.most.load(SeqCst);
    assert!(taken > LIST && taken <= ASKED * STREAM + KERNEL, "{taken} of {}", ASKED * LIST);
    assert!(most <= ASKED * STREAM, "{most} held");
    eprintln!("HTTP/2, {ASKED} lists never read: {taken} taken, {most} held at the most");
    // The client reads again: one list arrives as a whole; the others are cancelled and cost nothing afterwards.
    let wanted = asked.pop().unwrap();
    asked.iter().for_each(tokio::task::JoinHandle::abort);
    client.allowance.set(usize::MAX / 2);
    assert!(wanted.await.unwrap() > LIST);
    front.until_idle().await;
    assert!(client.ask(&front.maps).await.unwrap() > LIST, "the connection goes on");
    client.allowance.leave();
}

async fn slowly_over_http2(front: &Front) {
    const ASKED: usize = 4;
    front.until_idle().await;
    front.gauge.most.store(0, SeqCst);
    let before = front.gauge.taken.load(SeqCst);
    let client = Stuck::open(front).await;
    let asked: Vec<_> = (0..ASKED).map(|_| client.ask(&front.maps)).collect();
    let (mut read, other) = (0, front.other());
    while read < 20 * MIB {
        client.allowance.set(256 * KIB);
        read += 256 * KIB;
        assert_eq!(other.get("/livez/etcd").await.code, 200);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let taken = front.gauge.taken.load(SeqCst) - before;
    let most = front.gauge.most.load(SeqCst);
    assert!(taken > 10 * MIB, "it gets on: {taken}");
    assert!(taken <= read + MIB + ASKED * STREAM + KERNEL, "{taken} taken, {read} read");
    assert!(most <= ASKED * STREAM + KIB, "{most} held");
    eprintln!("HTTP/2, {ASKED} lists, {read} read slowly: {taken} taken, {most} held at the most");
    // The client disconnects in the middle.
    client.allowance.leave();
    front.until_idle().await;
    drop(asked);
}

#[tokio::test(flavor = "multi_thread")]
async fn bounds_unread_lists_over_http1() {
    const OBJECTS: usize = 200;
    let front = Front::open(OBJECTS).await;
    let mut stream = front.dial("http/1.1").await;
    let request = format!("GET {} HTTP/1.1\r\nHost: x\r\n\r\n", front.maps);
    stream.write_all(request.repeat(100).as_bytes()).await.unwrap();
    front.until("the first answer begins", |gauge| gauge.begun.load(SeqCst) > 0).await;
    let taken = front.settled().await;
    let most = front.gauge.most.load(SeqCst);
    assert_eq!(front.gauge.bodies.load(SeqCst), 1, "the next answers wait for the first");
    assert!(taken > 0 && taken <= BUFFER + KERNEL, "{taken} taken");
    assert!(most <= BUFFER, "{most} held");
    eprintln!("HTTP/1.1, 100 lists never read: {taken} taken, {most} held at the most");
    // The client reads again, and the second response follows the first.
    let (mut read, mut part, mut answers) = (0, vec![0; MIB], 0);
    while answers < 2 {
        let length = stream.read(&mut part).await.unwrap();
        assert!(length > 0, "the connection goes on");
        answers += part[..length].windows(15).filter(|w| w == b"HTTP/1.1 200 OK").count();
        read += length;
    }
    assert!(read > OBJECTS * OBJECT, "{read}");
    let most = front.gauge.most.load(SeqCst);
    assert!(most <= BUFFER, "{most} held");
    drop(stream);
    front.until_idle().await;
    front.server.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn ends_watches_that_are_not_read() {
    const WRITES: usize = 300;
    let front = Front::open(1).await;
    let api = front.server.admin();
    let from = version(&api.get(&front.maps).await.ok());
    let path = format!("{}?watch=true&resourceVersion={from}", front.maps);
    let mut quick = Events::open(&api, &path).await;
    let over_http2 = Stuck::open(&front).await;
    let mut sender = over_http2.sender.clone();
    over_http2.allowance.set(KIB);
    let first = sender.send_request(get(&path)).await.unwrap().into_body();
    over_http2.allowance.set(0);
    // hyper takes only as much of a body as is read.
    let stream = TokioIo::new(front.dial("http/1.1").await);
    let (mut sender, connection) = http1::handshake::<_, Body>(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let second = sender.send_request(get(&path)).await.unwrap().into_body();
    let before = front.gauge.taken.load(SeqCst);
    for n in 1..=WRITES {
        let data = json!({"data": {"k": "x".repeat(OBJECT), "n": n.to_string()}});
        api.patch(&format!("{}/m0", front.maps), "merge", &data).await.ok();
        let event = quick.next().await.expect("who reads is served");
        assert_eq!(event["object"]["data"]["n"], n.to_string());
    }
    let taken = front.gauge.taken.load(SeqCst) - before;
    let most = front.gauge.most.load(SeqCst);
    assert!(taken > OBJECT && taken <= STREAM + BUFFER + 2 * KERNEL, "{taken} taken");
    assert!(most <= STREAM + BUFFER, "{most} held");
    eprintln!("two watchers never read: {taken} taken, {most} held at the most");
    // The events received have no gap, and then the watches end.
    over_http2.allowance.set(usize::MAX / 2);
    for body in [first, second] {
        let mut events = Events::of(body.map_err(Into::into).boxed_unsync());
        let mut seen = 0;
        while let Some(event) = events.next().await {
            seen += 1;
            assert_eq!(event["object"]["data"]["n"], seen.to_string());
        }
        assert!(seen > 0 && seen < WRITES, "{seen}");
    }
    front.until_idle().await;
    connection.abort();
    front.server.tasks.shutdown().stop();
}
