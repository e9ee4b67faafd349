//! Plans the volume for a claim, and the removal of a volume whose claim is deleted.

use std::time::Duration;

use api_meta::{Quantity, QuantityFormat};
use serde_json::{Value, json};

use crate::views::{Node, PersistentVolume, StorageClass, VolumeClaim};

/// The provisioner in StorageClasses, and the annotation in which a Node names the root of its directories.
pub(super) const PROVISIONER: &str = "windlass.local/volumes";
/// The finalizer that keeps a volume until its directory is removed.
pub(super) const FINALIZER: &str = "windlass.local/volumes";
/// The prefix of the Node annotation that requests the removal of a volume's directory.
pub(super) const REMOVE: &str = "remove.windlass.local/";
pub(super) const REMOVAL_REQUESTED: &str = "asked";
pub(super) const REMOVED: &str = "removed";
pub(super) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// The parameter of a class that limits volumes to their sizes, by default `true`.
const LIMIT: &str = "limitSize";
const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
pub(super) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// The label of a Node that volumes on it require. Its value is the node's name.
///
/// A kubelet may write the label `kubernetes.io/hostname` of its own node, and could so take over the volumes of
/// another one. NodeRestriction keeps kubelets from labels of this domain.
pub(super) const NODE: &str = "windlass.node-restriction.kubernetes.io/local-volumes";
/// The former required label of volumes, used before [`NODE`]. It held the node's name.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// The size of the largest volume, in bytes: 15Ti. Files of ext4 are smaller than 16Ti.
const LARGEST: i64 = 15 << 40;

/// Returns the reason against a volume of this size.
pub(super) fn size_problem(size: Quantity) -> Option<String> {
    let largest = Quantity::new(LARGEST, QuantityFormat::BinarySi);
    (size > largest).then(|| format!("the largest local volume has {largest}"))
}

/// The delay before the next attempt after a failed removal.
pub(super) const AGAIN: Duration = Duration::from_secs(30);

/// The result of planning a volume for a claim.
#[derive(Debug, PartialEq)]
pub(super) enum Provisioning {
    Nothing,
    Volume(Value),
    /// The claim is refused. If `reschedules`, another node may satisfy it.
    Refused {
        message: String,
        reschedules: bool,
    },
}

fn refused(message: impl Into<String>, reschedules: bool) -> Provisioning {
    Provisioning::Refused { message: message.into(), reschedules }
}

/// Plans the volume for an unbound claim with a selected node. A directory can only be shared by all nodes if the
/// cluster has a single one.
pub(super) fn provision(
    claim: &VolumeClaim,
    class: Option<&StorageClass>,
    node: Option<&Node>,
    has_single_node: bool,
) -> Provisioning {
    let Some(class) = class.filter(|class| class.provisioner == PROVISIONER) else {
        return Provisioning::Nothing;
    };
    let annotations = &claim.metadata.annotations;
    let ours = annotations.get(STORAGE_PROVISIONER).is_some_and(|own| own == PROVISIONER);
    if !ours || !claim.spec.volume_name.is_empty() || claim.metadata.terminating() {
        return Provisioning::Nothing;
    }
    let Some(selected) = annotations.get(SELECTED_NODE) else {
        let message = "a directory is on one node: the class must have volumeBindingMode WaitForFirstConsumer";
        return refused(message, false);
    };
    let one_node = |mode: &String| matches!(mode.as_str(), "ReadWriteOnce" | "ReadWriteOncePod");
    if !has_single_node && !claim.spec.access_modes.iter().all(one_node) {
        return refused(
            "only the access modes ReadWriteOnce and ReadWriteOncePod are supported on more than one node",
            false,
        );
    }
    if let Some(message) = class_problem(class).or_else(|| size_problem(claim.size())) {
        return refused(message, false);
    }
    if claim.spec.selector.is_some() {
        return refused("claim.Spec.Selector is not supported", false);
    }
    if claim.spec.data_source.is_some() || claim.spec.data_source_ref.is_some() {
        return refused("data sources are not supported", false);
    }
    let Some(node) = node else {
        return refused(format!("node \"{selected}\" not found"), true);
    };
    let Some(root) = node.metadata.annotations.get(PROVISIONER) else {
        return refused(format!("node \"{selected}\" offers no local volumes"), true);
    };
    Provisioning::Volume(volume(claim, class, root, &node.metadata.name))
}

/// Returns the reason against the parameters of a class.
fn class_problem(class: &StorageClass) -> Option<String> {
    for (key, value) in &class.parameters {
        if key != LIMIT {
            return Some(format!("the parameter {key:?} is not supported; use {LIMIT:?}"));
        }
        if !matches!(value.as_str(), "true" | "false") {
            return Some(format!("the parameter {LIMIT:?} must be \"true\" or \"false\""));
        }
    }
    let needs_limit = !limits_size(class) && !class.mount_options.is_empty();
    needs_limit.then(|| "mount options need volumes with a limited size".to_owned())
}

/// Returns `true` if the volumes of a class are limited to their sizes.
pub(super) fn limits_size(class: &StorageClass) -> bool {
    class.parameters.get(LIMIT).is_none_or(|value| value == "true")
}

/// Returns the size of the volume for a claim. A file system needs a mebibyte.
fn capacity(claim: &VolumeClaim) -> Quantity {
    claim.size().max(Quantity::new(1 << 20, QuantityFormat::BinarySi))
}

fn volume(claim: &VolumeClaim, class: &StorageClass, root: &str, node: &str) -> Value {
    let own = &claim.metadata;
    let mode = claim.spec.volume_mode.as_deref().unwrap_or("Filesystem");
    // Without a file system, the volume is a directory.
    let fs_type = (limits_size(class) && mode == "Filesystem").then_some("ext4");
    // The uid in the name makes retries idempotent.
    let name = format!("pvc-{}", own.uid);
    json!({
        "metadata": {
            "name": name,
            "annotations": {PROVISIONED_BY: PROVISIONER},
            "finalizers": [FINALIZER],
        },
        "spec": {
            "capacity": {"storage": capacity(claim)},
            "accessModes": claim.spec.access_modes,
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "namespace": own.namespace, "name": own.name, "uid": own.uid},
            "persistentVolumeReclaimPolicy": class.reclaim_policy.as_deref().unwrap_or("Delete"),
            "storageClassName": class.metadata.name,
            "volumeMode": mode,
            "mountOptions": class.mount_options,
            "local": {"path": format!("{}/{name}", root.trim_end_matches('/')), "fsType": fs_type},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": NODE, "operator": "In", "values": [node]}]}]}},
        },
    })
}

#[derive(Debug, PartialEq)]
pub(super) enum Reclaim {
    Nothing,
    /// Asks this node to remove the directory.
    RequestRemoval(String),
    /// The removal failed; ask the node again if it exists.
    Failed {
        node: Option<String>,
        message: String,
    },
    /// The directory is removed: delete the volume.
    Delete,
}

/// Returns `true` if the Node has the label that volumes on it require.
pub(super) fn is_labelled(node: &Node) -> bool {
    node.metadata.labels.get(NODE) == Some(&node.metadata.name)
}

/// Returns the name of the node that has the directory of a volume.
pub(super) fn node_of(volume: &PersistentVolume) -> Option<&str> {
    volume.spec.required_label(NODE).or_else(|| volume.spec.required_label(HOSTNAME))
}

/// Plans for a released or deleted volume. `node` is the one that [`node_of`] names.
pub(super) fn reclaim(volume: &PersistentVolume, node: Option<&Node>) -> Reclaim {
    let meta = &volume.metadata;
    let ours = meta.annotations.get(PROVISIONED_BY).is_some_and(|own| own == PROVISIONER);
    let is_released = matches!(volume.status.phase.as_str(), "Released" | "Failed");
    if !ours || !is_released {
        return Reclaim::Nothing;
    }
    if volume.spec.persistent_volume_reclaim_policy != "Delete" {
        // A retained directory stays; only the deleted object is released.
        let waits = meta.terminating() && meta.finalizers.iter().any(|f| f == FINALIZER);
        return if waits { Reclaim::Delete } else { Reclaim::Nothing };
    }
    let Some(node) = node else {
        let name = node_of(volume).unwrap_or_default();
        let message = format!("there is no node {name} that has the directory");
        return Reclaim::Failed { node: None, message };
    };
    let name = node.metadata.name.clone();
    match node.metadata.annotations.get(&format!("{REMOVE}{}", meta.name)).map(String::as_str) {
        None => Reclaim::RequestRemoval(name),
        Some(REMOVAL_REQUESTED) => Reclaim::Nothing,
        Some(REMOVED) => Reclaim::Delete,
        Some(message) => Reclaim::Failed { node: Some(name), message: message.to_owned() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn merged(base: Value, more: &Value) -> Value {
        crate::context::merged(&base, more)
    }

    fn claim(more: Value) -> VolumeClaim {
        let base = json!({"metadata": {"name": "data", "namespace": "ns", "uid": "u", "annotations": {
                STORAGE_PROVISIONER: PROVISIONER, SELECTED_NODE: "n"}},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
        read(merged(base, &more))
    }

    fn node(more: Value) -> Node {
        let base = json!({"metadata": {"name": "n",
            "annotations": {PROVISIONER: "/var/lib/kubelet/local-volumes"}}});
        read(merged(base, &more))
    }

    fn class() -> StorageClass {
        read(json!({"metadata": {"name": "local"}, "provisioner": PROVISIONER}))
    }

    #[test]
    fn provisions_directory_on_selected_node() {
        let node = node(json!({}));
        let Provisioning::Volume(made) =
            provision(&claim(json!({})), Some(&class()), Some(&node), false)
        else {
            panic!("nothing made")
        };
        assert_eq!(made["metadata"]["name"], "pvc-u");
        assert_eq!(made["spec"]["local"]["path"], "/var/lib/kubelet/local-volumes/pvc-u");
        assert_eq!(made["spec"]["claimRef"]["uid"], "u");
        assert_eq!(made["spec"]["persistentVolumeReclaimPolicy"], "Delete");
        let volume: PersistentVolume = read(made);
        assert_eq!((node_of(&volume), volume.class()), (Some("n"), "local"));
        for more in [
            json!({"spec": {"volumeName": "v"}}),
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
            json!({"metadata": {"annotations": {STORAGE_PROVISIONER: "other/p"}}}),
        ] {
            assert_eq!(
                provision(&claim(more), Some(&class()), Some(&node), false),
                Provisioning::Nothing
            );
        }
        let other: StorageClass = read(json!({"provisioner": "other/p"}));
        assert_eq!(
            provision(&claim(json!({})), Some(&other), Some(&node), false),
            Provisioning::Nothing
        );
    }

    #[test]
    fn refuses_unsupported_claims() {
        let silent = node(json!({"metadata": {"annotations": {PROVISIONER: null}}}));
        let offers = node(json!({}));
        for (more, node, words, another) in [
            (
                json!({"spec": {"accessModes": ["ReadWriteMany"]}}),
                Some(&offers),
                "access modes",
                false,
            ),
            (
                json!({"spec": {"resources": {"requests": {"storage": "8Ei"}}}}),
                Some(&offers),
                "the largest local volume has 15Ti",
                false,
            ),
            (
                json!({"spec": {"selector": {"matchLabels": {"a": "b"}}}}),
                Some(&offers),
                "Selector",
                false,
            ),
            (json!({"spec": {"dataSource": {"kind": "x"}}}), Some(&offers), "data sources", false),
            (
                json!({"metadata": {"annotations": {SELECTED_NODE: null}}}),
                None,
                "WaitForFirst",
                false,
            ),
            (json!({}), Some(&silent), "offers no local volumes", true),
            (json!({}), None, "not found", true),
        ] {
            match provision(&claim(more.clone()), Some(&class()), node, false) {
                Provisioning::Refused { message, reschedules } => {
                    assert!(message.contains(words) && reschedules == another, "{more}: {message}");
                }
                other => panic!("{more}: {other:?}"),
            }
        }
    }

    #[test]
    fn limits_volumes_to_their_sizes_unless_class_does_not() {
        let node = node(json!({}));
        let planned = |claim: Value, class: Value| {
            let own = json!({"metadata": {"name": "local"}, "provisioner": PROVISIONER});
            let class = read(merged(own, &class));
            match provision(&self::claim(claim), Some(&class), Some(&node), false) {
                Provisioning::Volume(made) => Ok(made["spec"].clone()),
                Provisioning::Refused { message, .. } => Err(message),
                Provisioning::Nothing => panic!("nothing planned"),
            }
        };
        let (none, unlimited) = (json!({}), json!({"parameters": {LIMIT: "false"}}));
        let block = json!({"spec": {"volumeMode": "Block"}});
        assert_eq!(planned(none.clone(), none.clone()).unwrap()["local"]["fsType"], "ext4");
        assert!(planned(none.clone(), unlimited.clone()).unwrap()["local"]["fsType"].is_null());
        for class in [none.clone(), unlimited] {
            let made = planned(block.clone(), class).unwrap();
            assert!(made["volumeMode"] == "Block" && made["local"]["fsType"].is_null());
        }
        let small = json!({"spec": {"resources": {"requests": {"storage": "1"}}}});
        assert_eq!(planned(small, none.clone()).unwrap()["capacity"]["storage"], "1Mi");
        let noatime = planned(none.clone(), json!({"mountOptions": ["noatime"]})).unwrap();
        assert_eq!(noatime["mountOptions"], json!(["noatime"]));
        for (class, words) in [
            (json!({"parameters": {"fsType": "xfs"}}), "\"fsType\" is not supported"),
            (json!({"parameters": {LIMIT: "no"}}), "must be \"true\" or \"false\""),
            (
                json!({"parameters": {LIMIT: "false"}, "mountOptions": ["noatime"]}),
                "mount options need",
            ),
        ] {
            let message = planned(none.clone(), class).unwrap_err();
            assert!(message.contains(words), "{message}");
        }
    }

    #[test]
    fn shares_directory_only_in_cluster_of_one_node() {
        let node = node(json!({}));
        for mode in ["ReadWriteMany", "ReadOnlyMany"] {
            let claim = claim(json!({"spec": {"accessModes": ["ReadWriteOnce", mode]}}));
            let planned = |single| provision(&claim, Some(&class()), Some(&node), single);
            let Provisioning::Volume(made) = planned(true) else { panic!("nothing made") };
            assert_eq!(made["spec"]["accessModes"], json!(["ReadWriteOnce", mode]));
            assert!(matches!(planned(false), Provisioning::Refused { reschedules: false, .. }));
        }
    }

    #[test]
    fn deletes_volume_after_directory_unless_retained() {
        let made = provision(&claim(json!({})), Some(&class()), Some(&node(json!({}))), false);
        let Provisioning::Volume(made) = made else { panic!("nothing made") };
        let next = |phase: &str, policy: &str, more: Value, answer: Value| {
            let spec = json!({"status": {"phase": phase},
                "spec": {"persistentVolumeReclaimPolicy": policy}});
            let volume: PersistentVolume = read(merged(merged(made.clone(), &spec), &more));
            let annotations =
                json!({"metadata": {"annotations": {format!("{REMOVE}pvc-u"): answer}}});
            let node = node(annotations);
            reclaim(
                &volume,
                node_of(&volume).map(|name| {
                    assert_eq!(name, "n");
                    &node
                }),
            )
        };
        let (no, ask) = (json!({}), || Reclaim::RequestRemoval("n".to_owned()));
        assert_eq!(next("Bound", "Delete", no.clone(), Value::Null), Reclaim::Nothing);
        assert_eq!(next("Available", "Delete", no.clone(), Value::Null), Reclaim::Nothing);
        assert_eq!(next("Released", "Delete", no.clone(), Value::Null), ask());
        assert_eq!(next("Released", "Delete", no.clone(), json!("asked")), Reclaim::Nothing);
        assert_eq!(next("Released", "Delete", no.clone(), json!("removed")), Reclaim::Delete);
        let failed = next("Released", "Delete", no.clone(), json!("failed: it is busy"));
        assert!(matches!(failed, Reclaim::Failed { node: Some(_), .. }));
        let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        assert_eq!(next("Released", "Delete", going.clone(), Value::Null), ask());
        assert_eq!(next("Released", "Retain", no.clone(), Value::Null), Reclaim::Nothing);
        assert_eq!(next("Released", "Retain", going, Value::Null), Reclaim::Delete);
        let theirs = json!({"metadata": {"annotations": {PROVISIONED_BY: "other/p"}}});
        assert_eq!(next("Released", "Delete", theirs, Value::Null), Reclaim::Nothing);
        let elsewhere = json!({"spec": {"nodeAffinity": null}});
        let lost = next("Released", "Delete", elsewhere, Value::Null);
        assert!(matches!(lost, Reclaim::Failed { node: None, .. }));
    }
    #[test]
    fn finds_node_by_name_and_not_by_labels_that_kubelets_write() {
        let requires = |key: &str| -> PersistentVolume {
            let required = json!({"nodeSelectorTerms": [{"matchExpressions": [
                {"key": key, "operator": "In", "values": ["n"]}]}]});
            read(json!({"spec": {"nodeAffinity": {"required": required}}}))
        };
        assert_eq!(node_of(&requires(NODE)), Some("n"));
        assert_eq!(node_of(&requires(HOSTNAME)), Some("n"), "a volume of an earlier version");
        assert_eq!(node_of(&requires("zone")), None);
        let labelled = |key: &str, value: &str| {
            is_labelled(&node(json!({"metadata": {"labels": {key: value}}})))
        };
        assert!(labelled(NODE, "n"));
        assert!(!labelled(NODE, "other") && !labelled(HOSTNAME, "n"));
    }
}
