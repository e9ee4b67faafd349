//! Validation of volumes.

use std::collections::{HashMap, HashSet};

use api_meta::{ErrorList, FieldError, Path, Tree as _, validation};
use pki::WorkloadKeyType;
use serde_json::Value;

use super::{
    claims::check_volume_claim_spec,
    paths::{validate_local_path, validate_no_dot_dot},
    references::{validate_field_ref, validate_resource_field},
};
use crate::{
    fields::{
        validate_label_selector, validate_optional_one_of, validate_present, validate_signer_name,
    },
    signers::{MIN_LIFETIME, max_lifetime, validate_user_annotations},
};

/// The required fields of volume sources.
const REQUIRED: [(&str, &[&str]); 19] = [
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
    ("local", &["path"]),
    ("nfs", &["server", "path"]),
    ("persistentVolumeClaim", &["claimName"]),
    ("portworxVolume", &["volumeID"]),
    ("rbd", &["monitors", "image"]),
    ("secret", &["secretName"]),
    ("vsphereVolume", &["volumePath"]),
];

/// Validates a Pod's volumes and returns them by name.
pub(super) fn check<'a>(
    volumes: &'a [Value],
    path: &Path,
    errors: &mut ErrorList,
) -> HashMap<&'a str, &'a Value> {
    let mut names = HashMap::new();
    for (i, volume) in volumes.iter().enumerate() {
        let path = path.index(i);
        let name = volume.text("name");
        if name.is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        } else {
            for message in validation::dns1123_label(name) {
                errors.push(FieldError::invalid(&path.child("name"), name, message));
            }
            if names.insert(name, volume).is_some() {
                errors.push(FieldError::duplicate(&path.child("name"), name));
            }
        }
        check_source(volume, &path, errors);
    }
    names
}

/// Validates the single source of a volume.
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

/// Validates the fields of a volume source, of a Pod or of a PersistentVolume.
pub(crate) fn check_fields(kind: &str, source: &Value, path: &Path, errors: &mut ErrorList) {
    if let Some((_, fields)) = REQUIRED.iter().find(|(name, _)| *name == kind) {
        for field in *fields {
            validate_present(source, field, path, errors);
        }
    }
    match kind {
        "awsElasticBlockStore" => validate_partition(source, path, errors),
        // Upstream reports this source by an older name.
        "gcePersistentDisk" => {
            let older = path.as_str().replace("gcePersistentDisk", "persistentDisk");
            validate_partition(source, &Path::new(&older), errors);
        }
        "hostPath" => validate_host_path(source, path, errors),
        "local" => validate_no_dot_dot(source.text("path"), &path.child("path"), errors),
        "nfs" if !source.blank("path") && !source.text("path").starts_with('/') => {
            let detail = "must be an absolute path";
            errors.push(FieldError::invalid(&path.child("path"), source.text("path"), detail));
        }
        "csi" if !source.blank("driver") => {
            let name = source.text("driver");
            for message in validation::dns1123_subdomain(&name.to_lowercase()) {
                errors.push(FieldError::invalid(&path.child("driver"), name, message));
            }
            for reference in [
                "controllerPublishSecretRef",
                "controllerExpandSecretRef",
                "nodePublishSecretRef",
                "nodeExpandSecretRef",
            ] {
                validate_secret_reference(source, reference, path, errors);
            }
        }
        "emptyDir" => {
            let size = api_meta::Quantity::parse(source.text("sizeLimit"));
            if size.is_ok_and(|size| size.is_negative()) {
                let detail = "SizeLimit field must be a valid resource quantity";
                errors.push(FieldError::forbidden(&path.child("sizeLimit"), detail));
            }
        }
        "image" => {
            validate_present(source, "reference", path, errors);
            let policies = ["Always", "IfNotPresent", "Never"];
            validate_optional_one_of(source, "pullPolicy", &policies, path, errors);
        }
        "configMap" | "secret" => validate_items(source, path, errors),
        "downwardAPI" => validate_downward(source, path, errors),
        "projected" => validate_projected(source, path, errors),
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

/// Validates the partition of a disk. 0 is the whole disk.
fn validate_partition(source: &Value, path: &Path, errors: &mut ErrorList) {
    let partition = source.int("partition");
    if !(0..=255).contains(&partition) {
        let detail = "must be between 1 and 255, inclusive";
        errors.push(FieldError::invalid(&path.child("partition"), partition, detail));
    }
}

/// Validates a reference to a Secret in a PersistentVolume, which names a namespace.
fn validate_secret_reference(source: &Value, field: &str, path: &Path, errors: &mut ErrorList) {
    let (reference, path) = (source.at(field), path.child(field));
    if reference.is_null() {
        return;
    }
    validate_present(reference, "name", &path, errors);
    let name = reference.text("name");
    if !name.is_empty() {
        for message in validation::dns1123_subdomain(name) {
            errors.push(FieldError::invalid(&path.child("name"), name, message));
        }
    }
    if source.has("volumeHandle") {
        validate_present(reference, "namespace", &path, errors);
        let namespace = reference.text("namespace");
        if !namespace.is_empty() {
            for message in validation::dns1123_label(namespace) {
                errors.push(FieldError::invalid(&path.child("namespace"), namespace, message));
            }
        }
    }
}

fn validate_host_path(source: &Value, path: &Path, errors: &mut ErrorList) {
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
    validate_no_dot_dot(source.text("path"), &path.child("path"), errors);
    let kind = source.text("type");
    if !TYPES.contains(&kind) {
        errors.push(FieldError::not_supported(&path.child("type"), kind, &TYPES));
    }
}

fn validate_items(source: &Value, path: &Path, errors: &mut ErrorList) {
    validate_mode(source, "defaultMode", path, errors);
    for (i, item) in source.items("items").iter().enumerate() {
        let path = path.child("items").index(i);
        validate_present(item, "key", &path, errors);
        validate_present(item, "path", &path, errors);
        validate_local_path(item.text("path"), &path.child("path"), errors);
        validate_mode(item, "mode", &path, errors);
    }
}

fn validate_downward(source: &Value, path: &Path, errors: &mut ErrorList) {
    validate_mode(source, "defaultMode", path, errors);
    for (i, item) in source.items("items").iter().enumerate() {
        let path = path.child("items").index(i);
        validate_present(item, "path", &path, errors);
        validate_local_path(item.text("path"), &path.child("path"), errors);
        validate_mode(item, "mode", &path, errors);
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
            (true, false) => {
                let path = item_source(&path, "fieldRef");
                validate_field_ref(item.at("fieldRef"), &VOLUME_FIELDS, &path, errors);
            }
            (false, true) => {
                let path = item_source(&path, "resourceFieldRef");
                validate_resource_field(item.at("resourceFieldRef"), true, &path, errors);
            }
        }
    }
}

/// The fields that a downward API volume may refer to.
const VOLUME_FIELDS: [&str; 5] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
];

/// Returns the path that upstream reports: the source without its item.
fn item_source(path: &Path, kind: &str) -> Path {
    let whole = path.as_str();
    Path::new(whole.rsplit_once(".items[").map_or(whole, |(volume, _)| volume)).child(kind)
}

fn validate_projected(source: &Value, path: &Path, errors: &mut ErrorList) {
    validate_mode(source, "defaultMode", path, errors);
    let mut paths = HashSet::new();
    for (i, entry) in source.items("sources").iter().enumerate() {
        for file in source_paths(entry) {
            if !file.is_empty() && !paths.insert(file) {
                // Upstream reports the name of the ConfigMap or Secret if there is one.
                let of = ["configMap.name", "secret.name"].map(|name| entry.text(name));
                let shown = of.into_iter().find(|name| !name.is_empty()).unwrap_or(file);
                errors.push(FieldError::invalid(path, shown, "conflicting duplicate paths"));
            }
        }
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
                validate_present(source, "name", &path, errors);
                validate_items(source, &path, errors);
            }
            "downwardAPI" => validate_downward(source, &path, errors),
            "serviceAccountToken" => validate_token(source, &path, errors),
            "clusterTrustBundle" => validate_trust_bundle(source, &path, errors),
            "podCertificate" => validate_certificate(source, &path, errors),
            _ => {}
        }
    }
}

/// Returns the paths of the files of a source of a projected volume.
fn source_paths(entry: &Value) -> impl Iterator<Item = &str> {
    let items = ["secret.items", "configMap.items", "downwardAPI.items"];
    let listed = items.into_iter().flat_map(|list| entry.items(list)).map(|i| i.text("path"));
    let alone = [
        "serviceAccountToken.path",
        "clusterTrustBundle.path",
        "podCertificate.credentialBundlePath",
        "podCertificate.keyPath",
        "podCertificate.certificateChainPath",
    ];
    listed.chain(alone.into_iter().map(|path| entry.text(path)))
}

fn validate_trust_bundle(source: &Value, path: &Path, errors: &mut ErrorList) {
    // An empty name is a name too.
    let (name, signer) = (source.at("name").as_str(), source.at("signerName").as_str());
    let selector = (source.at("labelSelector"), path.child("labelSelector"));
    match (name, signer) {
        (Some(_), Some(_)) => {
            let detail = "only one of name and signerName may be used";
            errors.push(FieldError::invalid(path, source.clone(), detail));
        }
        (Some(name), None) => {
            if name.is_empty() {
                errors
                    .push(FieldError::required(&path.child("name"), "must be a valid object name"));
            }
            if !selector.0.is_null() {
                let detail = "labelSelector must be unset if name is specified";
                errors.push(FieldError::invalid(&selector.1, selector.0.clone(), detail));
            }
        }
        (None, Some(signer)) => {
            validate_signer_name(signer, &path.child("signerName"), errors);
            validate_label_selector(selector.0, &selector.1, errors);
        }
        (None, None) => {
            let detail = "either name or signerName must be specified";
            errors.push(FieldError::required(path, detail));
        }
    }
    validate_present(source, "path", path, errors);
    validate_local_path(source.text("path"), &path.child("path"), errors);
}

fn validate_certificate(source: &Value, path: &Path, errors: &mut ErrorList) {
    let signer = source.text("signerName");
    validate_signer_name(signer, &path.child("signerName"), errors);
    let (kind, known) = (source.text("keyType"), WorkloadKeyType::ALL.map(WorkloadKeyType::as_str));
    if !known.contains(&kind) {
        errors.push(FieldError::not_supported(&path.child("keyType"), kind, &known));
    }
    if let Some(seconds) = source.opt_int("maxExpirationSeconds") {
        let (shortest, longest) = (MIN_LIFETIME, max_lifetime(signer));
        let limit = if seconds < shortest {
            Some((">=", shortest))
        } else if seconds > longest {
            Some(("<=", longest))
        } else {
            None
        };
        if let Some((relation, limit)) = limit {
            let detail = format!("if provided, maxExpirationSeconds must be {relation} {limit}");
            let path = path.child("maxExpirationSeconds");
            errors.push(FieldError::invalid(&path, seconds, detail));
        }
    }
    let paths = ["credentialBundlePath", "keyPath", "certificateChainPath"];
    for field in paths.iter().filter(|field| !source.blank(**field)) {
        validate_local_path(source.text(*field), &path.child(field), errors);
    }
    if paths.iter().all(|field| source.blank(*field)) {
        let detail =
            "specify at least one of credentialBundlePath, keyPath, and certificateChainPath";
        errors.push(FieldError::required(path, detail));
    }
    let annotations = path.child("userAnnotations");
    validate_user_annotations(source.at("userAnnotations"), &annotations, errors);
}

fn validate_token(source: &Value, path: &Path, errors: &mut ErrorList) {
    validate_present(source, "path", path, errors);
    validate_local_path(source.text("path"), &path.child("path"), errors);
    let (seconds, path) = (source.int("expirationSeconds"), path.child("expirationSeconds"));
    if seconds < 600 {
        let detail = "may not specify a duration less than 10 minutes";
        errors.push(FieldError::invalid(&path, seconds, detail));
    } else if seconds > 1 << 32 {
        let detail = "may not specify a duration larger than 2^32 seconds";
        errors.push(FieldError::invalid(&path, seconds, detail));
    }
}

fn validate_mode(object: &Value, field: &str, path: &Path, errors: &mut ErrorList) {
    if let Some(mode) = object.opt_int(field)
        && !(0..=0o777).contains(&mode)
    {
        let detail = "must be a number between 0 and 0777 (octal), both inclusive";
        errors.push(FieldError::invalid(&path.child(field), mode, detail));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rejects_certificates_without_valid_key_lifetime_and_path() {
        let source = |fields: Value| {
            let mut source = json!({"signerName": "a.b/c", "keyType": "ED25519"});
            source.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            let mut errors = ErrorList::default();
            validate_certificate(&source, &Path::new("c"), &mut errors);
            if errors.is_empty() { String::new() } else { api_meta::aggregate(&errors) }
        };
        for (fields, words) in [
            (json!({"keyPath": "k"}), ""),
            (
                json!({"credentialBundlePath": "b", "maxExpirationSeconds": 7_862_400, "userAnnotations": {"a.b/c": "d"}}),
                "",
            ),
            (json!({}), "specify at least one of credentialBundlePath"),
            (json!({"keyPath": "../k"}), "c.keyPath: Invalid value"),
            (json!({"keyPath": "k", "signerName": "plain"}), "c.signerName"),
            (json!({"keyPath": "k", "keyType": "RSA2048"}), "c.keyType: Unsupported value"),
            (json!({"keyPath": "k", "maxExpirationSeconds": 3599}), "must be >= 3600"),
            (json!({"keyPath": "k", "maxExpirationSeconds": 7_862_401}), "must be <= 7862400"),
            (
                json!({"keyPath": "k", "maxExpirationSeconds": 86_401, "signerName": "kubernetes.io/x"}),
                "must be <= 86400",
            ),
            (json!({"keyPath": "k", "userAnnotations": {"plain": "d"}}), "domain-prefixed key"),
        ] {
            let found = source(fields.clone());
            assert!(
                found.contains(words) && found.is_empty() == words.is_empty(),
                "{fields}: {found}"
            );
        }
    }

    #[test]
    fn rejects_trust_bundles_without_one_valid_reference() {
        for (source, words) in [
            (json!({"name": "a", "path": "p"}), None),
            (json!({"signerName": "a.b/c", "path": "p"}), None),
            (json!({"path": "p"}), Some("either name or signerName must be specified")),
            (json!({"name": "", "path": "p"}), Some("must be a valid object name")),
            (
                json!({"name": "", "signerName": "a.b/c", "path": "p"}),
                Some("only one of name and signerName may be used"),
            ),
            (
                json!({"name": "a", "labelSelector": {}, "path": "p"}),
                Some("labelSelector must be unset if name is specified"),
            ),
        ] {
            let mut errors = ErrorList::default();
            validate_trust_bundle(&source, &Path::new("bundle"), &mut errors);
            let text = api_meta::aggregate(&errors);
            assert!(
                words.map_or(errors.is_empty(), |words| text.contains(words)),
                "{source}: {text}"
            );
        }
    }
}
