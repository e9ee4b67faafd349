//! A stored object in the cache.

use std::sync::Arc;

use api_meta::Tree as _;
use bytes::Bytes;
use serde_json::Value;
use store::Revision;

use super::projection::Projection;

/// An object at one revision: canonical JSON without kind, apiVersion and resourceVersion, with its labels and
/// selectable fields. The bytes are shared with the store's index.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) key: Arc<str>,
    pub(crate) revision: Revision,
    pub(crate) bytes: Bytes,
    /// The index of the definition's version in which the bytes are encoded.
    pub(crate) version: u8,
    /// The reason for a failed decryption. The bytes contain only the name then, and are never returned to clients.
    pub(crate) unreadable: Option<Arc<str>>,
    /// The labels: each key followed by its value.
    pub(crate) labels: PackedStrings,
    /// The values of the resource's own selectable fields, in the order of its definition.
    pub(crate) fields: PackedStrings,
}

impl Object {
    /// Returns the last segment of the key.
    pub(crate) fn name(&self) -> &str {
        self.key.rsplit('/').next().unwrap_or_default()
    }

    /// Returns the last but one segment: the namespace, if the kind is namespaced.
    pub(crate) fn namespace(&self) -> &str {
        self.key.rsplit('/').nth(1).unwrap_or_default()
    }

    /// Parses the object. The bytes were encoded by this server, so an error means a corrupt store.
    pub(crate) fn tree(&self) -> Result<Value, serde_json::Error> {
        #[cfg(test)]
        super::parse_count::count();
        serde_json::from_slice(&self.bytes)
    }
}

/// Several short strings in one allocation. Separate allocations would need several times the memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PackedStrings(Box<[u8]>);

impl PackedStrings {
    pub(crate) fn of(texts: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let mut all = Vec::new();
        for text in texts {
            let text = text.as_ref();
            // An object, and hence its strings, is far smaller than 4 GiB.
            all.extend_from_slice(&(text.len() as u32).to_le_bytes());
            all.extend_from_slice(text.as_bytes());
        }
        Self(all.into())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &str> {
        let mut rest = &*self.0;
        std::iter::from_fn(move || {
            let (length, behind) = rest.split_first_chunk()?;
            let (text, behind) = behind.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            rest = behind;
            std::str::from_utf8(text).ok()
        })
    }
}

/// A field that field selectors may name.
#[derive(Clone, Debug)]
pub(crate) struct Selectable {
    pub(crate) name: Arc<str>,
    pub(crate) read: FieldReader,
}

/// The way to read a selectable field from a stored tree.
#[derive(Clone, Debug)]
pub(crate) enum FieldReader {
    Built(fn(&Value) -> String),
    /// A path from a custom kind's `selectableFields`.
    Path(Arc<str>),
}

impl Selectable {
    /// The number of fields common to all kinds: name and namespace, which are read from the key.
    pub(crate) const COMMON: usize = 2;

    /// Returns the common fields followed by the kind's own.
    pub(crate) fn all(own: &[api_rules::Selectable]) -> Vec<Self> {
        let common: [api_rules::Selectable; Self::COMMON] = [
            ("metadata.name", |tree| tree.name().to_owned()),
            ("metadata.namespace", |tree| tree.namespace().to_owned()),
        ];
        let built = |(name, read): &api_rules::Selectable| Self {
            name: (*name).into(),
            read: FieldReader::Built(*read),
        };
        common.iter().chain(own).map(built).collect()
    }

    /// Returns the projection for these fields, labels and indexes.
    pub(crate) fn projection(all: &[Self], indexed: &[&str]) -> Projection {
        let path = |selectable: &Self| match &selectable.read {
            // The only selector whose name differs from its field.
            FieldReader::Built(_) if &*selectable.name == "status.successful" => {
                "status.succeeded".into()
            }
            FieldReader::Built(_) => selectable.name.to_string(),
            FieldReader::Path(path) => path.to_string(),
        };
        let paths: Vec<String> = all.iter().map(path).collect();
        let paths = paths.iter().map(String::as_str).chain(["metadata.labels"]);
        Projection::of(paths.chain(indexed.iter().copied()))
    }

    pub(crate) fn value(&self, tree: &Value) -> String {
        match &self.read {
            FieldReader::Built(read) => read(tree),
            // Selectors compare strings, so booleans and numbers are formatted as JSON.
            FieldReader::Path(path) => match tree.at(&**path) {
                Value::Null => String::new(),
                Value::String(text) => text.clone(),
                other => other.to_string(),
            },
        }
    }
}

pub(crate) fn labels_of(tree: &Value) -> PackedStrings {
    let labels = tree.pairs("metadata.labels");
    PackedStrings::of(labels.filter_map(|(k, v)| Some([k.as_str(), v.as_str()?])).flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separates_texts() {
        for texts in [vec![], vec![""], vec!["a", "", "ü\0b"], vec!["", ""]] {
            let kept = PackedStrings::of(&texts);
            assert_eq!(kept.iter().collect::<Vec<_>>(), texts);
        }
        assert_ne!(PackedStrings::of(["ab", "c"]), PackedStrings::of(["a", "bc"]));
    }

    #[test]
    fn reads_namespace_and_name_from_key() {
        let kept = |key: &str| Object {
            key: key.into(),
            revision: 1,
            bytes: Bytes::new(),
            version: 0,
            unreadable: None,
            labels: PackedStrings::default(),
            fields: PackedStrings::default(),
        };
        for key in ["/registry/pods/ns/web", "/registry/services/specs/ns/web"] {
            assert_eq!((kept(key).namespace(), kept(key).name()), ("ns", "web"));
        }
    }
}
