//! Responses with one object, or with objects that are not stored.

use http::{Response, StatusCode};
use serde_json::{Value, json};
use serve::Body;

use super::{
    builders::{bytes, mismatch, value},
    encode::{ListMeta, partial, write_object},
    table::Table,
};
use crate::{
    registry::{Definition, Object, ServedVersion},
    request::{PartialKind, ResponseFormat, Shape},
};

/// Answers with one object.
pub(crate) fn object(
    definition: &Definition,
    served: &ServedVersion,
    accepted: ResponseFormat,
    code: StatusCode,
    object: &Object,
) -> Response<Body> {
    match accepted.shape {
        _ if accepted.is_stored_form() => {
            let mut out = Vec::new();
            write_object(&mut out, served, object, true);
            bytes(code, "application/json", out)
        }
        Shape::Whole => value(accepted, code, &served.tree(object)),
        Shape::Partial(PartialKind::One) => {
            value(accepted, code, &partial(served.tree(object), accepted.meta))
        }
        Shape::Partial(PartialKind::List) => {
            let message = format!(
                "you requested PartialObjectMetadataList, but the requested object is not a list ({})",
                served.kind
            );
            mismatch(accepted, message)
        }
        Shape::Table(include) => {
            let shown = Table { definition, served, include, version: accepted.meta };
            let meta = ListMeta { revision: object.revision, ..ListMeta::default() };
            value(accepted, code, &shown.of(&meta, [served.tree(object)], true))
        }
    }
}

/// Answers with objects that are not stored: a single one or a list.
pub(crate) fn computed(
    definition: &Definition,
    served: &ServedVersion,
    accepted: ResponseFormat,
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
