//! Converts kinds of dynamic resource allocation between resource.k8s.io/v1beta1 and v1, the storage version.
//!
//! v1beta1 has the fields of an exact request in the request itself, and those of a device in its member `basic`.

use api_meta::Tree as _;
use serde_json::{Map, Value, json};

use super::conversion::Conversion;

/// The members of an exact request, which v1beta1 has in the request.
const EXACT: [&str; 7] = [
    "deviceClassName",
    "selectors",
    "allocationMode",
    "count",
    "adminAccess",
    "tolerations",
    "capacity",
];

/// Returns the conversion of a kind's v1beta1; `None` if the versions do not differ.
pub(super) fn between(plural: &str) -> Option<Conversion> {
    Some(match plural {
        "resourceclaims" => conversion(
            |tree| each(tree, "spec.devices.requests", nest),
            |tree| each(tree, "spec.devices.requests", flatten),
        ),
        "resourceclaimtemplates" => conversion(
            |tree| each(tree, "spec.spec.devices.requests", nest),
            |tree| each(tree, "spec.spec.devices.requests", flatten),
        ),
        "resourceslices" => conversion(
            |tree| each(tree, "spec.devices", unwrap_basic),
            |tree| each(tree, "spec.devices", wrap_basic),
        ),
        _ => return None,
    })
}

fn conversion(to_storage: fn(&mut Value), from_storage: fn(&mut Value)) -> Conversion {
    Conversion { to_storage, from_storage, stored_rules: true }
}

/// Calls a function with each member of a list of objects.
fn each(tree: &mut Value, path: &str, change: fn(&mut Map<String, Value>)) {
    tree.items_mut(path).filter_map(Value::as_object_mut).for_each(change);
}

/// Reports whether a member has no value.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Number(number) => number.as_i64() == Some(0),
        Value::Bool(_) | Value::Object(_) => false,
    }
}

/// Moves the members of an exact request into `exactly`, with the defaults of v1.
fn nest(request: &mut Map<String, Value>) {
    let mut exactly: Map<String, Value> = EXACT
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), request.remove(*name)?)))
        .filter(|(_, value)| !is_empty(value))
        .collect();
    let has_alternatives = request.get("firstAvailable").is_some_and(|list| !is_empty(list));
    let alternatives = request.get_mut("firstAvailable").and_then(Value::as_array_mut);
    let alternatives = alternatives.into_iter().flatten();
    alternatives.filter_map(Value::as_object_mut).for_each(set_amount);
    if has_alternatives && exactly.is_empty() {
        return;
    }
    if !has_alternatives {
        set_amount(&mut exactly);
    }
    exactly.entry("deviceClassName").or_insert_with(|| json!(""));
    request.insert("exactly".to_owned(), exactly.into());
}

/// Sets the defaults of the amount of devices.
fn set_amount(request: &mut Map<String, Value>) {
    let mode = request.entry("allocationMode").or_insert_with(|| json!("ExactCount"));
    if mode == "ExactCount" {
        request.entry("count").or_insert_with(|| json!(1));
    }
}

fn flatten(request: &mut Map<String, Value>) {
    if let Some(Value::Object(exactly)) = request.remove("exactly") {
        request.extend(exactly);
    }
}

fn unwrap_basic(device: &mut Map<String, Value>) {
    if let Some(Value::Object(basic)) = device.remove("basic") {
        device.extend(basic);
    }
}

fn wrap_basic(device: &mut Map<String, Value>) {
    let name = device.remove("name");
    let basic = std::mem::take(device);
    device.extend(name.map(|name| ("name".to_owned(), name)));
    device.insert("basic".to_owned(), basic.into());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted(plural: &str, tree: &Value) -> (Value, Value) {
        let conversion = between(plural).unwrap();
        let mut stored = tree.clone();
        (conversion.to_storage)(&mut stored);
        let mut back = stored.clone();
        (conversion.from_storage)(&mut back);
        (stored, back)
    }

    #[test]
    fn moves_members_of_exact_requests_and_keeps_alternatives() {
        let alternatives = json!({"name": "any", "firstAvailable": [
            {"name": "a", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}]});
        let claim = json!({"spec": {"devices": {"requests": [
            {"name": "one", "deviceClassName": "gpu", "allocationMode": "All", "adminAccess": false},
            alternatives]}}});
        let (stored, back) = converted("resourceclaims", &claim);
        assert_eq!(
            stored.at("spec.devices.requests"),
            &json!([{"name": "one", "exactly":
            {"deviceClassName": "gpu", "allocationMode": "All", "adminAccess": false}}, alternatives])
        );
        assert_eq!(back, claim);
        let claim = json!({"spec": {"spec": {"devices": {"requests": [{"name": "one", "deviceClassName": "gpu"}]}}}});
        let (stored, _) = converted("resourceclaimtemplates", &claim);
        assert_eq!(
            stored.at("spec.spec.devices.requests"),
            &json!([{"name": "one", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}}])
        );
    }

    #[test]
    fn moves_members_of_basic_devices() {
        let basic = json!({"attributes": {"size": {"int": 1}}, "taints": []});
        let slice = json!({"spec": {"devices": [{"name": "a", "basic": basic}]}});
        let (stored, back) = converted("resourceslices", &slice);
        assert_eq!(
            stored.at("spec.devices"),
            &json!([{"name": "a", "attributes": {"size": {"int": 1}}, "taints": []}])
        );
        assert_eq!(back, slice);
    }

    #[test]
    fn leaves_malformed_objects_to_validation() {
        for tree in [
            json!(null),
            json!({"spec": 1}),
            json!({"spec": {"devices": {"requests": ["a", null]}}}),
        ] {
            for plural in ["resourceclaims", "resourceclaimtemplates", "resourceslices"] {
                assert_eq!(converted(plural, &tree), (tree.clone(), tree.clone()));
            }
        }
        assert!(between("deviceclasses").is_none());
    }
}
