//! What lies in the store of an object. Custom kinds may have been stored in any version that their definition has
//! had, and some other server converts between those, so that behind a custom object's bytes stands its version.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;
use store::Revision;

use super::{
    conversion,
    definition::Definition,
    object::{Object, Selectable, Texts, labels_of},
};

/// Fewer objects than that are loaded by one thread.
const LOADED_BY_ONE: usize = 1024;

/// How many objects are loaded together, on all processors.
pub(crate) fn loaded_at_once() -> usize {
    LOADED_BY_ONE * processors()
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// JSON has no line feed but in strings, where it is escaped, and so neither has an object's end.
const MARK: u8 = b'\n';

/// An object's bytes with the apiVersion that they are in.
pub(crate) fn mark(mut bytes: Vec<u8>, api_version: &str) -> Bytes {
    bytes.push(MARK);
    bytes.extend_from_slice(api_version.as_bytes());
    // A copy of the exact size: a vector has room to grow, and these bytes stay.
    Bytes::copy_from_slice(&bytes)
}

/// The object's bytes, and the apiVersion that they are marked with. Built-in kinds have none, and neither have
/// values that are no objects.
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
    /// Reads what selectors need from a stored object's bytes. An object that cannot be read is kept as no more
    /// than its name: it can be seen and deleted, and breaks no list.
    pub(crate) fn object(&self, kv: &store::KeyValue) -> Object {
        self.read(kv).0
    }

    /// The same, with what was read.
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
        let readable = match bytes.starts_with(api_codec::STORED_PREFIX) {
            true => self.projection.read(&bytes).map_err(|e| e.to_string()),
            false => Err("it is not in the form in which objects are stored".to_owned()),
        };
        let tree = readable.unwrap_or_else(|error| {
            // What cannot be decrypted was told by who tried.
            if !bytes.is_empty() && unreadable.is_none() {
                tracing::error!(%key, %error, "a stored object cannot be read");
            }
            let stub = self.stub(&key);
            bytes = api_codec::encode_stored(&stub).into();
            stub
        });
        let fields =
            Texts::of(self.selectable[Selectable::COMMON..].iter().map(|s| s.value(&tree)));
        let labels = labels_of(&tree);
        (Object { key, revision, bytes, version, unreadable, labels, fields }, tree)
    }

    /// What a key says of its object.
    fn stub(&self, key: &str) -> Value {
        let place = key.strip_prefix(&*self.prefix).unwrap_or(key);
        match place.split_once('/').filter(|_| self.namespaced) {
            Some((namespace, name)) => {
                serde_json::json!({"metadata": {"name": name, "namespace": namespace}})
            }
            None => serde_json::json!({"metadata": {"name": place}}),
        }
    }

    /// A stored value's bytes and which version they are in: without a mark, the one that is stored now.
    pub(crate) fn opened(&self, value: &Bytes) -> (Bytes, u8) {
        let (bytes, marked) = match self.custom {
            Some(_) => split(value),
            None => (value.clone(), None),
        };
        let known = marked.and_then(|m| self.served.iter().position(|s| *s.api_version == *m));
        let version = u8::try_from(known.unwrap_or(self.storage)).unwrap_or_default();
        (bytes, version)
    }

    /// Stored objects and what was read of each, on all processors if they are many: nothing is served before that.
    pub(crate) fn loaded_all(&self, items: &[store::KeyValue]) -> Vec<(Arc<Object>, Value)> {
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
                // A thread that panicked has left its part to do.
                all.extend(other.join().unwrap_or_else(|_| load(part)));
            }
            all
        })
    }

    /// An object from the store that may be older than its kind's schema: only custom kinds' schemas change.
    pub(crate) fn loaded(&self, kv: &store::KeyValue) -> (Object, Value) {
        let (bytes, version) = self.opened(&kv.value);
        let tree = self.custom.as_ref().and_then(|_| serde_json::from_slice(&bytes).ok());
        let Some(mut tree) = tree else { return self.read(kv) };
        // Where nobody converts, every version's objects are those of the stored one.
        let served = match self.converter {
            Some(_) => &self.served[usize::from(version)],
            None => self.stored(),
        };
        conversion::fit(&served.schema, served.node, &mut tree);
        let fitted = api_codec::encode_stored(&tree);
        let bytes = if fitted == bytes { bytes } else { fitted.into() };
        self.object_of(kv.key.clone(), kv.mod_revision, bytes, version)
    }

    /// An object on its way to the client that wrote it, which no selector looks at.
    pub(crate) fn written(&self, key: Arc<str>, revision: Revision, value: &Bytes) -> Arc<Object> {
        let (bytes, version) = self.opened(value);
        Arc::new(Object {
            key,
            revision,
            bytes,
            version,
            unreadable: None,
            labels: Texts::default(),
            fields: Texts::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_come_off() {
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
