//! A store in a bucket of S3, of a compatible server, or of Google's Cloud Storage.

mod google;
mod location;
mod response;
mod server;

use std::{
    collections::BTreeMap, fs::OpenOptions, future::Future, os::unix::fs::OpenOptionsExt as _,
    path::Path, thread,
};

use http::{HeaderName, Method, StatusCode, header};
use tokio::runtime::{Builder, Handle, Runtime, RuntimeFlavor};

use self::{
    location::BucketLocation,
    response::Page,
    server::{Call, Payload, Server, ServerResponse, Sink},
};
use crate::{
    body,
    environment::Environment,
    error::Error,
    name,
    object::{LARGEST, MOST, ObjectInfo, Precondition, Version},
};

/// The largest page of a listing, in bytes; a page has up to a thousand names.
const PAGE: usize = 8 << 20;
/// The largest object written by one request: S3's limit.
const LARGEST_WRITTEN: u64 = 5 << 30;
const ENCRYPTION: HeaderName = HeaderName::from_static("x-amz-server-side-encryption");
const ACL: HeaderName = HeaderName::from_static("x-amz-acl");
/// The version of an object in Google's Cloud Storage, whose conditions name it.
const GENERATION: HeaderName = HeaderName::from_static("x-goog-generation");
const IF_GENERATION: HeaderName = HeaderName::from_static("x-goog-if-generation-match");
/// The generation of an object that does not exist.
const NO_GENERATION: &str = "0";

/// A part of a bucket: all objects whose keys begin with a prefix.
#[derive(Debug)]
pub(crate) struct Bucket {
    /// Ends with a slash, unless it is empty.
    prefix: String,
    server: Server,
    acl: Option<String>,
    /// `true` if the bucket encrypts new objects by default. Read once, before the first write.
    encrypts: tokio::sync::OnceCell<bool>,
    blocking: Blocking,
}

/// The runtime that drives the store's connections. Callers on other runtimes block on it.
#[derive(Debug)]
struct Blocking(Option<Runtime>);

impl Blocking {
    fn new() -> std::io::Result<Self> {
        Ok(Self(Some(Builder::new_current_thread().enable_all().build()?)))
    }

    /// Blocks on `work` in a new thread, because a runtime's own thread must not block.
    fn wait<T: Send>(
        &self,
        work: impl Future<Output = Result<T, Error>> + Send,
    ) -> Result<T, Error> {
        let failed = |cause: &str| Err(Error::io("querying", "")(std::io::Error::other(cause)));
        let Some(runtime) = &self.0 else { return failed("the store is closed") };
        let wait = || {
            thread::scope(|scope| {
                let builder = thread::Builder::new().name("store".to_owned());
                let waiting = builder.spawn_scoped(scope, || runtime.block_on(work));
                match waiting.map_err(Error::io("querying", ""))?.join() {
                    Ok(done) => done,
                    Err(_) => failed("its thread panicked"),
                }
            })
        };
        // Let the caller's other tasks continue, if its runtime has other threads.
        match Handle::try_current().map(|own| own.runtime_flavor()) {
            Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(wait),
            _ => wait(),
        }
    }
}

impl Drop for Blocking {
    fn drop(&mut self) {
        // A task must not block until the runtime has ended.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Bucket {
    /// Opens a bucket by its URL: `s3://bucket/prefix` or `gs://bucket/prefix`.
    pub(crate) fn open(url: &str, environment: Environment<'_>) -> Result<Self, Error> {
        let wrong = |reason| Error::Url { url: url.to_owned(), reason };
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("it is not a URL"))?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let mut prefix = prefix.trim_matches('/').to_owned();
        if !prefix.is_empty() {
            name::check(&prefix)?;
            prefix.push('/');
        }
        let location = if scheme == "gs" {
            BucketLocation::find_google(bucket, environment)
        } else {
            BucketLocation::find(bucket, environment)
        };
        let server = Server::new(location.map_err(wrong)?)?;
        let acl = environment("KOPS_STATE_S3_ACL").filter(|acl| !acl.is_empty());
        Ok(Self {
            prefix,
            acl: acl.filter(|_| !server.is_google()),
            server,
            encrypts: tokio::sync::OnceCell::new(),
            blocking: Blocking::new().map_err(Error::io("opening", url))?,
        })
    }

    fn call<'a>(&self, operation: &'static str, method: Method, name: &'a str) -> Call<'a> {
        Call {
            operation,
            name,
            method,
            key: format!("{}{name}", self.prefix),
            query: Vec::new(),
            headers: Vec::new(),
            payload: Payload::default(),
        }
    }

    pub(crate) fn read(&self, name: &str) -> Result<Option<(Vec<u8>, Version)>, Error> {
        self.blocking.wait(self.get(name, LARGEST))
    }

    async fn get(&self, name: &str, most: usize) -> Result<Option<(Vec<u8>, Version)>, Error> {
        let call = self.call("reading", Method::GET, name);
        let response = self.server.send(&call, Sink::Memory(most)).await?;
        if response.is_absent() {
            return Ok(None);
        }
        let version = self.version(&call, &response)?;
        Ok(Some((response.body.into(), version)))
    }

    pub(crate) fn fetch(&self, name: &str, to: &Path) -> Result<Option<Version>, Error> {
        let failed = || Error::io("copying", name);
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(to);
        let mut file = file.map_err(failed())?;
        let call = self.call("copying", Method::GET, name);
        let got = self.blocking.wait(async {
            let response = self.server.send(&call, Sink::File(&mut file, LARGEST_WRITTEN)).await?;
            if response.is_absent() { Ok(None) } else { self.version(&call, &response).map(Some) }
        });
        if !matches!(got, Ok(Some(_))) {
            std::fs::remove_file(to).map_err(failed())?;
        }
        got
    }

    pub(crate) fn keep(&self, name: &str, from: &Path) -> Result<(), Error> {
        let failed = || Error::io("reading the file for", name);
        let (length, sum) = body::sum(from).map_err(failed())?;
        if length > LARGEST_WRITTEN {
            let most = usize::try_from(LARGEST_WRITTEN).unwrap_or(usize::MAX);
            return Err(Error::TooMuch { name: name.to_owned(), most, unit: "bytes" });
        }
        let payload = Payload::File { path: from, length, sum };
        self.blocking.wait(self.put(name, payload, &Precondition::Absent)).map(drop)
    }

    pub(crate) fn write(
        &self,
        name: &str,
        content: &[u8],
        since: &Precondition,
    ) -> Result<Version, Error> {
        self.blocking.wait(self.put(name, Payload::bytes(content), since))
    }

    async fn put(
        &self,
        name: &str,
        payload: Payload<'_>,
        since: &Precondition,
    ) -> Result<Version, Error> {
        // Some servers ignore conditional headers, so check the present version first.
        if !self.server.has_conditions() {
            self.compare(name, since).await?;
        }
        let mut call = self.call("writing", Method::PUT, name);
        call.headers.push(self.condition(since));
        if self.server.is_aws() && !self.encrypts().await {
            call.headers.push((ENCRYPTION, "AES256".to_owned()));
        }
        call.headers.extend(self.acl.clone().map(|acl| (ACL, acl)));
        call.payload = payload;
        let response = self.server.send(&call, Sink::Memory(response::LARGEST_DOCUMENT)).await?;
        let has_vanished = response.is_absent() && *since != Precondition::Absent;
        if !(response.is_conflict() || has_vanished) {
            return self.version(&call, &response);
        }
        // A request whose answer was lost may have been written: then the object has this content.
        if response.is_repeated
            && let Payload::Bytes { content, .. } = &call.payload
            && let Some((present, version)) = self.get(name, LARGEST).await?
            && present == *content
        {
            return Ok(version);
        }
        Err(Error::Conflict { name: name.to_owned() })
    }

    /// Reports whether the bucket encrypts by default. If its settings cannot be read, returns `false`, so that
    /// encryption is requested explicitly, as upstream does.
    async fn encrypts(&self) -> bool {
        let lookup = async {
            let mut call = self.call("reading the default encryption of", Method::GET, "");
            call.key = String::new();
            call.query.push(("encryption", String::new()));
            let response = self.server.send(&call, Sink::Memory(response::LARGEST_DOCUMENT)).await;
            response.is_ok_and(|response| {
                response.status == StatusCode::OK && response::encrypts(&response.body)
            })
        };
        *self.encrypts.get_or_init(|| lookup).await
    }

    pub(crate) fn discard(&self, name: &str) -> Result<(), Error> {
        let call = self.call("removing", Method::DELETE, name);
        self.blocking.wait(async {
            let response =
                self.server.send(&call, Sink::Memory(response::LARGEST_DOCUMENT)).await?;
            // Google, unlike S3, reports an object that does not exist.
            if response.is_absent() { Ok(()) } else { response.succeeded(&call) }
        })
    }

    pub(crate) fn remove(&self, name: &str, read: &Version) -> Result<(), Error> {
        let since = Precondition::Read(read.clone());
        self.blocking.wait(async {
            // Few servers support conditional deletes.
            self.compare(name, &since).await?;
            let mut call = self.call("removing", Method::DELETE, name);
            call.headers.push(self.condition(&since));
            let response =
                self.server.send(&call, Sink::Memory(response::LARGEST_DOCUMENT)).await?;
            if response.is_conflict() || response.is_absent() && !response.is_repeated {
                Err(Error::Conflict { name: name.to_owned() })
            } else if response.is_absent() {
                Ok(())
            } else {
                response.succeeded(&call)
            }
        })
    }

    async fn compare(&self, name: &str, since: &Precondition) -> Result<(), Error> {
        let call = self.call("checking", Method::HEAD, name);
        let response = self.server.send(&call, Sink::Memory(0)).await?;
        let present = match response.status {
            // The answer to HEAD has no body, so a missing bucket looks the same as a missing key.
            StatusCode::NOT_FOUND => None,
            _ => Some(self.version(&call, &response)?),
        };
        since.check(name, present.as_ref())
    }

    /// Returns the version in a successful response.
    fn version(&self, call: &Call<'_>, response: &ServerResponse) -> Result<Version, Error> {
        response.succeeded(call)?;
        let name = if self.server.is_google() { GENERATION } else { header::ETAG };
        let tag = response.headers.get(&name).and_then(|tag| tag.to_str().ok());
        tag.map(|tag| Version(tag.to_owned())).ok_or_else(|| call.invalid("it has no version"))
    }

    /// Returns the header of a condition.
    fn condition(&self, since: &Precondition) -> (HeaderName, String) {
        match since {
            Precondition::Absent if self.server.is_google() => {
                (IF_GENERATION, NO_GENERATION.to_owned())
            }
            Precondition::Read(Version(generation)) if self.server.is_google() => {
                (IF_GENERATION, generation.clone())
            }
            Precondition::Absent => (header::IF_NONE_MATCH, "*".to_owned()),
            Precondition::Read(Version(tag)) => (header::IF_MATCH, tag.clone()),
        }
    }

    pub(crate) fn list(&self, directory: &str) -> Result<Vec<ObjectInfo>, Error> {
        let found = self.blocking.wait(self.pages(directory, ""))?;
        let base = below(directory);
        let whole =
            |listed: ObjectInfo| ObjectInfo { name: format!("{base}{}", listed.name), ..listed };
        Ok(found.into_values().flatten().map(whole).collect())
    }

    pub(crate) fn entries(&self, directory: &str) -> Result<Vec<(String, bool)>, Error> {
        let found = self.blocking.wait(self.pages(directory, "/"))?;
        Ok(found.into_iter().map(|(name, listed)| (name, listed.is_none())).collect())
    }

    /// Returns the names below a directory, relative to it; `None` for a subdirectory. Keys that are not valid names
    /// are skipped.
    async fn pages(
        &self,
        directory: &str,
        delimiter: &str,
    ) -> Result<BTreeMap<String, Option<ObjectInfo>>, Error> {
        let prefix = format!("{}{}", self.prefix, below(directory));
        let mut found = BTreeMap::new();
        let mut next: Option<String> = None;
        let too_much =
            || Error::TooMuch { name: directory.to_owned(), most: MOST, unit: "objects" };
        // A page may have few names, or none.
        for _ in 0..MOST / 100 {
            let mut call = self.call("listing", Method::GET, directory);
            call.key = String::new();
            call.query = vec![("encoding-type", "url".to_owned()), ("list-type", "2".to_owned())];
            call.query.push(("prefix", prefix.clone()));
            if !delimiter.is_empty() {
                call.query.push(("delimiter", delimiter.to_owned()));
            }
            call.query.extend(next.clone().map(|token| ("continuation-token", token)));
            let response = self.server.send(&call, Sink::Memory(PAGE)).await?;
            response.succeeded(&call)?;
            let page = Page::read(&response.body).map_err(|cause| call.invalid(cause))?;
            let inner = |key: &str| {
                let inner = key.strip_prefix(&prefix).filter(|inner| name::check(inner).is_ok());
                inner.map(str::to_owned)
            };
            for listed in page.objects {
                let name = inner(&listed.name);
                found.extend(name.map(|name| (name.clone(), Some(ObjectInfo { name, ..listed }))));
            }
            let directories = page.prefixes.iter().filter_map(|key| key.strip_suffix('/'));
            found.extend(directories.filter_map(inner).map(|name| (name, None)));
            if found.len() > MOST {
                return Err(too_much());
            }
            match page.next {
                None => return Ok(found),
                Some(token) if next.as_ref() == Some(&token) => {
                    return Err(call.invalid("it repeats a page"));
                }
                token => next = token,
            }
        }
        Err(too_much())
    }
}

fn below(directory: &str) -> String {
    if directory.is_empty() { String::new() } else { format!("{directory}/") }
}
