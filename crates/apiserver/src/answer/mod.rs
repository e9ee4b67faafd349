//! From stored bytes to answers: whole objects by splicing, tables and partial metadata by reading.

pub(crate) mod compress;
pub(crate) mod gzip_list;
mod list;
mod table;
mod watch;

use api_codec::Form;
use api_meta::{Status, StatusReason, Tree as _};
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};
use serve::Body;

use self::table::Table;
use crate::registry::{
    definition::{Definition, Served},
    object::Object,
};
pub(crate) use crate::{
    answer::{
        list::{ListMeta, list, list_head},
        watch::{bookmark, error_frame, frame},
    },
    request::accept::{Accepted, Encoding, Include, Of, Shape, quality},
};

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
    tree.put(&["kind"], json!(*served.kind));
    tree.put(&["apiVersion"], json!(*served.api_version));
    if object.revision > 0 {
        tree.put(&["metadata", "resourceVersion"], json!(object.revision.to_string()));
    }
    tree
}

fn partial(mut tree: Value, meta: &str) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": meta, "metadata": tree.take_at(&["metadata"])})
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
            let shown = Table { definition, served, include, version: accepted.meta };
            let meta = ListMeta { revision: object.revision, ..ListMeta::default() };
            value(accepted, code, &shown.of(&meta, [tree(served, object)], true))
        }
    }
}

/// The answer to whoever asks for a list as one object, or the other way round.
fn mismatch(accepted: Accepted, message: String) -> Response<Body> {
    let refusal = Status::failure(406, StatusReason::NotAcceptable, message);
    status(Accepted { shape: Shape::Whole, ..accepted }, &refusal)
}

/// Objects that are not stored, as one of them or as a list.
pub(crate) fn made(
    definition: &Definition,
    served: &Served,
    accepted: Accepted,
    trees: Vec<Value>,
    list: bool,
) -> Response<Body> {
    let version = accepted.meta;
    let tree = match (accepted.shape, list) {
        (Shape::Table(include), _) => {
            let shown = Table { definition, served, include, version };
            shown.of(&ListMeta::default(), trees, true)
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

/// Any tree as an answer.
pub(crate) fn value(accepted: Accepted, code: StatusCode, tree: &Value) -> Response<Body> {
    match accepted.encoding {
        Encoding::Yaml => bytes(
            code,
            "application/yaml",
            api_codec::to_yaml(tree).unwrap_or_default().into_bytes(),
        ),
        Encoding::Protobuf => match crate::handlers::decode::protobuf(tree) {
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
    let mut response = serve::answer(code, content_type, body);
    let kept = HeaderValue::from_static("no-cache, private");
    response.headers_mut().insert(header::CACHE_CONTROL, kept);
    response
}
