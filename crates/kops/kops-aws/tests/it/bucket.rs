//! A strict S3 server in memory. It counts requests, and rejects those that it does not know.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::Arc,
};

use data_encoding::HEXLOWER;
use md_5::{Digest as _, Md5};
use parking_lot::Mutex;

/// The bucket's name.
pub(crate) const BUCKET: &str = "store";
/// The most keys in one page of a listing, as in S3.
const PAGE: usize = 1_000;

/// The content of a bucket.
#[derive(Default)]
struct Content {
    objects: BTreeMap<String, Vec<u8>>,
    /// The requests since the last call of [`Bucket::requests`].
    requests: Vec<String>,
    /// `true` if the tags are no sums of content, as with keys of KMS.
    has_opaque_tags: bool,
}

/// A server with one bucket.
pub(crate) struct Bucket {
    address: String,
    content: Arc<Mutex<Content>>,
}

struct Request {
    method: String,
    key: String,
    query: BTreeMap<String, String>,
    head: String,
    body: Vec<u8>,
}

impl Bucket {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap_or_else(|e| panic!("{e}"));
        let address = listener.local_addr().unwrap_or_else(|e| panic!("{e}")).to_string();
        let content = Arc::new(Mutex::new(Content::default()));
        let own = Arc::clone(&content);
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let Some(request) = read_request(&mut stream) else { continue };
                let answer = own.lock().answer(&request);
                let _ = stream.write_all(&answer);
            }
        });
        Self { address, content }
    }

    /// Returns a variable of the environment in which commands use the bucket.
    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        Some(match name {
            "S3_ENDPOINT" => format!("http://{}", self.address),
            "S3_REGION" => "eu-west-1".to_owned(),
            "S3_ACCESS_KEY_ID" | "S3_SECRET_ACCESS_KEY" => "testing".to_owned(),
            _ => return None,
        })
    }

    /// Returns the requests since the last call.
    pub(crate) fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.content.lock().requests)
    }

    pub(crate) fn make_tags_opaque(&self) {
        self.content.lock().has_opaque_tags = true;
    }

    pub(crate) fn put(&self, key: &str, content: &str) {
        self.content.lock().objects.insert(key.to_owned(), content.as_bytes().to_owned());
    }

    pub(crate) fn get(&self, key: &str) -> String {
        let content = self.content.lock();
        let object = content.objects.get(key).unwrap_or_else(|| panic!("{key} is missing"));
        String::from_utf8_lossy(object).into_owned()
    }
}

impl Content {
    fn answer(&mut self, request: &Request) -> Vec<u8> {
        self.requests.push(format!("{} {} {:?}", request.method, request.key, request.query));
        let tag = self.objects.get(&request.key).map(|object| self.tag(object));
        match (request.method.as_str(), &tag) {
            ("GET", _) if request.key.is_empty() => whole("200 OK", "", &self.list(&request.query)),
            ("HEAD" | "GET", None) => {
                let body = if request.method == "GET" {
                    "<Error><Code>NoSuchKey</Code></Error>"
                } else {
                    ""
                };
                whole("404 Not Found", "", body.as_bytes())
            }
            ("HEAD", Some(tag)) => whole("200 OK", tag, b""),
            ("GET", Some(tag)) => whole("200 OK", tag, &self.objects[&request.key]),
            ("PUT", tag) if request.permits(tag.as_deref()) => {
                self.objects.insert(request.key.clone(), request.body.clone());
                whole("200 OK", &self.tag(&request.body), b"")
            }
            ("DELETE", tag) if request.permits(tag.as_deref()) => {
                self.objects.remove(&request.key);
                whole("204 No Content", "", b"")
            }
            ("PUT" | "DELETE", _) => whole("412 Precondition Failed", "", b""),
            _ => whole("501 Not Implemented", "", b""),
        }
    }

    fn tag(&self, object: &[u8]) -> String {
        let sum = HEXLOWER.encode(&Md5::digest(object));
        if self.has_opaque_tags {
            format!("\"{}\"", sum.chars().rev().collect::<String>())
        } else {
            format!("\"{sum}\"")
        }
    }

    fn list(&self, query: &BTreeMap<String, String>) -> Vec<u8> {
        let empty = String::new();
        let of = |name: &str| query.get(name).unwrap_or(&empty);
        assert_eq!((of("list-type").as_str(), of("delimiter").as_str()), ("2", ""), "{query:?}");
        let after = of("continuation-token");
        let mut found =
            self.objects.iter().filter(|(key, _)| key.starts_with(of("prefix")) && *key > after);
        let entry = |(key, object): (&String, &Vec<u8>)| {
            let (tag, size) = (self.tag(object).replace('"', "&quot;"), object.len());
            format!("<Contents><Key>{key}</Key><ETag>{tag}</ETag><Size>{size}</Size></Contents>")
        };
        let mut last = None;
        let page: String = found
            .by_ref()
            .take(PAGE)
            .inspect(|(key, _)| last = Some(key.as_str()))
            .map(entry)
            .collect();
        let more = match (found.next(), last) {
            (Some(_), Some(last)) => format!(
                "<IsTruncated>true</IsTruncated><NextContinuationToken>{last}</NextContinuationToken>"
            ),
            _ => "<IsTruncated>false</IsTruncated>".to_owned(),
        };
        format!("<ListBucketResult>{more}{page}</ListBucketResult>").into_bytes()
    }
}

impl Request {
    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (own, value) = line.split_once(':')?;
            own.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// Reports whether the request's condition holds for an object with this tag. A request without one is rejected.
    fn permits(&self, tag: Option<&str>) -> bool {
        match (self.header("if-match"), self.header("if-none-match"), tag) {
            (Some(wanted), None, Some(tag)) => wanted == tag,
            (None, Some("*"), None) => true,
            _ => false,
        }
    }
}

fn whole(status: &str, tag: &str, body: &[u8]) -> Vec<u8> {
    let tag = if tag.is_empty() { String::new() } else { format!("ETag: {tag}\r\n") };
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n{tag}\r\n");
    [head.as_bytes(), body].concat()
}

fn read_request(stream: &mut TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let mut parts = head.split(' ');
    let (method, uri) = (parts.next()?.to_owned(), parts.next()?.to_owned());
    let (path, query) = uri.split_once('?').unwrap_or((&uri, ""));
    let key = path.strip_prefix(&format!("/{BUCKET}"))?.trim_start_matches('/').to_owned();
    let decode = |text: &str| api_meta::query_decode(text).unwrap_or_default();
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let query = pairs.map(|(name, value)| (name.to_owned(), decode(value))).collect();
    let mut request = Request { method, key, query, head: head.clone(), body: Vec::new() };
    let length = request.header("content-length").and_then(|length| length.parse().ok());
    request.body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut request.body).ok()?;
    Some(request)
}
