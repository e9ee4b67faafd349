//! Affinity of Pods to nodes and to other Pods.

use api_meta::null_default;
use serde::Deserialize;

use super::meta::{ExpressionView, LabelSelectorView, Text};

/// The node affinity, Pod affinity and Pod anti-affinity.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AffinityView {
    /// The affinity to nodes.
    pub node_affinity: Option<NodeAffinityView>,
    /// The affinity to domains with matching Pods.
    pub pod_affinity: Option<PodAffinityView>,
    /// The affinity to domains without matching Pods.
    pub pod_anti_affinity: Option<PodAffinityView>,
}

/// Required and preferred node terms.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeAffinityView {
    /// The terms of which one must match.
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    pub required: Option<NodeSelectorView>,
    /// The terms that raise the score of matching nodes.
    #[serde(
        rename = "preferredDuringSchedulingIgnoredDuringExecution",
        deserialize_with = "null_default"
    )]
    pub preferred: Vec<PreferredNodeView>,
}

/// Node terms of which one must match.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSelectorView {
    /// The alternative terms.
    #[serde(deserialize_with = "null_default")]
    pub node_selector_terms: Vec<NodeTermView>,
}

/// Expressions that must all hold; a term without any matches no node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeTermView {
    /// The requirements on labels.
    #[serde(deserialize_with = "null_default")]
    pub match_expressions: Vec<ExpressionView>,
    /// Requirements on `metadata.name`.
    #[serde(deserialize_with = "null_default")]
    pub match_fields: Vec<ExpressionView>,
}

/// A node term with its weight (1 to 100).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PreferredNodeView {
    /// The weight.
    pub weight: i64,
    /// The term.
    pub preference: NodeTermView,
}

/// Required and preferred Pod terms, of affinity or anti-affinity.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodAffinityView {
    /// The terms that must all hold.
    #[serde(
        rename = "requiredDuringSchedulingIgnoredDuringExecution",
        deserialize_with = "null_default"
    )]
    pub required: Vec<PodTermView>,
    /// The terms that change the score of nodes.
    #[serde(
        rename = "preferredDuringSchedulingIgnoredDuringExecution",
        deserialize_with = "null_default"
    )]
    pub preferred: Vec<PreferredPodView>,
}

/// A Pod term with its weight (1 to 100).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PreferredPodView {
    /// The weight.
    pub weight: i64,
    /// The term.
    pub pod_affinity_term: PodTermView,
}

/// A term that selects Pods by labels and namespaces within a topology.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodTermView {
    /// The selected Pods; `None` selects no Pods.
    pub label_selector: Option<LabelSelectorView>,
    /// Namespaces by name; if empty and without a selector, the Pod's own.
    #[serde(deserialize_with = "null_default")]
    pub namespaces: Vec<Text>,
    /// The selector of further namespaces by their labels.
    pub namespace_selector: Option<LabelSelectorView>,
    /// The node label whose values are the domains.
    pub topology_key: Text,
    /// Keys whose values on the Pod must match.
    #[serde(deserialize_with = "null_default")]
    pub match_label_keys: Vec<Text>,
    /// Keys whose values on the Pod must not match.
    #[serde(deserialize_with = "null_default")]
    pub mismatch_label_keys: Vec<Text>,
}
