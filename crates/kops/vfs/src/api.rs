//! Serves a store by S3's API, as one bucket in which each access key reaches its own part.
//!
//! It implements only the operations that [`Store`]'s own client needs. Read [`Api`] first.
//!
//! Invariants:
//! - A request without a valid signature changes nothing and learns nothing.
//! - An access key reaches only the names below its prefix, and its listings show no others.
//! - An operation that is not implemented is rejected by its name.

mod access_key;
#[cfg(test)]
mod fuzzed;
mod refusal;
mod request;
mod signature;

use std::{fmt::Write as _, io::Write as _};

use futures_util::{FutureExt as _, future::BoxFuture};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use quick_xml::escape::escape;
use serve::{Body, Handler, full};
use tempfile::NamedTempFile;

pub use self::access_key::AccessKey;
use self::{
    refusal::{Refusal, denied, refuse},
    request::{Listing, S3Request},
};
use crate::{
    body,
    error::Error,
    object::{LARGEST, ObjectInfo, Precondition, Secrecy, Version},
    store::Store,
};

/// The most names on a page of a listing: S3's limit.
const PAGE: usize = 1000;
/// The largest object written by one request: 5 GiB, S3's limit.
const LARGEST_WRITTEN: u64 = 5 << 30;

/// A store served as a bucket.
pub struct Api {
    store: Store,
    bucket: String,
    access_keys: Vec<AccessKey>,
}

impl Api {
    /// Serves a store as a bucket of this name. All objects written through it are private to their owner.
    pub fn new(store: Store, bucket: &str, access_keys: Vec<AccessKey>) -> Self {
        Self { store, bucket: bucket.to_owned(), access_keys }
    }

    async fn respond(&self, request: Request<Body>) -> Result<Response<Body>, Refusal> {
        let (head, body) = request.into_parts();
        let request = S3Request::read(&head)?;
        let (access_key, sum) = signature::verify(&head, &request, &self.access_keys, rt::now())?;
        if request.bucket != self.bucket {
            return match request.bucket.as_str() {
                "" => denied(),
                _ => refuse(
                    StatusCode::NOT_FOUND,
                    "NoSuchBucket",
                    "The specified bucket does not exist",
                ),
            };
        }
        let changes = ![Method::GET, Method::HEAD].contains(&request.method);
        if changes
            && !access_key.writes.as_ref().is_some_and(|below| request.key.starts_with(below))
        {
            return denied();
        }
        if request.key.is_empty() {
            return self.handle_bucket(&request, access_key).await;
        }
        if !request.key.starts_with(&access_key.prefix) {
            return denied();
        }
        if let Some((parameter, _)) = request.query.first() {
            // The SDKs name the operation in the parameter `x-id`.
            if parameter != "x-id" {
                let text = format!("the parameter {parameter} is not supported");
                return refuse(StatusCode::NOT_IMPLEMENTED, "NotImplemented", text);
            }
        }
        match request.method {
            Method::GET | Method::HEAD => self.get(request).await,
            Method::DELETE => self.delete(request).await,
            Method::PUT => self.put(request, body, &sum).await,
            _ => refuse(
                StatusCode::METHOD_NOT_ALLOWED,
                "MethodNotAllowed",
                "The specified method is not allowed against this resource.",
            ),
        }
    }

    /// Runs blocking work on a blocking thread.
    async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let store = self.store.clone();
        let done = tokio::task::spawn_blocking(move || work(&store)).await;
        done.map_err(|error| Refusal::failed(&error))?
    }

    async fn handle_bucket(
        &self,
        request: &S3Request,
        access_key: &AccessKey,
    ) -> Result<Response<Body>, Refusal> {
        match request.method {
            Method::HEAD => return Ok(Response::new(full(""))),
            Method::GET => {}
            _ => {
                let text = "creating and changing buckets is not supported";
                return refuse(StatusCode::NOT_IMPLEMENTED, "NotImplemented", text);
            }
        }
        if request.value("location").is_some() {
            return Ok(xml(StatusCode::OK, "<LocationConstraint/>"));
        }
        let listing = Listing::read(request)?;
        if !listing.prefix.starts_with(&access_key.prefix) {
            return denied();
        }
        let bucket = self.bucket.clone();
        self.run_blocking(move |store| list(store, &bucket, &listing)).await
    }

    async fn get(&self, request: S3Request) -> Result<Response<Body>, Refusal> {
        self.run_blocking(move |store| {
            let OpenObject { body, length, version } = open_object(store, &request.key)?;
            let is_head = request.method == Method::HEAD;
            let mut response = Response::new(if is_head { full("") } else { body });
            let headers = response.headers_mut();
            headers.insert(header::CONTENT_LENGTH, length.into());
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("binary/octet-stream"));
            headers.insert(header::ETAG, tag(&version)?);
            Ok(response)
        })
        .await
    }

    async fn delete(&self, request: S3Request) -> Result<Response<Body>, Refusal> {
        self.run_blocking(move |store| {
            match (&request.since, version(store, &request.key)?) {
                (Some(Precondition::Read(read)), Some(_)) => store.remove(&request.key, read)?,
                (Some(_), _) => return Err(Error::Conflict { name: request.key }.into()),
                (None, Some(_)) => store.discard(&request.key)?,
                // Removing an absent object succeeds, as in S3.
                (None, None) => {}
            }
            let mut response = Response::new(full(""));
            *response.status_mut() = StatusCode::NO_CONTENT;
            Ok(response)
        })
        .await
    }

    async fn put(
        &self,
        request: S3Request,
        body: Body,
        sum: &str,
    ) -> Result<Response<Body>, Refusal> {
        let cut = || {
            let message = "You did not provide the number of bytes specified by the Content-Length HTTP header";
            Refusal(StatusCode::BAD_REQUEST, "IncompleteBody", message.to_owned())
        };
        let changed = || {
            let message =
                "The provided 'x-amz-content-sha256' header does not match what was computed.";
            Refusal(StatusCode::BAD_REQUEST, "XAmzContentSHA256Mismatch", message.to_owned())
        };
        let sum = sum.to_owned();
        if request.length > LARGEST_WRITTEN {
            let message = "Your proposed upload exceeds the maximum allowed size";
            return refuse(StatusCode::BAD_REQUEST, "EntityTooLarge", message);
        }
        if request.length <= LARGEST as u64 {
            let content = Limited::new(body, LARGEST).collect().boxed().await;
            let content = content.map_err(|_| cut())?.to_bytes();
            if content.len() as u64 != request.length {
                return Err(cut());
            }
            return self
                .run_blocking(move |store| {
                    if body::sum_of(&content) != sum {
                        return Err(changed());
                    }
                    put_response(&write(store, &request, &content)?)
                })
                .await;
        }
        let file = receive(body, request.length).await?.ok_or_else(cut)?;
        self.run_blocking(move |store| {
            let own = body::sum(file.path()).map_err(|e| Refusal::failed(&e))?;
            if own != (request.length, sum) {
                return Err(changed());
            }
            match (&request.since, version(store, &request.key)?) {
                (_, None) | (Some(Precondition::Absent), _) => {}
                (None, Some(_)) => store.discard(&request.key)?,
                (Some(Precondition::Read(_)), Some(_)) => {
                    let text = "conditional replacement of an object this large is not supported";
                    return refuse(StatusCode::NOT_IMPLEMENTED, "NotImplemented", text);
                }
            }
            store.keep(&request.key, file.path())?;
            put_response(&version(store, &request.key)?.ok_or_else(no_such_key)?)
        })
        .await
    }
}

impl Handler for Api {
    fn handle(&self, request: Request<Body>) -> BoxFuture<'_, Response<Body>> {
        let is_head = request.method() == Method::HEAD;
        Box::pin(async move {
            self.respond(request).await.unwrap_or_else(|Refusal(status, code, why)| {
                let text = format!(
                    "<Error><Code>{code}</Code><Message>{}</Message></Error>",
                    escape(&why)
                );
                let mut response = xml(status, if is_head { "" } else { &text });
                // The rest of the request's body is not read.
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

fn no_such_key() -> Refusal {
    let message = "The specified key does not exist.";
    Refusal(StatusCode::NOT_FOUND, "NoSuchKey", message.to_owned())
}

fn tag(version: &Version) -> Result<HeaderValue, Refusal> {
    version.0.parse().map_err(|e| Refusal::failed(&e))
}

fn put_response(version: &Version) -> Result<Response<Body>, Refusal> {
    let mut response = Response::new(full(""));
    response.headers_mut().insert(header::ETAG, tag(version)?);
    Ok(response)
}

/// An object for a response.
struct OpenObject {
    body: Body,
    length: u64,
    version: Version,
}

/// Opens an object, which may be larger than the memory for it.
fn open_object(store: &Store, key: &str) -> Result<OpenObject, Refusal> {
    match store.read(key) {
        Ok(Some((content, version))) => {
            let length = content.len() as u64;
            Ok(OpenObject { body: full(content), length, version })
        }
        Ok(None) => Err(no_such_key()),
        Err(Error::TooMuch { .. }) => {
            let directory = tempfile::tempdir().map_err(|e| Refusal::failed(&e))?;
            let path = directory.path().join("object");
            let version = store.fetch(key, &path)?.ok_or_else(no_such_key)?;
            // Open the file before its name is removed; its content stays readable.
            let file = std::fs::File::open(&path).map_err(|e| Refusal::failed(&e))?;
            let length = file.metadata().map_err(|e| Refusal::failed(&e))?.len();
            Ok(OpenObject { body: body::of_file(file), length, version })
        }
        Err(error) => Err(error.into()),
    }
}

fn version(store: &Store, key: &str) -> Result<Option<Version>, Refusal> {
    match open_object(store, key) {
        Ok(object) => Ok(Some(object.version)),
        Err(Refusal(StatusCode::NOT_FOUND, ..)) => Ok(None),
        Err(refusal) => Err(refusal),
    }
}

/// Writes an object. Without a condition, the last of several concurrent writers wins.
fn write(store: &Store, request: &S3Request, content: &[u8]) -> Result<Version, Refusal> {
    if let Some(since) = &request.since {
        return Ok(store.write(&request.key, content, since, Secrecy::Private)?);
    }
    let mut tries = 0;
    loop {
        tries += 1;
        let since = version(store, &request.key)?.map_or(Precondition::Absent, Precondition::Read);
        match store.write(&request.key, content, &since, Secrecy::Private) {
            Err(Error::Conflict { .. }) if tries < 10 => {}
            done => return Ok(done?),
        }
    }
}

/// Saves a large body to a file; returns `None` if its length differs from `length`.
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

/// Returns one page of a listing, which starts after the last name of the page before.
fn list(store: &Store, bucket: &str, listing: &Listing) -> Result<Response<Body>, Refusal> {
    let directory = listing.prefix.rsplit_once('/').map_or("", |(directory, _)| directory);
    let mut page: Vec<(String, Option<ObjectInfo>)> = Vec::new();
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
        let is_repeated =
            shown <= listing.after || page.last().is_some_and(|(last, _)| *last == shown);
        if is_repeated {
            continue;
        }
        if page.len() == listing.most.min(PAGE) {
            is_cut = true;
            break;
        }
        page.push((shown, listed));
    }
    let shown = |text: &str| {
        if listing.is_encoded {
            api_meta::percent_encode(text, b"-._~/")
        } else {
            escape(text).into_owned()
        }
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
            Some(ObjectInfo { size, modified, .. }) => write!(
                text,
                "<Contents><Key>{name}</Key><LastModified>{modified}</LastModified><Size>{size}</Size>\
                 <StorageClass>STANDARD</StorageClass></Contents>"
            ),
        };
    }
    text.push_str("</ListBucketResult>");
    Ok(xml(StatusCode::OK, &text))
}
