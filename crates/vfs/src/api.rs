//! A store by S3's API: a bucket of which each key reaches the part that is its own.
//!
//! Invariants:
//! - Nothing is done, and nothing said of what there is, for whoever has not signed the request, or has signed another.
//! - A key reaches the names below its prefix, and no listing shows others.
//! - What is not done is refused by its name.

mod request;
mod signature;

use std::{fmt::Write as _, io::Write as _};

use futures_util::{FutureExt as _, future::BoxFuture};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use quick_xml::escape::escape;
use serve::{Body, Handler, full};
use tempfile::NamedTempFile;

use self::request::{Asked, Listing};
use crate::{Error, LARGEST, Listed, Secrecy, Since, Store, Version, body};

/// The most names of a page of a listing, which is S3's.
const PAGE: usize = 1000;
/// The largest object that is written by one request: 5 GiB, which is S3's.
const LARGEST_WRITTEN: u64 = 5 << 30;

/// A key, and what it is good for.
#[derive(Clone)]
pub struct Right {
    /// What requests name it by (the access key ID).
    pub id: String,
    /// What they are signed with.
    pub secret: String,
    /// It reaches the names that begin so: a directory with its slash, or nothing for all.
    pub prefix: String,
    /// Of these it may change those that begin so; none, if this is missing.
    pub writes: Option<String>,
}

/// A store that is served as a bucket.
pub struct Api {
    store: Store,
    bucket: String,
    rights: Vec<Right>,
}

/// Why a request is refused: S3's code, and what to say beside it.
#[derive(Debug)]
struct Refusal(StatusCode, &'static str, String);

fn refuse<T>(status: StatusCode, code: &'static str, why: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal(status, code, why.into()))
}

fn denied<T>() -> Result<T, Refusal> {
    refuse(StatusCode::FORBIDDEN, "AccessDenied", "Access Denied")
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let failed = "At least one of the pre-conditions you specified did not hold";
        match error {
            Error::Conflict { .. } => {
                Self(StatusCode::PRECONDITION_FAILED, "PreconditionFailed", failed.to_owned())
            }
            Error::Name { .. } => {
                Self(StatusCode::BAD_REQUEST, "InvalidArgument", error.to_string())
            }
            error => {
                // Where the store lies is nothing that a stranger has to know.
                tracing::warn!(%error, "serving the store");
                let told = "We encountered an internal error. Please try again.";
                Self(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", told.to_owned())
            }
        }
    }
}

impl Refusal {
    fn failed(error: &dyn std::fmt::Display) -> Self {
        tracing::warn!(%error, "serving the store");
        let told = "We encountered an internal error. Please try again.";
        Self(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", told.to_owned())
    }
}

impl Api {
    /// Serves a store as a bucket of this name. Keys' secrets are for nobody to read.
    pub fn new(store: Store, bucket: &str, rights: Vec<Right>) -> Self {
        Self { store, bucket: bucket.to_owned(), rights }
    }

    async fn answer(&self, request: Request<Body>) -> Result<Response<Body>, Refusal> {
        let (head, body) = request.into_parts();
        let asked = Asked::read(&head)?;
        let (right, sum) = signature::verify(&head, &asked, &self.rights, rt::now())?;
        if asked.bucket != self.bucket {
            return match asked.bucket.as_str() {
                "" => denied(),
                _ => refuse(
                    StatusCode::NOT_FOUND,
                    "NoSuchBucket",
                    "The specified bucket does not exist",
                ),
            };
        }
        let changes = ![Method::GET, Method::HEAD].contains(&asked.method);
        if changes && !right.writes.as_ref().is_some_and(|below| asked.key.starts_with(below)) {
            return denied();
        }
        if asked.key.is_empty() {
            return self.of_bucket(&asked, right).await;
        }
        if !asked.key.starts_with(&right.prefix) {
            return denied();
        }
        if let Some(other) = asked.query.first() {
            // The SDKs say which operation they mean.
            if other.0 != "x-id" {
                let text = format!("{} is not served here", other.0);
                return refuse(StatusCode::NOT_IMPLEMENTED, "NotImplemented", text);
            }
        }
        match asked.method {
            Method::GET | Method::HEAD => self.get(asked).await,
            Method::DELETE => self.delete(asked).await,
            Method::PUT => self.put(asked, body, &sum).await,
            _ => refuse(
                StatusCode::METHOD_NOT_ALLOWED,
                "MethodNotAllowed",
                "The specified method is not allowed against this resource.",
            ),
        }
    }

    /// Does what may wait for a disk or another server where nobody else waits for it.
    async fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let store = self.store.clone();
        let done = tokio::task::spawn_blocking(move || work(&store)).await;
        done.map_err(|error| Refusal::failed(&error))?
    }

    async fn of_bucket(&self, asked: &Asked, right: &Right) -> Result<Response<Body>, Refusal> {
        match asked.method {
            Method::HEAD => return Ok(Response::new(full(""))),
            Method::GET => {}
            _ => {
                let text = "buckets are not made or changed here";
                return refuse(StatusCode::NOT_IMPLEMENTED, "NotImplemented", text);
            }
        }
        if asked.value("location").is_some() {
            return Ok(xml(StatusCode::OK, "<LocationConstraint/>"));
        }
        let listing = Listing::read(asked)?;
        if !listing.prefix.starts_with(&right.prefix) {
            return denied();
        }
        let bucket = self.bucket.clone();
        self.ask(move |store| list(store, &bucket, &listing)).await
    }

    async fn get(&self, asked: Asked) -> Result<Response<Body>, Refusal> {
        self.ask(move |store| {
            let (body, length, version) = found(store, &asked.key)?;
            let is_head = asked.method == Method::HEAD;
            let mut response = Response::new(if is_head { full("") } else { body });
            let headers = response.headers_mut();
            headers.insert(header::CONTENT_LENGTH, length.into());
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("binary/octet-stream"));
            headers.insert(header::ETAG, tag(&version)?);
            Ok(response)
        })
        .await
    }

    async fn delete(&self, asked: Asked) -> Result<Response<Body>, Refusal> {
        self.ask(move |store| {
            match (&asked.since, version(store, &asked.key)?) {
                (Some(Since::Read(read)), Some(_)) => store.remove(&asked.key, read)?,
                (Some(_), _) => return Err(Error::Conflict { name: asked.key }.into()),
                (None, Some(_)) => store.discard(&asked.key)?,
                // As S3 does, what is not there is removed.
                (None, None) => {}
            }
            let mut response = Response::new(full(""));
            *response.status_mut() = StatusCode::NO_CONTENT;
            Ok(response)
        })
        .await
    }

    async fn put(&self, asked: Asked, body: Body, sum: &str) -> Result<Response<Body>, Refusal> {
        let cut = || {
            let told = "You did not provide the number of bytes specified by the Content-Length HTTP header";
            Refusal(StatusCode::BAD_REQUEST, "IncompleteBody", told.to_owned())
        };
        let changed = || {
            let told =
                "The provided 'x-amz-content-sha256' header does not match what was computed.";
            Refusal(StatusCode::BAD_REQUEST, "XAmzContentSHA256Mismatch", told.to_owned())
        };
        let sum = sum.to_owned();
        if asked.length > LARGEST_WRITTEN {
            let told = "Your proposed upload exceeds the maximum allowed size";
            return refuse(StatusCode::BAD_REQUEST, "EntityTooLarge", told);
        }
        if asked.length <= LARGEST as u64 {
            let content = Limited::new(body, LARGEST).collect().boxed().await;
            let content = content.map_err(|_| cut())?.to_bytes();
            if content.len() as u64 != asked.length {
                return Err(cut());
            }
            return self
                .ask(move |store| {
                    if body::sum_of(&content) != sum {
                        return Err(changed());
                    }
                    written(&write(store, &asked, &content)?)
                })
                .await;
        }
        let file = receive(body, asked.length).await?.ok_or_else(cut)?;
        self.ask(move |store| {
            let own = body::sum(file.path()).map_err(|e| Refusal::failed(&e))?;
            if own != (asked.length, sum) {
                return Err(changed());
            }
            match (&asked.since, version(store, &asked.key)?) {
                (_, None) | (Some(Since::Absent), _) => {}
                (None, Some(_)) => store.discard(&asked.key)?,
                (Some(Since::Read(_)), Some(_)) => {
                    let text = "an object as large as this is not replaced under a condition";
                    return refuse(StatusCode::NOT_IMPLEMENTED, "NotImplemented", text);
                }
            }
            store.keep(&asked.key, file.path())?;
            written(&version(store, &asked.key)?.ok_or_else(absent)?)
        })
        .await
    }
}

impl Handler for Api {
    fn handle(&self, request: Request<Body>) -> BoxFuture<'_, Response<Body>> {
        let is_head = request.method() == Method::HEAD;
        Box::pin(async move {
            let answer = self.answer(request).await;
            answer.unwrap_or_else(|Refusal(status, code, why)| {
                let text = format!(
                    "<Error><Code>{code}</Code><Message>{}</Message></Error>",
                    escape(&why)
                );
                let mut response = xml(status, if is_head { "" } else { &text });
                // What is left of its body nobody reads.
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(header::CONNECTION, close);
                response
            })
        })
    }
}

fn xml(status: StatusCode, text: &str) -> Response<Body> {
    let head = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
    let text = if text.is_empty() { String::new() } else { format!("{head}{text}") };
    serve::answer(status, "application/xml", text)
}

fn absent() -> Refusal {
    let told = "The specified key does not exist.";
    Refusal(StatusCode::NOT_FOUND, "NoSuchKey", told.to_owned())
}

fn tag(version: &Version) -> Result<HeaderValue, Refusal> {
    version.0.parse().map_err(|e| Refusal::failed(&e))
}

fn written(version: &Version) -> Result<Response<Body>, Refusal> {
    let mut response = Response::new(full(""));
    response.headers_mut().insert(header::ETAG, tag(version)?);
    Ok(response)
}

/// An object, its length and its version.
fn found(store: &Store, key: &str) -> Result<(Body, u64, Version), Refusal> {
    match store.read(key) {
        Ok(Some((content, version))) => {
            let length = content.len() as u64;
            Ok((full(content), length, version))
        }
        Ok(None) => Err(absent()),
        Err(Error::TooMuch { .. }) => {
            let directory = tempfile::tempdir().map_err(|e| Refusal::failed(&e))?;
            let path = directory.path().join("object");
            let version = store.fetch(key, &path)?.ok_or_else(absent)?;
            // It is read to its end although it has no name any more.
            let file = std::fs::File::open(&path).map_err(|e| Refusal::failed(&e))?;
            let length = file.metadata().map_err(|e| Refusal::failed(&e))?.len();
            Ok((body::of_file(file), length, version))
        }
        Err(error) => Err(error.into()),
    }
}

fn version(store: &Store, key: &str) -> Result<Option<Version>, Refusal> {
    match found(store, key) {
        Ok((_, _, version)) => Ok(Some(version)),
        Err(Refusal(StatusCode::NOT_FOUND, ..)) => Ok(None),
        Err(refusal) => Err(refusal),
    }
}

/// Writes an object. Without a condition the last of those who write at once is right.
fn write(store: &Store, asked: &Asked, content: &[u8]) -> Result<Version, Refusal> {
    if let Some(since) = &asked.since {
        return Ok(store.write(&asked.key, content, since, Secrecy::Private)?);
    }
    let mut tries = 0;
    loop {
        tries += 1;
        let since = version(store, &asked.key)?.map_or(Since::Absent, Since::Read);
        match store.write(&asked.key, content, &since, Secrecy::Private) {
            Err(Error::Conflict { .. }) if tries < 10 => {}
            done => return Ok(done?),
        }
    }
}

/// Takes a large body into a file; nothing if it is not as long as was said.
async fn receive(mut body: Body, length: u64) -> Result<Option<NamedTempFile>, Refusal> {
    let mut file = NamedTempFile::new().map_err(|e| Refusal::failed(&e))?;
    let mut left = length;
    while let Some(Ok(frame)) = body.frame().await {
        let Ok(data) = frame.into_data() else { continue };
        let Some(less) = left.checked_sub(data.len() as u64) else { return Ok(None) };
        left = less;
        file.write_all(&data).map_err(|e| Refusal::failed(&e))?;
    }
    Ok((left == 0).then_some(file))
}

/// One page of a listing. It goes on after the last name that was told.
fn list(store: &Store, bucket: &str, listing: &Listing) -> Result<Response<Body>, Refusal> {
    let directory = listing.prefix.rsplit_once('/').map_or("", |(directory, _)| directory);
    let mut page: Vec<(String, Option<Listed>)> = Vec::new();
    let mut is_cut = false;
    for listed in store.describe(directory)? {
        let Some(inner) = listed.name.strip_prefix(&listing.prefix) else { continue };
        let end = match listing.delimiter.as_str() {
            "" => None,
            delimiter => inner.split_once(delimiter).map(|(first, _)| first),
        };
        let (shown, listed) = match end {
            None => (listed.name.clone(), Some(listed)),
            Some(first) => (format!("{}{first}{}", listing.prefix, listing.delimiter), None),
        };
        let is_told = shown <= listing.after || page.last().is_some_and(|(last, _)| *last == shown);
        if is_told {
            continue;
        }
        if page.len() == listing.most.min(PAGE) {
            is_cut = true;
            break;
        }
        page.push((shown, listed));
    }
    let shown = |text: &str| match listing.is_encoded {
        true => api_meta::percent_encode(text, b"-._~/"),
        false => escape(text).into_owned(),
    };
    let mut text = format!(
        "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>{bucket}</Name>\
         <Prefix>{}</Prefix><KeyCount>{}</KeyCount><MaxKeys>{}</MaxKeys><IsTruncated>{is_cut}</IsTruncated>",
        shown(&listing.prefix),
        page.len(),
        listing.most
    );
    if listing.is_encoded {
        text.push_str("<EncodingType>url</EncodingType>");
    }
    if let (true, Some((last, _))) = (is_cut, page.last()) {
        let token = data_encoding::HEXLOWER.encode(last.as_bytes());
        let _ = write!(text, "<NextContinuationToken>{token}</NextContinuationToken>");
    }
    for (name, listed) in &page {
        let name = shown(name);
        let _ = match listed {
            None => write!(text, "<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>"),
            Some(Listed { size, modified, .. }) => write!(
                text,
                "<Contents><Key>{name}</Key><LastModified>{modified}</LastModified><Size>{size}</Size>\
                 <StorageClass>STANDARD</StorageClass></Contents>"
            ),
        };
    }
    text.push_str("</ListBucketResult>");
    Ok(xml(StatusCode::OK, &text))
}
