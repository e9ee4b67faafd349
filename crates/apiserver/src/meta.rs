//! What holds for the metadata of every kind.

use api_meta::{ErrorList, FieldError, Path, Status, validation};
use serde_json::{Map, Value};

use crate::definition::Definition;

/// Upstream's limit on all annotations together.
const ANNOTATIONS_LIMIT: usize = 256 << 10;

/// Takes over what an update may not decide: identity, birth, deletion and generation. An update may leave
/// them out; naming another uid is a conflict.
pub(crate) fn keep(definition: &Definition, old: &Value, new: &mut Value) -> Result<(), Box<Status>> {
    let (Some(old), Some(new)) = (old["metadata"].as_object(), new["metadata"].as_object_mut()) else { return Ok(()) };
    if let (Some(wanted), Some(uid)) = (text(new, "uid"), text(old, "uid"))
        && wanted != uid
    {
        let name = text(old, "name").unwrap_or_default();
        let cause = format!("Precondition failed: UID in precondition: {wanted}, UID in object meta: {uid}");
        return Err(Box::new(Status::conflict(&definition.group_resource(), name, cause)));
    }
    for field in ["uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds", "generateName", "namespace", "name"] {
        match old.get(field) {
            Some(value) => drop(new.insert(field.to_owned(), value.clone())),
            None => drop(new.remove(field)),
        }
    }
    new.remove("selfLink");
    if !new.contains_key("managedFields")
        && let Some(managed) = old.get("managedFields")
    {
        // Clients that drop managedFields do not mean to reset them: an empty list does that.
        new.insert("managedFields".to_owned(), managed.clone());
    }
    Ok(())
}

fn text<'a>(map: &'a Map<String, Value>, field: &str) -> Option<&'a str> {
    map.get(field).and_then(Value::as_str).filter(|t| !t.is_empty())
}

pub(crate) fn validate_create(definition: &Definition, tree: &Value, errors: &mut ErrorList) {
    let path = Path::new("metadata");
    let Some(meta) = tree["metadata"].as_object() else {
        errors.push(FieldError::required(&path, ""));
        return;
    };
    if let Some(name) = text(meta, "name") {
        for problem in definition.strategy.check_name(name) {
            errors.push(FieldError::invalid(&path.child("name"), name, problem));
        }
    }
    validate_common(meta, &path, errors);
}

pub(crate) fn validate_update(_definition: &Definition, new: &Value, old: &Value, errors: &mut ErrorList) {
    let path = Path::new("metadata");
    let (Some(meta), Some(before)) = (new["metadata"].as_object(), old["metadata"].as_object()) else {
        errors.push(FieldError::required(&path, ""));
        return;
    };
    validate_common(meta, &path, errors);
    if before.contains_key("deletionTimestamp") {
        let had = names(before.get("finalizers"));
        for added in names(meta.get("finalizers")).into_iter().filter(|f| !had.contains(f)) {
            let shown: Vec<String> = vec![format!("\"{added}\"")];
            let detail = format!("no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}", shown.join(", "));
            errors.push(FieldError::forbidden(&path.child("finalizers"), detail));
        }
    }
}

fn names(list: Option<&Value>) -> Vec<&str> {
    list.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
}

fn validate_common(meta: &Map<String, Value>, path: &Path, errors: &mut ErrorList) {
    for (key, value) in meta.get("labels").and_then(Value::as_object).into_iter().flatten() {
        for problem in validation::qualified_name(key) {
            errors.push(FieldError::invalid(&path.child("labels"), key.as_str(), problem));
        }
        for problem in validation::label_value(value.as_str().unwrap_or_default()) {
            errors.push(FieldError::invalid(&path.child("labels"), value.clone(), problem));
        }
    }
    let mut total = 0;
    for (key, value) in meta.get("annotations").and_then(Value::as_object).into_iter().flatten() {
        for problem in validation::qualified_name(&key.to_lowercase()) {
            errors.push(FieldError::invalid(&path.child("annotations"), key.as_str(), problem));
        }
        total += key.len() + value.as_str().map_or(0, str::len);
    }
    if total > ANNOTATIONS_LIMIT {
        errors.push(FieldError::too_long(&path.child("annotations"), ANNOTATIONS_LIMIT));
    }
    for (i, finalizer) in names(meta.get("finalizers")).into_iter().enumerate() {
        for problem in validation::qualified_name(finalizer) {
            errors.push(FieldError::invalid(&path.child("finalizers").index(i), finalizer, problem));
        }
    }
    validate_owners(meta.get("ownerReferences"), &path.child("ownerReferences"), errors);
}

fn validate_owners(owners: Option<&Value>, path: &Path, errors: &mut ErrorList) {
    let mut controllers = Vec::new();
    for (i, owner) in owners.and_then(Value::as_array).into_iter().flatten().enumerate() {
        let at = path.index(i);
        for field in ["apiVersion", "kind", "name", "uid"] {
            if owner[field].as_str().unwrap_or_default().is_empty() {
                let detail = match field {
                    "apiVersion" => "version must not be empty",
                    _ => "must not be empty",
                };
                errors.push(FieldError::invalid(&at.child(field), "", detail));
            }
        }
        if owner["controller"] == Value::Bool(true) {
            controllers.push(owner["kind"].as_str().unwrap_or_default());
        }
    }
    if controllers.len() > 1 {
        let detail = format!(
            "Only one reference can have Controller set to true. Found \"true\" in references for {} and {}",
            controllers[0], controllers[1]
        );
        errors.push(FieldError::invalid(path, owners.cloned().unwrap_or_default(), detail));
    }
}
