//! One stored object as the cache and the answers see it.

use std::sync::Arc;

use api_meta::Tree as _;
use bytes::Bytes;
use serde_json::Value;
use store::Revision;

use super::projection::Projection;

/// An object at one revision: canonical JSON bytes without kind, apiVersion and resource version, and beside
/// them what selectors read. The bytes are shared with the store's memory index.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) key: Arc<str>,
    pub(crate) revision: Revision,
    pub(crate) bytes: Bytes,
    /// Which of the definition's versions the bytes are in.
    pub(crate) version: u8,
    /// Why it could not be decrypted; the bytes then are no more than its name, and nobody gets them.
    pub(crate) unreadable: Option<Arc<str>>,
    /// Each label's key, and behind it its value.
    pub(crate) labels: Texts,
    /// The values of the resource's own selectable fields, in the order of its definition.
    pub(crate) fields: Texts,
}

impl Object {
    /// The last segment of the key.
    pub(crate) fn name(&self) -> &str {
        self.key.rsplit('/').next().unwrap_or_default()
    }

    /// The segment before it: the namespace, where objects of the kind have one.
    pub(crate) fn namespace(&self) -> &str {
        self.key.rsplit('/').nth(1).unwrap_or_default()
    }

    /// The whole tree. The bytes are ours, so that a failure is a corrupt store.
    pub(crate) fn tree(&self) -> Result<Value, serde_json::Error> {
        #[cfg(test)]
        super::parses::count();
        serde_json::from_slice(&self.bytes)
    }
}

/// A few short texts in one piece of memory: one for each would take several times what they say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Texts(Box<[u8]>);

impl Texts {
    pub(crate) fn of(texts: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let mut all = Vec::new();
        for text in texts {
            let text = text.as_ref();
            // An object, and so a text in it, is far shorter than 4 GiB.
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
    Path(Arc<str>),
}

impl Selectable {
    /// The name and the namespace, which are in an object's key.
    pub(crate) const COMMON: usize = 2;

    /// What every kind selects by, [`Self::COMMON`] in number, then the kind's own.
    pub(crate) fn all(own: &[api_rules::Selectable]) -> Vec<Self> {
        let common: [api_rules::Selectable; Self::COMMON] = [
            ("metadata.name", |tree| tree.name().to_owned()),
            ("metadata.namespace", |tree| tree.namespace().to_owned()),
        ];
        let built = |(name, read): &api_rules::Selectable| Self {
            name: (*name).into(),
            read: Read::Built(*read),
        };
        common.iter().chain(own).map(built).collect()
    }

    /// The members that are read for these fields, for label selectors and for indexes.
    pub(crate) fn projection(all: &[Self], indexed: &[&str]) -> Projection {
        let path = |selectable: &Self| match &selectable.read {
            // The one selector that is called otherwise than the field that it reads.
            Read::Built(_) if &*selectable.name == "status.successful" => "status.succeeded".into(),
            Read::Built(_) => selectable.name.to_string(),
            Read::Path(path) => path.to_string(),
        };
        let paths: Vec<String> = all.iter().map(path).collect();
        let paths = paths.iter().map(String::as_str).chain(["metadata.labels"]);
        Projection::of(paths.chain(indexed.iter().copied()))
    }

    pub(crate) fn value(&self, tree: &Value) -> String {
        match &self.read {
            Read::Built(read) => read(tree),
            // A selector compares text: booleans and numbers as JSON writes them.
            Read::Path(path) => match tree.at(&**path) {
                Value::Null => String::new(),
                Value::String(text) => text.clone(),
                other => other.to_string(),
            },
        }
    }
}

pub(crate) fn labels_of(tree: &Value) -> Texts {
    let labels = tree.pairs("metadata.labels");
    Texts::of(labels.filter_map(|(k, v)| Some([k.as_str(), v.as_str()?])).flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_kept_apart() {
        for texts in [vec![], vec![""], vec!["a", "", "ü\0b"], vec!["", ""]] {
            let kept = Texts::of(&texts);
            assert_eq!(kept.iter().collect::<Vec<_>>(), texts);
        }
        assert_ne!(Texts::of(["ab", "c"]), Texts::of(["a", "bc"]));
    }

    #[test]
    fn a_key_says_where_its_object_is() {
        let kept = |key: &str| Object {
            key: key.into(),
            revision: 1,
            bytes: Bytes::new(),
            version: 0,
            unreadable: None,
            labels: Texts::default(),
            fields: Texts::default(),
        };
        for key in ["/registry/pods/ns/web", "/registry/services/specs/ns/web"] {
            assert_eq!((kept(key).namespace(), kept(key).name()), ("ns", "web"));
        }
    }
}
