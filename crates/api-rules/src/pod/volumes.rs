//! Validation of volumes.

use std::collections::HashSet;

use api_meta::{ErrorList, FieldError, Path, validation};
use serde_json::Value;

use super::{containers::named, spec::check_volume_claim_spec};
use crate::look::Look;

/// The fields that a volume's source cannot do without.
const REQUIRED: [(&str, &[&str]); 18] = [
    ("awsElasticBlockStore", &["volumeID"]),
    ("azureDisk", &["diskName", "diskURI"]),
    ("azureFile", &["secretName", "shareName"]),
    ("cephfs", &["monitors"]),
    ("cinder", &["volumeID"]),
    ("configMap", &["name"]),
    ("csi", &["driver"]),
    ("flexVolume", &["driver"]),
    ("gcePersistentDisk", &["pdName"]),
    ("glusterfs", &["endpoints", "path"]),
    ("hostPath", &["path"]),
    ("iscsi", &["targetPortal", "iqn"]),
    ("nfs", &["server", "path"]),
    ("persistentVolumeClaim", &["claimName"]),
    ("portworxVolume", &["volumeID"]),
    ("rbd", &["monitors", "image"]),
    ("secret", &["secretName"]),
    ("vsphereVolume", &["volumePath"]),
];

/// Checks a Pod's volumes and gives their names.
pub(super) fn check<'a>(
    volumes: &'a [Value],
    path: &Path,
    errors: &mut ErrorList,
) -> HashSet<&'a str> {
    let mut names = HashSet::new();
    for (i, volume) in volumes.iter().enumerate() {
        let path = path.index(i);
        let name = volume.text("name");
        if name.is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        } else {
            for message in validation::dns1123_label(name) {
                errors.push(FieldError::invalid(&path.child("name"), name, message));
            }
            if !names.insert(name) {
                errors.push(FieldError::duplicate(&path.child("name"), name));
            }
        }
        check_source(volume, &path, errors);
    }
    names
}

/// The one source of a volume, in a Pod or (with other members beside it) in a PersistentVolume.
fn check_source(volume: &Value, path: &Path, errors: &mut ErrorList) {
    let mut sources = volume.as_object().into_iter().flatten().filter(|(k, _)| *k != "name");
    let Some((kind, source)) = sources.next() else {
        errors.push(FieldError::required(path, "must specify a volume type"));
        return;
    };
    for (other, _) in sources {
        let detail = "may not specify more than 1 volume type";
        errors.push(FieldError::forbidden(&path.child(other), detail));
    }
    check_fields(kind, source, &path.child(kind), errors);
}

/// The fields of one source.
pub(crate) fn check_fields(kind: &str, source: &Value, path: &Path, errors: &mut ErrorList) {
    if let Some((_, fields)) = REQUIRED.iter().find(|(name, _)| *name == kind) {
        for field in *fields {
            named(source, field, path, errors);
        }
    }
    match kind {
        "hostPath" => host_path(source, path, errors),
        "configMap" | "secret" => items(source, path, errors),
        "downwardAPI" => downward(source, path, errors),
        "projected" => projected(source, path, errors),
        "ephemeral" => {
            let template = source.at("volumeClaimTemplate");
            let path = path.child("volumeClaimTemplate");
            if template.is_null() {
                errors.push(FieldError::required(&path, ""));
            } else {
                check_volume_claim_spec(template.at("spec"), &path.child("spec"), errors);
            }
        }
        _ => {}
    }
}

fn host_path(source: &Value, path: &Path, errors: &mut ErrorList) {
    const TYPES: [&str; 8] = [
        "",
        "BlockDevice",
        "CharDevice",
        "Directory",
        "DirectoryOrCreate",
        "File",
        "FileOrCreate",
        "Socket",
    ];
    no_dot_dot(source.text("path"), &path.child("path"), errors);
    let kind = source.text("type");
    if !TYPES.contains(&kind) {
        errors.push(FieldError::not_supported(&path.child("type"), kind, &TYPES));
    }
}

fn items(source: &Value, path: &Path, errors: &mut ErrorList) {
    mode(source, "defaultMode", path, errors);
    for (i, item) in source.items("items").iter().enumerate() {
        let path = path.child("items").index(i);
        named(item, "key", &path, errors);
        named(item, "path", &path, errors);
        is_local_path(item.text("path"), &path.child("path"), errors);
        mode(item, "mode", &path, errors);
    }
}

fn downward(source: &Value, path: &Path, errors: &mut ErrorList) {
    mode(source, "defaultMode", path, errors);
    for (i, item) in source.items("items").iter().enumerate() {
        let path = path.child("items").index(i);
        named(item, "path", &path, errors);
        is_local_path(item.text("path"), &path.child("path"), errors);
        mode(item, "mode", &path, errors);
        match (item.has("fieldRef"), item.has("resourceFieldRef")) {
            (false, false) => errors.push(FieldError::required(
                &path,
                "one of fieldRef and resourceFieldRef is required",
            )),
            (true, true) => errors.push(FieldError::invalid(
                &path,
                "resource",
                "fieldRef and resourceFieldRef can not be specified simultaneously",
            )),
            _ => {}
        }
    }
}

fn projected(source: &Value, path: &Path, errors: &mut ErrorList) {
    mode(source, "defaultMode", path, errors);
    for (i, entry) in source.items("sources").iter().enumerate() {
        let path = path.child("sources").index(i);
        let mut kinds = entry.as_object().into_iter().flatten();
        let Some((kind, source)) = kinds.next() else { continue };
        for (other, _) in kinds {
            let detail = "may not specify more than 1 volume type per source";
            errors.push(FieldError::forbidden(&path.child(other), detail));
        }
        let path = path.child(kind);
        match kind.as_str() {
            "secret" | "configMap" => {
                named(source, "name", &path, errors);
                items(source, &path, errors);
            }
            "downwardAPI" => downward(source, &path, errors),
            "serviceAccountToken" => token(source, &path, errors),
            _ => {}
        }
    }
}

fn token(source: &Value, path: &Path, errors: &mut ErrorList) {
    named(source, "path", path, errors);
    is_local_path(source.text("path"), &path.child("path"), errors);
    let (seconds, path) = (source.int("expirationSeconds"), path.child("expirationSeconds"));
    if seconds < 600 {
        let detail = "may not specify a duration less than 10 minutes";
        errors.push(FieldError::invalid(&path, seconds, detail));
    } else if seconds > 1 << 32 {
        let detail = "may not specify a duration larger than 2^32 seconds";
        errors.push(FieldError::invalid(&path, seconds, detail));
    }
}

fn mode(object: &Value, field: &str, path: &Path, errors: &mut ErrorList) {
    if let Some(mode) = object.opt_int(field)
        && !(0..=0o777).contains(&mode)
    {
        let detail = "must be a number between 0 and 0777 (octal), both inclusive";
        errors.push(FieldError::invalid(&path.child(field), mode, detail));
    }
}

/// A path below some directory: relative, and not leading out of it.
pub(super) fn is_local_path(text: &str, path: &Path, errors: &mut ErrorList) {
    if text.starts_with('/') {
        errors.push(FieldError::invalid(path, text, "must be a relative path"));
    }
    no_dot_dot(text, path, errors);
}

fn no_dot_dot(text: &str, path: &Path, errors: &mut ErrorList) {
    if text.split('/').any(|part| part == "..") {
        errors.push(FieldError::invalid(path, text, "must not contain '..'"));
    }
}
