//! Encodes watch events as lines of JSON, as protobuf with length prefixes, or as a sequence of CBOR items.

use std::io::Write as _;

use api_meta::{Status, Tree as _};
use bytes::Bytes;
use serde_json::{Value, json};
use store::Revision;

use super::{
    builders::protobuf,
    encode::{ListMeta, partial, write_object},
    table::Table,
};
use crate::{
    registry::{Definition, ServedVersion},
    request::{Encoding, ResponseFormat, Shape},
    watch_cache::{Event, EventKind},
};

/// Encodes an event, in JSON with a line feed. `first` marks the first event of a watch: only the first table contains
/// the column definitions.
pub(crate) fn frame(
    definition: &Definition,
    served: &ServedVersion,
    accepted: ResponseFormat,
    kind: EventKind,
    event: &Event,
    first: bool,
) -> Bytes {
    if accepted.encoding != Encoding::Json {
        let object = shown(definition, served, accepted, event, first);
        return tree_frame(accepted, kind.text(), object);
    }
    let mut out = Vec::with_capacity(event.object.bytes.len() + 160);
    let _ = write!(out, "{{\"type\":\"{}\",\"object\":", kind.text());
    match accepted.shape {
        // Nearly all watches request whole objects, and these need no parsing.
        Shape::Whole => write_object(&mut out, served, &event.object, true),
        _ => {
            let object = shown(definition, served, accepted, event, first);
            let _ = serde_json::to_writer(&mut out, &object);
        }
    }
    out.extend_from_slice(b"}\n");
    out.into()
}

fn shown(
    definition: &Definition,
    served: &ServedVersion,
    accepted: ResponseFormat,
    event: &Event,
    first: bool,
) -> Value {
    let tree = served.tree(&event.object);
    match accepted.shape {
        Shape::Whole => tree,
        Shape::Partial(_) => partial(tree, accepted.meta),
        Shape::Table(include) => {
            let meta = ListMeta { revision: event.object.revision, ..ListMeta::default() };
            Table { definition, served, include, version: accepted.meta }.of(&meta, [tree], first)
        }
    }
}

/// Encodes a bookmark: an empty object at a revision. `initial_end` marks the end of the initial events of a streaming
/// list.
pub(crate) fn bookmark(
    served: &ServedVersion,
    accepted: ResponseFormat,
    revision: Revision,
    initial_end: bool,
) -> Bytes {
    let mut metadata = json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
    if initial_end {
        metadata.put(&["annotations"], json!({"k8s.io/initial-events-end": "true"}));
    }
    let object = match accepted.shape {
        Shape::Whole => {
            json!({"kind": *served.kind, "apiVersion": *served.api_version, "metadata": metadata})
        }
        Shape::Partial(_) => {
            json!({"kind": "PartialObjectMetadata", "apiVersion": accepted.meta, "metadata": metadata})
        }
        Shape::Table(_) => {
            let object = json!({
                "kind": "PartialObjectMetadata",
                "apiVersion": accepted.meta,
                "metadata": metadata,
            });
            let row = json!({"cells": [], "object": object});
            let meta = json!({"resourceVersion": revision.to_string()});
            json!({
                "kind": "Table",
                "apiVersion": accepted.meta,
                "metadata": meta,
                "columnDefinitions": null,
                "rows": [row],
            })
        }
    };
    tree_frame(accepted, "BOOKMARK", object)
}

/// Encodes the error that ends a watch.
pub(crate) fn error_frame(accepted: ResponseFormat, status: &Status) -> Bytes {
    let mut tree = serde_json::to_value(status).unwrap_or_default();
    tree.put(&["kind"], json!("Status"));
    tree.put(&["apiVersion"], json!("v1"));
    tree_frame(accepted, "ERROR", tree)
}

/// Encodes an event with an object that is not stored in this form.
fn tree_frame(accepted: ResponseFormat, kind: &str, object: Value) -> Bytes {
    match accepted.encoding {
        Encoding::Protobuf => {
            let object = protobuf(&object).unwrap_or_default();
            api_codec::protobuf::watch_frame(kind, &object).into()
        }
        Encoding::Cbor => api_codec::cbor::watch_event(kind, &object).into(),
        Encoding::Json | Encoding::Yaml => line(&json!({"type": kind, "object": object})),
    }
}

fn line(value: &Value) -> Bytes {
    let mut out = value.to_string().into_bytes();
    out.push(b'\n');
    out.into()
}
