//! Volumes, claims and storage classes.

use std::collections::BTreeMap;

use api_meta::{LabelSelector, ObjectMeta, Quantity, null_default};
use serde::Deserialize;
use serde_json::Value;

use super::condition::Condition;

/// The legacy annotation for a class, used instead of `spec.storageClassName`.
const CLASS: &str = "volume.beta.kubernetes.io/storage-class";

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct VolumeClaim {
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: ClaimSpec,
    pub(crate) status: ClaimStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ClaimSpec {
    #[serde(deserialize_with = "null_default")]
    pub(crate) access_modes: Vec<String>,
    pub(crate) selector: Option<LabelSelector>,
    pub(crate) resources: ClaimResources,
    #[serde(deserialize_with = "null_default")]
    pub(crate) volume_name: String,
    pub(crate) storage_class_name: Option<String>,
    pub(crate) volume_mode: Option<String>,
    pub(crate) volume_attributes_class_name: Option<String>,
    pub(crate) data_source: Option<Value>,
    pub(crate) data_source_ref: Option<Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ClaimResources {
    #[serde(deserialize_with = "null_default")]
    pub(crate) requests: BTreeMap<String, Quantity>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ClaimStatus {
    pub(crate) phase: String,
    #[serde(deserialize_with = "null_default")]
    pub(crate) capacity: BTreeMap<String, Quantity>,
    #[serde(deserialize_with = "null_default")]
    pub(crate) allocated_resources: BTreeMap<String, Quantity>,
    #[serde(deserialize_with = "null_default")]
    pub(crate) conditions: Vec<Condition>,
}

impl VolumeClaim {
    /// Returns the class of the claim. `None` differs from the empty name.
    pub(crate) fn class(&self) -> Option<&str> {
        let annotated = self.metadata.annotations.get(CLASS);
        annotated.or(self.spec.storage_class_name.as_ref()).map(String::as_str)
    }

    pub(crate) fn annotated(&self, name: &str) -> bool {
        self.metadata.annotations.contains_key(name)
    }

    pub(crate) fn size(&self) -> Quantity {
        self.spec.resources.requests.get("storage").copied().unwrap_or_default()
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PersistentVolume {
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: VolumeSpec,
    pub(crate) status: VolumeStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct VolumeSpec {
    #[serde(deserialize_with = "null_default")]
    pub(crate) capacity: BTreeMap<String, Quantity>,
    #[serde(deserialize_with = "null_default")]
    pub(crate) access_modes: Vec<String>,
    pub(crate) claim_ref: Option<ClaimRef>,
    pub(crate) persistent_volume_reclaim_policy: String,
    pub(crate) storage_class_name: Option<String>,
    pub(crate) volume_mode: Option<String>,
    pub(crate) volume_attributes_class_name: Option<String>,
    pub(crate) csi: Option<CsiVolume>,
    pub(crate) iscsi: Option<IscsiVolume>,
    /// The nodes that can reach the volume.
    pub(crate) node_affinity: Option<Value>,
}

/// The CSI driver of a volume and its handle.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct CsiVolume {
    pub(crate) driver: String,
    pub(crate) volume_handle: String,
}

/// The target of an iSCSI disk.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct IscsiVolume {
    pub(crate) target_portal: String,
    pub(crate) iqn: String,
    pub(crate) lun: i32,
}

impl VolumeSpec {
    /// Returns the value of a label that nodes must have to reach the volume, if the volume requires that label first.
    pub(crate) fn required_label(&self, key: &str) -> Option<&str> {
        let terms = &self.node_affinity.as_ref()?["required"]["nodeSelectorTerms"];
        let expression = &terms[0]["matchExpressions"][0];
        let named = expression["key"] == key && expression["operator"] == "In";
        expression["values"][0].as_str().filter(|_| named)
    }
}

/// The claim that a volume is bound to or reserved for. Without a uid it stands for any claim of that name.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct ClaimRef {
    pub(crate) namespace: String,
    pub(crate) name: String,
    #[serde(deserialize_with = "null_default")]
    pub(crate) uid: String,
}

impl ClaimRef {
    pub(crate) fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Reports whether the volume is bound to or reserved for this claim.
    pub(crate) fn names(&self, claim: &ObjectMeta) -> bool {
        self.namespace == claim.namespace
            && self.name == claim.name
            && (self.uid.is_empty() || self.uid == claim.uid)
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct VolumeStatus {
    pub(crate) phase: String,
}

impl PersistentVolume {
    pub(crate) fn class(&self) -> &str {
        let annotated = self.metadata.annotations.get(CLASS);
        annotated.or(self.spec.storage_class_name.as_ref()).map_or("", String::as_str)
    }

    pub(crate) fn annotated(&self, name: &str) -> bool {
        self.metadata.annotations.contains_key(name)
    }

    pub(crate) fn size(&self) -> Quantity {
        self.spec.capacity.get("storage").copied().unwrap_or_default()
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct StorageClass {
    pub(crate) metadata: ObjectMeta,
    pub(crate) provisioner: String,
    pub(crate) reclaim_policy: Option<String>,
    pub(crate) volume_binding_mode: Option<String>,
    #[serde(deserialize_with = "null_default")]
    pub(crate) parameters: BTreeMap<String, String>,
    #[serde(deserialize_with = "null_default")]
    pub(crate) mount_options: Vec<String>,
}

impl StorageClass {
    /// Reports whether claims wait until the scheduler has chosen a node for their first Pod.
    pub(crate) fn waits(&self) -> bool {
        self.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
    }

    pub(crate) fn is_default(&self) -> bool {
        let marks = [
            "storageclass.kubernetes.io/is-default-class",
            "storageclass.beta.kubernetes.io/is-default-class",
        ];
        let annotations = &self.metadata.annotations;
        marks.iter().any(|mark| annotations.get(*mark).is_some_and(|value| value == "true"))
    }
}
