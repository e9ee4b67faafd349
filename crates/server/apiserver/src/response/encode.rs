//! Encodes objects and list metadata as parts of responses.

use api_codec::Form;
use api_meta::Tree as _;
use serde_json::{Value, json};
use store::Revision;

use crate::registry::{Object, ServedVersion};

/// The metadata of a list.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListMeta {
    pub(crate) revision: Revision,
    pub(crate) continue_token: String,
    pub(crate) remaining: Option<u64>,
}

impl ListMeta {
    pub(crate) fn tree(&self) -> Value {
        let mut meta = json!({"resourceVersion": self.revision.to_string()});
        if !self.continue_token.is_empty() {
            meta.put(&["continue"], json!(self.continue_token));
        }
        if let Some(remaining) = self.remaining {
            meta.put(&["remainingItemCount"], json!(remaining));
        }
        meta
    }
}

/// Appends an object in the version of `served`. If `typed`, it includes kind and apiVersion, which items of built-in
/// lists omit.
pub(crate) fn write_object(
    out: &mut Vec<u8>,
    served: &ServedVersion,
    object: &Object,
    typed: bool,
) {
    // The result of a dry run has no resourceVersion.
    if served.conversion.is_some() || object.revision == 0 {
        return write_converted(out, served, object, typed);
    }
    let form = if typed {
        Form::Full { kind: &served.kind, api_version: &served.api_version }
    } else {
        Form::Item
    };
    api_codec::splice(out, &object.bytes, object.revision, form);
}

fn write_converted(out: &mut Vec<u8>, served: &ServedVersion, object: &Object, typed: bool) {
    let mut tree = served.tree(object);
    if !typed && let Some(map) = tree.as_object_mut() {
        map.remove("kind");
        map.remove("apiVersion");
    }
    let _ = serde_json::to_writer(out, &tree);
}

/// Returns the metadata of an object as PartialObjectMetadata.
pub(crate) fn partial(mut tree: Value, meta: &str) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": meta,
        "metadata": tree.take_at(&["metadata"]),
    })
}
