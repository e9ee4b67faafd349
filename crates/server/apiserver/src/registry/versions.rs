//! Converts objects between the version in which they are stored and the version of a request.

use std::sync::Arc;

use api_meta::{Status, Tree as _};
use api_schema::{Fill, write_nulls};
use bytes::Bytes;
use serde_json::{Value, json};
use store::Store;

use super::{
    conversion::fit_whole,
    definition::{Definition, ServedVersion},
    object::Object,
    storage_form,
};

/// The maximum number and size of objects in one review.
const BATCH: usize = 500;
const BATCH_BYTES: usize = 4 << 20;

/// An object in the form that this server stores.
pub(crate) struct EncodedObject {
    /// The canonical JSON, with the version of a custom object.
    pub(crate) bytes: Bytes,
    /// The encoded tree, without `managedFields` if those are separate.
    tree: Value,
    /// The JSON of `managedFields`.
    managed: Option<Vec<u8>>,
    /// The apiVersion of the stored version.
    api_version: Arc<str>,
}

impl Definition {
    /// Returns objects in a served version.
    pub(crate) async fn shown(
        &self,
        version: usize,
        objects: Vec<Arc<Object>>,
    ) -> Result<Vec<Arc<Object>>, Box<Status>> {
        // An object whose decryption failed must be neither returned nor overwritten.
        if let Some((object, why)) = objects.iter().find_map(|o| Some((o, o.unreadable.as_ref()?)))
        {
            let message = match objects.len() {
                1 => why.to_string(),
                _ => format!("unable to transform key {:?}: {why}", object.key),
            };
            return Err(Box::new(Status::internal(message)));
        }
        let Some(converter) = &self.converter else { return Ok(objects) };
        let mut shown = objects;
        let mut waiting: Vec<usize> = Vec::new();
        for (i, object) in shown.iter_mut().enumerate() {
            if usize::from(object.version) == version {
                continue;
            }
            match converter.cached(version, object) {
                Some(known) => *object = known,
                None => waiting.push(i),
            }
        }
        while let Some(first) = waiting.first() {
            // The objects of a review have the same version.
            let from = shown[*first].version;
            let (mut batch, mut bytes) = (Vec::new(), 0);
            waiting.retain(|i| {
                let size = shown[*i].bytes.len();
                let fits = batch.is_empty() || batch.len() < BATCH && bytes + size < BATCH_BYTES;
                let taken = shown[*i].version == from && fits;
                if taken {
                    batch.push(*i);
                    bytes += size;
                }
                !taken
            });
            let served = &self.served[usize::from(from)];
            let trees = batch.iter().map(|i| served.tree(&shown[*i])).collect();
            let to = &self.served[version];
            let converted = converter.convert(trees, to.version()).await?;
            for (i, mut tree) in batch.into_iter().zip(converted) {
                fit_whole(to, &mut tree);
                let (key, revision) = (shown[i].key.clone(), shown[i].revision);
                let made = Bytes::copy_from_slice(&api_codec::encode_stored(&tree));
                let version_shown = u8::try_from(version).unwrap_or_default();
                let (made, _) = self.object_of(key, revision, made, version_shown);
                let made = Arc::new(made);
                converter.insert(version, &shown[i], &made);
                shown[i] = made;
            }
        }
        Ok(shown)
    }

    pub(crate) async fn shown_one(
        &self,
        version: usize,
        object: Arc<Object>,
    ) -> Result<Arc<Object>, Box<Status>> {
        let mut shown = self.shown(version, vec![object]).await?;
        shown.pop().ok_or_else(|| Box::new(Status::internal("nothing was converted")))
    }

    /// Converts an object between two served versions.
    pub(crate) async fn in_version(
        &self,
        tree: Value,
        from: &str,
        to: &str,
    ) -> Result<Value, Box<Status>> {
        let (Some(converter), Some(served)) = (&self.converter, self.version(to)) else {
            return Ok(api_patch::Versions::convert(self, &tree, from, to));
        };
        let converted = converter.convert(vec![tree], served.version()).await?;
        let mut tree = converted.into_iter().next().unwrap_or_default();
        fit_whole(served, &mut tree);
        tree.put(&["kind"], json!(*served.kind));
        tree.put(&["apiVersion"], json!(*served.api_version));
        Ok(tree)
    }

    /// Like [`Self::shown_one`], for watches of the same event, which take turns.
    pub(crate) async fn shown_in_turn(
        &self,
        version: usize,
        object: Arc<Object>,
    ) -> Result<Arc<Object>, Box<Status>> {
        let Some(converter) = &self.converter else { return Ok(object) };
        let _turn = converter.turn.lock().await;
        self.shown_one(version, object).await
    }

    /// Encodes an object of a served version for the store. `managed` is the JSON of `managedFields` if the tree does
    /// not contain them.
    pub(crate) async fn to_store(
        &self,
        version: usize,
        mut tree: Value,
        managed: Option<Vec<u8>>,
    ) -> Result<EncodedObject, Box<Status>> {
        let (served, stored) = (&self.served[version], self.stored());
        if let Some(converter) = self.converter.as_ref().filter(|_| version != self.storage) {
            tree.put(&["kind"], json!(*served.kind));
            tree.put(&["apiVersion"], json!(*served.api_version));
            let converted = converter.convert(vec![tree], stored.version()).await?;
            tree = converted.into_iter().next().unwrap_or_default();
            fit_whole(stored, &mut tree);
        }
        if let Some(conversion) = &served.conversion {
            (conversion.to_storage)(&mut tree);
            if self.custom.is_none() {
                tree = decoded_again(stored, tree)?;
            }
        }
        if self.custom.is_none() {
            let forgotten = !self.strategy.stored_as_json;
            write_nulls(&stored.schema, stored.node, &mut tree, forgotten);
        }
        let bytes = api_codec::encode_managed(&tree, managed.as_deref());
        let bytes = match self.custom {
            Some(_) => storage_form::mark(bytes, &stored.api_version),
            // Copied to the exact size, because the bytes are kept and a vector has spare capacity.
            None => Bytes::copy_from_slice(&bytes),
        };
        Ok(EncodedObject { bytes, tree, managed, api_version: stored.api_version.clone() })
    }
}

impl EncodedObject {
    /// Returns the value to write to a store: the bytes, or the form of the store's own encoder.
    pub(crate) fn into_value(self, store: &dyn Store, key: &str) -> Bytes {
        let Some(encoder) = store.object_encoder() else { return self.bytes };
        let mut tree = self.tree;
        if let Some(managed) = &self.managed {
            match serde_json::from_slice::<Value>(managed) {
                Ok(managed) => tree.put(&["metadata", "managedFields"], managed),
                Err(_) => return self.bytes,
            }
        }
        tree.put(&["apiVersion"], &*self.api_version);
        encoder.encode(key, tree).unwrap_or(self.bytes)
    }
}

/// Decodes the result of a built-in conversion with the schema of the storage version, so that only valid objects are
/// stored.
fn decoded_again(stored: &ServedVersion, tree: Value) -> Result<Value, Box<Status>> {
    let refuse = |cause: String| {
        let kind = &stored.kind;
        let version = &stored.api_version;
        Box::new(Status::internal(format!("converting a {kind} to {version}: {cause}")))
    };
    let decoded = api_schema::decode_value(&stored.schema, stored.node, tree, Fill::Given);
    let decoded = decoded.map_err(|error| refuse(error.to_string()))?;
    if let Some(field) = decoded.unknown().next() {
        return Err(refuse(format!("unknown field {field:?}")));
    }
    Ok(decoded.value)
}
