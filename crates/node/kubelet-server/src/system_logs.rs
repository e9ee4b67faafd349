//! Serves the node's logs: the files below `/var/log`, and the journal of its services (`enableSystemLogQuery`).
//!
//! A container may be able to write below `/var/log`. So links that lead out of the directory are not followed.

use std::{
    fs, io,
    os::fd::{AsFd as _, AsRawFd as _},
    path::{Component, Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use futures_util::stream;
use http::{HeaderValue, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use rt::{Excess, RunError, RunLimits};
use serve::{Body, BoxError};
use tokio::{io::AsyncReadExt as _, process::Command};

use crate::{query::Query, response::text};

const ROOT: &str = "/var/log";
/// The size of a body frame in bytes.
const PIECE: usize = 64 << 10;
/// The largest number of names in a listing.
const NAMES: usize = 10_000;
/// The limits of a query of the journal, as upstream.
const MAX_LINES: u32 = 100_000;
const MAX_SERVICES: usize = 4;
const MAX_TEXT: usize = 256;
const QUERY_TIMEOUT: Duration = Duration::from_secs(30);
/// The largest answer to a query in bytes.
const MAX_OUTPUT: u64 = 16 << 20;

/// The error of an invalid query.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum QueryError {
    #[error(
        "query: {0:?} is neither a service name nor a file; service names have letters, digits, '-', '_' and '@'"
    )]
    Service(String),
    #[error("query: more than {MAX_SERVICES} services")]
    Services,
    #[error("query: a file and a service cannot be queried together")]
    Mixed,
    #[error("{field}: {value:?}: {expected}")]
    Value { field: &'static str, value: String, expected: &'static str },
}

/// A query of the node's logs.
#[derive(Debug, PartialEq, Eq)]
enum LogQuery {
    /// A file below `/var/log`.
    File(String),
    /// The arguments of journalctl, and the services.
    Journal { args: Vec<String>, services: Vec<String> },
}

/// The source of the node's logs.
struct Source<'a> {
    root: &'a Path,
    journalctl: &'a Path,
    timeout: Duration,
}

/// Answers a request below `/logs`. `path` is the rest of the URL's path, still encoded.
pub(crate) async fn serve(path: &str, query: &Query, has_query: bool) -> Response<Body> {
    let source = Source {
        root: Path::new(ROOT),
        journalctl: Path::new("journalctl"),
        timeout: QUERY_TIMEOUT,
    };
    source.answer(path, query, has_query).await
}

impl Source<'_> {
    async fn answer(&self, path: &str, query: &Query, has_query: bool) -> Response<Body> {
        if !has_query || query.all("query").is_empty() {
            let Some(path) = api_meta::query_decode(&path.replace('+', "%2B")) else {
                return text(StatusCode::BAD_REQUEST, "the path has a broken escape\n");
            };
            return file(self.root, &path).await;
        }
        match LogQuery::of(query) {
            Err(error) => text(StatusCode::BAD_REQUEST, format!("{error}\n")),
            Ok(LogQuery::File(path)) => file(self.root, &path).await,
            Ok(LogQuery::Journal { args, services }) => match self.journal(&args).await {
                // Without journald, services log to files.
                Err(RunError::Start(error)) if error.kind() == io::ErrorKind::NotFound => {
                    self.service_file(&services).await
                }
                Err(error) => {
                    let message = format!("failed to query the journal: {error}\n");
                    text(StatusCode::INTERNAL_SERVER_ERROR, message)
                }
                Ok(output) => text(StatusCode::OK, output),
            },
        }
    }

    /// Returns the log file of a service.
    async fn service_file(&self, services: &[String]) -> Response<Body> {
        for name in services {
            for path in [format!("{name}.log"), format!("{name}/{name}.log"), name.clone()] {
                let response = file(self.root, &path).await;
                if response.status() == StatusCode::OK {
                    return response;
                }
            }
        }
        text(StatusCode::NOT_FOUND, format!("no log found for {}\n", services.join(", ")))
    }

    /// Runs journalctl and returns at most [`MAX_OUTPUT`] bytes of its output.
    async fn journal(&self, args: &[String]) -> Result<Vec<u8>, RunError> {
        let limits = RunLimits {
            time: self.timeout,
            output: MAX_OUTPUT,
            excess: Excess::Cut,
            kills_children: true,
        };
        let mut command = Command::new(self.journalctl);
        command.args(args).stdin(Stdio::null()).stderr(Stdio::null());
        Ok(limits.run(&mut command, &[]).await?.stdout)
    }
}

impl LogQuery {
    fn of(query: &Query) -> Result<Self, QueryError> {
        let names = query.all("query");
        let (files, services): (Vec<_>, Vec<_>) =
            names.into_iter().partition(|name| name.contains('/'));
        match (files.as_slice(), services.len()) {
            ([file], 0) => return Ok(Self::File(file.clone())),
            ([], 1..=MAX_SERVICES) => {}
            ([], _) => return Err(QueryError::Services),
            _ => return Err(QueryError::Mixed),
        }
        let is_safe = |c: char| c.is_ascii_alphanumeric() || "-_@".contains(c);
        let is_service = |name: &&String| {
            (1..=MAX_TEXT).contains(&name.len())
                && !name.starts_with('-')
                && name.chars().all(is_safe)
        };
        if let Some(wrong) = services.iter().find(|name| !is_service(name)) {
            return Err(QueryError::Service(wrong.chars().take(MAX_TEXT).collect()));
        }
        let mut args =
            ["--utc", "--no-pager", "--output=short-precise"].map(str::to_owned).to_vec();
        args.extend(services.iter().map(|name| format!("--unit={name}")));
        let options = [
            ("sinceTime", "since", "it must be a time of RFC 3339"),
            ("untilTime", "until", "it must be a time of RFC 3339"),
            ("tailLines", "lines", "it must be a number from 0 to 100000"),
            ("boot", "boot", "it must be a number less than 1"),
            ("pattern", "grep", "it must have at most 256 bytes and no line break"),
        ];
        for (field, option, expected) in options {
            let Some(value) = query.get(field) else { continue };
            let argument = match field {
                "sinceTime" | "untilTime" => value
                    .parse::<pod_core::Timestamp>()
                    .ok()
                    .map(|time| time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()),
                "tailLines" => {
                    value.parse().ok().filter(|n: &u32| *n <= MAX_LINES).map(|n| n.to_string())
                }
                "boot" => value.parse().ok().filter(|n: &i32| *n < 1).map(|n| n.to_string()),
                _ => (value.len() <= MAX_TEXT && !value.contains(['\n', '\0']))
                    .then(|| value.to_owned()),
            };
            let wrong = || QueryError::Value {
                field,
                value: value.chars().take(MAX_TEXT).collect(),
                expected,
            };
            args.push(format!("--{option}={}", argument.ok_or_else(wrong)?));
        }
        if query.get("pattern").is_some() {
            args.push("--case-sensitive=false".to_owned());
        }
        Ok(Self::Journal { args, services })
    }
}

/// Returns a path below a root that stays below it, or `None`.
fn relative(path: &str) -> Option<PathBuf> {
    let path = Path::new(path.trim_start_matches('/'));
    let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    (path.components().all(is_plain) && !path.as_os_str().as_encoded_bytes().contains(&0))
        .then(|| path.to_owned())
}

/// Returns a file or the listing of a directory below `root`.
async fn file(root: &Path, path: &str) -> Response<Body> {
    let missing = || text(StatusCode::NOT_FOUND, "404 page not found\n");
    let Some(below) = relative(path) else { return missing() };
    let below = if below.as_os_str().is_empty() { PathBuf::from(".") } else { below };
    let root = root.to_owned();
    let open = move || -> Result<Entry, sys::Error> {
        let held = sys::hold_beneath(&root, &below)?;
        if held.is_directory() {
            let path = format!("/proc/self/fd/{}", held.as_fd().as_raw_fd());
            return Ok(Entry::Directory(names(Path::new(&path))));
        }
        sys::read_beneath(&root, &below).map(Entry::File)
    };
    match tokio::task::spawn_blocking(open).await {
        Ok(Ok(Entry::File(file))) => stream_file(tokio::fs::File::from_std(file)),
        Ok(Ok(Entry::Directory(names))) => listing(&names),
        _ => missing(),
    }
}

enum Entry {
    File(fs::File),
    Directory(Vec<String>),
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().take(NAMES);
    let name = |entry: fs::DirEntry| {
        let end = if entry.file_type().is_ok_and(|kind| kind.is_dir()) { "/" } else { "" };
        format!("{}{end}", entry.file_name().to_string_lossy())
    };
    let mut names: Vec<String> = entries.map(name).collect();
    names.sort();
    names
}

/// Returns the names of a directory as a page of links.
fn listing(names: &[String]) -> Response<Body> {
    let escaped = |name: &String| {
        let mut out = String::new();
        for c in name.chars() {
            match c {
                '&' => out.push_str("&amp;"),
                '<' => out.push_str("&lt;"),
                '>' => out.push_str("&gt;"),
                '"' => out.push_str("&#34;"),
                '\'' => out.push_str("&#39;"),
                c => out.push(c),
            }
        }
        out
    };
    // A name with a colon would otherwise be a URL with a scheme.
    let line = |name: &String| {
        let name = escaped(name);
        format!("<a href=\"./{}\">{name}</a>\n", name.replace('%', "%25").replace('?', "%3F"))
    };
    let lines: String = names.iter().map(line).collect();
    let body = format!("<!doctype html>\n<meta charset=\"utf-8\">\n<pre>\n{lines}</pre>\n");
    serve::answer(StatusCode::OK, "text/html; charset=utf-8", body)
}

/// Streams a file. Its text is never shown as a page, because a container may have written it.
fn stream_file(file: tokio::fs::File) -> Response<Body> {
    let frames = stream::try_unfold(file, |mut file| async move {
        let mut piece = vec![0; PIECE];
        let count = file.read(&mut piece).await?;
        piece.truncate(count);
        Ok::<_, BoxError>((count > 0).then(|| (Frame::data(piece.into()), file)))
    });
    let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Returns the status and the text of an answer.
    async fn get(source: &Source<'_>, path: &str, query: &str) -> (u16, String) {
        let response = source.answer(path, &Query::of(query), true).await;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn serves_files_only_below_the_log_directory() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("log");
        fs::create_dir_all(root.join("pods")).unwrap();
        fs::write(root.join("pods/a b.log"), "text").unwrap();
        fs::write(root.join("<x>.log"), "").unwrap();
        fs::write(dir.path().join("secret"), "secret").unwrap();
        symlink(root.join("pods/a b.log"), root.join("inside")).unwrap();
        symlink(dir.path().join("secret"), root.join("outside")).unwrap();
        symlink(dir.path(), root.join("up")).unwrap();
        let source = Source { root: &root, journalctl: Path::new("none"), timeout: QUERY_TIMEOUT };
        assert_eq!(get(&source, "pods/a%20b.log", "").await, (200, "text".to_owned()));
        assert_eq!(get(&source, "inside", "").await, (200, "text".to_owned()));
        let (status, page) = get(&source, "", "").await;
        assert!(status == 200 && page.contains("<a href=\"./pods/\">pods/</a>"), "{page}");
        assert!(page.contains("&lt;x&gt;.log") && !page.contains("<x>"), "{page}");
        for path in [
            "outside",
            "up/secret",
            "up",
            "../secret",
            "pods/../../secret",
            "%2e%2e/secret",
            "none",
            "pods/%00",
            "%2Fetc%2F..%2F..%2Fsecret",
        ] {
            let (status, body) = get(&source, path, "").await;
            assert!(status == 404 && !body.contains("secret"), "{path}: {status} {body}");
        }
        assert_eq!(get(&source, "%zz", "").await.0, 400);
        assert_eq!(get(&source, "", "query=/pods/a%20b.log").await, (200, "text".to_owned()));
        assert_eq!(get(&source, "", "query=/outside").await.0, 404);
        fs::write(root.join("kubelet.log"), "from file").unwrap();
        assert_eq!(get(&source, "", "query=kubelet").await, (200, "from file".to_owned()));
        assert_eq!(get(&source, "", "query=none").await.0, 404);
    }

    #[tokio::test]
    async fn queries_the_journal_within_limits() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("journalctl");
        let script = |text: &str| testkit::write_script(&program, text);
        script("for a in \"$@\"; do echo \"$a\"; done");
        let source =
            Source { root: dir.path(), journalctl: &program, timeout: Duration::from_millis(500) };
        let query =
            "query=kubelet&tailLines=5&boot=-1&sinceTime=2026-01-02T03:04:05Z&pattern=a%3B%20rm";
        let (status, output) = get(&source, "", query).await;
        assert_eq!(status, 200);
        let args: Vec<&str> = output.lines().skip(3).collect();
        assert_eq!(
            args,
            [
                "--unit=kubelet",
                "--since=2026-01-02 03:04:05 UTC",
                "--lines=5",
                "--boot=-1",
                "--grep=a; rm",
                "--case-sensitive=false",
            ]
        );
        for query in [
            "query=kubelet;id",
            "query=-u",
            "query=a.service",
            "query=a&query=b&query=c&query=d&query=e",
            "query=a&query=/b",
            "query=kubelet&tailLines=100001",
            "query=kubelet&tailLines=-1",
            "query=kubelet&boot=1",
            "query=kubelet&sinceTime=yesterday",
            "query=kubelet&pattern=a%0Ab",
        ] {
            assert_eq!(get(&source, "", query).await.0, 400, "{query}");
        }
        script("exec sleep 1000");
        let (status, message) = get(&source, "", "query=kubelet").await;
        assert!(status == 500 && message.contains("did not end within 0s"), "{message}");
        script("exec cat /dev/zero");
        let patient = Source { timeout: Duration::from_secs(60), ..source };
        let (status, output) = get(&patient, "", "query=kubelet").await;
        assert_eq!((status, output.len() as u64), (200, MAX_OUTPUT));
    }
}
