//! Serves `/openapi/v2` and `/openapi/v3`. Documents are built from the schemas on the first request, and cached.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io::{Read as _, Write as _},
    sync::Arc,
    time::{Duration, SystemTime},
};

use api_meta::Tree as _;
use api_schema::openapi::{self, CustomKind, CustomSource};
use bytes::Bytes;
use data_encoding::HEXUPPER;
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use parking_lot::Mutex;
use serde_json::{Value, json};
use serve::Body;
use sha2::{Digest, Sha256};
use version::KUBERNETES_VERSION;

use crate::{
    aggregation::{ApiServices, fetch::merge},
    registry::{Definition, ServedVersion},
    request::Query,
    response::{self, compress},
    watch_cache::Kinds,
};

/// The time that clients may cache a document requested by its hash.
const KEEP: Duration = Duration::from_secs(365 * 24 * 3600);
/// Documents of paths outside of API groups.
const PLAIN: [&str; 5] =
    [".well-known/openid-configuration", "api", "apis", "openid/v1/jwks", "version"];

/// The sources of documents: this server's kinds and the data of aggregated servers.
type Sources<'a> = (&'a Arc<Kinds>, &'a ApiServices);

/// The cache of documents by name and encoding. Cleared when custom kinds or aggregated servers change.
#[derive(Default)]
pub(crate) struct Documents {
    cache: Mutex<DocumentCache>,
}

#[derive(Default)]
struct DocumentCache {
    /// The generations of kinds and APIServices that the documents were built from.
    from: (u64, u64),
    documents: HashMap<(String, Form), Document>,
}

#[derive(Clone)]
struct Document {
    /// The compressed document, since documents are large and seldom requested.
    compressed: Bytes,
    etag: Arc<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Form {
    Json,
    Protobuf,
}

impl Form {
    /// Returns the client's preferred encoding among those of an OpenAPI version, or `None` if it accepts neither.
    fn negotiate(headers: &HeaderMap, version: &str) -> Option<Self> {
        let accept = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or("*/*");
        let protobuf = |separator: char| {
            format!("application/com.github.proto-openapi.spec.{version}{separator}v1.0+protobuf")
        };
        let (now, before) = (protobuf('.'), protobuf('@'));
        let mut best: Option<(f32, Self)> = None;
        for range in accept.split(',') {
            let form = match range.split(';').next().unwrap_or_default().trim() {
                "application/json" | "*/*" | "application/*" | "" => Self::Json,
                other if other == now || other == before => Self::Protobuf,
                _ => continue,
            };
            let quality = crate::request::accept::quality(range);
            if quality > 0.0 && best.is_none_or(|(known, _)| quality > known) {
                best = Some((quality, form));
            }
        }
        best.map(|(_, form)| form)
    }

    fn content_type(self, version: &str) -> &'static str {
        match (self, version) {
            (Self::Json, _) => "application/json",
            (Self::Protobuf, "v2") => "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
            (Self::Protobuf, _) => "application/com.github.proto-openapi.spec.v3.v1.0+protobuf",
        }
    }
}

impl Documents {
    /// Answers an OpenAPI path. Returns `None` for other paths.
    pub(crate) fn answer(
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
        let document = self.document(all, name, form)?;
        let json = || Some(self.document(all, name, Form::Json)?.etag);
        let hash = query.get("hash").filter(|_| name.starts_with("v3/"));
        if let Some(hash) = hash.filter(|h| !h.is_empty()) {
            let now = json()?;
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

    /// Returns a document from the cache, or builds it.
    fn document(&self, all: Sources<'_>, name: &str, form: Form) -> Option<Document> {
        let (kinds, known) = all;
        let from = (kinds.generation, known.generation);
        let key = (name.to_owned(), form);
        {
            let mut cache = self.cache.lock();
            if cache.from != from {
                *cache = DocumentCache { from, documents: HashMap::new() };
            }
            if let Some(found) = cache.documents.get(&key) {
                return Some(found.clone());
            }
        }
        let tree = match name {
            "v2" => v2_document(kinds, known),
            "v3" => self.index(all),
            _ => part(kinds, name.strip_prefix("v3/")?)?,
        };
        let document = Document::new(match (form, name) {
            (Form::Json, _) => tree.to_string().into_bytes(),
            (Form::Protobuf, "v2") => api_codec::openapi::v2(&tree),
            (Form::Protobuf, _) => api_codec::openapi::v3(&tree),
        });
        let mut cache = self.cache.lock();
        if cache.from == from {
            cache.documents.insert(key, document.clone());
        }
        Some(document)
    }

    fn index(&self, all: Sources<'_>) -> Value {
        let (kinds, known) = all;
        let mut names: BTreeSet<String> = PLAIN.map(str::to_owned).into();
        names.extend(groups(kinds));
        names.extend(versions(kinds).into_iter().map(|(g, v)| openapi::document_path(g, v)));
        let mut paths: BTreeMap<String, Value> = names
            .into_iter()
            .filter_map(|name| {
                let document = self.document(all, &format!("v3/{name}"), Form::Json)?;
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
    fn new(bytes: Vec<u8>) -> Self {
        let hash = HEXUPPER.encode(&Sha256::digest(&bytes));
        let mut encoder = GzEncoder::new(Vec::new(), Compression::new(4));
        // Writing to memory does not fail.
        let written = encoder.write_all(&bytes).and_then(|()| encoder.finish());
        Self { compressed: written.unwrap_or_default().into(), etag: format!("\"{hash}\"").into() }
    }

    fn send(&self, content_type: &'static str, headers: &HeaderMap) -> Response<Body> {
        if compress::accepted(headers) {
            let mut response =
                response::bytes(StatusCode::OK, content_type, self.compressed.clone());
            compress::mark(&mut response);
            return response;
        }
        let mut plain = Vec::new();
        match GzDecoder::new(&*self.compressed).read_to_end(&mut plain) {
            Ok(_) => response::bytes(StatusCode::OK, content_type, plain),
            Err(error) => {
                tracing::error!(%error, "failed to decompress an OpenAPI document");
                response::bytes(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", Bytes::new())
            }
        }
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

fn versions(kinds: &Kinds) -> BTreeSet<(&str, &str)> {
    let served = kinds.all.iter().flat_map(|r| r.definition.served.iter());
    served.filter(|s| s.enabled).map(|s| (&*s.group, &*s.version)).collect()
}

/// Returns the paths of groups with built-in kinds. As upstream, other groups have no document of their own.
fn groups(kinds: &Kinds) -> BTreeSet<String> {
    let builtin = kinds.all.iter().map(|r| &r.definition).filter(|d| d.custom.is_none());
    let served = builtin.flat_map(|definition| &definition.served).filter(|s| s.enabled);
    served.filter(|s| !s.group.is_empty()).map(|s| format!("apis/{}", s.group)).collect()
}

/// A version of a custom kind, and the function that reads its part of the definition.
struct CustomVersion<'a> {
    definition: &'a Definition,
    served: &'a ServedVersion,
    read: Box<dyn Fn() -> CustomSource + 'a>,
}

impl CustomVersion<'_> {
    fn kind(&self) -> CustomKind<'_> {
        let Self { definition, served, read } = self;
        CustomKind {
            group: &served.group,
            version: &served.version,
            plural: &definition.plural,
            kind: &served.kind,
            list_kind: &served.list_kind,
            namespaced: definition.namespaced,
            read,
            status: served.subresource("status").is_some(),
            scale: served.subresource("scale").is_some(),
        }
    }
}

/// Returns the custom kinds of one group and version, or of all.
fn custom<'a>(kinds: &'a Kinds, of: Option<(&str, &str)>) -> Vec<CustomVersion<'a>> {
    let mut custom = Vec::new();
    for definition in kinds.all.iter().map(|r| &*r.definition).filter(|d| d.custom.is_some()) {
        let wanted = |s: &&ServedVersion| {
            s.enabled
                && of.is_none_or(|(group, version)| *s.group == *group && *s.version == *version)
        };
        for served in definition.served.iter().filter(wanted) {
            let read = move || source(kinds, definition, &served.version).unwrap_or_default();
            custom.push(CustomVersion { definition, served, read: Box::new(read) });
        }
    }
    custom
}

/// Reads a version's part of a kind's definition. The definition may be newer than the kind, and lack the version:
/// once the kind follows, documents are built again.
fn source(kinds: &Kinds, definition: &Definition, version: &str) -> Option<CustomSource> {
    let resource = kinds.get("apiextensions.k8s.io", "customresourcedefinitions")?;
    let name = format!("{}.{}", definition.plural, definition.group);
    let object = resource.cache.as_ref()?.get(&resource.definition.key("", &name))?;
    let mut tree = object.tree().ok()?;
    let found = tree.items_mut("spec.versions").find(|found| found["name"] == *version)?;
    Some(CustomSource {
        open_api_v3: found.take_at("schema.openAPIV3Schema"),
        selectable_fields: found.take_at("selectableFields"),
    })
}

/// Builds the OpenAPI v3 document for a group and version or another path. Returns `None` if nothing is served there.
fn part(kinds: &Kinds, name: &str) -> Option<Value> {
    let versions = versions(kinds);
    let found = versions.iter().find(|(g, v)| openapi::document_path(g, v) == name);
    let mut document = match found {
        Some((group, version)) => {
            let custom = custom(kinds, Some((group, version)));
            let custom: Vec<CustomKind<'_>> = custom.iter().map(CustomVersion::kind).collect();
            openapi::document(group, version, &custom, KUBERNETES_VERSION)
        }
        None => {
            if name.starts_with("apis/") && !groups(kinds).contains(name) {
                return None;
            }
            openapi::plain_document(name, KUBERNETES_VERSION)?
        }
    };
    api_docs::describe(&mut document);
    Some(document)
}

/// Builds the OpenAPI v2 document.
fn v2_document(kinds: &Kinds, known: &ApiServices) -> Value {
    let versions = versions(kinds);
    let groups = groups(kinds);
    let plain: Vec<&str> = PLAIN.into_iter().chain(groups.iter().map(String::as_str)).collect();
    let versions: Vec<_> = versions.into_iter().collect();
    let custom = custom(kinds, None);
    let shown: Vec<CustomKind<'_>> = custom.iter().map(CustomVersion::kind).collect();
    let mut document = openapi::whole(&plain, &versions, &shown, KUBERNETES_VERSION);
    drop(custom);
    api_docs::describe(&mut document);
    let mut document = openapi::to_v2(document);
    for service in known.remotes() {
        let learned = known.remote_api(&service.group, &service.version);
        if let Some(part) = learned.and_then(|learned| learned.open_api.as_ref()) {
            merge(&mut document, part);
        }
    }
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_http_dates() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        assert_eq!(http_date(time), "Sun, 06 Nov 1994 08:49:37 GMT");
    }

    #[test]
    fn negotiates_preferred_encoding() {
        let json = "application/json";
        let old = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
        let new = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
        let table = [
            ("", Some(Form::Json)),
            ("*/*", Some(Form::Json)),
            (old, Some(Form::Protobuf)),
            (new, Some(Form::Protobuf)),
            (&*format!("{new};q=0.5, {json}"), Some(Form::Json)),
            (&*format!("{new}, {json}"), Some(Form::Protobuf)),
            ("application/com.github.proto-openapi.spec.v3.v1.0+protobuf", None),
            ("text/html", None),
        ];
        for (accept, form) in table {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, accept.parse().unwrap());
            assert_eq!(Form::negotiate(&headers, "v2"), form, "{accept}");
        }
    }
}
