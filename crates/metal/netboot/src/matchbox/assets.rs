//! The file server for `/assets/`.

use std::{
    fs::{File, Metadata},
    io::{self, IoSliceMut},
    os::unix::fs::FileExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use api_meta::{percent_decode, percent_encode};
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use rustix::io::ReadWriteFlags;
use serve::{Body, BoxError};
use time::{OffsetDateTime, format_description::BorrowedFormatItem, macros::format_description};

use super::blocking;
use crate::paths;

/// The maximum number of bytes that are read and sent at a time. A connection buffers no more of a file than this.
pub(crate) const CHUNK: usize = 16 << 10;
/// The total buffer size that all downloads share. Each has at least [`SMALLEST`] bytes.
const BUDGET: usize = 4 << 20;
const SMALLEST: usize = 2 << 10;
const HTTP_DATE: &[BorrowedFormatItem<'_>] = format_description!(
    "[weekday repr:short], [day] [month repr:short] [year] [hour]:[minute]:[second] GMT"
);

/// The body of a response.
pub(crate) enum Content {
    Text(Bytes),
    /// A range of a file: the first byte and the byte after the last.
    File(File, u64, u64),
}

fn full(status: StatusCode, kind: &str, body: impl Into<Bytes>) -> Response<Content> {
    let mut response = Response::new(Content::Text(body.into()));
    *response.status_mut() = status;
    if let Ok(kind) = HeaderValue::from_str(kind) {
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
    }
    response
}

fn not_found() -> Response<Content> {
    full(StatusCode::NOT_FOUND, "text/plain; charset=utf-8", "404 page not found\n")
}

/// The result of a path lookup.
enum Resource {
    File(Asset),
    Directory(String),
    Moved(String),
}

/// An open file, so that headers and body describe the same file.
struct Asset {
    file: File,
    metadata: Metadata,
    kind: &'static str,
}

/// The number of files that are being sent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transfers(Arc<AtomicUsize>);

impl Transfers {
    pub(crate) fn open(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn begin(&self) -> Transfer {
        self.0.fetch_add(1, Ordering::Relaxed);
        Transfer(self.clone())
    }

    /// Returns the buffer size of each transfer.
    fn share(&self) -> usize {
        (BUDGET / self.open().max(1)).clamp(SMALLEST, CHUNK)
    }
}

/// A file that is being sent. Dropping it ends the transfer.
pub(crate) struct Transfer(Transfers);

impl Drop for Transfer {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(crate) async fn respond(
    root: &Path,
    name: &str,
    method: &Method,
    headers: &HeaderMap,
) -> Response<Content> {
    let (root, name) = (root.to_owned(), name.to_owned());
    match blocking::run(move || find(&root, &name)).await.ok().flatten() {
        Some(Resource::File(asset)) => file(asset, method, headers),
        Some(Resource::Directory(page)) => full(StatusCode::OK, "text/html; charset=utf-8", page),
        Some(Resource::Moved(target)) => redirect(&target),
        None => not_found(),
    }
}

fn find(root: &Path, name: &str) -> Option<Resource> {
    let decoded = String::from_utf8(percent_decode(name).ok()?).ok()?;
    let path = paths::existing(root, &decoded)?;
    let slash = decoded.is_empty() || decoded.ends_with('/');
    let directory = path.metadata().ok()?.is_dir();
    if directory != slash {
        let last = name.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        return Some(Resource::Moved(if slash {
            format!("../{last}")
        } else {
            format!("{last}/")
        }));
    }
    if !directory {
        return open(&path).map(Resource::File);
    }
    match open(&path.join("index.html")) {
        Some(index) => Some(Resource::File(index)),
        None => listing(&path).map(Resource::Directory),
    }
}

fn open(path: &Path) -> Option<Asset> {
    // Opening a pipe would block until a process writes to it.
    path.metadata().ok().filter(Metadata::is_file)?;
    let file = File::open(path);
    let file = file
        .inspect_err(|error| tracing::warn!(path = %path.display(), %error, "opening an asset"))
        .ok()?;
    let metadata = file.metadata().ok()?;
    Some(Asset { file, metadata, kind: content_type(path) })
}

fn redirect(target: &str) -> Response<Content> {
    let mut response = full(StatusCode::MOVED_PERMANENTLY, "text/html; charset=utf-8", "");
    if let Ok(target) = HeaderValue::from_str(target) {
        response.headers_mut().insert(header::LOCATION, target);
    }
    response
}

fn listing(path: &Path) -> Option<String> {
    let entries = path.read_dir().ok()?;
    let mut names: Vec<String> = entries
        .filter_map(Result::ok)
        .map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.path().is_dir() { name + "/" } else { name }
        })
        .collect();
    names.sort();
    let mut out = String::from("<pre>\n");
    for name in names {
        let link = percent_encode(&name, b"-_.~/");
        let text = name.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        out.push_str(&format!("<a href=\"{link}\">{text}</a>\n"));
    }
    Some(out + "</pre>\n")
}

fn file(asset: Asset, method: &Method, headers: &HeaderMap) -> Response<Content> {
    let Asset { file, metadata, kind } = asset;
    let modified = metadata
        .modified()
        .ok()
        .and_then(|time| OffsetDateTime::from(time).format(&HTTP_DATE).ok());
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    if modified.is_some() && text(header::IF_MODIFIED_SINCE) == modified.as_deref() {
        let mut response = Response::new(Content::Text(Bytes::new()));
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        return response;
    }
    let len = metadata.len();
    let range = match text(header::RANGE).map(|range| parse_range(range, len)) {
        Some(Range::Unsatisfiable) => {
            let mut response = full(StatusCode::RANGE_NOT_SATISFIABLE, "text/plain", "");
            if let Ok(value) = HeaderValue::from_str(&format!("bytes */{len}")) {
                response.headers_mut().insert(header::CONTENT_RANGE, value);
            }
            return response;
        }
        Some(Range::Part(from, to)) => Some((from, to)),
        Some(Range::Whole) | None => None,
    };
    let (from, to) = range.unwrap_or((0, len));
    let mut response = Response::new(match *method {
        Method::HEAD => Content::Text(Bytes::new()),
        _ => Content::File(file, from, to),
    });
    let mut set = |name, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            response.headers_mut().insert(name, value);
        }
    };
    set(header::CONTENT_TYPE, kind);
    set(header::CONTENT_LENGTH, &(to - from).to_string());
    set(header::ACCEPT_RANGES, "bytes");
    if let Some(modified) = modified {
        set(header::LAST_MODIFIED, &modified);
    }
    if range.is_some() {
        set(header::CONTENT_RANGE, &format!("bytes {from}-{}/{len}", to - 1));
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    response
}

/// Converts a response for hyper.
pub(crate) fn body(response: Response<Content>, transfers: &Transfers) -> Response<Body> {
    response.map(|content| match content {
        Content::Text(text) => serve::full(text),
        Content::File(file, from, to) => contents(file, from, to, transfers.begin()),
    })
}

fn contents(file: File, from: u64, to: u64, transfer: Transfer) -> Body {
    let start = (Arc::new(file), from, transfer);
    let chunks = stream::try_unfold(start, move |(file, at, transfer)| async move {
        let share = transfer.0.share();
        let want = usize::try_from(to - at).unwrap_or(share).min(share);
        if want == 0 {
            return Ok::<_, BoxError>(None);
        }
        let chunk = chunk(&file, at, want).await?;
        if chunk.is_empty() {
            return Err("the file became shorter while it was sent".into());
        }
        let next = at + chunk.len() as u64;
        Ok(Some((Frame::data(Bytes::from(chunk)), (file, next, transfer))))
    });
    StreamBody::new(chunks).boxed_unsync()
}

/// Reads at most `want` bytes of a file. Pages in the page cache, which serve all but the first machine of a rack, are
/// read directly. Reads from disk run on a blocking thread.
async fn chunk(file: &Arc<File>, at: u64, want: usize) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; want];
    let mut parts = [IoSliceMut::new(&mut buffer)];
    if let Ok(read) = rustix::io::preadv2(file, &mut parts, at, ReadWriteFlags::NOWAIT) {
        buffer.truncate(read);
        return Ok(buffer);
    }
    let file = file.clone();
    let read = blocking::run(move || {
        let read = file.read_at(&mut buffer, at)?;
        buffer.truncate(read);
        Ok(buffer)
    });
    read.await.map_err(io::Error::other)?
}

#[derive(Debug, PartialEq)]
enum Range {
    Whole,
    /// The first byte and the byte after the last.
    Part(u64, u64),
    Unsatisfiable,
}

/// Parses a range with one part. Several parts and unknown formats select the whole file.
fn parse_range(header: &str, len: u64) -> Range {
    let Some((from, to)) = header.strip_prefix("bytes=").and_then(|range| range.split_once('-'))
    else {
        return Range::Whole;
    };
    let (from, to) = match (from.trim().parse::<u64>(), to.trim().parse::<u64>()) {
        (Ok(from), Ok(to)) if to >= from => (from, to.saturating_add(1).min(len)),
        (Ok(from), _) if to.is_empty() => (from, len),
        (_, Ok(last)) if from.is_empty() => (len.saturating_sub(last), len),
        _ => return Range::Whole,
    };
    if from < to { Range::Part(from, to) } else { Range::Unsatisfiable }
}

fn content_type(path: &Path) -> &'static str {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("html" | "htm") => "text/html; charset=utf-8",
        Some("txt" | "ipxe" | "cfg" | "conf" | "sh") => "text/plain; charset=utf-8",
        Some("json" | "ign") => "application/json",
        Some("gz") => "application/gzip",
        Some("efi") => "application/efi",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        for (header, want) in [
            ("bytes=0-3", Range::Part(0, 4)),
            ("bytes=5-", Range::Part(5, 10)),
            ("bytes=-3", Range::Part(7, 10)),
            ("bytes=8-99", Range::Part(8, 10)),
            ("bytes=10-", Range::Unsatisfiable),
            ("bytes=0-1,3-4", Range::Whole),
            ("lines=1-2", Range::Whole),
            ("bytes=4-2", Range::Whole),
        ] {
            assert_eq!(parse_range(header, 10), want, "{header}");
        }
    }

    #[tokio::test]
    async fn shares_read_buffer_among_downloads() {
        let mut file = tempfile::tempfile().unwrap();
        io::Write::write_all(&mut file, &[7; 4 * CHUNK]).unwrap();
        let transfers = Transfers::default();
        let open = |file: &File| {
            let (file, begun) = (file.try_clone().unwrap(), transfers.begin());
            contents(file, 0, 4 * CHUNK as u64, begun)
        };
        let mut alone = open(&file);
        let held =
            async |body: &mut Body| body.frame().await.unwrap().unwrap().into_data().unwrap().len();
        assert_eq!(held(&mut alone).await, CHUNK);
        let mut bodies: Vec<Body> = (0..500).map(|_| open(&file)).collect();
        assert_eq!(transfers.open(), 501);
        let mut total = 0;
        for body in &mut bodies {
            total += held(body).await;
        }
        assert!(total <= BUDGET && total > BUDGET / 2, "{total}");
        bodies.clear();
        // The remaining bytes arrive, in chunks of any size.
        assert_eq!(transfers.open(), 1);
        assert_eq!(alone.collect().await.unwrap().to_bytes().len(), 3 * CHUNK);
        assert_eq!(transfers.open(), 0);
    }
}
