//! Responses from trees, Statuses and bytes.

use api_meta::{Status, StatusReason, Tree as _};
use api_schema::Schema;
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use serde::Serialize;
use serde_json::{Value, json};
use serve::Body;

use crate::request::{Encoding, ResponseFormat, Shape};

/// Answers with a tree.
pub(crate) fn value(accepted: ResponseFormat, code: StatusCode, tree: &Value) -> Response<Body> {
    written(accepted, code, tree, tree)
}

/// Answers that a subresource without an object of its own was created.
pub(crate) fn created(accepted: ResponseFormat) -> Response<Body> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201,
    });
    value(accepted, StatusCode::CREATED, &status)
}

/// Answers with a tree that has its own JSON serialization.
pub(crate) fn written(
    accepted: ResponseFormat,
    code: StatusCode,
    tree: &Value,
    json: &impl Serialize,
) -> Response<Body> {
    let text = || serde_json::to_vec(json).unwrap_or_default();
    match accepted.encoding {
        Encoding::Yaml => bytes(
            code,
            "application/yaml",
            api_codec::to_yaml(tree).unwrap_or_default().into_bytes(),
        ),
        Encoding::Protobuf => match protobuf(tree) {
            Some(encoded) => bytes(code, "application/vnd.kubernetes.protobuf", encoded),
            None => bytes(code, "application/json", text()),
        },
        Encoding::Cbor => bytes(code, "application/cbor", api_codec::cbor::to_cbor(tree)),
        Encoding::Json if accepted.pretty => {
            let mut out = serde_json::to_vec_pretty(json).unwrap_or_default();
            out.push(b'\n');
            bytes(code, "application/json", out)
        }
        Encoding::Json => bytes(code, "application/json", text()),
    }
}

pub(crate) fn status(accepted: ResponseFormat, status: &Status) -> Response<Body> {
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let tree = serde_json::to_value(status).unwrap_or_default();
    let mut response = value(accepted, code, &tree);
    if let Some(seconds) = tree.at("details.retryAfterSeconds").as_u64() {
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

/// Answers a request for a list in the form of one object, or vice versa.
pub(crate) fn mismatch(accepted: ResponseFormat, message: String) -> Response<Body> {
    let refusal = Status::failure(406, StatusReason::NotAcceptable, message);
    status(ResponseFormat { shape: Shape::Whole, ..accepted }, &refusal)
}

/// Encodes a tree as protobuf, if its kind has such an encoding.
pub(crate) fn protobuf(tree: &Value) -> Option<Vec<u8>> {
    let (version, kind) = (tree["apiVersion"].as_str()?, tree["kind"].as_str()?);
    api_codec::protobuf::to_protobuf(Schema::builtin(), version, kind, tree).ok()
}
