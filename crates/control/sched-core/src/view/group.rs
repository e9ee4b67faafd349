//! Objects that group Pods: owners, Services and PodDisruptionBudgets.

use std::collections::BTreeMap;

use api_meta::null_default;
use serde::{Deserialize, de::IgnoredAny};

use super::meta::{LabelSelectorView, MetaView, Text, TextMap};

/// The key of a Service or of an owner of Pods.
#[derive(Clone, Copy, Debug)]
pub struct SpreaderKey<'a> {
    /// The kind, such as `Service`.
    pub kind: &'a str,
    /// The namespace.
    pub namespace: &'a str,
    /// The name.
    pub name: &'a str,
}

/// A Service, ReplicationController, ReplicaSet or StatefulSet, which groups Pods for default spreading.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SpreaderView {
    /// The metadata.
    pub metadata: MetaView,
    /// The spec.
    pub spec: SpreaderSpecView,
}

/// The selector of a spreader.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SpreaderSpecView {
    /// The selector of the Pods.
    pub selector: Option<SpreaderSelectorView>,
}

/// The map of a Service or ReplicationController, or the label selector of other kinds.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum SpreaderSelectorView {
    /// The labels of the Pods.
    Map(TextMap),
    /// The label selector of the Pods.
    Selector(LabelSelectorView),
}

/// A PodDisruptionBudget: its selector, the allowed disruptions, and the Pods already counted.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BudgetView {
    /// The metadata.
    pub metadata: MetaView,
    /// The spec.
    pub spec: BudgetSpecView,
    /// The status.
    pub status: BudgetStatusView,
}

/// The selector of a budget.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BudgetSpecView {
    /// The Pods that the budget protects.
    pub selector: Option<LabelSelectorView>,
}

/// The disruptions that the disruption controller allows now.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BudgetStatusView {
    /// The number of evictions allowed now.
    pub disruptions_allowed: i64,
    /// Pods whose eviction is already counted.
    #[serde(deserialize_with = "null_default")]
    pub disrupted_pods: BTreeMap<Text, IgnoredAny>,
}
