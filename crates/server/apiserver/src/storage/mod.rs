//! Converts objects to and from upstream's stored format, for a store that upstream's API server may read, too. Start
//! with [`UpstreamForm`], which wraps a store.
//!
//! Upstream stores built-in kinds as protobuf in an envelope. CustomResourceDefinitions, APIServices and custom kinds
//! are JSON with kind and apiVersion. Neither contains a resourceVersion. This server's own format is canonical JSON
//! without kind and apiVersion.

use api_meta::Tree as _;
use std::{
    collections::{BTreeMap, HashMap},
    ops::Bound,
    sync::Arc,
};

use api_codec::{cbor, protobuf};
use api_schema::{Fill, Schema};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use parking_lot::RwLock;
use serde_json::Value;
use store::{
    Change, KeyRange, KeyValue, ObjectEncoder, Op, Outcome, RangeResult, Reply, Revision, Store,
    WatchMessage, WatchStream, Write,
};

use crate::registry::{Definition, builtin::builtin, storage_form};

mod beta;
pub(crate) mod encrypted;
pub(crate) mod encryption_metrics;
mod stores;

pub use self::stores::{StoreOverride, Stores};

/// A store with values in upstream's format, presented as one with values in this server's format.
pub struct UpstreamForm {
    inner: Arc<dyn Store>,
    form: Arc<Form>,
}

/// The mapping from keys to kinds.
struct Form {
    definitions: BTreeMap<Arc<str>, Arc<Definition>>,
    /// Kind and apiVersion of custom kinds by prefix, recorded from CustomResourceDefinitions that are read or written.
    custom: RwLock<HashMap<String, (String, String)>>,
}

#[derive(Debug, thiserror::Error)]
enum FormError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Protobuf(#[from] protobuf::ProtobufError),
    #[error(transparent)]
    Cbor(#[from] cbor::CborError),
    #[error(transparent)]
    Schema(#[from] api_schema::DecodeError),
    #[error("{0} is not a kind that is stored here")]
    Kind(String),
}

/// The facts about the key space that a copy of a cluster needs: definitions of custom kinds come first, Events expire,
/// and the leases of API servers are not copied.
pub const KEYSPACE: store::Keyspace = store::Keyspace {
    first: CUSTOM_DEFINITIONS,
    expiring: &[("/registry/events/", 3600)],
    excluded: &[MASTER_LEASES, PEER_LEASES],
};

/// The prefix of the API servers' leases.
pub(crate) const MASTER_LEASES: &str = "/registry/masterleases/";

/// The prefix of the keys with the addresses at which the API servers reach each other, by the server's identity.
pub(crate) const PEER_LEASES: &str = "/registry/peerserverleases/";

/// The prefixes of keys that do not contain served objects.
const BOOKKEEPING: [&str; 3] = [MASTER_LEASES, PEER_LEASES, "/registry/ranges/"];

const CUSTOM_DEFINITIONS: &str = "/registry/apiextensions.k8s.io/customresourcedefinitions/";

impl UpstreamForm {
    /// Wraps a store with the format of the built-in kinds. Custom kinds are added when their definitions are read or
    /// written.
    pub fn new(inner: Arc<dyn Store>) -> Self {
        let stored = builtin().into_iter().filter(|d| d.is_stored());
        let definitions = stored.map(|d| (d.prefix.clone(), d)).collect();
        Self { inner, form: Arc::new(Form { definitions, custom: RwLock::default() }) }
    }

    /// Wraps another store of the same API server. Both know the kinds of definitions in either of them.
    pub fn beside(&self, inner: Arc<dyn Store>) -> Self {
        Self { inner, form: self.form.clone() }
    }
}

impl Form {
    fn definition(&self, key: &str) -> Option<&Arc<Definition>> {
        let before = (Bound::Unbounded, Bound::Included(key));
        let (prefix, definition) = self.definitions.range::<str, _>(before).next_back()?;
        key.starts_with(&**prefix).then_some(definition)
    }

    /// Converts this server's format to upstream's.
    fn encode(&self, key: &str, value: &Bytes) -> Result<Bytes, FormError> {
        // Values other than objects are passed unchanged.
        if !value.starts_with(api_codec::STORED_PREFIX) {
            return Ok(value.clone());
        }
        let (bytes, marked) = storage_form::split(value);
        let mut tree: Value = serde_json::from_slice(&bytes)?;
        if let Some(version) = marked {
            tree.put(&["apiVersion"], version);
        }
        self.encode_tree(key, tree)
    }

    /// Converts an object to upstream's format. A custom object without an apiVersion has that of its definition.
    fn encode_tree(&self, key: &str, mut tree: Value) -> Result<Bytes, FormError> {
        tree.remove(&["metadata", "resourceVersion"]);
        let Some(definition) = self.definition(key) else {
            match self.custom(key) {
                Some((kind, api_version)) => {
                    tree.put(&["kind"], kind);
                    tree.put_default(&["apiVersion"], api_version);
                }
                None => {
                    tree.remove(&["kind"]);
                    tree.remove(&["apiVersion"]);
                }
            }
            return Ok(serde_json::to_vec(&tree)?.into());
        };
        let stored = definition.stored();
        tree.put(&["kind"], &*stored.kind);
        tree.put(&["apiVersion"], &*stored.api_version);
        if definition.strategy.stored_as_json {
            self.learn(key, &tree);
            return Ok(serde_json::to_vec(&tree)?.into());
        }
        let schema = Schema::builtin();
        Ok(protobuf::to_protobuf(schema, &stored.api_version, &stored.kind, &tree)?.into())
    }

    /// Converts upstream's format to this server's.
    fn decode(&self, key: &str, value: &Bytes) -> Result<Bytes, FormError> {
        let tree = if BOOKKEEPING.iter().any(|place| key.starts_with(place)) {
            return Ok(value.clone());
        } else if value.starts_with(protobuf::MAGIC) {
            self.read_protobuf(key, value)?
        } else if value.first() == Some(&b'{') {
            let mut tree: Value = serde_json::from_slice(value)?;
            if tree["apiVersion"] == beta::API_VERSION {
                beta::to_v1(&mut tree);
            }
            self.learn(key, &tree);
            tree
        } else if value.starts_with(cbor::PREFIX) {
            // Upstream stores custom kinds as CBOR with the feature gate CBORServingAndStorage.
            cbor::from_cbor(value)?
        } else {
            return Ok(value.clone());
        };
        let bytes = api_codec::encode_stored(&tree);
        // Custom objects keep the version in which they were written.
        Ok(match tree["apiVersion"].as_str().filter(|_| self.definition(key).is_none()) {
            Some(version) => storage_form::mark(bytes, version),
            None => bytes.into(),
        })
    }

    fn read_protobuf(&self, key: &str, value: &[u8]) -> Result<Value, FormError> {
        let found = protobuf::open(value)?;
        let kind = || FormError::Kind(format!("{} {}", found.api_version, found.kind));
        let definition = self.definition(key).ok_or_else(kind)?;
        let served = definition.served.iter().find(|s| *s.api_version == *found.api_version);
        let served = served.ok_or_else(kind)?;
        let tree = protobuf::from_protobuf(Schema::builtin(), value)?;
        // No server stores some of the fields. They are set by defaults on each read.
        let decoded = api_schema::decode_value(&served.schema, served.node, tree, Fill::Defaults)?;
        let mut tree = decoded.value;
        // The object was last written before the storage version changed.
        if let Some(conversion) = &served.conversion {
            (conversion.to_storage)(&mut tree);
        }
        definition.strategy.defaults(&mut tree);
        Ok(tree)
    }

    fn custom(&self, key: &str) -> Option<(String, String)> {
        let mut parts = key.splitn(5, '/');
        let (group, plural) = (parts.nth(2)?, parts.next()?);
        let custom = self.custom.read();
        custom.get(&format!("/registry/{group}/{plural}/")).cloned()
    }

    /// Records the kind that a CustomResourceDefinition defines.
    fn learn(&self, key: &str, tree: &Value) {
        if !key.starts_with(CUSTOM_DEFINITIONS) {
            return;
        }
        let spec = &tree["spec"];
        let versions = spec["versions"].as_array().map_or(&[][..], Vec::as_slice);
        let Some(storage) = versions.iter().find(|v| v["storage"] == true) else { return };
        let prefix = format!("/registry/{}/{}/", spec.text("group"), spec.text("names.plural"));
        let api_version = format!("{}/{}", spec.text("group"), storage.text("name"));
        let named = (spec.text("names.kind").to_owned(), api_version);
        self.custom.write().insert(prefix, named);
    }

    /// Decodes a value. If that fails, the value is passed unchanged: the cache reports it, and the object can be
    /// deleted.
    fn read(&self, mut kv: KeyValue) -> KeyValue {
        match self.decode(&kv.key, &kv.value) {
            Ok(value) => kv.value = value,
            Err(error) => {
                tracing::error!(key = %kv.key, %error, "failed to decode a stored object")
            }
        }
        kv
    }

    fn read_outcome(&self, outcome: Outcome) -> Outcome {
        match outcome {
            Outcome::Conflict { current } => {
                Outcome::Conflict { current: current.map(|kv| self.read(kv)) }
            }
            done => done,
        }
    }
}

impl ObjectEncoder for Form {
    fn encode(&self, key: &str, object: Value) -> Option<Bytes> {
        self.encode_tree(key, object).ok()
    }
}

impl Store for UpstreamForm {
    fn below(&self) -> &dyn Store {
        &*self.inner
    }

    fn object_encoder(&self) -> Option<&dyn ObjectEncoder> {
        Some(&*self.form)
    }

    fn get<'a>(&'a self, key: &'a str) -> Reply<'a, (Option<KeyValue>, Revision)> {
        Box::pin(async move {
            let (kv, revision) = self.inner.get(key).await?;
            Ok((kv.map(|kv| self.form.read(kv)), revision))
        })
    }

    fn range(&self, range: KeyRange, limit: usize, revision: Revision) -> Reply<'_, RangeResult> {
        Box::pin(async move {
            let mut result = self.inner.range(range, limit, revision).await?;
            result.items = result.items.into_iter().map(|kv| self.form.read(kv)).collect();
            Ok(result)
        })
    }

    fn write(&self, mut write: Write) -> Reply<'_, Outcome> {
        Box::pin(async move {
            if let Op::Put { value, .. } = &mut write.op {
                *value = self.form.encode(&write.key, value).map_err(|error| {
                    store::Error::Unavailable {
                        operation: "encoding an object",
                        detail: format!("{}: {error}", write.key),
                    }
                })?;
            }
            Ok(self.form.read_outcome(self.inner.write(write).await?))
        })
    }

    fn watch(&self, range: KeyRange, after: Revision) -> Reply<'_, Box<dyn WatchStream>> {
        Box::pin(async move {
            let inner = self.inner.watch(range, after).await?;
            Ok(Box::new(DecodingStream { inner, form: self.form.clone() }) as Box<dyn WatchStream>)
        })
    }
}

struct DecodingStream {
    inner: Box<dyn WatchStream>,
    form: Arc<Form>,
}

impl WatchStream for DecodingStream {
    fn next(&mut self) -> BoxFuture<'_, Option<WatchMessage>> {
        Box::pin(async move {
            let changes = match self.inner.next().await? {
                WatchMessage::Changes(changes) => changes,
                progress @ WatchMessage::Progress(_) => return Some(progress),
            };
            let read = |change: Change| Change { kv: self.form.read(change.kv), kind: change.kind };
            Some(WatchMessage::Changes(changes.into_iter().map(read).collect()))
        })
    }
}

#[cfg(test)]
mod tests;
