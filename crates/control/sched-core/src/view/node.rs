//! Nodes.

use std::collections::BTreeMap;

use api_meta::{Quantity, null_default};
use serde::Deserialize;

use super::meta::{MetaView, Text};

/// A node as the API has it; [`crate::Node`] is compiled from it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeView {
    /// The metadata.
    pub metadata: MetaView,
    /// The spec.
    pub spec: NodeSpecView,
    /// The status.
    pub status: NodeStatusView,
}

/// The taints of the node, and whether it is cordoned.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSpecView {
    /// `true` if the node is cordoned.
    pub unschedulable: Option<bool>,
    /// The taints.
    #[serde(deserialize_with = "null_default")]
    pub taints: Vec<TaintView>,
}

/// A taint of a node.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct TaintView {
    /// The key.
    pub key: Text,
    /// The value; empty if `None`.
    pub value: Option<Text>,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: Text,
}

/// The allocatable resources of the node, and its images.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatusView {
    /// The amounts for Pods by resource name.
    #[serde(deserialize_with = "null_default")]
    pub allocatable: BTreeMap<Text, Quantity>,
    /// The names of the node's features that Pods may require.
    #[serde(deserialize_with = "null_default")]
    pub declared_features: Vec<Text>,
    /// The images that the node has.
    #[serde(deserialize_with = "null_default")]
    pub images: Vec<ImageView>,
}

/// An image with all its names and its size in bytes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ImageView {
    /// The names with tag or digest.
    #[serde(deserialize_with = "null_default")]
    pub names: Vec<Text>,
    /// The size in bytes.
    pub size_bytes: i64,
}
