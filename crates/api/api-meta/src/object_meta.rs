//! The metadata of objects.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use crate::time::Timestamp;

/// Deserializes a field that Go's clients write as `null` when it is empty. `null` becomes the default; another type is
/// an error.
pub fn null_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Like [`null_default`], for a list without spare capacity. Lists in objects that caches hold are short, and the usual
/// capacity of four would mostly be wasted.
pub fn exact_list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    let mut list: Vec<T> = null_default(deserializer)?;
    list.shrink_to_fit();
    Ok(list)
}

/// The metadata fields that components use; decoding drops the others. Informers keep one for each object, so every
/// field here costs memory for every object.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMeta {
    /// The name of the object.
    pub name: String,
    /// The namespace; empty for a cluster-scoped object.
    pub namespace: String,
    /// The UID, which differs for a later object of the same name.
    pub uid: String,
    /// The resourceVersion of the last write.
    pub resource_version: String,
    /// The number of changes of the desired state.
    pub generation: i64,
    /// The time of creation.
    pub creation_timestamp: Option<Timestamp>,
    /// The time when the object is to be deleted; `None` unless deletion was requested.
    pub deletion_timestamp: Option<Timestamp>,
    /// The grace period of the deletion, in seconds.
    pub deletion_grace_period_seconds: Option<u64>,
    /// The labels.
    #[serde(deserialize_with = "null_default")]
    pub labels: BTreeMap<String, String>,
    /// The annotations.
    #[serde(deserialize_with = "null_default")]
    pub annotations: BTreeMap<String, String>,
    /// The owners of the object.
    #[serde(deserialize_with = "exact_list")]
    pub owner_references: Vec<OwnerReference>,
    /// The finalizers that must be removed before the object is deleted.
    #[serde(deserialize_with = "exact_list")]
    pub finalizers: Vec<String>,
}

impl ObjectMeta {
    /// Returns the key as [`ObjectKey::key`] does.
    pub fn key(&self) -> String {
        key(&self.namespace, &self.name)
    }

    /// Returns `true` if deletion was requested. Finalizers or a grace period may still keep the object.
    pub fn terminating(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    /// Returns the owner that is the object's controller.
    pub fn controller(&self) -> Option<&OwnerReference> {
        self.owner_references.iter().find(|owner| owner.controller == Some(true))
    }

    /// Returns `true` if the object with this UID is the controller.
    pub fn controlled_by(&self, uid: &str) -> bool {
        self.controller().is_some_and(|owner| owner.uid == uid)
    }
}

/// The identity and version of an object, for caches that need no other metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectKey {
    /// The name of the object.
    pub name: String,
    /// The namespace; empty for a cluster-scoped object.
    pub namespace: String,
    /// The resourceVersion of the last write.
    pub resource_version: String,
}

impl ObjectKey {
    /// Returns `namespace/name`, or `name` for a cluster-scoped object. Informers and work queues use this key.
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

/// An owner of an object. The garbage collector deletes the object after its owners.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerReference {
    /// The apiVersion of the owner.
    pub api_version: String,
    /// The kind of the owner.
    pub kind: String,
    /// The name of the owner.
    pub name: String,
    /// The UID of the owner.
    pub uid: String,
    /// `true` if the owner is the object's controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<bool>,
    /// `true` if a foreground deletion of the owner waits for this object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_owner_deletion: Option<bool>,
}

/// An object with only its metadata.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PartialObject {
    /// The metadata of the object.
    pub metadata: ObjectMeta,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_lists_without_spare_capacity() {
        let json = r#"{"ownerReferences": [{"uid": "a"}], "finalizers": null}"#;
        let meta: ObjectMeta = serde_json::from_str(json).unwrap();
        assert_eq!((meta.owner_references.len(), meta.owner_references.capacity()), (1, 1));
        assert_eq!(meta.finalizers.capacity(), 0);
        assert!(serde_json::from_str::<ObjectMeta>(r#"{"finalizers": "text"}"#).is_err());
    }
}
