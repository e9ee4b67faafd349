//! One stored object as the cache and the answers see it.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;
use store::Revision;

use crate::{definition::Definition, sparse::Wanted};

/// An object at one revision: canonical JSON bytes without kind, apiVersion and resource version, and beside
/// them what selectors read. The bytes are shared with the store's memory index.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) key: Arc<str>,
    pub(crate) revision: Revision,
    pub(crate) bytes: Bytes,
    /// Which of the definition's versions the bytes are in.
    pub(crate) version: u8,
    pub(crate) labels: Box<[(Box<str>, Box<str>)]>,
    /// The values of the resource's selectable fields, in the order of its definition.
    pub(crate) fields: Box<[Box<str>]>,
}

impl Object {
    /// An object on its way to the client that wrote it, which no selector looks at.
    pub(crate) fn to_answer(
        definition: &Definition,
        key: Arc<str>,
        revision: Revision,
        value: &Bytes,
    ) -> Self {
        let (bytes, version) = definition.opened(value);
        Self { key, revision, bytes, version, labels: Box::default(), fields: Box::default() }
    }

    /// The last segment of the key.
    pub(crate) fn name(&self) -> &str {
        self.key.rsplit('/').next().unwrap_or_default()
    }

    /// The whole tree. The bytes are ours, so that a failure is a corrupt store.
    pub(crate) fn tree(&self) -> Result<Value, serde_json::Error> {
        serde_json::from_slice(&self.bytes)
    }
}

/// A field that a resource's field selectors may name.
#[derive(Clone, Debug)]
pub(crate) struct Selectable {
    pub(crate) name: Arc<str>,
    pub(crate) read: Read,
}

/// How a selectable field is read off a stored tree.
#[derive(Clone, Debug)]
pub(crate) enum Read {
    Built(fn(&Value) -> String),
    /// A JSON pointer, of a custom kind's `selectableFields`.
    Pointer(Arc<str>),
}

impl Selectable {
    /// What every kind selects by, then the kind's own.
    pub(crate) fn all(own: &[api_rules::Selectable]) -> Vec<Self> {
        let common: [api_rules::Selectable; 2] = [
            ("metadata.name", |tree| {
                tree["metadata"]["name"].as_str().unwrap_or_default().to_owned()
            }),
            ("metadata.namespace", |tree| {
                tree["metadata"]["namespace"].as_str().unwrap_or_default().to_owned()
            }),
        ];
        let built = |(name, read): &api_rules::Selectable| Self {
            name: (*name).into(),
            read: Read::Built(*read),
        };
        common.iter().chain(own).map(built).collect()
    }

    /// The members that are read for these fields, and for label selectors.
    pub(crate) fn wanted(all: &[Self]) -> Wanted {
        let path = |selectable: &Self| match &selectable.read {
            // The one selector that is called otherwise than the field that it reads.
            Read::Built(_) if &*selectable.name == "status.successful" => "status.succeeded".into(),
            Read::Built(_) => selectable.name.to_string(),
            Read::Pointer(pointer) => pointer.trim_start_matches('/').replace('/', "."),
        };
        let paths: Vec<String> = all.iter().map(path).collect();
        Wanted::of(paths.iter().map(String::as_str).chain(["metadata.labels"]))
    }

    pub(crate) fn value(&self, tree: &Value) -> Box<str> {
        match &self.read {
            Read::Built(read) => read(tree).into(),
            // A selector compares text: booleans and numbers as JSON writes them.
            Read::Pointer(pointer) => match tree.pointer(pointer) {
                None | Some(Value::Null) => "".into(),
                Some(Value::String(text)) => text.as_str().into(),
                Some(other) => other.to_string().into(),
            },
        }
    }
}

pub(crate) fn labels_of(tree: &Value) -> Box<[(Box<str>, Box<str>)]> {
    let Some(labels) = tree["metadata"]["labels"].as_object() else { return Box::default() };
    labels.iter().filter_map(|(k, v)| Some((k.as_str().into(), v.as_str()?.into()))).collect()
}
