//! A server that says what a test has it say, whether that is S3 or not.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use vfs::{Error, Store};

/// What was asked.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) head: String,
}

/// What is said.
pub(crate) enum Said {
    /// These bytes, and the connection ends.
    Bytes(Vec<u8>),
    /// These, and zeros for as long as somebody listens.
    Endless(Vec<u8>),
}

/// An answer with a body and the length of it.
pub(crate) fn whole(status: &str, headers: &str, body: &str) -> Said {
    let length = body.len();
    let text = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n{body}"
    );
    Said::Bytes(text.into_bytes())
}

pub(crate) fn problem(status: &str, code: &str) -> Said {
    whole(status, "", &format!("<Error><Code>{code}</Code><Message>said so</Message></Error>"))
}

pub(crate) struct Fake {
    pub(crate) address: String,
    asked: Arc<Mutex<Vec<Asked>>>,
    stops: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Fake {
    /// Answers each request by what was asked and how many were before it.
    pub(crate) fn start(answer: impl Fn(&Asked, usize) -> Said + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap_or_else(|e| panic!("{e}"));
        let address = listener.local_addr().unwrap_or_else(|e| panic!("{e}")).to_string();
        let (asked, stops) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (heard, ends) = (asked.clone(), stops.clone());
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(mut stream) = stream else { continue };
                let Some(request) = hear(&mut stream) else { continue };
                let before = heard.lock().unwrap_or_else(PoisonError::into_inner).len();
                heard.lock().unwrap_or_else(PoisonError::into_inner).push(request.clone());
                say(&mut stream, answer(&request, before));
            }
        });
        Self { address, asked, stops, thread: Some(thread) }
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
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

/// A store behind a server that is not AWS.
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

fn hear(stream: &mut TcpStream) -> Option<Asked> {
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
    Some(Asked { method, path, head })
}

fn say(stream: &mut TcpStream, said: Said) {
    match said {
        Said::Bytes(bytes) => {
            let _ = stream.write_all(&bytes);
        }
        Said::Endless(bytes) => {
            let mut written = stream.write_all(&bytes);
            while written.is_ok() {
                written = stream.write_all(&[b' '; 65536]);
            }
        }
    }
}
