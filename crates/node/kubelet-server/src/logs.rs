//! Serves container logs.

use std::{
    io::SeekFrom,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use cri::log::parse;
use futures_util::stream;
use http::{Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use pod_core::{KnownPod, Run, Timestamp};
use serve::{Body, BoxError};
use tokio::{
    fs::File,
    io::{AsyncBufReadExt, AsyncReadExt, AsyncSeekExt, BufReader},
};

use crate::{
    backend::Backend,
    query::Query,
    response::{ErrorResponse, text},
};

/// The interval at which a followed log is checked for new text.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The size of a body frame in bytes.
const PIECE: usize = 64 << 10;

/// The options of a log request.
#[derive(Clone, Debug, Default)]
struct LogOptions {
    follow: bool,
    timestamps: bool,
    tail: Option<usize>,
    since: Option<Timestamp>,
    limit: Option<usize>,
    /// The requested stream, `stdout` or `stderr`; `None` for both.
    stream: Option<&'static str>,
}

/// The error of an invalid option.
#[derive(Debug, thiserror::Error)]
enum OptionError {
    #[error("{name} must be a number: {value:?}")]
    Number { name: &'static str, value: String },
    #[error("sinceTime: {0}")]
    SinceTime(<Timestamp as FromStr>::Err),
}

impl LogOptions {
    fn of(query: &Query, now: Timestamp) -> Result<Self, OptionError> {
        let number = |name: &'static str| {
            let parse = |text: &str| {
                let wrong = |_| OptionError::Number { name, value: text.to_owned() };
                text.parse::<u64>().map_err(wrong)
            };
            query.get(name).map(parse).transpose()
        };
        let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let since = match (query.get("sinceTime"), number("sinceSeconds")?) {
            (Some(text), _) => Some(text.parse().map_err(OptionError::SinceTime)?),
            (None, Some(seconds)) => now.checked_sub(Duration::from_secs(seconds)).ok(),
            (None, None) => None,
        };
        Ok(Self {
            follow: query.is("follow"),
            timestamps: query.is("timestamps"),
            tail: number("tailLines")?.map(size),
            since,
            limit: number("limitBytes")?.map(size),
            stream: match query.get("stream") {
                Some("Stdout") => Some("stdout"),
                Some("Stderr") => Some("stderr"),
                _ => None,
            },
        })
    }
}

pub(crate) async fn serve(
    backend: &Arc<Backend>,
    namespace: &str,
    pod: &str,
    container: &str,
    query: &Query,
) -> Response<Body> {
    let options = match LogOptions::of(query, backend.now()) {
        Ok(options) => options,
        Err(error) => return text(StatusCode::UNPROCESSABLE_ENTITY, error.to_string()),
    };
    let is_previous = query.is("previous");
    let Instance { id, path } = match find(backend, namespace, pod, container, is_previous).await {
        Ok(instance) => instance,
        Err(response) => return *response,
    };
    let reader = match open(&backend.settings.logs, &path, &options).await {
        Ok(reader) => reader,
        Err(error) => {
            let message = format!("failed to read the log {}: {error}", path.display());
            return text(StatusCode::INTERNAL_SERVER_ERROR, message);
        }
    };
    let backend = backend.clone();
    let log = Log { backend, id, path, reader, options, line: Vec::new(), fresh: true, sent: 0 };
    let frames = stream::try_unfold(log, |mut log| async move {
        let piece = log.next().await?;
        Ok::<_, BoxError>(piece.map(|bytes| (Frame::data(bytes), log)))
    });
    let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, http::HeaderValue::from_static("text/plain"));
    response
}

/// A container in the runtime and its log file.
struct Instance {
    id: String,
    path: PathBuf,
}

/// Returns the newest instance of a container that has a log, or the one before.
async fn find(
    backend: &Backend,
    namespace: &str,
    name: &str,
    container: &str,
    previous: bool,
) -> Result<Instance, ErrorResponse> {
    let bad = |message: String| Box::new(text(StatusCode::BAD_REQUEST, message));
    let missing = |message: String| Box::new(text(StatusCode::NOT_FOUND, message));
    let Some(KnownPod { pod, observed }) = backend.pods.find(namespace, name, None) else {
        return Err(missing(format!("pod {name:?} not found in namespace {namespace:?}")));
    };
    if !pod_core::members(&pod).iter().any(|m| m.container.name == container) {
        return Err(missing(format!("container {container:?} not found in pod {name:?}")));
    }
    let mut instances = observed.containers.iter().filter(|c| c.name == container);
    let instance =
        if previous { instances.nth(1) } else { instances.find(|c| c.run != Run::Created) };
    let Some(instance) = instance else {
        if previous {
            return Err(bad(format!(
                "previous terminated container {container:?} in pod {name:?} not found"
            )));
        }
        let status = pod.status.unwrap_or_default();
        let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
        let waiting =
            all.into_iter().find(|s| s.name == container).and_then(|s| s.state.clone()?.waiting);
        let reason =
            waiting.and_then(|w| w.reason).unwrap_or_else(|| "ContainerCreating".to_owned());
        return Err(bad(format!(
            "container {container:?} in pod {name:?} is waiting to start: {reason}"
        )));
    };
    let status = backend.cri.container_status(&instance.id).await;
    let status = status.map_err(|error| bad(error.to_string()))?;
    Ok(Instance { id: instance.id.clone(), path: PathBuf::from(status.log_path) })
}

/// Opens a log at the start of the requested part.
async fn open(root: &Path, path: &Path, options: &LogOptions) -> std::io::Result<BufReader<File>> {
    let mut file = File::from_std(cri::log::open(root, path)?);
    if let Some(lines) = options.tail {
        let start = tail_start(&mut file, lines).await?;
        file.seek(SeekFrom::Start(start)).await?;
    }
    Ok(BufReader::new(file))
}

/// Returns the offset of the last lines, searching from the end.
async fn tail_start(file: &mut File, lines: usize) -> std::io::Result<u64> {
    let end = file.metadata().await?.len();
    let (mut at, mut left) = (end, lines.saturating_add(1));
    let mut block = vec![0; PIECE];
    while at > 0 {
        let from = at.saturating_sub(PIECE as u64);
        let size = usize::try_from(at - from).unwrap_or(PIECE);
        file.seek(SeekFrom::Start(from)).await?;
        file.read_exact(&mut block[..size]).await?;
        for (place, _) in block[..size].iter().enumerate().rev().filter(|(_, b)| **b == b'\n') {
            left -= 1;
            if left == 0 {
                return Ok(from + place as u64 + 1);
            }
        }
        at = from;
    }
    Ok(0)
}

/// A log that is being sent.
struct Log {
    backend: Arc<Backend>,
    id: String,
    path: PathBuf,
    reader: BufReader<File>,
    options: LogOptions,
    line: Vec<u8>,
    /// `true` if the next text starts a new line.
    fresh: bool,
    sent: usize,
}

impl Log {
    /// Returns the next part of the body, or `None` at the end.
    async fn next(&mut self) -> std::io::Result<Option<Bytes>> {
        let mut piece = Vec::new();
        while piece.len() < PIECE {
            if self.options.limit.is_some_and(|limit| self.sent + piece.len() >= limit) {
                break;
            }
            if self.reader.read_until(b'\n', &mut self.line).await? > 0
                && self.line.ends_with(b"\n")
            {
                self.take_line(&mut piece);
                continue;
            }
            if !piece.is_empty() || !self.wait_for_text().await? {
                break;
            }
        }
        if let Some(limit) = self.options.limit {
            piece.truncate(limit.saturating_sub(self.sent));
        }
        self.sent += piece.len();
        Ok((!piece.is_empty()).then(|| piece.into()))
    }

    fn take_line(&mut self, piece: &mut Vec<u8>) {
        let line = std::mem::take(&mut self.line);
        let Some(parsed) = parse(line.strip_suffix(b"\n").unwrap_or(&line)) else { return };
        let early =
            |since: Timestamp| parsed.time.parse::<Timestamp>().is_ok_and(|time| time < since);
        let other = |stream: &str| (stream == "stderr") != parsed.stderr;
        if self.options.since.is_some_and(early) || self.options.stream.is_some_and(other) {
            return;
        }
        if self.fresh && self.options.timestamps {
            piece.extend_from_slice(parsed.time.as_bytes());
            piece.push(b' ');
        }
        piece.extend_from_slice(parsed.text);
        self.fresh = !parsed.partial;
        if self.fresh {
            piece.push(b'\n');
        }
    }

    /// Waits at the end of the file for more text. Returns `false` if no more text will come.
    async fn wait_for_text(&mut self) -> std::io::Result<bool> {
        if !self.options.follow {
            return Ok(false);
        }
        let mut looks = 0u32;
        let mut ended = false;
        loop {
            // Check the status before the file, so that text written just before the end is still read.
            if looks.is_multiple_of(10) {
                let status = self.backend.cri.container_status(&self.id).await;
                ended =
                    !status.is_ok_and(|s| s.state() == cri::v1::ContainerState::ContainerRunning);
            }
            looks = looks.wrapping_add(1);
            let position = self.reader.stream_position().await?;
            if self.reader.get_ref().metadata().await?.len() > position {
                return Ok(true);
            }
            if self.is_rotated().await {
                let file = cri::log::open(&self.backend.settings.logs, &self.path)?;
                self.reader = BufReader::new(File::from_std(file));
                self.line.clear();
                return Ok(true);
            }
            if ended {
                return Ok(false);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Reports whether the path is now another file than the open one.
    async fn is_rotated(&self) -> bool {
        use std::os::unix::fs::MetadataExt;
        let own = self.reader.get_ref().metadata().await.map(|m| m.ino());
        let now = tokio::fs::metadata(&self.path).await.map(|m| m.ino());
        matches!((own, now), (Ok(own), Ok(now)) if own != now)
    }
}
