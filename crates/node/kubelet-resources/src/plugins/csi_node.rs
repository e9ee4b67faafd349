//! Publishes CSI drivers of the node: the CSINode, an annotation of the Node, and its topology labels.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use api_meta::Tree as _;
use client::{Client, NotFoundExt as _, PatchKind, PatchTarget, Resource};
use csi::v1::NodeGetInfoResponse;
use serde_json::{Value, json};

/// The annotation of a Node with each driver's ID for it.
const NODE_IDS: &str = "csi.volume.kubernetes.io/nodeid";
/// The number of attempts of an update. The Node has other writers, so conflicts are expected.
const TRIES: usize = 6;

#[derive(Debug, thiserror::Error)]
pub(super) enum NodeError {
    #[error("error updating CSINode object with CSI driver node info: {0}")]
    Api(#[from] client::Error),
    #[error("the driver gave no node ID")]
    NoId,
    #[error("the driver says that the node can have {0} volumes")]
    Count(i64),
    #[error(
        "detected topology value collision: driver reported {key:?}:{value:?} but existing label is {key:?}:{has:?}"
    )]
    Label { key: String, value: String, has: String },
}

/// Creates the node's CSINode if it does not exist. Without drivers in it, the scheduler sends no Pod that needs one.
pub(super) async fn create_csi_node(client: &Client, node: &str) {
    let mut wait = rt::Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
    while let Err(error) = change(client, node, |_| {}).await {
        tracing::debug!(%error, "create the node's CSINode; trying again");
        tokio::time::sleep(wait.next(rt::random())).await;
    }
}

/// Publishes a driver's node ID, topology and volume limit.
pub(super) async fn install(
    client: &Client,
    node: &str,
    driver: &str,
    info: &NodeGetInfoResponse,
) -> Result<(), NodeError> {
    if info.node_id.is_empty() {
        return Err(NodeError::NoId);
    }
    let count = i32::try_from(info.max_volumes_per_node).unwrap_or(i32::MAX);
    if info.max_volumes_per_node < 0 {
        return Err(NodeError::Count(info.max_volumes_per_node));
    }
    let no_segments = Default::default();
    let segments = info.accessible_topology.as_ref().map_or(&no_segments, |t| &t.segments);
    let labels: BTreeMap<&String, &String> = segments.iter().collect();
    let keys: BTreeSet<&String> = segments.keys().collect();
    change_node(client, node, driver, Some(&info.node_id), &labels).await?;
    let mut entry = json!({"name": driver, "nodeID": info.node_id, "topologyKeys": keys});
    if count > 0 {
        entry.put(&["allocatable", "count"], json!(count));
    }
    change(client, node, |drivers| {
        drivers.retain(|entry| entry.text("name") != driver);
        drivers.push(entry.clone());
    })
    .await
}

/// Writes the number of volumes that a driver reports for the node. Zero stands for no limit.
pub(super) async fn set_count(
    client: &Client,
    node: &str,
    driver: &str,
    count: i64,
) -> Result<(), NodeError> {
    if count < 0 {
        return Err(NodeError::Count(count));
    }
    let count = i32::try_from(count).unwrap_or(i32::MAX);
    change(client, node, |drivers| {
        for entry in drivers.iter_mut().filter(|entry| entry.text("name") == driver) {
            if count > 0 {
                entry.put(&["allocatable", "count"], json!(count));
            } else if let Some(entry) = entry.as_object_mut() {
                entry.remove("allocatable");
            }
        }
    })
    .await
}

/// Removes a driver from the CSINode and the Node's annotation.
pub(super) async fn uninstall(client: &Client, node: &str, driver: &str) -> Result<(), NodeError> {
    change(client, node, |drivers| drivers.retain(|entry| entry.text("name") != driver)).await?;
    change_node(client, node, driver, None, &BTreeMap::new()).await
}

/// Changes the list of drivers in the CSINode. Creates the CSINode if it does not exist.
async fn change(
    client: &Client,
    node: &str,
    edit: impl Fn(&mut Vec<Value>),
) -> Result<(), NodeError> {
    let mut last = Ok(());
    for _ in 0..TRIES {
        let there: Option<Value> = client.get(&Resource::CSI_NODES, "", node).await.or_none()?;
        let before = there.as_ref().map(|object| object.items("spec.drivers").to_vec());
        let mut drivers = before.clone().unwrap_or_default();
        edit(&mut drivers);
        let written = match there {
            Some(_) if before.as_ref() == Some(&drivers) => return Ok(()),
            Some(mut object) => {
                object.put(&["spec", "drivers"], json!(drivers));
                client.update::<_, Value>(&Resource::CSI_NODES, "", node, &object).await
            }
            None => {
                let own: Value = client.get(&Resource::NODES, "", node).await?;
                let owner =
                    json!({"apiVersion": "v1", "kind": "Node", "name": node, "uid": own.uid()});
                let object = json!({
                    "metadata": {"name": node, "ownerReferences": [owner]},
                    "spec": {"drivers": drivers},
                });
                client.create::<_, Value>(&Resource::CSI_NODES, "", &object).await
            }
        };
        match written {
            Ok(_) => return Ok(()),
            Err(error) if error.is_conflict() || error.is_already_exists() => {
                last = Err(error.into())
            }
            Err(error) => return Err(error.into()),
        }
    }
    last
}

/// Changes the annotation and adds topology labels. An existing label with another value is an error.
async fn change_node(
    client: &Client,
    node: &str,
    driver: &str,
    id: Option<&str>,
    labels: &BTreeMap<&String, &String>,
) -> Result<(), NodeError> {
    let mut last = Ok(());
    for _ in 0..TRIES {
        let object: Value = client.get(&Resource::NODES, "", node).await?;
        for (key, value) in labels {
            let has = object.at(&["metadata", "labels", key.as_str()]).as_str();
            if let Some(has) = has.filter(|has| has != value) {
                let (key, value, has) = ((*key).clone(), (*value).clone(), has.to_owned());
                return Err(NodeError::Label { key, value, has });
            }
        }
        let ids = object.annotation(NODE_IDS).and_then(|text| serde_json::from_str(text).ok());
        let mut ids: BTreeMap<String, String> = ids.unwrap_or_default();
        match id {
            Some(id) => drop(ids.insert(driver.to_owned(), id.to_owned())),
            None => drop(ids.remove(driver)),
        }
        let ids = (!ids.is_empty()).then(|| json!(ids).to_string());
        let patch = json!({"metadata": {
            // Two drivers may be registered at the same time.
            "resourceVersion": object.text("metadata.resourceVersion"),
            "annotations": {NODE_IDS: ids},
            "labels": labels,
        }});
        let at = PatchTarget { namespace: "", name: node, subresource: "" };
        match client.patch::<Value>(&Resource::NODES, at, PatchKind::Merge, &patch).await {
            Ok(_) => return Ok(()),
            Err(error) if error.is_conflict() => last = Err(error.into()),
            Err(error) => return Err(error.into()),
        }
    }
    last
}
