//! The messages between scheduler and extender (`k8s.io/kube-scheduler/extender/v1`).
//!
//! Go matches names of fields in any case, and earlier versions of the API had names in lower case. Extenders in other
//! languages use both, so answers are read with either.

use std::{collections::BTreeMap, sync::Arc};

use api_meta::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The longest text of an extender that is shown to users, in bytes.
const TEXT_LIMIT: usize = 1024;

/// Cuts a text of an extender to a length that fits into Events and conditions.
pub(super) fn shorten(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(TEXT_LIMIT));
    text
}

/// The request of the calls that filter and score.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ExtenderArgs<'a> {
    pub(super) pod: &'a Value,
    pub(super) nodes: Option<SentNodes<'a>>,
    pub(super) node_names: Option<Vec<&'a str>>,
}

/// A NodeList.
#[derive(Serialize)]
pub(super) struct SentNodes<'a> {
    pub(super) metadata: NoFields,
    pub(super) items: Vec<&'a Value>,
}

#[derive(Serialize)]
pub(super) struct NoFields {}

/// The answer to a call that filters.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct FilterResult {
    #[serde(rename = "Nodes", alias = "nodes")]
    pub(super) nodes: Option<ReceivedNodes>,
    #[serde(rename = "NodeNames", alias = "nodeNames", alias = "nodenames")]
    pub(super) node_names: Option<Vec<String>>,
    #[serde(rename = "FailedNodes", alias = "failedNodes", alias = "failednodes")]
    pub(super) failed: Option<BTreeMap<String, String>>,
    #[serde(
        rename = "FailedAndUnresolvableNodes",
        alias = "failedAndUnresolvableNodes",
        alias = "failedandunresolvablenodes"
    )]
    pub(super) unresolvable: Option<BTreeMap<String, String>>,
    #[serde(rename = "Error", alias = "error")]
    pub(super) error: Option<String>,
}

/// The names in a NodeList.
#[derive(Deserialize)]
pub(super) struct ReceivedNodes {
    #[serde(default)]
    pub(super) items: Option<Vec<ReceivedNode>>,
}

#[derive(Deserialize)]
pub(super) struct ReceivedNode {
    pub(super) metadata: ObjectMeta,
}

/// The score of a node.
#[derive(Deserialize)]
pub(super) struct HostPriority {
    #[serde(rename = "Host", alias = "host")]
    pub(super) host: String,
    #[serde(rename = "Score", alias = "score", default)]
    pub(super) score: i64,
}

/// The request of the call that chooses victims.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct PreemptionArgs<'a> {
    pub(super) pod: &'a Value,
    pub(super) node_name_to_victims: Option<BTreeMap<&'a str, Victims<&'a Value>>>,
    pub(super) node_name_to_meta_victims: Option<BTreeMap<&'a str, Victims<SentUid<'a>>>>,
}

#[derive(Serialize)]
pub(super) struct Victims<P> {
    #[serde(rename = "Pods")]
    pub(super) pods: Vec<P>,
    #[serde(rename = "NumPDBViolations")]
    pub(super) violations: usize,
}

#[derive(Serialize)]
pub(super) struct SentUid<'a> {
    #[serde(rename = "UID")]
    pub(super) uid: &'a str,
}

/// The answer to the call that chooses victims.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct PreemptionResult {
    #[serde(
        rename = "NodeNameToMetaVictims",
        alias = "nodeNameToMetaVictims",
        alias = "nodenametometavictims"
    )]
    pub(super) victims: Option<BTreeMap<String, Option<MetaVictims>>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct MetaVictims {
    #[serde(rename = "Pods", alias = "pods")]
    pub(super) pods: Option<Vec<MetaPod>>,
    #[serde(rename = "NumPDBViolations", alias = "numPDBViolations", alias = "numpdbviolations")]
    pub(super) violations: i64,
}

#[derive(Deserialize)]
pub(super) struct MetaPod {
    #[serde(rename = "UID", alias = "uid")]
    pub(super) uid: String,
}

/// The request of the call that binds a Pod.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct BindingArgs<'a> {
    pub(super) pod_name: &'a str,
    pub(super) pod_namespace: &'a str,
    #[serde(rename = "PodUID")]
    pub(super) pod_uid: &'a str,
    pub(super) node: &'a str,
}

/// The answer to the call that binds a Pod.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct BindingResult {
    #[serde(rename = "Error", alias = "error")]
    pub(super) error: Option<String>,
}

impl<'a> ExtenderArgs<'a> {
    /// Creates the request with the names of nodes or, if there are `objects`, with these.
    pub(super) fn new(
        pod: &'a Value,
        names: &'a [Arc<str>],
        objects: Option<&'a [Arc<Value>]>,
    ) -> Self {
        let nodes = objects.map(|objects| SentNodes {
            metadata: NoFields {},
            items: objects.iter().map(|node| &**node).collect(),
        });
        let node_names = nodes.is_none().then(|| names.iter().map(|name| &**name).collect());
        Self { pod, nodes, node_names }
    }
}
