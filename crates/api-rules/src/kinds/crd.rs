//! CustomResourceDefinitions and APIServices.

use api_meta::{ErrorList, FieldError, Path, validation};
use serde_json::{Value, json};

use crate::{
    look::{Look, default, put},
    meta::NameRule,
    pod::one_of,
    strategy::Strategy,
};

pub(crate) static CUSTOM_RESOURCE_DEFINITION: Strategy = Strategy {
    status: Some(|| json!({"acceptedNames": {"kind": "", "plural": ""}, "storedVersions": []})),
    generation: true,
    own_defaults: |crd| {
        let kind = crd.text("spec.names.kind").to_owned();
        if kind.is_empty() {
            return;
        }
        for (field, value) in [("singular", kind.to_lowercase()), ("listKind", kind + "List")] {
            let path = format!("spec.names.{field}");
            if crd.blank(&path) {
                put(crd, &path, value);
            }
        }
        default(crd, "spec.conversion.strategy", "None");
    },
    own_create: |crd, _| store_version(crd),
    own_update: |crd, _, _| store_version(crd),
    check,
    check_update: |new, old, errors| {
        for field in ["spec.group", "spec.scope", "spec.names.kind", "spec.names.plural"] {
            let established = old
                .items("status.conditions")
                .iter()
                .any(|c| c.text("type") == "Established" && c.text("status") == "True");
            if established || !field.starts_with("spec.names.kind") {
                crate::meta::check_immutable(new, old, field, errors);
            }
        }
    },
    unconditional_update: false,
    ..Strategy::PLAIN
};

/// Remembers every version that objects may have been stored in.
fn store_version(crd: &mut Value) {
    let storage = crd.items("spec.versions").iter().find(|v| v.flag("storage"));
    let Some(name) = storage.map(|v| v.at("name").clone()) else { return };
    let mut stored = crd.items("status.storedVersions").to_vec();
    if !stored.contains(&name) {
        stored.push(name);
        put(crd, "status.storedVersions", stored);
    }
}

fn check(crd: &Value, errors: &mut ErrorList) {
    let (spec, path) = (crd.at("spec"), Path::new("spec"));
    let wanted = format!("{}.{}", spec.text("names.plural"), spec.text("group"));
    if crd.text("metadata.name") != wanted {
        errors.push(FieldError::invalid(
            &Path::new("metadata").child("name"),
            crd.text("metadata.name"),
            "must be spec.names.plural+\".\"+spec.group",
        ));
    }
    let group = spec.text("group");
    if group.is_empty() {
        errors.push(FieldError::required(&path.child("group"), ""));
    } else {
        for message in validation::dns1123_subdomain(group) {
            errors.push(FieldError::invalid(&path.child("group"), group, message));
        }
        if group.split('.').count() < 2 {
            let detail = "should be a domain with at least one dot";
            errors.push(FieldError::invalid(&path.child("group"), group, detail));
        }
    }
    one_of(spec, "scope", &["Cluster", "Namespaced"], &path, errors);
    check_names(spec.at("names"), &path.child("names"), errors);
    check_versions(spec, &path.child("versions"), errors);
}

fn check_names(names: &Value, path: &Path, errors: &mut ErrorList) {
    for field in ["plural", "singular", "kind", "listKind"] {
        let (text, path) = (names.text(field), path.child(field));
        if text.is_empty() {
            errors.push(FieldError::required(&path, ""));
            continue;
        }
        for message in validation::dns1035_label(&text.to_lowercase()) {
            errors.push(FieldError::invalid(&path, text, message));
        }
    }
    if names.text("kind") == names.text("listKind") && !names.blank("kind") {
        errors.push(FieldError::invalid(
            &path.child("listKind"),
            names.text("listKind"),
            "kind and listKind may not be the same",
        ));
    }
}

fn check_versions(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let versions = spec.items("versions");
    let mut names = std::collections::HashSet::new();
    for (i, version) in versions.iter().enumerate() {
        let path = path.index(i);
        for message in validation::dns1035_label(version.text("name")) {
            errors.push(FieldError::invalid(&path.child("name"), version.text("name"), message));
        }
        if !names.insert(version.text("name")) {
            let detail = "must contain unique version names";
            errors.push(FieldError::invalid(&path, spec.at("versions").clone(), detail));
        }
        let schema = path.child("schema").child("openAPIV3Schema");
        if !version.has("schema.openAPIV3Schema") {
            errors.push(FieldError::required(&schema, "schemas are required"));
        } else if version.text("schema.openAPIV3Schema.type") != "object" {
            errors.push(FieldError::invalid(
                &schema.child("type"),
                version.text("schema.openAPIV3Schema.type"),
                "must be object at the root",
            ));
        }
    }
    if versions.iter().filter(|v| v.flag("storage")).count() != 1 {
        errors.push(FieldError::invalid(
            path,
            spec.at("versions").clone(),
            "must have exactly one version marked as storage version",
        ));
    }
}

pub(crate) static API_SERVICE: Strategy = Strategy {
    name: NameRule::Any,
    status: Some(|| json!({})),
    check: |service, errors| {
        let (version, group) = (service.text("spec.version"), service.text("spec.group"));
        let wanted = format!("{version}.{group}");
        if service.text("metadata.name") != wanted {
            errors.push(FieldError::invalid(
                &Path::new("metadata").child("name"),
                service.text("metadata.name"),
                format!("must be `spec.version+\".\"+spec.group`: {wanted:?}"),
            ));
        }
    },
    unconditional_update: false,
    ..Strategy::PLAIN
};
