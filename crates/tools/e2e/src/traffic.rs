//! Continuous traffic that must not stop when processes of the cluster die: a TCP stream, DNS queries, and API writes.

use std::{
    fs::File,
    io::{Read, Write},
    net::{SocketAddr, TcpStream, UdpSocket},
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The timeout of one operation.
const TIMEOUT: Duration = Duration::from_secs(5);

/// An operation that a thread in a network namespace repeats until it is stopped.
pub struct Traffic {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
    thread: JoinHandle<Report>,
}

/// The outcome of a [`Traffic`].
#[derive(Debug, Default)]
pub struct Report {
    /// The number of operations that succeeded.
    pub done: u64,
    /// The duration of the longest successful operation.
    pub longest: Duration,
    /// The failures: the time since the start, and the error.
    pub failures: Vec<(Duration, String)>,
}

impl Traffic {
    /// Calls `turn` every `pace` with the value that `begin` returns. After an error, which is recorded, `begin` is
    /// called again.
    fn start<T>(
        namespace: PathBuf,
        pace: Duration,
        begin: impl Fn() -> Result<T, String> + Send + 'static,
        mut turn: impl FnMut(&mut T) -> Result<(), String> + Send + 'static,
    ) -> Self {
        let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted) = (stop.clone(), count.clone());
        let thread = std::thread::spawn(move || {
            enter(&namespace);
            let mut report = Report::default();
            let mut state = None;
            let started = Instant::now();
            while !stopped.load(Ordering::Relaxed) {
                let began = Instant::now();
                let result = match &mut state {
                    Some(state) => turn(state),
                    None => begin().and_then(|new| turn(state.insert(new))),
                };
                match result {
                    Ok(()) => {
                        report.done += 1;
                        counted.store(report.done, Ordering::Relaxed);
                        report.longest = report.longest.max(began.elapsed());
                    }
                    Err(error) => {
                        report.failures.push((started.elapsed(), error));
                        state = None;
                    }
                }
                std::thread::sleep(pace.saturating_sub(began.elapsed()));
            }
            report
        });
        Self { stop, count, thread }
    }

    /// Sends a byte every five milliseconds on one TCP connection and reads it back.
    pub fn stream(namespace: &Path, address: SocketAddr) -> Self {
        let begin = move || {
            let stream = TcpStream::connect_timeout(&address, TIMEOUT).map_err(text)?;
            stream.set_nodelay(true).map_err(text)?;
            stream.set_read_timeout(Some(TIMEOUT)).map_err(text)?;
            Ok(stream)
        };
        let mut byte = 0u8;
        Self::start(namespace.to_owned(), Duration::from_millis(5), begin, move |stream| {
            byte = byte.wrapping_add(1);
            stream.write_all(&[byte]).map_err(text)?;
            let mut back = [0];
            stream.read_exact(&mut back).map_err(text)?;
            if back == [byte] { Ok(()) } else { Err(format!("sent {byte}, got {back:?}")) }
        })
    }

    /// Sends a query to a DNS server every ten milliseconds, each from another port.
    pub fn queries(namespace: &Path, server: SocketAddr, name: &str) -> Self {
        let mut query = vec![0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            query.push(label.len() as u8);
            query.extend(label.as_bytes());
        }
        query.extend([0, 0, 1, 0, 1]);
        let mut number = 0u16;
        Self::start(
            namespace.to_owned(),
            Duration::from_millis(10),
            || Ok(()),
            move |()| {
                number = number.wrapping_add(1);
                query[..2].copy_from_slice(&number.to_be_bytes());
                let socket = UdpSocket::bind("0.0.0.0:0").map_err(text)?;
                socket.set_read_timeout(Some(TIMEOUT)).map_err(text)?;
                socket.send_to(&query, server).map_err(text)?;
                let mut answer = [0; 512];
                let length = socket.recv(&mut answer).map_err(text)?;
                let good = length > query.len()
                    && answer[..2] == query[..2]
                    && answer[3] & 0xf == 0
                    && answer[6..8] != [0, 0];
                if good { Ok(()) } else { Err(format!("the answer {:?}", &answer[..length])) }
            },
        )
    }

    /// Creates ConfigMaps one after the other through `proxy`, an HTTP server without TLS. Acknowledged names are added
    /// to `acknowledged`. Others are recorded as failures; the API server may have written them or not.
    pub fn writer(
        namespace: &Path,
        proxy: SocketAddr,
        acknowledged: Arc<parking_lot::Mutex<Vec<String>>>,
    ) -> Self {
        let mut number = 0;
        Self::start(
            namespace.to_owned(),
            Duration::from_millis(10),
            || Ok(()),
            move |()| {
                number += 1;
                let name = format!("written-{number}");
                let body = format!(
                    r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}"}},"data":{{"n":"{number}"}}}}"#
                );
                let path = "/api/v1/namespaces/default/configmaps";
                let response = exchange(
                    proxy,
                    "POST",
                    path,
                    &[("Content-Type", "application/json")],
                    body.as_bytes(),
                )?;
                if response.code != 201 {
                    return Err(format!("{} {}", response.code, response.body));
                }
                acknowledged.lock().push(name);
                Ok(())
            },
        )
    }

    /// Returns the number of turns that have succeeded so far.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Stops the thread and returns its report. Panics if the thread has panicked.
    pub fn stop(self) -> Report {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Runs `work` on a new thread in a network namespace and returns its result.
pub fn in_network<T: Send>(namespace: &Path, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            enter(namespace);
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Moves the calling thread into a network namespace.
fn enter(namespace: &Path) {
    let file =
        File::open(namespace).unwrap_or_else(|e| panic!("opening {}: {e}", namespace.display()));
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .unwrap_or_else(|e| panic!("entering {}: {e}", namespace.display()));
}

/// A response of an HTTP server.
#[derive(Clone, Debug)]
pub struct HttpResponse {
    /// The status code.
    pub code: u16,
    /// The status line and the headers.
    pub head: String,
    /// The body.
    pub body: String,
}

/// Sends one request over plain HTTP on a new connection and returns the response.
pub fn exchange(
    server: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Result<HttpResponse, String> {
    let mut stream = TcpStream::connect_timeout(&server, TIMEOUT).map_err(text)?;
    stream.set_read_timeout(Some(4 * TIMEOUT)).map_err(text)?;
    let mut head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {server}\r\nConnection: close\r\nContent-Length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{head}\r\n").as_bytes()).map_err(text)?;
    // Ignore write errors: a server may reject the request and close before it has read the body.
    let written = stream.write_all(body);
    let mut bytes = Vec::new();
    let read = stream.read_to_end(&mut bytes);
    let response = String::from_utf8_lossy(&bytes).into_owned();
    let code = response.split_whitespace().nth(1).and_then(|code| code.parse().ok());
    match (code, response.split_once("\r\n\r\n")) {
        (Some(code), Some((head, body))) => {
            Ok(HttpResponse { code, head: head.to_owned(), body: body.to_owned() })
        }
        _ => Err(format!("no answer to {method} {path}: {written:?} {read:?} {response:?}")),
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
