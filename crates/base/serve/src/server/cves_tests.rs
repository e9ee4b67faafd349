//! Published vulnerabilities of HTTP/2 servers, one test each.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use futures_util::future::BoxFuture;
use http::Response;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

use super::*;
use crate::Body;

/// Counts requests in progress and in total. The handler never answers.
#[derive(Default)]
struct Counts {
    now: AtomicUsize,
    most: AtomicUsize,
    all: AtomicUsize,
}

struct CountedRequest(Arc<Counts>);

impl Drop for CountedRequest {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}

struct Pending(Arc<Counts>);

impl Handler for Pending {
    fn handle(&self, _: Request<Body>) -> BoxFuture<'_, Response<Body>> {
        let counts = self.0.clone();
        let now = counts.now.fetch_add(1, Ordering::SeqCst) + 1;
        counts.most.fetch_max(now, Ordering::SeqCst);
        counts.all.fetch_add(1, Ordering::SeqCst);
        let under_way = CountedRequest(counts);
        Box::pin(async move {
            let _under_way = under_way;
            std::future::pending().await
        })
    }
}

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// `GET http://a/`, encoded with the static table of RFC 7541.
const REQUEST: &[u8] = &[0x82, 0x86, 0x84, 0x41, 0x01, b'a'];

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Starts a server with one connection, and sends the preface.
async fn open_connection(counts: &Arc<Counts>) -> (DuplexStream, tokio::task::JoinHandle<()>) {
    let (mut client, server) = tokio::io::duplex(64 << 10);
    let handler = Arc::new(Pending(counts.clone()));
    let conversation = async move {
        let (limits, shutdown) = (Limits::default(), rt::Shutdown::new());
        let _ended = serve_stream(server, Connection::default(), handler, &limits, shutdown).await;
    };
    #[allow(clippy::disallowed_methods, reason = "the task of a test ends with its runtime")]
    let conversation = tokio::spawn(conversation);
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    (client, conversation)
}

/// Sends the frames until the server closes the connection. Returns the number of frames sent and all received bytes.
async fn send(client: DuplexStream, frames: impl Iterator<Item = Vec<u8>>) -> (usize, Vec<u8>) {
    let (mut from, mut to) = tokio::io::split(client);
    let sending = async {
        let mut sent = 0;
        for frame in frames {
            if to.write_all(&frame).await.is_err() {
                break;
            }
            sent += 1;
        }
        sent
    };
    let receiving = async {
        let mut received = Vec::new();
        let _ended =
            tokio::time::timeout(Duration::from_secs(10), from.read_to_end(&mut received)).await;
        received
    };
    tokio::join!(sending, receiving)
}

fn kinds(mut received: &[u8]) -> Vec<u8> {
    let mut kinds = Vec::new();
    while let Some((head, rest)) = received.split_at_checked(9) {
        kinds.push(head[3]);
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        received = rest.get(length..).unwrap_or_default();
    }
    kinds
}

/// CVE-2023-44487: streams that a client reset at once did not count towards the limit.
#[tokio::test]
async fn cve_2023_44487_ends_connection_of_rapid_resets() {
    let counts = Arc::new(Counts::default());
    let (client, conversation) = open_connection(&counts).await;
    let many = 100_000;
    let frames = (0..many).map(|i| {
        let stream = 2 * i + 1;
        let mut frames = frame(HEADERS, END_STREAM | END_HEADERS, stream, REQUEST);
        frames.extend(frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]));
        frames
    });
    let (sent, received) = send(client, frames).await;
    assert!(sent < many as usize, "all of {many} streams were taken");
    assert!(kinds(&received).contains(&GOAWAY), "{:?}", kinds(&received));
    tokio::time::timeout(Duration::from_secs(10), conversation).await.unwrap().unwrap();
    let limit = Limits::default().streams_per_connection as usize;
    assert!(counts.most.load(Ordering::SeqCst) <= limit);
    assert_eq!(counts.now.load(Ordering::SeqCst), 0, "what was reset goes on");
    let all = counts.all.load(Ordering::SeqCst);
    assert!(all < 5000, "{all} requests reached the handler");
}

/// CVE-2023-45288: endless headers were read without a limit.
#[tokio::test]
async fn cve_2023_45288_ends_connection_of_endless_headers() {
    let counts = Arc::new(Counts::default());
    let (client, conversation) = open_connection(&counts).await;
    let start = frame(HEADERS, END_STREAM, 1, REQUEST);
    // A header without indexing: its name and 8 kB of value.
    let mut field = vec![0x10, 1, b'x', 0x7f, 0x81, 0x3f];
    field.extend([b'y'; 8192]);
    let many = 10_000;
    let frames = std::iter::once(start).chain((0..many).map(|_| frame(CONTINUATION, 0, 1, &field)));
    let (sent, _) = send(client, frames).await;
    // The header list may have a megabyte.
    assert!(sent < 400, "{sent} frames of 8 kB were taken");
    tokio::time::timeout(Duration::from_secs(10), conversation).await.unwrap().unwrap();
    assert_eq!(counts.all.load(Ordering::SeqCst), 0);
}
