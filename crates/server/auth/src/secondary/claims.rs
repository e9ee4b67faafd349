//! Checks on ResourceClaims: admin access to devices, and permissions for parts of a claim's status.

use std::collections::{BTreeMap, BTreeSet};

use api_meta::{
    Attributes, ErrorList, FieldError, GroupResource, Path, Status, Tree as _, UserInfo, validation,
};
use serde_json::Value;

use super::request::AuthorizedRequest;
use crate::{authn::service_account::NODE_NAME, forbidden};

const ADMIN_NAMESPACE: &str = "resource.kubernetes.io/admin-access";

/// Reports whether two fields are equal. An absent field equals an empty one.
fn same(a: &Value, b: &Value) -> bool {
    let empty = |v: &Value| match v {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    a == b || empty(a) && empty(b)
}

/// Validates that a new claim or template with `adminAccess` is in an admin namespace. The spec of an existing one is
/// immutable.
pub(super) fn validate_admin_access(authorized: &AuthorizedRequest<'_>, errors: &mut ErrorList) {
    let template = authorized.request.resource == "resourceclaimtemplates";
    let requests = if template { "spec.spec.devices.requests" } else { "spec.devices.requests" };
    // v1beta1 has the fields of `exactly` in the request.
    let wants =
        |request: &Value| request.flag("exactly.adminAccess") || request.flag("adminAccess");
    if let (None, Some(at)) =
        (authorized.old, authorized.new.items(requests).iter().position(wants))
    {
        let path = Path::new("spec").child("devices").child("requests").index(at);
        validate_admin_namespace(authorized, &path.child("adminAccess"), errors);
    }
}

fn validate_admin_namespace(
    authorized: &AuthorizedRequest<'_>,
    path: &Path,
    errors: &mut ErrorList,
) {
    let name = authorized.request.namespace;
    let namespace = authorized.objects.get(&GroupResource::NAMESPACES, "", name);
    if namespace.is_some_and(|n| n.text(&["metadata", "labels", ADMIN_NAMESPACE]) == "true") {
        return;
    }
    let detail = format!(
        "admin access to devices requires the `{ADMIN_NAMESPACE}: true` label on the containing namespace"
    );
    errors.prepend([FieldError::forbidden(path, detail)].into());
}

/// Validates a status update: `adminAccess` as in the spec, the permission to bind for the allocation, and a permission
/// per driver for its devices.
pub(super) fn validate_status(authorized: &AuthorizedRequest<'_>, errors: &mut ErrorList) {
    let mut found = ErrorList::new();
    let old = authorized.old.map_or(&Value::Null, |old| &old["status"]);
    let new = &authorized.new["status"];
    let granted = |status: &Value| {
        status.items("allocation.devices.results").iter().position(|r| r["adminAccess"] == true)
    };
    let path = Path::new("status");
    if let (None, Some(at)) = (granted(old), granted(new)) {
        let results = path.child("allocation").child("devices").child("results").index(at);
        validate_admin_namespace(authorized, &results.child("adminAccess"), &mut found);
    }
    let verb = authorized.request.verb;
    let unbound = same(&old["allocation"], &new["allocation"])
        && same(&old["reservedFor"], &new["reservedFor"]);
    let binding = authorized.request.with_subresource("binding").in_namespace("").named("");
    if !unbound && let Err(rejection) = check(authorized, &binding) {
        let detail = format!(
            "changing status.allocation or status.reservedFor requires \
            resource=\"resourceclaims/binding\", verb=\"{verb}\" permission: {}",
            rejection.message
        );
        found.push(FieldError::forbidden(&path.child("allocation"), detail));
    }
    // Removing the devices of a deallocated claim needs no driver permission.
    if !new["allocation"].is_null() || !new.items("devices").is_empty() {
        validate_devices(authorized, old, new, &mut found);
    }
    errors.prepend(found);
}

fn validate_devices(
    authorized: &AuthorizedRequest<'_>,
    old: &Value,
    new: &Value,
    errors: &mut ErrorList,
) {
    let request = authorized.request;
    let mut verbs = vec![format!("arbitrary-node:{}", request.verb)];
    if is_on_node(request.user, allocated_node(new)) {
        verbs.insert(0, format!("associated-node:{}", request.verb));
    }
    for driver in changed_drivers(old, new) {
        let ask = |verb: &String| {
            let question = Attributes { verb, ..*request };
            check(authorized, &question.with_subresource("driver").named(driver))
        };
        let decisions: Vec<_> = verbs.iter().map(ask).collect();
        if decisions.iter().any(Result::is_ok) {
            continue;
        }
        let rejection = decisions.into_iter().find_map(Result::err);
        let cause = rejection.map(|rejection| rejection.message).unwrap_or_default();
        let detail = format!(
            "changing status.devices requires resource=\"resourceclaims/driver\", verb=\"[{}]\" permission: {cause}",
            verbs.join(" ")
        );
        errors.push(FieldError::forbidden(&Path::new("status").child("devices"), detail));
    }
}

/// Returns the rejection if the authorizers do not allow the request.
fn check(authorized: &AuthorizedRequest<'_>, question: &Attributes<'_>) -> Result<(), Status> {
    let decision = authorized.authorizer.authorize(question);
    if decision.is_allowed() {
        return Ok(());
    }
    Err(forbidden(question, decision.reason()))
}

/// Returns the drivers of devices whose entries are new, changed or removed.
fn changed_drivers<'v>(old: &'v Value, new: &'v Value) -> BTreeSet<&'v str> {
    let keyed = |status: &'v Value| {
        // A device that is listed twice has two entries.
        let mut known: BTreeMap<[&'v str; 4], Vec<&'v Value>> = BTreeMap::new();
        for device in status.items("devices") {
            let key = ["driver", "pool", "device", "shareID"].map(|field| device.text(field));
            known.entry(key).or_default().push(device);
        }
        known
    };
    let (old, new) = (keyed(old), keyed(new));
    let keys = old.keys().chain(new.keys());
    keys.filter(|key| old.get(*key) != new.get(*key)).map(|[driver, ..]| *driver).collect()
}

/// Returns the single node of an allocation, if there is one.
fn allocated_node(status: &Value) -> Option<&str> {
    let [term] = status.items("allocation.nodeSelector.nodeSelectorTerms") else { return None };
    let ([], [field]) = (term.items("matchExpressions"), term.items("matchFields")) else {
        return None;
    };
    let [Value::String(node)] = field.items("values") else { return None };
    (field["key"] == "metadata.name" && field["operator"] == "In").then_some(node)
}

/// Reports whether the user is a service account with a token that is bound to this node.
fn is_on_node(user: &UserInfo, node: Option<&str>) -> bool {
    let own = user.as_service_account().and_then(|_| user.extra_value(NODE_NAME));
    own.is_some()
        && own == node
        && own.is_some_and(|name| validation::dns1123_subdomain(name).is_empty())
}
