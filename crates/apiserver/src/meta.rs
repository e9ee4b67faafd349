//! What of an object's metadata an update may not decide, whatever its kind.

use api_meta::Status;
use serde_json::{Map, Value};

use crate::definition::Definition;

/// Takes over what an update may not decide: identity, birth, deletion and generation. An update may leave
/// them out; naming another uid is a conflict.
pub(crate) fn keep(
    definition: &Definition,
    old: &Value,
    new: &mut Value,
) -> Result<(), Box<Status>> {
    let (Some(old), Some(new)) = (old["metadata"].as_object(), new["metadata"].as_object_mut())
    else {
        return Ok(());
    };
    if let (Some(wanted), Some(uid)) = (text(new, "uid"), text(old, "uid"))
        && wanted != uid
    {
        let name = text(old, "name").unwrap_or_default();
        let cause = format!(
            "Precondition failed: UID in precondition: {wanted}, UID in object meta: {uid}"
        );
        return Err(Box::new(Status::conflict(&definition.group_resource(), name, cause)));
    }
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

fn text<'a>(map: &'a Map<String, Value>, field: &str) -> Option<&'a str> {
    map.get(field).and_then(Value::as_str).filter(|t| !t.is_empty())
}
