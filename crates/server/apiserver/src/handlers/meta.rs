//! Metadata fields that the server sets, for all kinds.

use api_meta::{Status, Tree as _};
use serde_json::{Map, Value, json};

use super::call::Call;
use crate::{clock, registry::Definition};

/// Rejects another UID in an update by PUT, where it is a precondition.
pub(crate) fn check_uid(
    definition: &Definition,
    old: &Value,
    new: &Value,
) -> Result<(), Box<Status>> {
    if let (Some(wanted), Some(uid)) = (new.opt_text("metadata.uid"), old.opt_text("metadata.uid"))
        && wanted != uid
    {
        let name = old.name();
        let cause = format!(
            "Precondition failed: UID in precondition: {wanted}, UID in object meta: {uid}"
        );
        return Err(Box::new(Status::conflict(&definition.group_resource(), name, cause)));
    }
    Ok(())
}

/// Restores fields that an update cannot change: creation, deletion and generation. The identity may be omitted;
/// validation rejects another one, and a deletion that the server has not begun.
pub(crate) fn keep_immutable_fields(old: &Value, new: &mut Value) {
    let (Some(old), Some(new)) =
        (old["metadata"].as_object(), new.at_mut("metadata").and_then(Value::as_object_mut))
    else {
        return;
    };
    if new.get("uid").and_then(Value::as_str).is_none_or(str::is_empty)
        && let Some(uid) = old.get("uid")
    {
        new.insert("uid".to_owned(), uid.clone());
    }
    if let Some(begun) = old.get("deletionTimestamp") {
        new.insert("deletionTimestamp".to_owned(), begun.clone());
    }
    for field in [
        "creationTimestamp",
        "generation",
        "deletionGracePeriodSeconds",
        "generateName",
        "namespace",
        "name",
    ] {
        match old.get(field) {
            Some(value) if new.get(field) == Some(value) => {}
            Some(value) => drop(new.insert(field.to_owned(), value.clone())),
            None => drop(new.remove(field)),
        }
    }
    new.remove("selfLink");
    if !new.contains_key("managedFields")
        && let Some(managed) = old.get("managedFields")
    {
        // Clients that drop managedFields do not intend to reset them. An empty list resets them.
        new.insert("managedFields".to_owned(), managed.clone());
    }
}

/// Removes the single empty entry that stands for no owners.
pub(crate) fn forget_owners(new: &mut Value) {
    if let Some(meta) = new.at_mut(&["metadata"]).and_then(Value::as_object_mut)
        && meta.get("managedFields").is_some_and(|owners| *owners == json!([{}]))
    {
        meta.remove("managedFields");
    }
}

/// Returns `true` if a write would change only the timestamps of `managedFields`.
pub(crate) fn changes_only_timestamps(new: &Value, old: &Value) -> bool {
    let (Some(new), Some(old)) = (new.as_object(), old.as_object()) else { return new == old };
    if !equal_except(new, old, &["metadata", "kind", "apiVersion"]) {
        return false;
    }
    let none = Map::new();
    let [new, old] =
        [new, old].map(|map| map.get("metadata").and_then(Value::as_object).unwrap_or(&none));
    equal_except(new, old, &["resourceVersion", "managedFields"])
        && equal_owners(new.get("managedFields"), old.get("managedFields"))
}

/// Reports whether two maps have the same members, except those with these names.
fn equal_except(one: &Map<String, Value>, other: &Map<String, Value>, names: &[&str]) -> bool {
    let within = |a: &Map<String, Value>, b: &Map<String, Value>| {
        a.iter().all(|(name, value)| names.contains(&name.as_str()) || b.get(name) == Some(value))
    };
    within(one, other) && within(other, one)
}

/// Reports whether two lists of `managedFields` differ at most in their times.
fn equal_owners(one: Option<&Value>, other: Option<&Value>) -> bool {
    let (Some(Value::Array(one)), Some(Value::Array(other))) = (one, other) else {
        return one == other;
    };
    let equal = |(a, b): (&Value, &Value)| match (a.as_object(), b.as_object()) {
        (Some(a), Some(b)) => equal_except(a, b, &["time"]),
        _ => a == b,
    };
    one.len() == other.len() && one.iter().zip(other).all(equal)
}

/// Sets the namespace from the URL, and rejects a different one in the object. The namespace of a cluster-scoped object
/// is dropped, because charts add it to every object.
pub(crate) fn check_namespace(
    definition: &Definition,
    tree: &mut Value,
    namespace: &str,
) -> Result<(), Box<Status>> {
    let Some(meta) = tree
        .as_object_mut()
        .map(|t| t.entry("metadata").or_insert_with(|| json!({})))
        .and_then(Value::as_object_mut)
    else {
        return Err(Box::new(Status::bad_request("the object has no metadata")));
    };
    let own = meta.get("namespace").and_then(Value::as_str).unwrap_or_default();
    if definition.namespaced && !own.is_empty() && own != namespace {
        return Err(Box::new(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        )));
    }
    if definition.namespaced {
        meta.insert("namespace".to_owned(), json!(namespace));
    } else {
        meta.remove("namespace");
    }
    Ok(())
}

/// Returns `true` if the server must generate the object's name.
pub(crate) fn wants_name(tree: &Value) -> bool {
    tree.name().is_empty() && !tree.text("metadata.generateName").is_empty()
}

/// Generates the name from `generateName`. Returns `true` if it did.
pub(crate) fn generate_name(tree: &mut Value) -> bool {
    let (name, prefix) = (tree.name().to_owned(), tree.text("metadata.generateName").to_owned());
    // Validation rejects an object without both, together with its other errors.
    if !name.is_empty() || prefix.is_empty() {
        return false;
    }
    let name = api_meta::names::generate(&prefix, |below| rt::random_in(0..below));
    tree.put(&["metadata", "name"], json!(name));
    true
}

/// Removes fields that only the server may set from a new object.
pub(crate) fn clear_server_fields(tree: &mut Value) {
    let Some(meta) = tree.at_mut(&["metadata"]).and_then(Value::as_object_mut) else { return };
    for field in
        ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"]
    {
        meta.remove(field);
    }
}

/// Sets the UID and creation time of a new object.
pub(crate) fn begin_life(tree: &mut Value) {
    clear_server_fields(tree);
    let now = clock::now().to_string();
    if let Some(meta) = tree.at_mut(&["metadata"]).and_then(Value::as_object_mut) {
        meta.insert("uid".to_owned(), json!(rt::id()));
        meta.insert("creationTimestamp".to_owned(), json!(now));
    }
}

/// Sets the requesting user in a CertificateSigningRequest, regardless of what the client sent.
pub(crate) fn sign(call: &Call, tree: &mut Value) {
    if !call.resource.definition.strategy.signed {
        return;
    }
    let user = json!(*call.user);
    let Some(spec) = tree.at_mut(&["spec"]).and_then(Value::as_object_mut) else { return };
    for field in ["username", "uid", "groups", "extra"] {
        match user.get(field).filter(|v| !v.is_null() && **v != json!("")) {
            Some(value) => drop(spec.insert(field.to_owned(), value.clone())),
            None => drop(spec.remove(field)),
        }
    }
}

/// Returns `true` if an updated object can be removed: it is being deleted, and has no finalizers and no grace period
/// left.
pub(crate) fn finished(definition: &Definition, tree: &Value) -> bool {
    let meta = &tree["metadata"];
    let finalizers = meta["finalizers"].as_array().map_or(0, Vec::len);
    let grace = meta.int("deletionGracePeriodSeconds");
    let contents = has_contents(definition, tree);
    !meta["deletionTimestamp"].is_null() && finalizers == 0 && grace == 0 && !contents
}

/// Returns `true` if the object has finalizers in its `spec`, like a Namespace with contents.
pub(crate) fn has_contents(definition: &Definition, tree: &Value) -> bool {
    let finalizers = tree["spec"]["finalizers"].as_array();
    definition.strategy.scope && finalizers.is_some_and(|f| !f.is_empty())
}
