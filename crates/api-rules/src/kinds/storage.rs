//! Volumes, claims, classes and the objects of CSI.

use api_meta::{ErrorList, FieldError, Path, Quantity, validation};
use serde_json::{Value, json};

use crate::{
    look::{Look, keep, put},
    meta::check_immutable,
    pod::{check_volume_claim_spec, check_volume_source, node_selector, none_or_one_of, one_of},
    strategy::Strategy,
};

pub(crate) static CLAIM: Strategy = Strategy {
    status: Some(|| json!({"phase": "Pending"})),
    own_create: |claim, _| {
        // The older field cannot name another namespace; where it can say the same, both do.
        if !claim.has("spec.dataSourceRef") {
            keep_as(claim, "spec.dataSource", "spec.dataSourceRef");
        } else if !claim.has("spec.dataSource") && claim.blank("spec.dataSourceRef.namespace") {
            keep_as(claim, "spec.dataSourceRef", "spec.dataSource");
        }
    },
    check: |claim, errors| {
        check_volume_claim_spec(claim.at("spec"), &Path::new("spec"), errors);
    },
    check_update: check_claim_update,
    selectable: &[("name", |claim| claim.text("metadata.name").to_owned())],
    ..Strategy::PLAIN
};

/// Copies one field to another.
fn keep_as(object: &mut Value, from: &str, to: &str) {
    let value = object.at(from).clone();
    if !value.is_null() {
        put(object, to, value);
    }
}

fn check_claim_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let mut allowed = new.clone();
    let path = Path::new("spec");
    // The binder names the volume; a default class may still be filled in.
    for field in ["spec.volumeName", "spec.storageClassName"] {
        if old.blank(field) {
            keep(&mut allowed, old, field);
        }
    }
    keep(&mut allowed, old, "spec.volumeAttributesClassName");
    let size = |claim: &Value| {
        let text = claim.text("spec.resources.requests.storage").to_owned();
        Quantity::parse(&text).ok()
    };
    if old.text("status.phase") == "Bound" {
        keep(&mut allowed, old, "spec.resources.requests");
        let capacity = Quantity::parse(old.text("status.capacity.storage")).ok();
        if size(new) < size(old) && size(new) <= capacity {
            errors.push(FieldError::forbidden(
                &path.child("resources").child("requests").child("storage"),
                "field can not be less than status.capacity",
            ));
        }
    }
    if allowed.at("spec") != old.at("spec") {
        errors.push(FieldError::forbidden(
            &path,
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims",
        ));
    }
}

pub(crate) static VOLUME: Strategy = Strategy {
    status: Some(|| json!({"phase": "Pending"})),
    own_create: |volume, now| put(volume, "status.lastPhaseTransitionTime", now),
    own_status: |new, old, now| {
        if new.at("status.phase") != old.at("status.phase") {
            put(new, "status.lastPhaseTransitionTime", now);
        }
    },
    check: check_volume,
    check_update: |new, old, errors| {
        check_immutable(new, old, "spec.volumeMode", errors);
        if source(new).map(|(_, s)| s) != source(old).map(|(_, s)| s) {
            errors.push(FieldError::forbidden(
                &Path::new("spec.persistentvolumesource"),
                "spec.persistentvolumesource is immutable after creation",
            ));
        }
    },
    selectable: &[("name", |volume| volume.text("metadata.name").to_owned())],
    ..Strategy::PLAIN
};

/// The members of a PersistentVolume's specification that are not its source.
const NOT_SOURCES: [&str; 9] = [
    "accessModes",
    "capacity",
    "claimRef",
    "mountOptions",
    "nodeAffinity",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "volumeAttributesClassName",
    "volumeMode",
];

fn source(volume: &Value) -> Option<(&String, &Value)> {
    volume.pairs("spec").find(|(name, _)| !NOT_SOURCES.contains(&name.as_str()))
}

fn check_volume(volume: &Value, errors: &mut ErrorList) {
    const MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
    let (spec, path) = (volume.at("spec"), Path::new("spec"));
    if spec.blank("accessModes") {
        errors.push(FieldError::required(&path.child("accessModes"), ""));
    }
    for mode in spec.items("accessModes").iter().filter_map(Value::as_str) {
        if !MODES.contains(&mode) {
            errors.push(FieldError::not_supported(&path.child("accessModes"), mode, &MODES));
        }
    }
    let capacity = path.child("capacity");
    if spec.blank("capacity") {
        errors.push(FieldError::required(&capacity, ""));
    } else if spec.at("capacity").get("storage").is_none() {
        let names: Vec<&String> = spec.pairs("capacity").map(|(name, _)| name).collect();
        errors.push(FieldError::not_supported(&capacity, json!(names), &["storage"]));
    }
    let policies = ["Delete", "Recycle", "Retain"];
    none_or_one_of(spec, "persistentVolumeReclaimPolicy", &policies, &path, errors);
    none_or_one_of(spec, "volumeMode", &["Block", "Filesystem"], &path, errors);
    if spec.has("nodeAffinity.required") {
        let path = path.child("nodeAffinity").child("required");
        node_selector(spec.at("nodeAffinity.required"), &path, errors);
    }
    match source(volume) {
        None => errors.push(FieldError::required(&path, "must specify a volume type")),
        Some((kind, source)) => {
            check_volume_source(kind, source, &path.child(kind), errors);
            if kind == "local" && !spec.has("nodeAffinity") {
                let detail = "Local volume requires node affinity";
                errors.push(FieldError::required(
                    &Path::new("metadata").child("annotations"),
                    detail,
                ));
            }
        }
    }
    let others = volume.pairs("spec").filter(|(name, _)| !NOT_SOURCES.contains(&name.as_str()));
    for (kind, _) in others.skip(1) {
        let detail = "may not specify more than 1 volume type";
        errors.push(FieldError::forbidden(&path.child(kind), detail));
    }
}

pub(crate) static STORAGE_CLASS: Strategy = Strategy {
    check: |class, errors| {
        if class.blank("provisioner") {
            errors.push(FieldError::required(&Path::new("provisioner"), "class.Provisioner"));
        } else {
            for message in validation::qualified_name(&class.text("provisioner").to_lowercase()) {
                let path = Path::new("provisioner");
                errors.push(FieldError::invalid(&path, class.text("provisioner"), message));
            }
        }
        let root = Path::new("");
        one_of(class, "reclaimPolicy", &["Delete", "Retain"], &root, errors);
        one_of(class, "volumeBindingMode", &["Immediate", "WaitForFirstConsumer"], &root, errors);
    },
    check_update: |new, old, errors| {
        for field in ["parameters", "provisioner", "reclaimPolicy"] {
            if new.at(field) != old.at(field) {
                let detail = format!("updates to {field} are forbidden.");
                errors.push(FieldError::forbidden(&Path::new(field), detail));
            }
        }
        check_immutable(new, old, "volumeBindingMode", errors);
    },
    ..Strategy::PLAIN
};

pub(crate) static ATTRIBUTES_CLASS: Strategy = Strategy {
    check: |class, errors| {
        if class.blank("driverName") {
            errors.push(FieldError::required(&Path::new("driverName"), ""));
        }
    },
    check_update: |new, old, errors| {
        check_immutable(new, old, "driverName", errors);
        check_immutable(new, old, "parameters", errors);
    },
    ..Strategy::PLAIN
};

pub(crate) static CSI_DRIVER: Strategy = Strategy {
    check: |driver, errors| {
        let path = Path::new("spec");
        let policies = ["File", "None", "ReadWriteOnceWithFSType"];
        none_or_one_of(driver.at("spec"), "fsGroupPolicy", &policies, &path, errors);
    },
    check_update: |new, old, errors| {
        for field in ["spec.attachRequired", "spec.volumeLifecycleModes"] {
            check_immutable(new, old, field, errors);
        }
    },
    unconditional_update: false,
    ..Strategy::PLAIN
};

pub(crate) static CSI_NODE: Strategy = Strategy {
    check: |node, errors| {
        for (i, driver) in node.items("spec.drivers").iter().enumerate() {
            let path = Path::new("spec").child("drivers").index(i);
            for field in ["name", "nodeID"] {
                if driver.blank(field) {
                    errors.push(FieldError::required(&path.child(field), ""));
                }
            }
        }
    },
    unconditional_update: false,
    ..Strategy::PLAIN
};

pub(crate) static ATTACHMENT: Strategy = Strategy {
    status: Some(|| json!({"attached": false})),
    check: |attachment, errors| {
        let (spec, path) = (attachment.at("spec"), Path::new("spec"));
        for field in ["attacher", "nodeName"] {
            if spec.blank(field) {
                errors.push(FieldError::required(&path.child(field), ""));
            }
        }
    },
    check_update: |new, old, errors| {
        if new.at("spec") != old.at("spec") {
            let detail = "field is immutable";
            errors.push(FieldError::invalid(&Path::new("spec"), new.at("spec").clone(), detail));
        }
    },
    unconditional_update: false,
    ..Strategy::PLAIN
};
