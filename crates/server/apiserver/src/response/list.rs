//! Responses with lists.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use serve::Body;

use super::{
    builders::{bytes, mismatch, value},
    compress::LargeStream,
    encode::{ListMeta, partial, write_object},
    table::Table,
};
use crate::{
    registry::{Definition, Object, ServedVersion},
    request::{PartialKind, ResponseFormat, Shape},
};

/// The size of a piece of the body in bytes.
const PIECE: usize = 64 << 10;

/// Answers with a list of whole objects. The stored bytes are joined while the client reads, so that a large list needs
/// the memory of a piece and not of the list.
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
        response.extensions_mut().insert(LargeStream);
    }
    response
}

/// Returns the JSON before the items of a list.
pub(crate) fn list_head(served: &ServedVersion, meta: &ListMeta) -> String {
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

/// Answers with a list in the accepted form.
pub(crate) fn list(
    definition: &Arc<Definition>,
    version: usize,
    accepted: ResponseFormat,
    meta: &ListMeta,
    objects: Vec<Arc<Object>>,
) -> Response<Body> {
    let served = &definition.served[version];
    match accepted.shape {
        _ if accepted.is_stored_form() => joined(definition, version, meta, objects),
        Shape::Whole => {
            let items: Vec<Value> = objects.iter().map(|o| served.tree(o)).collect();
            let whole = json!({
                "kind": *served.list_kind,
                "apiVersion": *served.api_version,
                "metadata": meta.tree(),
                "items": items,
            });
            value(accepted, StatusCode::OK, &whole)
        }
        Shape::Partial(PartialKind::One) => {
            let message = format!(
                "you requested PartialObjectMetadata, but the requested object is a list ({})",
                served.list_kind
            );
            mismatch(accepted, message)
        }
        Shape::Partial(PartialKind::List) => {
            let partial = |o: &Arc<Object>| partial(served.tree(o), accepted.meta);
            let items: Vec<Value> = objects.iter().map(partial).collect();
            let whole = json!({
                "kind": "PartialObjectMetadataList",
                "apiVersion": accepted.meta,
                "metadata": meta.tree(),
                "items": items,
            });
            value(accepted, StatusCode::OK, &whole)
        }
        Shape::Table(include) => {
            let shown = Table { definition, served, include, version: accepted.meta };
            let trees = objects.iter().map(|o| served.tree(o));
            value(accepted, StatusCode::OK, &shown.of(meta, trees, true))
        }
    }
}
