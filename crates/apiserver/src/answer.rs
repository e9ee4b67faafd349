//! From stored bytes to answers: whole objects by splicing, tables and partial metadata by reading.

use std::{io::Write as _, sync::Arc};

use api_codec::Form;
use api_meta::{Status, StatusReason, Timestamp};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use serve::Body;
use store::Revision;

use crate::{
    cache::{Event, EventKind},
    definition::{Definition, Served},
    object::Object,
    path::Query,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Json,
    Yaml,
    Protobuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Whole,
    Table(Include),
    /// Metadata alone, asked for as that of one object or of a list.
    Partial(Of),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    One,
    List,
}

const META: &str = "meta.k8s.io/v1";

/// What each row of a table carries beside its cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Include {
    Nothing,
    Metadata,
    Object,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Accepted {
    pub(crate) encoding: Encoding,
    pub(crate) shape: Shape,
    /// The version of `meta.k8s.io` in which tables and partial objects are wanted.
    pub(crate) meta: &'static str,
    pub(crate) pretty: bool,
}

/// What a list answer says of itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListMeta {
    pub(crate) revision: Revision,
    pub(crate) continue_token: String,
    pub(crate) remaining: Option<u64>,
}

impl Accepted {
    /// Whether stored bytes answer as they are.
    pub(crate) fn is_stored_form(self) -> bool {
        self.shape == Shape::Whole && self.encoding == Encoding::Json && !self.pretty
    }

    pub(crate) const JSON: Self =
        Self { encoding: Encoding::Json, shape: Shape::Whole, meta: META, pretty: false };

    /// Reads `Accept`.
    pub(crate) fn negotiate(headers: &HeaderMap, query: &Query) -> Result<Self, Box<Status>> {
        // A table has no protobuf form.
        Self::choose(headers, query, |encoding, shape| {
            encoding != Encoding::Protobuf || !matches!(shape, Shape::Table(_))
        })
    }

    /// Reads `Accept` for a resource that has no tables, because it is only asked and never stored.
    pub(crate) fn negotiate_without_tables(
        headers: &HeaderMap,
        query: &Query,
    ) -> Result<Self, Box<Status>> {
        Self::choose(headers, query, |_, shape| !matches!(shape, Shape::Table(_)))
    }

    /// Reads `Accept` for a custom kind, which has no protobuf form but of its metadata.
    pub(crate) fn negotiate_custom(
        headers: &HeaderMap,
        query: &Query,
    ) -> Result<Self, Box<Status>> {
        Self::choose(headers, query, |encoding, shape| {
            encoding != Encoding::Protobuf || matches!(shape, Shape::Partial(_))
        })
    }

    fn choose(
        headers: &HeaderMap,
        query: &Query,
        fits: impl Fn(Encoding, Shape) -> bool,
    ) -> Result<Self, Box<Status>> {
        let text = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or("*/*");
        let pretty =
            query.flag("pretty") || query.get("pretty").is_none() && browser_or_curl(headers);
        let mut ranges: Vec<(&str, f32)> =
            text.split(',').map(|range| (range.trim(), quality(range))).collect();
        ranges.sort_by(|a, b| b.1.total_cmp(&a.1));
        for (range, q) in ranges {
            if q > 0.0
                && let Some((encoding, shape, meta)) = media_range(range, query)
                && fits(encoding, shape)
            {
                return Ok(Self { encoding, shape, meta, pretty });
            }
        }
        Err(Box::new(Status::not_acceptable(&[
            "application/json",
            "application/yaml",
            "application/vnd.kubernetes.protobuf",
        ])))
    }
}

fn browser_or_curl(headers: &HeaderMap) -> bool {
    let agent = headers.get(header::USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    ["curl", "Wget", "Mozilla/5.0"].iter().any(|known| agent.starts_with(known))
}

pub(crate) fn quality(range: &str) -> f32 {
    let q = range.split(';').find_map(|p| p.trim().strip_prefix("q="));
    q.and_then(|q| q.parse().ok()).unwrap_or(1.0)
}

fn media_range(range: &str, query: &Query) -> Option<(Encoding, Shape, &'static str)> {
    let mut parts = range.split(';').map(str::trim);
    let encoding = match parts.next()? {
        "application/json" | "*/*" | "application/*" | "" => Encoding::Json,
        "application/yaml" => Encoding::Yaml,
        "application/vnd.kubernetes.protobuf" => Encoding::Protobuf,
        _ => return None,
    };
    let (mut kind, mut group, mut version) = ("", "", "");
    for part in parts {
        match part.split_once('=') {
            Some(("as", value)) => kind = value,
            Some(("g", value)) => group = value,
            Some(("v", value)) => version = value,
            _ => {}
        }
    }
    if kind.is_empty() {
        return Some((encoding, Shape::Whole, META));
    }
    let meta = match (group, version) {
        ("meta.k8s.io", "v1") => META,
        ("meta.k8s.io", "v1beta1") => "meta.k8s.io/v1beta1",
        _ => return None,
    };
    let shape = match kind {
        "Table" => Shape::Table(match query.get("includeObject") {
            Some("None") => Include::Nothing,
            Some("Object") => Include::Object,
            _ => Include::Metadata,
        }),
        "PartialObjectMetadata" => Shape::Partial(Of::One),
        "PartialObjectMetadataList" => Shape::Partial(Of::List),
        _ => return None,
    };
    Some((encoding, shape, meta))
}

// --- bytes -----------------------------------------------------------------------------------------------

/// Appends one object as `served` shows it. `typed`: with kind and apiVersion, which list items of built-in
/// kinds omit.
pub(crate) fn write_object(out: &mut Vec<u8>, served: &Served, object: &Object, typed: bool) {
    // What a dry run would have made has no resource version.
    if served.conversion.is_some() || object.revision == 0 {
        return write_converted(out, served, object, typed);
    }
    let form = match typed {
        true => Form::Full { kind: &served.kind, api_version: &served.api_version },
        false => Form::Item,
    };
    api_codec::splice(out, &object.bytes, object.revision, form);
}

fn write_converted(out: &mut Vec<u8>, served: &Served, object: &Object, typed: bool) {
    let mut tree = tree(served, object);
    if !typed && let Some(map) = tree.as_object_mut() {
        map.remove("kind");
        map.remove("apiVersion");
    }
    let _ = serde_json::to_writer(out, &tree);
}

/// The object as `served` shows it, as a tree with kind, apiVersion and resource version.
pub(crate) fn tree(served: &Served, object: &Object) -> Value {
    let mut tree = object.tree().unwrap_or_else(|error| {
        tracing::error!(key = %object.key, %error, "a stored object cannot be parsed");
        json!({"metadata": {"name": object.name()}})
    });
    if let Some(conversion) = &served.conversion {
        (conversion.from_storage)(&mut tree);
    }
    tree["kind"] = json!(*served.kind);
    tree["apiVersion"] = json!(*served.api_version);
    if object.revision > 0 {
        tree["metadata"]["resourceVersion"] = json!(object.revision.to_string());
    }
    tree
}

fn partial(mut tree: Value, meta: &str) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": meta, "metadata": tree["metadata"].take()})
}

fn row(
    definition: &Definition,
    served: &Served,
    tree: Value,
    (include, version): (Include, &str),
    now: Timestamp,
) -> Value {
    let cells = match &served.columns {
        Some(columns) => crate::custom::cells(columns, &tree, now),
        None => match &served.conversion {
            None => api_rules::table::cells(&served.group, &definition.plural, &tree, now),
            // Tables are made for the stored version.
            Some(conversion) => {
                let mut stored = tree.clone();
                (conversion.to_storage)(&mut stored);
                api_rules::table::cells(&definition.group, &definition.plural, &stored, now)
            }
        },
    };
    match include {
        Include::Nothing => json!({"cells": cells, "object": null}),
        Include::Metadata => json!({"cells": cells, "object": partial(tree, version)}),
        Include::Object => json!({"cells": cells, "object": tree}),
    }
}

fn columns(definition: &Definition, served: &Served) -> Value {
    match &served.columns {
        Some(columns) => crate::custom::columns(columns),
        None => json!(api_rules::table::columns(&definition.group, &definition.plural)),
    }
}

fn table(
    definition: &Definition,
    served: &Served,
    (meta, version): (&ListMeta, &str),
    rows: Vec<Value>,
    with_columns: bool,
) -> Value {
    let columns = if with_columns { columns(definition, served) } else { json!([]) };
    json!({"kind": "Table", "apiVersion": version, "metadata": meta.tree(), "columnDefinitions": columns, "rows": rows})
}

impl ListMeta {
    fn tree(&self) -> Value {
        let mut meta = json!({"resourceVersion": self.revision.to_string()});
        if !self.continue_token.is_empty() {
            meta["continue"] = json!(self.continue_token);
        }
        if let Some(remaining) = self.remaining {
            meta["remainingItemCount"] = json!(remaining);
        }
        meta
    }
}

/// One object's answer.
pub(crate) fn object(
    definition: &Definition,
    served: &Served,
    accepted: Accepted,
    code: StatusCode,
    object: &Object,
) -> Response<Body> {
    match accepted.shape {
        _ if accepted.is_stored_form() => {
            let mut out = Vec::new();
            write_object(&mut out, served, object, true);
            bytes(code, "application/json", out)
        }
        Shape::Whole => value(accepted, code, &tree(served, object)),
        Shape::Partial(Of::One) => {
            value(accepted, code, &partial(tree(served, object), accepted.meta))
        }
        Shape::Partial(Of::List) => {
            let message = format!(
                "you requested PartialObjectMetadataList, but the requested object is not a list ({})",
                served.kind
            );
            mismatch(accepted, message)
        }
        Shape::Table(include) => {
            let form = (include, accepted.meta);
            let rows = vec![row(definition, served, tree(served, object), form, crate::now())];
            let meta = ListMeta { revision: object.revision, ..ListMeta::default() };
            let meta = (&meta, accepted.meta);
            value(accepted, code, &table(definition, served, meta, rows, true))
        }
    }
}

/// The answer to whoever asks for a list as one object, or the other way round.
fn mismatch(accepted: Accepted, message: String) -> Response<Body> {
    let refusal = Status::failure(406, StatusReason::NotAcceptable, message);
    status(Accepted { shape: Shape::Whole, ..accepted }, &refusal)
}

/// How much of a list is joined before it is handed on.
const PIECE: usize = 64 << 10;

/// A list of whole objects: joined bytes, made as the client takes them, so that a large list costs its reader a
/// piece of memory and not a copy of the list.
fn joined(
    definition: &Arc<Definition>,
    version: usize,
    meta: &ListMeta,
    objects: Vec<Arc<Object>>,
) -> Response<Body> {
    let head = list_head(&definition.served[version], meta);
    let total: usize = objects.iter().map(|o| o.bytes.len() + 64).sum();
    let mut pieces = Pieces { definition: definition.clone(), version, objects, next: 0, head };
    if total <= PIECE {
        let whole: Vec<u8> = std::iter::from_fn(|| pieces.next_piece()).flatten().collect();
        return bytes(StatusCode::OK, "application/json", whole);
    }
    let frames = futures_util::stream::iter(std::iter::from_fn(move || pieces.next_piece()));
    let frames = futures_util::StreamExt::map(frames, |piece| Ok(Frame::data(piece.into())));
    let mut response = bytes(StatusCode::OK, "application/json", Bytes::new());
    *response.body_mut() = BodyExt::boxed_unsync(http_body_util::StreamBody::new(frames));
    if total >= 2 * PIECE {
        response.extensions_mut().insert(crate::compress::Streamed);
    }
    response
}

/// What stands before the items of a list.
pub(crate) fn list_head(served: &Served, meta: &ListMeta) -> String {
    format!(
        "{{\"kind\":\"{}\",\"apiVersion\":\"{}\",\"metadata\":{},\"items\":[",
        served.list_kind,
        served.api_version,
        meta.tree()
    )
}

struct Pieces {
    definition: Arc<Definition>,
    version: usize,
    objects: Vec<Arc<Object>>,
    next: usize,
    head: String,
}

impl Pieces {
    fn next_piece(&mut self) -> Option<Vec<u8>> {
        if self.next > self.objects.len() {
            return None;
        }
        let served = &self.definition.served[self.version];
        let mut out = std::mem::take(&mut self.head).into_bytes();
        out.reserve(PIECE + PIECE / 4);
        while let Some(object) = self.objects.get(self.next) {
            if out.len() >= PIECE {
                return Some(out);
            }
            if self.next > 0 {
                out.push(b',');
            }
            write_object(&mut out, served, object, self.definition.custom.is_some());
            self.next += 1;
        }
        out.extend_from_slice(b"]}\n");
        self.next += 1;
        Some(out)
    }
}

/// A list's answer: for whole objects, joined bytes.
pub(crate) fn list(
    definition: &Arc<Definition>,
    version: usize,
    accepted: Accepted,
    meta: &ListMeta,
    objects: Vec<Arc<Object>>,
) -> Response<Body> {
    let served = &definition.served[version];
    match accepted.shape {
        _ if accepted.is_stored_form() => joined(definition, version, meta, objects),
        Shape::Whole => {
            let items: Vec<Value> = objects.iter().map(|o| tree(served, o)).collect();
            let whole = json!({"kind": *served.list_kind, "apiVersion": *served.api_version, "metadata": meta.tree(), "items": items});
            value(accepted, StatusCode::OK, &whole)
        }
        Shape::Partial(Of::One) => {
            let message = format!(
                "you requested PartialObjectMetadata, but the requested object is a list ({})",
                served.list_kind
            );
            mismatch(accepted, message)
        }
        Shape::Partial(Of::List) => {
            let partial = |o: &Arc<Object>| partial(tree(served, o), accepted.meta);
            let items: Vec<Value> = objects.iter().map(partial).collect();
            let whole = json!({"kind": "PartialObjectMetadataList", "apiVersion": accepted.meta, "metadata": meta.tree(), "items": items});
            value(accepted, StatusCode::OK, &whole)
        }
        Shape::Table(include) => {
            let now = crate::now();
            let rows = objects
                .iter()
                .map(|o| row(definition, served, tree(served, o), (include, accepted.meta), now))
                .collect();
            let meta = (meta, accepted.meta);
            value(accepted, StatusCode::OK, &table(definition, served, meta, rows, true))
        }
    }
}

/// Objects that are not stored, as one of them or as a list.
pub(crate) fn made(
    definition: &Definition,
    served: &Served,
    accepted: Accepted,
    trees: Vec<Value>,
    list: bool,
) -> Response<Body> {
    let meta = ListMeta::default();
    let version = accepted.meta;
    let tree = match (accepted.shape, list) {
        (Shape::Table(include), _) => {
            let now = crate::now();
            let row = |tree| row(definition, served, tree, (include, version), now);
            table(definition, served, (&meta, version), trees.into_iter().map(row).collect(), true)
        }
        (Shape::Whole, true) => json!({
            "kind": *served.list_kind,
            "apiVersion": *served.api_version,
            "metadata": {},
            "items": trees,
        }),
        (Shape::Partial(_), true) => json!({
            "kind": "PartialObjectMetadataList",
            "apiVersion": version,
            "metadata": {},
            "items": trees.into_iter().map(|tree| partial(tree, version)).collect::<Vec<_>>(),
        }),
        (Shape::Whole, false) => trees.into_iter().next().unwrap_or_default(),
        (Shape::Partial(_), false) => {
            partial(trees.into_iter().next().unwrap_or_default(), version)
        }
    };
    value(accepted, StatusCode::OK, &tree)
}

/// One event of a watch, with its line feed. `first`: only the first table of a watch names its columns.
pub(crate) fn frame(
    definition: &Definition,
    served: &Served,
    accepted: Accepted,
    kind: EventKind,
    event: &Event,
    first: bool,
) -> Bytes {
    let shape = accepted.shape;
    if accepted.encoding == Encoding::Protobuf {
        let object = match shape {
            Shape::Whole => tree(served, &event.object),
            Shape::Partial(_) => partial(tree(served, &event.object), accepted.meta),
            Shape::Table(include) => {
                let rows = vec![row(
                    definition,
                    served,
                    tree(served, &event.object),
                    (include, accepted.meta),
                    crate::now(),
                )];
                let meta = ListMeta { revision: event.object.revision, ..ListMeta::default() };
                table(definition, served, (&meta, accepted.meta), rows, first)
            }
        };
        return protobuf_frame(kind.text(), &object);
    }
    let mut out = Vec::with_capacity(event.object.bytes.len() + 160);
    let _ = write!(out, "{{\"type\":\"{}\",\"object\":", kind.text());
    match shape {
        Shape::Whole => write_object(&mut out, served, &event.object, true),
        Shape::Partial(_) => {
            let partial = partial(tree(served, &event.object), accepted.meta);
            drop(serde_json::to_writer(&mut out, &partial))
        }
        Shape::Table(include) => {
            let (form, object) = ((include, accepted.meta), tree(served, &event.object));
            let rows = vec![row(definition, served, object, form, crate::now())];
            let meta = ListMeta { revision: event.object.revision, ..ListMeta::default() };
            let table = table(definition, served, (&meta, accepted.meta), rows, first);
            drop(serde_json::to_writer(&mut out, &table));
        }
    }
    out.extend_from_slice(b"}\n");
    out.into()
}

/// A bookmark: an empty object at a revision. `initial_end` closes the initial events of a streaming list.
pub(crate) fn bookmark(
    served: &Served,
    accepted: Accepted,
    revision: Revision,
    initial_end: bool,
) -> Bytes {
    let mut metadata = json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
    if initial_end {
        metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    }
    let object = match accepted.shape {
        Shape::Whole => {
            json!({"kind": *served.kind, "apiVersion": *served.api_version, "metadata": metadata})
        }
        Shape::Partial(_) => {
            json!({"kind": "PartialObjectMetadata", "apiVersion": accepted.meta, "metadata": metadata})
        }
        Shape::Table(_) => {
            let row = json!({"cells": [], "object": {"kind": "PartialObjectMetadata", "apiVersion": accepted.meta, "metadata": metadata}});
            let meta = json!({"resourceVersion": revision.to_string()});
            json!({"kind": "Table", "apiVersion": accepted.meta, "metadata": meta, "columnDefinitions": [], "rows": [row]})
        }
    };
    if accepted.encoding == Encoding::Protobuf {
        return protobuf_frame("BOOKMARK", &object);
    }
    line(&json!({"type": "BOOKMARK", "object": object}))
}

/// What ends a watch that cannot go on.
pub(crate) fn error_frame(accepted: Accepted, status: &Status) -> Bytes {
    let mut tree = serde_json::to_value(status).unwrap_or_default();
    tree["kind"] = json!("Status");
    tree["apiVersion"] = json!("v1");
    match accepted.encoding {
        Encoding::Protobuf => protobuf_frame("ERROR", &tree),
        _ => line(&json!({"type": "ERROR", "object": tree})),
    }
}

/// One event of a protobuf watch, with its length before it.
fn protobuf_frame(kind: &str, object: &Value) -> Bytes {
    let object = crate::codec::protobuf(object).unwrap_or_default();
    api_codec::protobuf::watch_frame(kind, &object).into()
}

fn line(value: &Value) -> Bytes {
    let mut out = value.to_string().into_bytes();
    out.push(b'\n');
    out.into()
}

/// Any tree as an answer.
pub(crate) fn value(accepted: Accepted, code: StatusCode, tree: &Value) -> Response<Body> {
    match accepted.encoding {
        Encoding::Yaml => bytes(
            code,
            "application/yaml",
            api_codec::to_yaml(tree).unwrap_or_default().into_bytes(),
        ),
        Encoding::Protobuf => match crate::codec::protobuf(tree) {
            Some(encoded) => bytes(code, "application/vnd.kubernetes.protobuf", encoded),
            None => bytes(code, "application/json", tree.to_string().into_bytes()),
        },
        Encoding::Json if accepted.pretty => {
            let mut out = serde_json::to_vec_pretty(tree).unwrap_or_default();
            out.push(b'\n');
            bytes(code, "application/json", out)
        }
        Encoding::Json => bytes(code, "application/json", tree.to_string().into_bytes()),
    }
}

pub(crate) fn status(accepted: Accepted, status: &Status) -> Response<Body> {
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let tree = serde_json::to_value(status).unwrap_or_default();
    let mut response = value(accepted, code, &tree);
    if let Some(seconds) = tree.pointer("/details/retryAfterSeconds").and_then(Value::as_u64) {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

pub(crate) fn bytes(
    code: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Response<Body> {
    let mut response = Response::new(full(body));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

pub(crate) fn full(body: impl Into<Bytes>) -> Body {
    http_body_util::Full::new(body.into()).map_err(|never| match never {}).boxed_unsync()
}
