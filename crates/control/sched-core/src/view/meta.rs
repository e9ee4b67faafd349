//! Metadata, label selectors and conditions.

use std::{collections::BTreeMap, sync::Arc};

use api_meta::null_default;
use serde::Deserialize;

pub(crate) type Text = Box<str>;
pub(crate) type TextMap = BTreeMap<Text, Text>;

/// The metadata of an object.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MetaView {
    /// The name.
    pub name: Arc<str>,
    /// The namespace; empty for cluster-scoped objects.
    pub namespace: Arc<str>,
    /// The uid.
    pub uid: Arc<str>,
    /// The resourceVersion.
    pub resource_version: Text,
    /// The generation.
    pub generation: i64,
    /// The labels.
    #[serde(deserialize_with = "null_default")]
    pub labels: TextMap,
    /// The creation time in RFC 3339.
    pub creation_timestamp: Option<Text>,
    /// The time of the deletion request; `None` if the object is not being deleted.
    pub deletion_timestamp: Option<Text>,
    /// The owners.
    #[serde(deserialize_with = "null_default")]
    pub owner_references: Vec<OwnerView>,
}

/// An owner reference; the controller decides how its Pods are spread.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerView {
    /// The kind of the owner.
    pub kind: Text,
    /// The name of the owner.
    pub name: Text,
    /// `true` for the controller of the object.
    pub controller: Option<bool>,
}

/// A label selector.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelectorView {
    /// The labels that must have these values.
    #[serde(deserialize_with = "null_default")]
    pub match_labels: TextMap,
    /// The requirements that must hold.
    #[serde(deserialize_with = "null_default")]
    pub match_expressions: Vec<ExpressionView>,
}

/// A requirement on a label or on a field of a node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExpressionView {
    /// The key of the label, or the path of the field.
    pub key: Text,
    /// `In`, `NotIn`, `Exists`, `DoesNotExist`, and for nodes `Gt` or `Lt`.
    pub operator: Text,
    /// The values that the operator compares with.
    #[serde(deserialize_with = "null_default")]
    pub values: Vec<Text>,
}

/// A condition; the scheduler writes `PodScheduled`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConditionView {
    /// The type.
    pub r#type: Text,
    /// `True`, `False` or `Unknown`.
    pub status: Text,
    /// The reason of the last transition, as one word.
    pub reason: Text,
    /// The message of the last transition.
    pub message: Text,
}
