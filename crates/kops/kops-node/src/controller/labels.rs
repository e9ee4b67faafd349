//! Sets the labels of instance groups on Nodes, which kubelets may not set themselves.

use std::{collections::BTreeMap, time::Duration};

use api_meta::Tree as _;
use client::{Client, ListOptions, PatchKind, PatchTarget, Resource};
use kops_core::node_config_path;
use kops_store::parse_yaml;
use serde_json::{Map, Value, json};
use vfs::Store;

use super::{
    host::{self, HOSTS, HOSTS_NAMESPACE},
    machine::group_of,
    settings::ProofSettings,
};
use crate::error::Error;

const POLL: Duration = Duration::from_secs(10);

/// Adds missing group labels to Nodes periodically, until the task is aborted.
pub(super) async fn keep_labels(client: Client, store: Store, proof: ProofSettings) {
    loop {
        if let Err(error) = label_nodes(&client, &store, proof).await {
            tracing::warn!(%error, "could not label Nodes");
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn label_nodes(client: &Client, store: &Store, proof: ProofSettings) -> Result<(), Error> {
    let nodes = client.list::<Value>(&Resource::NODES, "", &ListOptions::default()).await?;
    let hosts = match proof {
        ProofSettings::Certificate => Vec::new(),
        ProofSettings::Host { .. } => {
            client.list::<Value>(&HOSTS, HOSTS_NAMESPACE, &ListOptions::default()).await?.items
        }
    };
    let groups: BTreeMap<&str, &str> = hosts
        .iter()
        .filter_map(|host| Some((host.text("metadata.name"), host::group_of(host)?)))
        .collect();
    for node in &nodes.items {
        let name = node.text("metadata.name");
        let group = match proof {
            ProofSettings::Certificate => group_of(name),
            ProofSettings::Host { .. } => groups.get(name).copied(),
        };
        let Some(group) = group else { continue };
        let missing = missing_labels(store, node, group)?;
        if missing.is_empty() {
            continue;
        }
        let at = PatchTarget { namespace: "", name, subresource: "" };
        let patch = json!({"metadata": {"labels": missing}});
        client.patch::<Value>(&Resource::NODES, at, PatchKind::Merge, &patch).await?;
    }
    Ok(())
}

/// Returns the labels of a group that a Node lacks.
fn missing_labels(store: &Store, node: &Value, group: &str) -> Result<Map<String, Value>, Error> {
    let mut missing = Map::new();
    for role in ["ControlPlane", "Node"] {
        let path = node_config_path(role, group);
        if let Some((content, _)) = store.read(&path)? {
            let config = parse_yaml(&path, &content)?;
            let labels = config.at("KubeletConfig.nodeLabels").as_object();
            missing.extend(labels.into_iter().flatten().map(|(k, v)| (k.clone(), v.clone())));
        }
    }
    let has = node.at("metadata.labels");
    missing.retain(|key, value| has.get(key.as_str()) != Some(value));
    Ok(missing)
}
