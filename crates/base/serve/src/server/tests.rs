//! Tests of silent connections and of too many connections. The clock is paused except while a test waits.

use std::time::Duration;

use futures_util::{FutureExt as _, future::BoxFuture};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream},
    task::JoinHandle,
    time::Instant,
};

use super::*;
use crate::Standing;

/// Answers at once, except for `/slow`, whose response body never arrives.
struct TestHandler;

impl Handler for TestHandler {
    fn handle(&self, request: Request<Body>) -> BoxFuture<'_, Response<Body>> {
        let body = match request.uri().path() {
            "/slow" => {
                let frames = futures_util::stream::pending::<Result<_, BoxError>>();
                http_body_util::StreamBody::new(frames).boxed_unsync()
            }
            _ => full("yes"),
        };
        std::future::ready(Response::new(body)).boxed()
    }
}

type Conversation = JoinHandle<Result<(), BoxError>>;

fn conversation() -> (DuplexStream, Conversation) {
    let (client, server) = tokio::io::duplex(64 << 10);
    let conversation = async move {
        let (handler, limits) = (Arc::new(TestHandler), Limits::default());
        serve_stream(server, Connection::default(), handler, &limits, rt::Shutdown::new()).await
    };
    #[allow(clippy::disallowed_methods, reason = "the task of a test ends with its runtime")]
    (client, tokio::spawn(conversation))
}

/// Returns the time until the server ends the conversation.
async fn lasted(conversation: Conversation, begun: Instant) -> Duration {
    let ended = tokio::time::timeout(Duration::from_secs(3600), conversation).await;
    let _ = ended.expect("it ends").unwrap();
    begun.elapsed()
}

async fn ask(client: &mut DuplexStream, path: &str) {
    let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n");
    client.write_all(request.as_bytes()).await.unwrap();
}

async fn read_answer(client: &mut DuplexStream) {
    let mut answer = Vec::new();
    while !answer.ends_with(b"yes") {
        answer.push(client.read_u8().await.unwrap());
    }
}

const FIRST: Duration = Duration::from_secs(32);
const IDLE: Duration = Duration::from_secs(90);
/// The time that closing a connection may take.
const MOMENT: Duration = Duration::from_secs(6);

#[tokio::test(start_paused = true)]
async fn closes_silent_connection() {
    let (_client, conversation) = conversation();
    let lasted = lasted(conversation, Instant::now()).await;
    assert!((FIRST..FIRST + MOMENT).contains(&lasted), "{lasted:?}");
}

#[tokio::test(start_paused = true)]
async fn closes_connection_with_slow_request_head() {
    for beginning in ["GET / HTTP/1.1\r\nx: ", "PRI * HTTP/2.0\r\n\r\nSM"] {
        let ((mut client, conversation), begun) = (conversation(), Instant::now());
        client.write_all(beginning.as_bytes()).await.unwrap();
        let dribble = async {
            while client.write_all(b"x").await.is_ok() {
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
        };
        let (lasted, ()) = tokio::join!(lasted(conversation, begun), dribble);
        assert!(lasted < FIRST + MOMENT, "{beginning:?}: {lasted:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn closes_http2_connection_without_requests() {
    let ((mut client, conversation), begun) = (conversation(), Instant::now());
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    client.write_all(preface).await.unwrap();
    // Pings are answered and keep the connection alive, but they are not requests.
    let ping = async {
        let ping = b"\0\0\x08\x06\0\0\0\0\0abcdefgh";
        while client.write_all(ping).await.is_ok() {
            let mut told = [0; 4096];
            let _ = client.read(&mut told).await;
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    };
    let (lasted, ()) = tokio::join!(lasted(conversation, begun), ping);
    assert!((FIRST..FIRST + MOMENT).contains(&lasted), "{lasted:?}");
}

#[tokio::test(start_paused = true)]
async fn keeps_idle_connection_between_requests() {
    let (mut client, conversation) = conversation();
    for _ in 0..3 {
        ask(&mut client, "/").await;
        read_answer(&mut client).await;
        tokio::time::sleep(IDLE - Duration::from_secs(5)).await;
    }
    ask(&mut client, "/").await;
    read_answer(&mut client).await;
    let lasted = lasted(conversation, Instant::now()).await;
    assert!((IDLE..IDLE + MOMENT).contains(&lasted), "{lasted:?}");
}

#[tokio::test(start_paused = true)]
async fn keeps_connection_with_open_response() {
    let (mut client, conversation) = conversation();
    ask(&mut client, "/slow").await;
    let begun = Instant::now();
    let ended = tokio::time::timeout(Duration::from_secs(3600), conversation).await;
    assert!(ended.is_err(), "it was closed after {:?}", begun.elapsed());
}

#[tokio::test]
async fn closes_http2_connection_by_chance() {
    let (client, server) = tokio::io::duplex(64 << 10);
    let limits = Limits { goaway_chance: 1.0, ..Limits::default() };
    let serving = async move {
        let handler = Arc::new(TestHandler);
        serve_stream(server, Connection::default(), handler, &limits, rt::Shutdown::new()).await
    };
    let using = async {
        let io = TokioIo::new(client);
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
        let asking = async {
            let request = Request::get("http://a/").body(full("")).unwrap();
            let response = sender.send_request(request).await.unwrap();
            assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "yes");
        };
        // The request is answered, and then the server closes the connection.
        let (ended, ()) = tokio::join!(connection, asking);
        ended.unwrap();
    };
    let both = async { tokio::join!(serving, using) };
    // The client may be gone before the server has written its last frame, which is no matter.
    let (_served, ()) = tokio::time::timeout(Duration::from_secs(10), both).await.unwrap();
}

#[tokio::test]
async fn sends_no_body_for_head() {
    let (client, server) = tokio::io::duplex(64 << 10);
    let serving = async move {
        let (handler, limits) = (Arc::new(TestHandler), Limits::default());
        serve_stream(server, Connection::default(), handler, &limits, rt::Shutdown::new()).await
    };
    let using = async {
        let io = TokioIo::new(client);
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
        let asking = async move {
            let request = Request::head("http://a/").body(full("")).unwrap();
            let response = sender.send_request(request).await.unwrap();
            assert_eq!(response.headers()["content-length"], "3");
            assert!(response.body().is_end_stream(), "the headers end the stream");
        };
        let (ended, ()) = tokio::join!(connection, asking);
        ended.unwrap();
    };
    let both = async { tokio::join!(serving, using) };
    let (_served, ()) = tokio::time::timeout(Duration::from_secs(10), both).await.unwrap();
}

fn peer(text: &str) -> SocketAddr {
    SocketAddr::new(text.parse().unwrap(), 1)
}

fn taken(slots: &Arc<Slots>, from: &str) -> Slot {
    match slots.admit(peer(from)) {
        Admission::Admitted(slot) => slot,
        Admission::Wait => panic!("{from} waits"),
        Admission::Refused => panic!("{from} is refused"),
    }
}

fn gives_way(slot: &Slot) -> bool {
    slot.activity.closed().now_or_never().is_some()
}

#[tokio::test(start_paused = true)]
async fn closes_longest_idle_but_never_nodes() {
    let slots = Slots::new(3, 3);
    let (node, silent, busy) =
        (taken(&slots, "10.0.0.1"), taken(&slots, "10.0.0.2"), taken(&slots, "10.0.0.3"));
    node.activity.raise_standing(Standing::Essential);
    let request = busy.activity.begin();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let fresh = taken(&slots, "10.0.0.4");
    assert!(gives_way(&silent) && !gives_way(&node) && !gives_way(&busy) && !gives_way(&fresh));
    // The first connection is already closing, and is not selected again.
    let fresher = taken(&slots, "10.0.0.5");
    assert!(gives_way(&fresh) && !gives_way(&silent));
    drop((silent, fresh));
    fresher.activity.raise_standing(Standing::Known);
    let known = fresher.activity.begin();
    assert!(matches!(slots.admit(peer("10.0.0.6")), Admission::Wait), "all are of use");
    drop((known, request));
    // Unknown peers are closed first, although the other connection has been idle as long.
    let last = taken(&slots, "10.0.0.6");
    assert!(gives_way(&busy) && !gives_way(&fresher) && !gives_way(&node));
    drop((busy, fresher, node, last));
    assert_eq!(slots.open(), 0);
}

#[tokio::test(start_paused = true)]
async fn limits_connections_of_a_source() {
    let slots = Slots::new(100, 4);
    // One host may own all of a /64.
    let silent: Vec<_> = (0..4).map(|n| taken(&slots, &format!("2001:db8::{n}"))).collect();
    let other = taken(&slots, "2001:db8:0:1::1");
    let next = taken(&slots, "2001:db8::ffff");
    assert_eq!(silent.iter().filter(|slot| gives_way(slot)).count(), 1);
    assert!(!gives_way(&other) && !gives_way(&next));
    drop(silent);
    // Known peers do not count: a load balancer in front of the server is a single source.
    let nodes: Vec<_> = (0..20)
        .map(|_| {
            let slot = taken(&slots, "10.0.0.1");
            slot.activity.raise_standing(Standing::Known);
            slot
        })
        .collect();
    assert!(!nodes.iter().any(gives_way));
    let busy: Vec<_> = (0..4).map(|_| taken(&slots, "10.0.0.9")).collect();
    let _requests: Vec<_> = busy.iter().map(|slot| slot.activity.begin()).collect();
    assert!(matches!(slots.admit(peer("10.0.0.9")), Admission::Refused));
    assert!(matches!(slots.admit(peer("10.0.0.8")), Admission::Admitted(_)));
}

/// 200 clients connect and stay silent; a later client is served.
#[tokio::test]
async fn serves_new_client_despite_silent_ones() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let tasks = rt::Tasks::new(rt::Shutdown::new());
    let limits = Limits { connections: 20, ..Limits::default() };
    tasks.spawn("server", serve(listener, None, limits, Arc::new(TestHandler), tasks.clone()));
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut answer = [0; 15];
    client.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200 OK");
    // The first of the silent connections was closed.
    assert_eq!(silent[0].read(&mut answer).await.unwrap_or_default(), 0);
    tasks.shutdown().stop();
}
