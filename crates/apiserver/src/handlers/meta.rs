//! What the server decides of an object's metadata, whatever its kind.

use std::collections::BTreeMap;

use api_meta::{Status, Tree as _};
use serde_json::{Map, Value, json};

use super::call::Call;
use crate::{clock, registry::Definition};

/// Takes over what an update may not decide: identity, birth, deletion and generation. An update may leave
/// them out; naming another uid is a conflict.
pub(crate) fn keep(
    definition: &Definition,
    old: &Value,
    new: &mut Value,
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
    let (Some(old), Some(new)) =
        (old["metadata"].as_object(), new.at_mut("metadata").and_then(Value::as_object_mut))
    else {
        return Ok(());
    };
    for field in [
        "uid",
        "creationTimestamp",
        "generation",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generateName",
        "namespace",
        "name",
    ] {
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

/// Takes away the one empty entry that stands for no owners.
pub(crate) fn forget_owners(new: &mut Value) {
    if let Some(meta) = new.at_mut(&["metadata"]).and_then(Value::as_object_mut)
        && meta.get("managedFields").is_some_and(|owners| *owners == json!([{}]))
    {
        meta.remove("managedFields");
    }
}

/// Whether a write would change nothing but time stamps of `managedFields`.
pub(crate) fn same(new: &Value, old: &Value) -> bool {
    let (Some(new), Some(old)) = (new.as_object(), old.as_object()) else { return new == old };
    let rest = |map: &Map<String, Value>, other: &Map<String, Value>| {
        map.iter().all(|(k, v)| {
            matches!(k.as_str(), "metadata" | "kind" | "apiVersion") || other.get(k) == Some(v)
        })
    };
    if !rest(new, old) || !rest(old, new) {
        return false;
    }
    let meta = |map: &Map<String, Value>| -> BTreeMap<String, Value> {
        let entries = map.get("metadata").and_then(Value::as_object).into_iter().flatten();
        entries
            .filter(|(k, _)| k.as_str() != "resourceVersion")
            .map(|(k, v)| {
                (k.clone(), if k == "managedFields" { without_times(v) } else { v.clone() })
            })
            .collect()
    };
    meta(new) == meta(old)
}

fn without_times(managed: &Value) -> Value {
    let mut managed = managed.clone();
    for entry in managed.as_array_mut().into_iter().flatten() {
        if let Some(entry) = entry.as_object_mut() {
            entry.remove("time");
        }
    }
    managed
}

/// The object's namespace is the URL's; one that names another is refused. An object without a namespace loses the one
/// that it names: charts put their release's into everything.
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

/// Whether the server is to make the object's name.
pub(crate) fn wants_name(tree: &Value) -> bool {
    tree.name().is_empty() && !tree.text("metadata.generateName").is_empty()
}

/// Fills in the name that `generateName` asks for. Returns whether it did.
pub(crate) fn generate_name(tree: &mut Value) -> bool {
    let (name, prefix) = (tree.name().to_owned(), tree.text("metadata.generateName").to_owned());
    // Validation refuses an object with neither, along with everything else that is wrong with it.
    if !name.is_empty() || prefix.is_empty() {
        return false;
    }
    let name = api_meta::names::generate(&prefix, |below| rt::random_in(0..below));
    tree.put(&["metadata", "name"], json!(name));
    true
}

/// Drops what of a new object's metadata only the server decides.
pub(crate) fn wipe(tree: &mut Value) {
    let Some(meta) = tree.at_mut(&["metadata"]).and_then(Value::as_object_mut) else { return };
    for field in
        ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"]
    {
        meta.remove(field);
    }
}

/// Gives a new object its identity.
pub(crate) fn begin_life(tree: &mut Value) {
    wipe(tree);
    let now = clock::now().to_string();
    if let Some(meta) = tree.at_mut(&["metadata"]).and_then(Value::as_object_mut) {
        meta.insert("uid".to_owned(), json!(rt::id()));
        meta.insert("creationTimestamp".to_owned(), json!(now));
    }
}

/// A signing request says who made it, whatever its maker says.
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

/// Whether an updated object has nothing left to wait for: it is being deleted, has no finalizers, and its
/// grace is over.
pub(crate) fn finished(definition: &Definition, tree: &Value) -> bool {
    let meta = &tree["metadata"];
    let finalizers = meta["finalizers"].as_array().map_or(0, Vec::len);
    let grace = meta.int("deletionGracePeriodSeconds");
    let contents = has_contents(definition, tree);
    !meta["deletionTimestamp"].is_null() && finalizers == 0 && grace == 0 && !contents
}

/// Whether finalizers in the `spec` hold an object, as they do a namespace with its contents.
pub(crate) fn has_contents(definition: &Definition, tree: &Value) -> bool {
    let finalizers = tree["spec"]["finalizers"].as_array();
    definition.strategy.scope && finalizers.is_some_and(|f| !f.is_empty())
}
