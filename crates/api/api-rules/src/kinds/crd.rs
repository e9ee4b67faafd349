//! CustomResourceDefinitions and APIServices.

use std::collections::HashSet;

use api_meta::{ErrorList, FieldError, Path, Tree as _, validation};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::{
    conditions::is_true,
    fields::{
        FieldRule,
        Rule::{IsText, IsWithin, Required, TextIfAny, Within},
        validate_one_of,
    },
    kinds::admission::check_client,
    meta::NameRule,
    strategy::{Cleanup, Strategy},
};

/// Keeps a CustomResourceDefinition until the objects of its kind are gone.
pub const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

pub(crate) static CUSTOM_RESOURCE_DEFINITION: Strategy = Strategy {
    storage_path: Some("apiextensions.k8s.io/customresourcedefinitions"),
    stored_as_json: true,
    cleanup: Some(Cleanup {
        finalizer: CLEANUP,
        reason: "InstanceDeletionPending",
        message: "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
    }),
    status: Some(|| json!({"acceptedNames": {"kind": "", "plural": ""}, "storedVersions": []})),
    generation: true,
    owned_finalizers: false,
    own_defaults: |crd| {
        let kind = crd.text("spec.names.kind").to_owned();
        if kind.is_empty() {
            return;
        }
        for (field, value) in [("singular", kind.to_lowercase()), ("listKind", kind + "List")] {
            let path = format!("spec.names.{field}");
            if crd.blank(&path) {
                crd.set(&path, value);
            }
        }
        if !crd.has("spec.conversion") {
            crd.set("spec.conversion", json!({"strategy": "None"}));
        }
        let service = "spec.conversion.webhook.clientConfig.service";
        if crd.has(service) && !crd.at(service).has("port") {
            crd.set(&format!("{service}.port"), 443);
        }
    },
    own_create: |crd, _| store_version(crd),
    own_update: |crd, _, _| store_version(crd),
    check,
    fields: &[
        ("spec.names.shortNames[]", IsText(validation::dns1035_label)),
        ("spec.names.categories[]", IsText(validation::dns1035_label)),
        ("spec.conversion.strategy", Required("")),
    ],
    check_update: |new, old, errors| {
        for field in ["spec.group", "spec.scope", "spec.names.kind", "spec.names.plural"] {
            if is_true(old, "Established") || !field.starts_with("spec.names.kind") {
                crate::meta::check_immutable(new, old, field, errors);
            }
        }
    },
    unconditional_update: false,
    ..Strategy::PLAIN
};

/// Adds the storage version to `status.storedVersions`.
fn store_version(crd: &mut Value) {
    let storage = crd.items("spec.versions").iter().find(|v| v.flag("storage"));
    let Some(name) = storage.map(|v| v.at("name").clone()) else { return };
    let mut stored = crd.items("status.storedVersions").to_vec();
    if !stored.contains(&name) {
        stored.push(name);
        crd.set("status.storedVersions", stored);
    }
}

fn check(crd: &Value, errors: &mut ErrorList) {
    let (spec, path) = (crd.at("spec"), Path::new("spec"));
    let expected = format!("{}.{}", spec.text("names.plural"), spec.text("group"));
    if crd.name() != expected {
        errors.push(FieldError::invalid(
            &Path::new("metadata").child("name"),
            crd.name(),
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
    validate_one_of(spec, "scope", &["Cluster", "Namespaced"], &path, errors);
    if spec.flag("preserveUnknownFields") {
        let detail = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in \
            spec.versions[*].schema instead";
        errors.push(FieldError::invalid(&path.child("preserveUnknownFields"), true, detail));
    }
    check_conversion(spec.at("conversion"), &path.child("conversion"), errors);
    check_names(spec.at("names"), &path.child("names"), errors);
    check_versions(spec, &path.child("versions"), errors);
    check_stored_versions(crd, errors);
    if let Some((_, "MissingAnnotation" | "InvalidAnnotation", message)) = api_approval(crd) {
        let path = Path::new("metadata").child("annotations").key(APPROVED);
        errors.push(match crd.at("metadata.annotations")[APPROVED].as_str() {
            None | Some("") => FieldError::required(&path, message),
            Some(value) => FieldError::invalid(&path, value, message),
        });
    }
}

/// Validates the conversion between versions. Field paths are those of upstream's internal form, which is flat.
fn check_conversion(conversion: &Value, path: &Path, errors: &mut ErrorList) {
    let client = path.child("webhookClientConfig");
    let review = path.child("conversionReviewVersions");
    let config = conversion.at("webhook.clientConfig");
    let versions = conversion.items("webhook.conversionReviewVersions");
    if conversion.blank("strategy") {
        return;
    }
    validate_one_of(conversion, "strategy", &["None", "Webhook"], path, errors);
    if conversion.text("strategy") != "Webhook" {
        let detail = "should not be set when strategy is not set to Webhook";
        if !config.is_null() {
            errors.push(FieldError::forbidden(&client, detail));
        }
        if !versions.is_empty() {
            errors.push(FieldError::forbidden(&review, detail));
        }
        return;
    }
    if config.is_null() {
        errors.push(FieldError::required(&client, "required when strategy is set to Webhook"));
    } else if config.has("url") == config.has("service") {
        let detail = "exactly one of url or service is required";
        errors.push(FieldError::required(&client, detail));
    } else {
        for field in ["name", "namespace"] {
            if config.has("service") && config.at("service").blank(field) {
                let path = client.child("service").child(field);
                errors.push(FieldError::required(&path, ""));
            }
        }
        check_client(config, &client, errors);
    }
    check_review_versions(versions, &review, errors);
}

fn check_review_versions(versions: &[Value], path: &Path, errors: &mut ErrorList) {
    if versions.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    let mut seen = HashSet::new();
    for (i, version) in versions.iter().enumerate() {
        let (text, item) = (version.as_str().unwrap_or_default(), path.index(i));
        if !seen.insert(version) {
            errors.push(FieldError::invalid(&item, text, "duplicate version"));
            continue;
        }
        for message in validation::dns1035_label(text) {
            errors.push(FieldError::invalid(&item, text, message));
        }
    }
    if !versions.iter().any(|v| matches!(v.as_str(), Some("v1" | "v1beta1"))) {
        let detail = "must include at least one of v1, v1beta1";
        errors.push(FieldError::invalid(path, versions.to_vec(), detail));
    }
}

const APPROVED: &str = "api-approved.kubernetes.io";
const APPROVAL: &str = "https://github.com/kubernetes/enhancements/pull/1111";

/// Returns the status, reason and message of the condition `KubernetesAPIApprovalPolicyConformant` for a kind of a
/// protected group; `None` for other groups.
pub fn api_approval(crd: &Value) -> Option<(bool, &'static str, String)> {
    let group = crd.at("spec").text("group");
    let ours = ["k8s.io", "kubernetes.io"];
    if !ours.iter().any(|o| group == *o || group.ends_with(&format!(".{o}"))) {
        return None;
    }
    let annotation = crd.at("metadata.annotations")[APPROVED].as_str().unwrap_or_default();
    let host = annotation.strip_prefix("https://").or_else(|| annotation.strip_prefix("http://"));
    Some(match (annotation, host) {
        ("", _) => {
            let message = format!(
                "protected groups must have approval annotation {APPROVED:?}, see {APPROVAL}"
            );
            (false, "MissingAnnotation", message)
        }
        (_, Some(rest)) if !rest.is_empty() && !rest.starts_with('/') => {
            (true, "ApprovedAnnotation", format!("approved in {annotation}"))
        }
        _ if annotation.starts_with("unapproved") => {
            (false, "UnapprovedAnnotation", format!("not approved: {annotation:?}"))
        }
        _ => {
            let message = format!(
                "protected groups must have approval annotation {APPROVED:?} with either a URL or a \
                    reason starting with \"unapproved\", see {APPROVAL}"
            );
            (false, "InvalidAnnotation", message)
        }
    })
}

/// Rejects the removal of a version that is in `status.storedVersions`, because objects may be stored in it.
fn check_stored_versions(crd: &Value, errors: &mut ErrorList) {
    let stored = crd.items("status.storedVersions");
    let (versions, path) =
        (crd.items("spec.versions"), Path::new("status").child("storedVersions"));
    let names: HashSet<&Value> = versions.iter().map(|v| v.at("name")).collect();
    for (i, version) in stored.iter().enumerate() {
        if !names.contains(version) {
            let version = version.as_str().unwrap_or_default();
            let detail = format!(
                "missing from spec.versions; {version} was previously a storage version, and must remain \
                    in spec.versions until a storage migration ensures no data remains persisted in \
                    {version} and removes {version} from status.storedVersions"
            );
            errors.push(FieldError::invalid(&path.index(i), version, detail));
        }
    }
    let storage = versions.iter().find(|v| v.flag("storage")).map(|v| v.at("name"));
    if let Some(name) = storage.filter(|name| !stored.is_empty() && !stored.contains(name)) {
        let detail = format!("must have the storage version {}", name.as_str().unwrap_or_default());
        errors.push(FieldError::invalid(&path, crd.at("status.storedVersions").clone(), detail));
    }
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

/// The parts of a version that upstream validates as the whole definition's if they are equal in all versions.
const PARTS: [&str; 4] = ["schema", "additionalPrinterColumns", "selectableFields", "subresources"];

/// The field paths at which upstream reports errors in the parts of versions.
#[derive(Debug)]
pub struct PartPaths {
    /// `true` for each of `PARTS` that is equal in all versions.
    common: [bool; PARTS.len()],
}

impl PartPaths {
    /// Compares the versions of a definition's `spec`, in one pass.
    pub fn new(spec: &Value) -> Self {
        let versions = spec.items("versions");
        let common = PARTS.map(|part| versions.iter().all(|v| v.at(part) == versions[0].at(part)));
        Self { common }
    }

    /// Returns the path of a part of a version. `None` if the part is common and was reported with the first version.
    fn path(&self, index: usize, part: &str) -> Option<Path> {
        let path = Path::new("spec");
        let common = PARTS.iter().zip(self.common).any(|(name, common)| common && *name == part);
        match (common, part) {
            (true, _) if index > 0 => None,
            (true, "schema") => Some(path.child("validation")),
            (true, part) => Some(path.child(part)),
            (false, part) => Some(path.child("versions").index(index).child(part)),
        }
    }

    /// Returns the path of a version's schema. `None` if the schema is common and was reported with the first version.
    pub fn schema(&self, version: usize) -> Option<Path> {
        Some(self.path(version, "schema")?.child("openAPIV3Schema"))
    }
}

const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 8] =
    ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];

/// Validates a version's columns, selectable fields, subresources and deprecation warning.
fn check_parts(
    version: &Value,
    index: usize,
    paths: &PartPaths,
    path: &Path,
    errors: &mut ErrorList,
) {
    if let Some(warning) = version.at("deprecationWarning").as_str() {
        let path = path.child("deprecationWarning");
        if !version.flag("deprecated") {
            let detail = "can only be set for deprecated versions";
            errors.push(FieldError::invalid(&path, warning, detail));
        }
        if warning.is_empty() {
            errors.push(FieldError::invalid(&path, warning, "must not be an empty string"));
        } else if warning.len() > 256 {
            let detail = "must be <= 256 characters long";
            errors.push(FieldError::invalid(&path, warning, detail));
        }
    }
    if let Some(path) = paths.path(index, "additionalPrinterColumns") {
        for (i, column) in version.items("additionalPrinterColumns").iter().enumerate() {
            check_column(column, &path.index(i), errors);
        }
    }
    if let Some(path) = paths.path(index, "selectableFields") {
        let mut seen = HashSet::new();
        for (i, field) in version.items("selectableFields").iter().enumerate() {
            let (path, json_path) = (path.index(i).child("jsonPath"), field.text("jsonPath"));
            let is_repeated = !seen.insert(json_path);
            if json_path.is_empty() {
                errors.push(FieldError::required(&path, ""));
            } else if is_repeated {
                errors.push(FieldError::duplicate(&path, json_path));
            } else if version.has("schema.openAPIV3Schema") {
                let wrong = match field_of(version.at("schema.openAPIV3Schema"), json_path) {
                    None => Some("is an invalid path: does not refer to a valid field"),
                    Some(field) if !SELECTABLE.contains(&field.text("type")) => Some(
                        "must point to a field of type string, boolean or integer. Enum string fields \
                            and strings with formats are allowed.",
                    ),
                    Some(_) => None,
                };
                errors.extend(wrong.map(|detail| FieldError::invalid(&path, json_path, detail)));
            }
        }
    }
    if let Some(path) = paths.path(index, "subresources")
        && version.has("subresources.scale")
    {
        let (scale, path) = (version.at("subresources.scale"), path.child("scale"));
        for (field, root) in [
            ("specReplicasPath", ".spec."),
            ("statusReplicasPath", ".status."),
            ("labelSelectorPath", "."),
        ] {
            check_scale_path(scale, field, root, &path.child(field), errors);
        }
    }
}

fn check_column(column: &Value, path: &Path, errors: &mut ErrorList) {
    if column.blank("name") {
        errors.push(FieldError::required(&path.child("name"), ""));
    }
    for (field, allowed) in [("type", &COLUMN_TYPES[..]), ("format", &COLUMN_FORMATS)] {
        let (text, path) = (column.text(field), path.child(field));
        let detail = format!("must be one of {}", allowed.join(","));
        if text.is_empty() {
            if field == "type" {
                errors.push(FieldError::required(&path, detail));
            }
        } else if !allowed.contains(&text) {
            errors.push(FieldError::invalid(&path, text, detail));
        }
    }
    let (json_path, path) = (column.text("jsonPath"), path.child("JSONPath"));
    if json_path.is_empty() {
        errors.push(FieldError::required(&path, ""));
    } else if !json_path.starts_with('.') {
        let detail = "must be a simple json path starting with .";
        errors.push(FieldError::invalid(&path, json_path, detail));
    }
}

fn check_scale_path(scale: &Value, field: &str, root: &str, path: &Path, errors: &mut ErrorList) {
    let json_path = scale.text(field);
    if json_path.is_empty() {
        if field != "labelSelectorPath" {
            errors.push(FieldError::required(path, ""));
        }
    } else if !json_path.starts_with('.') || json_path[1..].split('.').any(str::is_empty) {
        let detail = "must be a simple json path starting with .";
        errors.push(FieldError::invalid(path, json_path, detail));
    } else if !json_path.starts_with(root) {
        let detail = format!("should be a json path under {}", root.trim_end_matches('.'));
        errors.push(FieldError::invalid(path, json_path, detail));
    }
}

/// The types of selectable fields.
const SELECTABLE: [&str; 3] = ["string", "boolean", "integer"];

/// Returns the schema of the field at a simple path such as `.spec.name`.
fn field_of<'a>(schema: &'a Value, path: &str) -> Option<&'a Value> {
    let mut names = path.trim_start_matches('.').split('.');
    names.try_fold(schema, |here, name| here.at("properties").get(name))
}

fn check_versions(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let versions = spec.items("versions");
    let (mut names, paths) = (HashSet::new(), PartPaths::new(spec));
    for (i, version) in versions.iter().enumerate() {
        let path = path.index(i);
        for message in validation::dns1035_label(version.text("name")) {
            errors.push(FieldError::invalid(&path.child("name"), version.text("name"), message));
        }
        check_parts(version, i, &paths, &path, errors);
        if !names.insert(version.text("name")) {
            errors.push_with(|| {
                let detail = "must contain unique version names";
                FieldError::invalid(&path, spec.at("versions").clone(), detail)
            });
        }
        let schema = path.child("schema").child("openAPIV3Schema");
        if !version.has("schema.openAPIV3Schema") {
            errors.push(FieldError::required(&schema, "schemas are required"));
        } else if version.text("schema.openAPIV3Schema.type") != "object" {
            errors.push(FieldError::invalid(
                &paths.schema(i).unwrap_or(path.child("schema")).child("type"),
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
    storage_path: Some("apiregistration.k8s.io/apiservices"),
    stored_as_json: true,
    name: NameRule::Any,
    owned_finalizers: false,
    status: Some(|| json!({})),
    // Groups without a Service are served by this server, so they are available from the start.
    own_create: |service, now| {
        if !service.has("spec.service") {
            let local = json!([{
                "type": "Available", "status": "True", "reason": "Local", "lastTransitionTime": now,
                "message": "Local APIServices are always available",
            }]);
            service.set("status.conditions", local);
        }
    },
    check: |service, errors| {
        let (version, group) = (service.text("spec.version"), service.text("spec.group"));
        let expected = format!("{version}.{group}");
        if service.name() != expected {
            errors.push(FieldError::invalid(
                &Path::new("metadata").child("name"),
                service.name(),
                format!("must be `spec.version+\".\"+spec.group`: {expected:?}"),
            ));
        }
        let (spec, path) = (service.at("spec"), Path::new("spec"));
        if group.is_empty() && version != "v1" {
            let detail = "only v1 may have an empty group and it better be legacy kube";
            errors.push(FieldError::required(&path.child("group"), detail));
        }
        let (bundle, insecure) = (spec.text("caBundle"), spec.flag("insecureSkipTLSVerify"));
        let skip = path.child("insecureSkipTLSVerify");
        if spec.has("service") {
            if insecure && !bundle.is_empty() {
                let detail = "may not be true if caBundle is present";
                errors.push(FieldError::invalid(&skip, true, detail));
            }
            return;
        }
        if !bundle.is_empty() {
            let size = STANDARD.decode(bundle).map_or(0, |bytes| bytes.len());
            let detail = "local APIServices may not have a caBundle";
            let bytes = format!("{size} bytes");
            errors.push(FieldError::invalid(&path.child("caBundle"), bytes, detail));
        }
        if insecure {
            let detail = "local APIServices may not have insecureSkipTLSVerify";
            errors.push(FieldError::invalid(&skip, true, detail));
        }
    },
    fields: SERVICE_FIELDS,
    unconditional_update: false,
    ..Strategy::PLAIN
};

const SERVICE_FIELDS: &[FieldRule] = &[
    ("spec.group", TextIfAny(validation::dns1123_subdomain)),
    ("spec.version", IsText(validation::dns1035_label)),
    ("spec.groupPriorityMinimum", IsWithin(1, 20_000, "must be positive and less than 20000")),
    ("spec.versionPriority", IsWithin(1, 1000, "must be positive and less than 1000")),
    ("spec.service.name", Required("")),
    ("spec.service.namespace", Required("")),
    (
        "spec.service.port",
        Within(1, 65535, "port is not valid: must be between 1 and 65535, inclusive"),
    ),
];

#[cfg(test)]
mod tests;
