//! A fake server with scripted answers, whether they are valid S3 or not.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use parking_lot::Mutex;
use vfs::{Error, Store};

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedRequest {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) head: String,
}

/// A scripted answer.
pub(crate) enum Reply {
    /// These bytes; then the connection ends.
    Bytes(Vec<u8>),
    /// These bytes; then zeros until the client disconnects.
    Endless(Vec<u8>),
}

/// Returns an answer with a body and its length.
pub(crate) fn whole(status: &str, headers: &str, body: &str) -> Reply {
    let length = body.len();
    let text = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n{body}"
    );
    Reply::Bytes(text.into_bytes())
}

pub(crate) fn problem(status: &str, code: &str) -> Reply {
    whole(status, "", &format!("<Error><Code>{code}</Code><Message>said so</Message></Error>"))
}

pub(crate) struct Fake {
    pub(crate) address: String,
    requests: Arc<Mutex<Vec<ReceivedRequest>>>,
    stops: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Fake {
    /// Starts the server. `answer` gets each request and the number of requests before it.
    pub(crate) fn start(
        answer: impl Fn(&ReceivedRequest, usize) -> Reply + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap_or_else(|e| panic!("{e}"));
        let address = listener.local_addr().unwrap_or_else(|e| panic!("{e}")).to_string();
        let (requests, stops) =
            (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (log, ends) = (requests.clone(), stops.clone());
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(mut stream) = stream else { continue };
                let Some(request) = read_request(&mut stream) else { continue };
                let before = log.lock().len();
                log.lock().push(request.clone());
                send_reply(&mut stream, answer(&request, before));
            }
        });
        Self { address, requests, stops, thread: Some(thread) }
    }

    pub(crate) fn requests(&self) -> Vec<ReceivedRequest> {
        self.requests.lock().clone()
    }

    pub(crate) fn store(&self) -> Store {
        open(&self.address, "s3://bucket/pre/fix").unwrap_or_else(|e| panic!("{e}"))
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(&self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Opens a store behind a server that is not AWS.
pub(crate) fn open(address: &str, url: &str) -> Result<Store, Error> {
    let endpoint = format!("http://{address}");
    Store::open_in(url, &|name| {
        Some(match name {
            "S3_ENDPOINT" => endpoint.clone(),
            "S3_ACCESS_KEY_ID" => "key".to_owned(),
            "S3_SECRET_ACCESS_KEY" => "hidden".to_owned(),
            _ => return None,
        })
    })
}

fn read_request(stream: &mut TcpStream) -> Option<ReceivedRequest> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    reader.read_exact(&mut vec![0; length.unwrap_or(0)]).ok()?;
    let mut first = head.split(' ');
    let (method, path) = (first.next()?.to_owned(), first.next()?.to_owned());
    Some(ReceivedRequest { method, path, head })
}

fn send_reply(stream: &mut TcpStream, reply: Reply) {
    match reply {
        Reply::Bytes(bytes) => {
            let _ = stream.write_all(&bytes);
        }
        Reply::Endless(bytes) => {
            let mut written = stream.write_all(&bytes);
            while written.is_ok() {
                written = stream.write_all(&[b' '; 65536]);
            }
        }
    }
}
