//! Sets the labels and taints of nodes.

use std::{collections::BTreeMap, time::Duration};

use api_meta::Tree as _;
use client::{Client, PatchKind, PatchTarget, Resource};
use serde_json::{Value, json};

use crate::{
    cluster::Cluster,
    config::{ClusterConfig, NodeConfig},
    error::Error,
};

/// The time for which conflicting writes are repeated.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(50);

/// Sets the labels and taints of all nodes, and removes those of the document `old` that are gone.
pub(crate) async fn apply(
    cluster: &Cluster,
    old: &ClusterConfig,
    client: &Client,
) -> Result<(), Error> {
    let nodes = std::iter::once(cluster.clone()).chain(cluster.members()?);
    let none = NodeConfig::default();
    for (index, node) in nodes.enumerate() {
        let of = |config: &'_ ClusterConfig| config.nodes.get(index).unwrap_or(&none).clone();
        let (old, new) = (of(old), of(&cluster.settings.config));
        if old == NodeConfig::default() && new == NodeConfig::default() {
            continue;
        }
        let name = &node.settings.node_name;
        let write = || async {
            let current: Value = client.get(&Resource::NODES, "", name).await?;
            let patch = change(&current, &old, &new);
            let at = PatchTarget { namespace: "", name, subresource: "" };
            client.patch::<Value>(&Resource::NODES, at, PatchKind::Merge, &patch).await
        };
        // The kubelet and controllers write Nodes too.
        rt::retry(PATIENCE, PAUSE, client::Error::is_conflict, write).await?;
    }
    Ok(())
}

/// Returns the merge patch of a Node. The `resourceVersion` keeps taints that controllers set meanwhile.
fn change(node: &Value, old: &NodeConfig, new: &NodeConfig) -> Value {
    let gone = old.labels.keys().filter(|key| !new.labels.contains_key(*key));
    let mut labels: BTreeMap<&String, Value> = gone.map(|key| (key, Value::Null)).collect();
    labels.extend(new.labels.iter().map(|(key, value)| (key, json!(value))));
    let is_ours = |taint: &&Value| {
        old.taints
            .iter()
            .chain(&new.taints)
            .any(|ours| taint.text("key") == ours.key && taint.text("effect") == ours.effect)
    };
    let current = node.at("spec").items("taints").iter();
    let mut taints: Vec<Value> = current.filter(|taint| !is_ours(taint)).cloned().collect();
    taints.extend(new.taints.iter().map(|taint| json!(taint)));
    json!({
        "metadata": {"labels": labels, "resourceVersion": node.text("metadata.resourceVersion")},
        "spec": {"taints": taints},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: Value) -> NodeConfig {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn patch_replaces_own_labels_and_taints_only() {
        let node = json!({"metadata": {"resourceVersion": "7", "labels": {"theirs": "1", "gone": "x"}},
            "spec": {"taints": [{"key": "theirs", "effect": "NoSchedule"}, {"key": "gone", "effect": "NoExecute"},
                {"key": "kept", "value": "old", "effect": "NoSchedule"}]}});
        let old = read(json!({"labels": {"gone": "x", "kept": "1"},
            "taints": [{"key": "gone", "effect": "NoExecute"}, {"key": "kept", "value": "old", "effect": "NoSchedule"}]}));
        let new = read(
            json!({"labels": {"kept": "2"}, "taints": [{"key": "kept", "value": "new", "effect": "NoSchedule"}]}),
        );
        assert_eq!(
            change(&node, &old, &new),
            json!({"metadata": {"labels": {"gone": null, "kept": "2"}, "resourceVersion": "7"},
                "spec": {"taints": [{"key": "theirs", "effect": "NoSchedule"},
                    {"key": "kept", "value": "new", "effect": "NoSchedule"}]}})
        );
    }
}
