//! Validation of object metadata, which is the same for every kind.

use std::collections::{BTreeMap, HashSet};

use api_meta::{ErrorList, FieldError, Path, Tree as _, validation};
use serde_json::{Map, Value};

/// The format of a kind's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    /// A lowercase RFC 1123 subdomain: most kinds.
    Subdomain,
    /// A lowercase RFC 1123 label.
    Label,
    /// Any name that is a valid path segment (RBAC kinds).
    PathSegment,
    /// A key of a ConfigMap, as for LeaseCandidates.
    ConfigMapKey,
    /// No rule, or one that the kind checks itself.
    Any,
}

impl NameRule {
    /// Validates a name and returns upstream's messages.
    pub fn errors(self, name: &str) -> Vec<String> {
        match self {
            Self::Subdomain => validation::dns1123_subdomain(name),
            Self::Label => validation::dns1123_label(name),
            Self::PathSegment => validation::path_segment_name(name),
            Self::ConfigMapKey => validation::config_map_key(name),
            Self::Any => Vec::new(),
        }
    }
}

/// Validates an object's metadata.
pub(crate) fn check(object: &Value, rule: NameRule, namespaced: bool) -> ErrorList {
    let path = Path::new("metadata");
    let meta = object.at("metadata");
    let mut errors = ErrorList::new();
    let prefix = meta.text("generateName");
    if !prefix.is_empty() {
        let masked = validation::mask_trailing_dash(prefix);
        for message in rule.errors(&masked) {
            errors.push(FieldError::invalid(&path.child("generateName"), prefix, message));
        }
    }
    let name = meta.text("name");
    if name.is_empty() {
        errors.push(FieldError::required(&path.child("name"), "name or generateName is required"));
    } else {
        for message in rule.errors(name) {
            errors.push(FieldError::invalid(&path.child("name"), name, message));
        }
    }
    check_namespace(meta, namespaced, &path, &mut errors);
    if meta.opt_int("generation").is_some_and(|g| g < 0) {
        errors.push(at_least_zero(&path.child("generation"), meta.int("generation")));
    }
    errors.append(&mut validation::labels(&strings(meta.at("labels")), &path.child("labels")));
    errors.append(&mut validation::annotations(
        &strings(meta.at("annotations")),
        &path.child("annotations"),
    ));
    check_owners(meta, &path.child("ownerReferences"), &mut errors);
    check_finalizers(meta, &path.child("finalizers"), &mut errors);
    errors
}

fn check_namespace(meta: &Value, namespaced: bool, path: &Path, errors: &mut ErrorList) {
    let (path, namespace) = (path.child("namespace"), meta.text("namespace"));
    if namespaced {
        if namespace.is_empty() {
            errors.push(FieldError::required(&path, ""));
        }
        for message in validation::dns1123_label(namespace) {
            if !namespace.is_empty() {
                errors.push(FieldError::invalid(&path, namespace, message));
            }
        }
    } else if !namespace.is_empty() {
        errors.push(FieldError::forbidden(&path, "not allowed on this type"));
    }
}

fn check_owners(meta: &Value, path: &Path, errors: &mut ErrorList) {
    let mut controller: Option<String> = None;
    for owner in meta.items("ownerReferences") {
        // Upstream reports the path of the list, not of the item.
        for field in ["apiVersion", "kind", "name", "uid"] {
            if owner.text(field).is_empty() {
                let detail = match field {
                    "apiVersion" => "version must not be empty",
                    _ => "must not be empty",
                };
                errors.push(FieldError::invalid(&path.child(field), "", detail));
            }
        }
        if owner.text("kind") == "Event" && owner.text("apiVersion") == "v1" {
            let detail = "/v1, Kind=Event is disallowed from being an owner";
            errors.push(FieldError::invalid(path, owner.clone(), detail));
        }
        if owner.text("apiVersion").matches('/').count() > 1 {
            let (path, found) = (path.child("apiVersion"), owner.text("apiVersion"));
            errors.push(FieldError::invalid(&path, found, "version must not be empty"));
        }
        if owner.flag("controller") {
            let name = format!("{}/{}", owner.text("kind"), owner.text("name"));
            if let Some(first) = &controller {
                errors.push_with(|| {
                    FieldError::invalid(
                        path,
                        meta.at("ownerReferences").clone(),
                        format!(
                            "Only one reference can have Controller set to true. Found \"true\" in \
                            references for {first} and {name}"
                        ),
                    )
                });
            }
            controller.get_or_insert(name);
        }
    }
}

fn check_finalizers(meta: &Value, path: &Path, errors: &mut ErrorList) {
    let finalizers: Vec<&str> = meta.texts("finalizers").collect();
    for finalizer in &finalizers {
        for message in validation::qualified_name(finalizer) {
            errors.push(FieldError::invalid(path, *finalizer, message));
        }
    }
    let both = ["foregroundDeletion", "orphan"].iter().all(|f| finalizers.contains(f));
    if both {
        errors.push(FieldError::invalid(
            path,
            meta.at("finalizers").clone(),
            "finalizer orphan and foregroundDeletion cannot be both set",
        ));
    }
}

/// Reports finalizers at `path` that are neither standard nor domain-qualified.
pub(crate) fn check_finalizer_owners(object: &Value, path: &Path, errors: &mut ErrorList) {
    for (i, finalizer) in object.items("metadata.finalizers").iter().enumerate() {
        check_finalizer_owner(finalizer.as_str().unwrap_or_default(), &path.index(i), errors);
    }
}

pub(crate) const STANDARD_FINALIZERS: [&str; 3] = ["foregroundDeletion", "kubernetes", "orphan"];

/// Reports a finalizer that is neither standard nor domain-qualified.
pub(crate) fn check_finalizer_owner(name: &str, path: &Path, errors: &mut ErrorList) {
    if !name.contains('/') && !STANDARD_FINALIZERS.contains(&name) {
        let detail = "name is neither a standard finalizer name nor is it fully qualified";
        errors.push(FieldError::invalid(path, name, detail));
    }
}

/// Validates a change of an object's metadata.
///
/// The name is not validated again: it is immutable, and may be older than its rule.
pub(crate) fn check_update(new: &Value, old: &Value, namespaced: bool) -> ErrorList {
    let path = Path::new("metadata");
    let mut errors = check(new, NameRule::Any, namespaced);
    for field in ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp"] {
        let full = format!("metadata.{field}");
        if new.at(&full) != old.at(&full) {
            errors.push(immutable(&path.child(field), new.at(&full)));
        }
    }
    if old.has("metadata.deletionTimestamp") {
        let known: HashSet<&Value> = old.items("metadata.finalizers").iter().collect();
        let added: Vec<&str> = new
            .items("metadata.finalizers")
            .iter()
            .filter(|f| !known.contains(f))
            .filter_map(Value::as_str)
            .collect();
        if !added.is_empty() {
            let list: Vec<String> = added.iter().map(|f| api_meta::go_quote(f)).collect();
            errors.push(FieldError::forbidden(
                &path.child("finalizers"),
                format!(
                    "no new finalizers can be added if the object is being deleted, found new \
                    finalizers []string{{{}}}",
                    list.join(", ")
                ),
            ));
        }
    }
    if new.int("metadata.generation") < old.int("metadata.generation") {
        errors.push(FieldError::invalid(
            &path.child("generation"),
            new.int("metadata.generation"),
            "must not be decremented",
        ));
    }
    errors
}

pub(crate) fn immutable(path: &Path, value: &Value) -> FieldError {
    FieldError::invalid(path, value.clone(), "field is immutable")
}

/// Reports a change of an immutable field.
pub(crate) fn check_immutable(new: &Value, old: &Value, path: &str, errors: &mut ErrorList) {
    if !same(new.at(path), old.at(path)) {
        errors.push(immutable(&Path::new(path), new.at(path)));
    }
}

/// Reports whether two values are equal in Go, where an empty list equals an absent one. An empty object differs from
/// an absent one, because it may be a struct that the client set.
pub(crate) fn same(new: &Value, old: &Value) -> bool {
    match (new, old) {
        (Value::Object(new), Value::Object(old)) => same_members(new, old, &|_| false),
        (Value::Array(new), Value::Array(old)) => {
            new.len() == old.len() && new.iter().zip(old).all(|(new, old)| same(new, old))
        }
        (Value::Array(items), Value::Null) | (Value::Null, Value::Array(items)) => items.is_empty(),
        _ => new == old,
    }
}

/// Reports whether the members of two objects are equal by [`same`], except those for which `apart` is true.
pub(crate) fn same_members(
    new: &Map<String, Value>,
    old: &Map<String, Value>,
    apart: &dyn Fn(&str) -> bool,
) -> bool {
    let alike = |name: &String, value: &Value, other: &Map<String, Value>| {
        apart(name) || same(value, other.get(name).unwrap_or(&Value::Null))
    };
    new.iter().all(|(name, value)| alike(name, value, old))
        && old.iter().all(|(name, value)| new.contains_key(name) || alike(name, value, new))
}

pub(crate) fn at_least_zero(path: &Path, value: i64) -> FieldError {
    FieldError::invalid(path, value, "must be greater than or equal to 0")
}

/// Reports a negative number.
pub(crate) fn check_not_negative(object: &Value, field: &str, path: &Path, errors: &mut ErrorList) {
    if let Some(value) = object.opt_int(field)
        && value < 0
    {
        errors.push(at_least_zero(&path.child(field), value));
    }
}

pub(crate) fn strings(map: &Value) -> BTreeMap<String, String> {
    map.as_object()
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_list_equals_absent_list() {
        let given = serde_json::json!({"a": {"list": [], "text": "t"}, "nil": null});
        assert!(same(&given, &serde_json::json!({"a": {"text": "t"}, "more": []})));
        for other in [
            serde_json::json!({"a": {"list": ["x"], "text": "t"}}),
            serde_json::json!({"a": {"text": ""}}),
            serde_json::json!({"a": {"text": "t", "struct": {}}}),
            serde_json::json!({}),
        ] {
            assert!(!same(&given, &other) && !same(&other, &given), "{other}");
        }
    }
}
