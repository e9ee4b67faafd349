//! Tables of volumes, claims, classes and the objects of CSI.

use api_meta::Tree as _;
use serde_json::{Value, json};

use super::column::Column;
use super::{
    column::{AGE, NAME, Table, age, boolean, integer, name, text},
    format,
};

/// Returns the phase, or `Terminating` for an object that is being deleted.
fn phase(object: &Value) -> Value {
    if object.has("metadata.deletionTimestamp") {
        json!("Terminating")
    } else {
        json!(object.text("status.phase"))
    }
}

pub(super) static CLAIMS: Table = Table {
    columns: &[
        NAME,
        text("Status"),
        text("Volume"),
        text("Capacity"),
        text("Access Modes"),
        text("StorageClass"),
        text("VolumeAttributesClass"),
        AGE,
        text("VolumeMode").wide(),
    ],
    cells: |claim, now| {
        let bound = !claim.blank("spec.volumeName");
        let unknown = if bound { "0" } else { "" };
        let capacity =
            format::or(if bound { claim.text("status.capacity.storage") } else { "" }, unknown);
        let modes = if bound { claim.items("status.accessModes") } else { &[] };
        vec![
            name(claim),
            phase(claim),
            json!(claim.text("spec.volumeName")),
            json!(capacity),
            json!(format::access_modes(modes)),
            json!(class(claim)),
            json!(format::or(claim.text("spec.volumeAttributesClassName"), "<unset>")),
            age(claim, now),
            json!(format::or(claim.text("spec.volumeMode"), "<unset>")),
        ]
    },
};

pub(super) static VOLUMES: Table = Table {
    columns: &[
        NAME,
        text("Capacity"),
        text("Access Modes"),
        text("Reclaim Policy"),
        text("Status"),
        text("Claim"),
        text("StorageClass"),
        text("VolumeAttributesClass"),
        text("Reason"),
        AGE,
        text("VolumeMode").wide(),
    ],
    cells: |volume, now| {
        let reference = volume.at("spec.claimRef");
        let claim = if reference.is_null() {
            String::new()
        } else {
            format!("{}/{}", reference.text("namespace"), reference.text("name"))
        };
        vec![
            name(volume),
            json!(volume.text("spec.capacity.storage")),
            json!(format::access_modes(volume.items("spec.accessModes"))),
            json!(volume.text("spec.persistentVolumeReclaimPolicy")),
            phase(volume),
            json!(claim),
            json!(class(volume)),
            json!(format::or(volume.text("spec.volumeAttributesClassName"), "<unset>")),
            json!(volume.text("status.reason")),
            age(volume, now),
            json!(format::or(volume.text("spec.volumeMode"), "<unset>")),
        ]
    },
};

/// Returns the class of a volume or claim. The deprecated annotation wins over the field.
fn class(object: &Value) -> &str {
    let annotation = "volume.beta.kubernetes.io/storage-class";
    let old = object.at("metadata.annotations").get(annotation).and_then(Value::as_str);
    old.unwrap_or(object.text("spec.storageClassName"))
}

pub(super) static CLASSES: Table = Table {
    columns: &[
        NAME,
        text("Provisioner"),
        text("ReclaimPolicy"),
        text("VolumeBindingMode"),
        text("AllowVolumeExpansion"),
        AGE,
    ],
    cells: |class, now| {
        let annotations = class.at("metadata.annotations");
        let is_default = [
            "storageclass.kubernetes.io/is-default-class",
            "storageclass.beta.kubernetes.io/is-default-class",
        ]
        .iter()
        .any(|key| annotations.get(key).and_then(Value::as_str) == Some("true"));
        let suffix = if is_default { " (default)" } else { "" };
        vec![
            json!(format!("{}{suffix}", class.name())),
            json!(class.text("provisioner")),
            json!(format::or(class.text("reclaimPolicy"), "Delete")),
            json!(format::or(class.text("volumeBindingMode"), "Immediate")),
            json!(class.flag("allowVolumeExpansion")),
            age(class, now),
        ]
    },
};

pub(super) static ATTRIBUTES_CLASSES: Table = Table {
    columns: &[NAME, text("DriverName"), AGE],
    cells: |class, now| vec![name(class), json!(class.text("driverName")), age(class, now)],
};

pub(super) static CSI_DRIVERS: Table = Table {
    columns: &[
        NAME,
        boolean("AttachRequired"),
        boolean("PodInfoOnMount"),
        boolean("StorageCapacity"),
        text("TokenRequests"),
        boolean("RequiresRepublish"),
        text("Modes"),
        AGE,
    ],
    cells: |driver, now| {
        let list = |path: &str, field: Option<&str>, missing: &str| {
            let texts: Vec<&str> = driver
                .items(path)
                .iter()
                .map(|v| field.map_or(v.as_str().unwrap_or_default(), |f| v.text(f)))
                .collect();
            json!(format::or(&texts.join(","), missing))
        };
        let attach = driver.at("spec.attachRequired").as_bool().unwrap_or(true);
        vec![
            name(driver),
            json!(attach),
            json!(driver.flag("spec.podInfoOnMount")),
            json!(driver.flag("spec.storageCapacity")),
            list("spec.tokenRequests", Some("audience"), "<unset>"),
            json!(driver.flag("spec.requiresRepublish")),
            list("spec.volumeLifecycleModes", None, "<none>"),
            age(driver, now),
        ]
    },
};

pub(super) static CSI_NODES: Table = Table {
    columns: &[NAME, integer("Drivers"), AGE],
    cells: |node, now| vec![name(node), json!(node.items("spec.drivers").len()), age(node, now)],
};

pub(super) static ATTACHMENTS: Table = Table {
    columns: &[
        NAME,
        Column::of("Attacher", "string", "name"),
        text("PV"),
        text("Node"),
        boolean("Attached"),
        AGE,
    ],
    cells: |object, now| {
        vec![
            name(object),
            json!(object.text("spec.attacher")),
            json!(object.text("spec.source.persistentVolumeName")),
            json!(object.text("spec.nodeName")),
            json!(object.flag("status.attached")),
            age(object, now),
        ]
    },
};
