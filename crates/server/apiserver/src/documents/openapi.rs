//! Serves `/openapi/v2` and `/openapi/v3`. Documents are built from the schemas on the first request, and cached.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    sync::Arc,
    time::{Duration, SystemTime},
};

use api_schema::openapi;
use bytes::Bytes;
use data_encoding::HEXUPPER;
use flate2::{Compression, write::GzEncoder};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use parking_lot::Mutex;
use serde_json::{Value, json};
use serve::Body;
use sha2::{Digest, Sha256};

use crate::{
    aggregation::ApiServices,
    request::Query,
    response::{self, compress},
    watch_cache::Kinds,
};

mod build;
mod form;
mod kinds;
mod writer;

use form::Form;
use kinds::{PLAIN, groups, versions};

/// The time that clients may cache a document requested by its hash.
const KEEP: Duration = Duration::from_secs(365 * 24 * 3600);

/// The sources of documents: this server's kinds and the data of aggregated servers.
type Sources<'a> = (&'a Arc<Kinds>, &'a ApiServices);

/// The cache of documents by name and encoding. Cleared when custom kinds or aggregated servers change.
#[derive(Default)]
pub(crate) struct Documents {
    cache: Mutex<DocumentCache>,
    /// Held while a document is built. Other requests wait without a thread, and then find the document in the cache.
    building: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct DocumentCache {
    /// The generations of kinds and APIServices that the documents were built from.
    from: (u64, u64),
    documents: HashMap<(String, Form), Document>,
}

impl DocumentCache {
    /// Returns a document of the given generations or of later ones.
    fn get(&mut self, from: (u64, u64), key: &(String, Form)) -> Option<Document> {
        if from.0 > self.from.0 || from.1 > self.from.1 {
            self.from = from;
            self.documents.clear();
        }
        self.documents.get(key).cloned()
    }

    fn insert(&mut self, from: (u64, u64), key: (String, Form), document: Document) {
        if self.from == from {
            self.documents.insert(key, document);
        }
    }
}

#[derive(Clone)]
struct Document {
    /// The compressed document, since documents are large and seldom requested.
    compressed: Bytes,
    /// The size in bytes before compression.
    size: u64,
    etag: Arc<str>,
}

impl Documents {
    /// Answers an OpenAPI path. Returns `None` for other paths.
    pub(crate) async fn answer(
        &self,
        all: Sources<'_>,
        path: &str,
        query: &Query,
        headers: &HeaderMap,
    ) -> Option<Response<Body>> {
        let name = path.strip_prefix("/openapi/")?.trim_end_matches('/');
        let version = name.split('/').next().filter(|v| matches!(*v, "v2" | "v3"))?;
        let form = match name {
            // The index has no protobuf encoding.
            "v3" => Form::Json,
            _ => match Form::negotiate(headers, version) {
                Some(form) => form,
                None => return Some(response::bytes(StatusCode::NOT_ACCEPTABLE, "text/plain", "")),
            },
        };
        let document = self.document(all, name, form).await?;
        let hash = query.get("hash").filter(|_| name.starts_with("v3/"));
        if let Some(hash) = hash.filter(|h| !h.is_empty()) {
            let now = self.document(all, name, Form::Json).await?.etag;
            if now.trim_matches('"') != hash {
                let place = format!("{path}?hash={}", now.trim_matches('"'));
                return Some(redirect(&place));
            }
        }
        let same = |v: &HeaderValue| v.as_bytes() == document.etag.as_bytes();
        let mut response = if headers.get(header::IF_NONE_MATCH).is_some_and(same) {
            response::bytes(StatusCode::NOT_MODIFIED, form.content_type(version), Bytes::new())
        } else {
            document.send(form.content_type(version), headers)
        };
        let out = response.headers_mut();
        if let Ok(etag) = HeaderValue::from_str(&document.etag) {
            out.insert(header::ETAG, etag);
        }
        out.append(header::VARY, HeaderValue::from_static("Accept"));
        if hash.is_some() {
            out.insert(header::CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
            let until = http_date(rt::now() + KEEP);
            if let Ok(until) = HeaderValue::from_str(&until) {
                out.insert(header::EXPIRES, until);
            }
        }
        Some(response)
    }

    /// Returns a document from the cache, or builds it. One document is built at a time.
    async fn document(&self, all: Sources<'_>, name: &str, form: Form) -> Option<Document> {
        let from = (all.0.generation, all.1.generation);
        let key = (name.to_owned(), form);
        let cached = self.cache.lock().get(from, &key);
        if cached.is_some() {
            return cached;
        }
        let _building = self.building.lock().await;
        self.get_or_build(all, key)
    }

    fn get_or_build(&self, all: Sources<'_>, key: (String, Form)) -> Option<Document> {
        let from = (all.0.generation, all.1.generation);
        let cached = self.cache.lock().get(from, &key);
        if cached.is_some() {
            return cached;
        }
        let document = self.build(all, &key.0, key.1).unwrap_or_else(|error| {
            tracing::error!(%error, name = key.0, "failed to write an OpenAPI document");
            None
        })?;
        self.cache.lock().insert(from, key, document.clone());
        Some(document)
    }

    fn build(&self, all: Sources<'_>, name: &str, form: Form) -> io::Result<Option<Document>> {
        let (kinds, known) = all;
        let out = DocumentEncoder::default();
        let written = match name {
            "v2" => Some(build::version_2(kinds, known, form, out)?),
            "v3" => {
                let mut out = out;
                serde_json::to_writer(&mut out, &self.index(all))?;
                Some(out)
            }
            _ => match name.strip_prefix("v3/") {
                Some(name) => build::version_3(kinds, name, form, out)?,
                None => None,
            },
        };
        written.map(DocumentEncoder::finish).transpose()
    }

    /// Builds the index of all v3 documents, which contains their hashes.
    fn index(&self, all: Sources<'_>) -> Value {
        let (kinds, known) = all;
        let mut names: BTreeSet<String> = PLAIN.map(str::to_owned).into();
        names.extend(groups(kinds));
        names.extend(versions(kinds).into_iter().map(|(g, v)| openapi::document_path(g, v)));
        let mut paths: BTreeMap<String, Value> = names
            .into_iter()
            .filter_map(|name| {
                let document = self.get_or_build(all, (format!("v3/{name}"), Form::Json))?;
                let url = format!("/openapi/v3/{name}?hash={}", document.etag.trim_matches('"'));
                Some((name, json!({"serverRelativeURL": url})))
            })
            .collect();
        for service in known.remotes() {
            let name = openapi::document_path(&service.group, &service.version);
            let learned = known.remote_api(&service.group, &service.version);
            match learned.and_then(|learned| learned.hash.as_ref()) {
                Some(hash) => {
                    let url = format!("/openapi/v3/{name}?hash={hash}");
                    paths.insert(name, json!({"serverRelativeURL": url}));
                }
                // Another server serves this version without a document, so remove the one of a custom kind.
                None => drop(paths.remove(&name)),
            }
        }
        json!({"paths": paths})
    }
}

impl Document {
    fn send(&self, content_type: &'static str, headers: &HeaderMap) -> Response<Body> {
        let mut response = response::bytes(StatusCode::OK, content_type, self.compressed.clone());
        if compress::accepted(headers) {
            compress::mark(&mut response);
        } else {
            *response.body_mut() = compress::decompressed(self.compressed.clone(), self.size);
        }
        response
    }
}

/// Compresses a document and computes its hash while it is written.
struct DocumentEncoder {
    compressed: GzEncoder<Vec<u8>>,
    hash: Sha256,
    size: u64,
}

impl Default for DocumentEncoder {
    fn default() -> Self {
        let compressed = GzEncoder::new(Vec::new(), Compression::new(4));
        Self { compressed, hash: Sha256::new(), size: 0 }
    }
}

impl DocumentEncoder {
    fn finish(self) -> io::Result<Document> {
        let etag = format!("\"{}\"", HEXUPPER.encode(&self.hash.finalize())).into();
        let mut compressed = self.compressed.finish()?;
        compressed.shrink_to_fit();
        Ok(Document { compressed: compressed.into(), size: self.size, etag })
    }
}

impl io::Write for DocumentEncoder {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.compressed.write_all(bytes)?;
        self.hash.update(bytes);
        self.size += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn redirect(place: &str) -> Response<Body> {
    let mut response = response::bytes(StatusCode::MOVED_PERMANENTLY, "text/plain", Bytes::new());
    if let Ok(place) = HeaderValue::from_str(place) {
        response.headers_mut().insert(header::LOCATION, place);
    }
    response
}

/// Formats a time like `Sun, 06 Nov 1994 08:49:37 GMT`.
fn http_date(time: SystemTime) -> String {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let text = api_meta::Timestamp::from(time).to_seconds().to_string();
    let weekday =
        ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"][(seconds / 86_400 % 7) as usize];
    let months =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    // The parts of RFC 3339 have fixed positions: 1994-11-06T08:49:37Z.
    let month: usize = text.get(5..7).and_then(|m| m.parse().ok()).unwrap_or(1);
    let at = |range: std::ops::Range<usize>| text.get(range).unwrap_or_default();
    let month = months.get(month.wrapping_sub(1)).copied().unwrap_or_default();
    format!("{weekday}, {} {month} {} {} GMT", at(8..10), at(0..4), at(11..19))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn builds_document_once_for_concurrent_requests() {
        let documents = Arc::new(Documents::default());
        let sources = (Arc::<Kinds>::default(), Arc::<ApiServices>::default());
        let requests = (0..16).map(|_| {
            let (documents, (kinds, known)) = (documents.clone(), sources.clone());
            tokio::spawn(
                async move { documents.document((&kinds, &known), "v2", Form::Json).await },
            )
        });
        let answers = futures_util::future::join_all(requests).await;
        let answers: Vec<Document> = answers.into_iter().map(|a| a.unwrap().unwrap()).collect();
        assert!(answers[0].size > 1000);
        assert!(answers.iter().all(|other| Arc::ptr_eq(&other.etag, &answers[0].etag)));
    }

    #[test]
    fn keeps_newer_document_for_request_with_older_kinds() {
        let document = Document { compressed: Bytes::new(), size: 0, etag: "\"x\"".into() };
        let mut cache = DocumentCache::default();
        let key = ("v2".to_owned(), Form::Json);
        assert!(cache.get((2, 1), &key).is_none());
        cache.insert((2, 1), key.clone(), document);
        assert!(cache.get((1, 1), &key).is_some());
        assert!(cache.get((2, 2), &key).is_none(), "an aggregated server has changed");
    }

    #[test]
    fn formats_http_dates() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        assert_eq!(http_date(time), "Sun, 06 Nov 1994 08:49:37 GMT");
    }
}
