//! What is read of every object: its metadata.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use crate::Timestamp;

/// Reads a field that Go's clients write as `null` when it is empty: to them that is the same as absent. Another type
/// remains an error.
pub fn null_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// The metadata that components look at; the rest is dropped when an object is decoded. Informers keep one for each
/// object, so a field here costs memory for every object there is.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMeta {
    pub name: String,
    pub namespace: String,
    pub uid: String,
    pub resource_version: String,
    pub generation: i64,
    pub creation_timestamp: Option<Timestamp>,
    pub deletion_timestamp: Option<Timestamp>,
    pub deletion_grace_period_seconds: Option<u64>,
    #[serde(deserialize_with = "null_default")]
    pub labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "null_default")]
    pub annotations: BTreeMap<String, String>,
    #[serde(deserialize_with = "null_default")]
    pub owner_references: Vec<OwnerReference>,
    #[serde(deserialize_with = "null_default")]
    pub finalizers: Vec<String>,
}

impl ObjectMeta {
    /// As [`ObjectKey::key`].
    pub fn key(&self) -> String {
        key(&self.namespace, &self.name)
    }

    /// Whether its deletion has begun; finalizers or a grace period may still hold it.
    pub fn terminating(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    /// The owner that manages the object.
    pub fn controller(&self) -> Option<&OwnerReference> {
        self.owner_references.iter().find(|owner| owner.controller == Some(true))
    }

    /// Whether the object with this uid is the owner that manages it.
    pub fn controlled_by(&self, uid: &str) -> bool {
        self.controller().is_some_and(|owner| owner.uid == uid)
    }
}

/// Which object it is, and which version of it: for those who keep many objects and ask no more of their metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectKey {
    pub name: String,
    pub namespace: String,
    pub resource_version: String,
}

impl ObjectKey {
    /// `namespace/name`, or the name alone of an object of the cluster: what informers and work queues know it by.
    pub fn key(&self) -> String {
        key(&self.namespace, &self.name)
    }
}

fn key(namespace: &str, name: &str) -> String {
    match namespace {
        "" => name.to_owned(),
        namespace => format!("{namespace}/{name}"),
    }
}

/// An object that another one belongs to, and goes with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerReference {
    pub api_version: String,
    pub kind: String,
    pub name: String,
    pub uid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_owner_deletion: Option<bool>,
}

/// An object of which only the metadata is looked at.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PartialObject {
    pub metadata: ObjectMeta,
}
