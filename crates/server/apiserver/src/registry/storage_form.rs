//! The stored form of objects. A custom object is followed by the version in which it was written: it may be any
//! version of the definition, and a webhook converts between them.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;
use store::Revision;

use super::{
    conversion,
    definition::Definition,
    object::{Object, PackedStrings, Selectable, labels_of},
};

/// The minimum number of objects that one thread loads.
const LOADED_BY_ONE: usize = 1024;

/// Returns the number of objects that are loaded together, on all processors.
pub(crate) fn load_batch_size() -> usize {
    LOADED_BY_ONE * processors()
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The separator. JSON contains line feeds only in strings, where they are escaped.
const MARK: u8 = b'\n';

/// Appends the apiVersion to the bytes of an object.
pub(crate) fn mark(mut bytes: Vec<u8>, api_version: &str) -> Bytes {
    bytes.push(MARK);
    bytes.extend_from_slice(api_version.as_bytes());
    // Copied to the exact size, because the bytes are kept and a vector has spare capacity.
    Bytes::copy_from_slice(&bytes)
}

/// Splits the bytes of an object from its apiVersion. Built-in kinds and values other than objects have none.
pub(crate) fn split(value: &Bytes) -> (Bytes, Option<&str>) {
    let unmarked = || (value.clone(), None);
    if !value.starts_with(api_codec::STORED_PREFIX) || value.ends_with(b"}") {
        return unmarked();
    }
    let Some(at) = value.iter().rposition(|b| *b == MARK) else { return unmarked() };
    match std::str::from_utf8(&value[at + 1..]) {
        Ok(version) => (value.slice(..at), Some(version)),
        Err(_) => unmarked(),
    }
}

impl Definition {
    /// Reads a stored object with its labels and selectable fields. An object that cannot be read is reduced to its
    /// name, so that it can be listed and deleted.
    pub(crate) fn object(&self, kv: &store::KeyValue) -> Object {
        self.read(kv).0
    }

    /// Like [`Self::object`], and returns the projection.
    pub(crate) fn read(&self, kv: &store::KeyValue) -> (Object, Value) {
        let (bytes, version) = self.opened(&kv.value);
        self.object_of(kv.key.clone(), kv.mod_revision, bytes, version)
    }

    pub(crate) fn object_of(
        &self,
        key: Arc<str>,
        revision: Revision,
        mut bytes: Bytes,
        version: u8,
    ) -> (Object, Value) {
        let unreadable = store::why_unreadable(&bytes).map(Arc::from);
        let readable = if bytes.starts_with(api_codec::STORED_PREFIX) {
            self.projection.read(&bytes).map_err(|e| e.to_string())
        } else {
            Err("the value is not in the stored form of objects".to_owned())
        };
        let tree = readable.unwrap_or_else(|error| {
            // A failed decryption has already been logged.
            if !bytes.is_empty() && unreadable.is_none() {
                tracing::error!(%key, %error, "failed to read a stored object");
            }
            let stub = self.stub(&key);
            bytes = api_codec::encode_stored(&stub).into();
            stub
        });
        let fields =
            PackedStrings::of(self.selectable[Selectable::COMMON..].iter().map(|s| s.value(&tree)));
        let labels = labels_of(&tree);
        (Object { key, revision, bytes, version, unreadable, labels, fields }, tree)
    }

    /// Returns an object with the name and namespace from the key.
    fn stub(&self, key: &str) -> Value {
        let place = key.strip_prefix(&*self.prefix).unwrap_or(key);
        match place.split_once('/').filter(|_| self.namespaced) {
            Some((namespace, name)) => {
                serde_json::json!({"metadata": {"name": name, "namespace": namespace}})
            }
            None => serde_json::json!({"metadata": {"name": place}}),
        }
    }

    /// Returns the bytes of a stored value and the index of its version. Without a mark, it is the storage version.
    pub(crate) fn opened(&self, value: &Bytes) -> (Bytes, u8) {
        let (bytes, marked) = match self.custom {
            Some(_) => split(value),
            None => (value.clone(), None),
        };
        let known = marked.and_then(|m| self.served.iter().position(|s| *s.api_version == *m));
        let version = u8::try_from(known.unwrap_or(self.storage)).unwrap_or_default();
        (bytes, version)
    }

    /// Loads stored objects with their projections. Many objects are loaded on all processors, because nothing is
    /// served until then.
    pub(crate) fn load_all(&self, items: &[store::KeyValue]) -> Vec<(Arc<Object>, Value)> {
        let load = |part: &[store::KeyValue]| -> Vec<(Arc<Object>, Value)> {
            let loaded = part.iter().map(|kv| self.loaded(kv));
            loaded.map(|(object, read)| (Arc::new(object), read)).collect()
        };
        let part = items.len().div_ceil(processors()).max(LOADED_BY_ONE);
        std::thread::scope(|scope| {
            let mut parts = items.chunks(part);
            let own = parts.next().unwrap_or_default();
            let others: Vec<_> =
                parts.map(|part| (part, scope.spawn(move || load(part)))).collect();
            let mut all = load(own);
            for (part, other) in others {
                // Repeat the part of a thread that panicked.
                all.extend(other.join().unwrap_or_else(|_| load(part)));
            }
            all
        })
    }

    /// Loads a stored object, and adapts it if its schema has changed since. Only schemas of custom kinds change.
    pub(crate) fn loaded(&self, kv: &store::KeyValue) -> (Object, Value) {
        let (bytes, version) = self.opened(&kv.value);
        let tree = self.custom.as_ref().and_then(|_| serde_json::from_slice(&bytes).ok());
        let Some(mut tree) = tree else { return self.read(kv) };
        // Without a webhook, objects of all versions are in the storage version.
        let served = match self.converter {
            Some(_) => &self.served[usize::from(version)],
            None => self.stored(),
        };
        conversion::fit(&served.schema, served.node, &mut tree);
        let fitted = api_codec::encode_stored(&tree);
        let bytes = if fitted == bytes { bytes } else { fitted.into() };
        self.object_of(kv.key.clone(), kv.mod_revision, bytes, version)
    }

    /// Returns an object for the response to its writer. It has no labels and fields, because no selector is applied to
    /// it.
    pub(crate) fn stored_object(
        &self,
        key: Arc<str>,
        revision: Revision,
        value: &Bytes,
    ) -> Arc<Object> {
        let (bytes, version) = self.opened(value);
        Arc::new(Object {
            key,
            revision,
            bytes,
            version,
            unreadable: None,
            labels: PackedStrings::default(),
            fields: PackedStrings::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_version_from_object() {
        let object = api_codec::encode_stored(
            &serde_json::json!({"metadata": {"name": "a\n"}, "spec": "x\ny}"}),
        );
        let marked = mark(object.clone(), "example.com/v1");
        assert_eq!(split(&marked), (object.clone().into(), Some("example.com/v1")));
        assert_eq!(split(&object.clone().into()), (object.into(), None));
        for other in ["", "\n", "1234", "a\nb", "{\n\"a\"", "{\"metadata\":{"] {
            assert_eq!(split(&other.into()), (other.into(), None));
        }
    }
}
