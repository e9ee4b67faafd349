//! Checks on ResourceClaims: admin access to devices, and permissions for parts of a claim's status.

use std::collections::{BTreeMap, BTreeSet};

use api_meta::{
    Attributes, ErrorList, FieldError, GroupResource, Path, Tree as _, UserInfo, validation,
};
use serde_json::Value;

use super::AuthorizedRequest;
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
pub(super) fn admin_access(asked: &AuthorizedRequest<'_>, errors: &mut ErrorList) {
    let template = asked.request.resource == "resourceclaimtemplates";
    let requests = if template { "spec.spec.devices.requests" } else { "spec.devices.requests" };
    let wants = |request: &Value| request["exactly"]["adminAccess"] == true;
    if let (None, Some(at)) = (asked.old, asked.new.items(requests).iter().position(wants)) {
        let path = Path::new("spec").child("devices").child("requests").index(at);
        in_admin_namespace(asked, &path.child("adminAccess"), errors);
    }
}

fn in_admin_namespace(asked: &AuthorizedRequest<'_>, path: &Path, errors: &mut ErrorList) {
    let name = asked.request.namespace;
    let namespace = asked.objects.get(&GroupResource::NAMESPACES, "", name);
    if namespace.is_some_and(|n| n["metadata"]["labels"][ADMIN_NAMESPACE] == "true") {
        return;
    }
    let detail = format!(
        "admin access to devices requires the `{ADMIN_NAMESPACE}: true` label on the containing namespace"
    );
    errors.prepend([FieldError::forbidden(path, detail)].into());
}

/// Validates a status update: `adminAccess` as in the spec, the permission to bind for the allocation, and a permission
/// per driver for its devices.
pub(super) fn status(asked: &AuthorizedRequest<'_>, errors: &mut ErrorList) {
    let mut found = ErrorList::new();
    let old = asked.old.map_or(&Value::Null, |old| &old["status"]);
    let new = &asked.new["status"];
    let granted = |status: &Value| {
        status.items("allocation.devices.results").iter().position(|r| r["adminAccess"] == true)
    };
    let path = Path::new("status");
    if let (None, Some(at)) = (granted(old), granted(new)) {
        let results = path.child("allocation").child("devices").child("results").index(at);
        in_admin_namespace(asked, &results.child("adminAccess"), &mut found);
    }
    let verb = asked.request.verb;
    let unbound = same(&old["allocation"], &new["allocation"])
        && same(&old["reservedFor"], &new["reservedFor"]);
    let binding = asked.request.with_subresource("binding").in_namespace("").named("");
    if !unbound && let Err(cause) = check(asked, &binding) {
        let detail = format!(
            "changing status.allocation or status.reservedFor requires \
            resource=\"resourceclaims/binding\", verb=\"{verb}\" permission: {cause}"
        );
        found.push(FieldError::forbidden(&path.child("allocation"), detail));
    }
    // Removing the devices of a deallocated claim needs no driver permission.
    if !new["allocation"].is_null() || !new.items("devices").is_empty() {
        devices(asked, old, new, &mut found);
    }
    errors.prepend(found);
}

fn devices(asked: &AuthorizedRequest<'_>, old: &Value, new: &Value, errors: &mut ErrorList) {
    let request = asked.request;
    let mut verbs = vec![format!("arbitrary-node:{}", request.verb)];
    if is_on_node(request.user, allocated_node(new)) {
        verbs.insert(0, format!("associated-node:{}", request.verb));
    }
    for driver in changed_drivers(old, new) {
        let ask = |verb: &String| {
            let question = Attributes { verb, ..*request };
            check(asked, &question.with_subresource("driver").named(driver))
        };
        let answers: Vec<_> = verbs.iter().map(ask).collect();
        if answers.iter().any(Result::is_ok) {
            continue;
        }
        let cause = answers.into_iter().find_map(Result::err).unwrap_or_default();
        let detail = format!(
            "changing status.devices requires resource=\"resourceclaims/driver\", verb=\"[{}]\" permission: {cause}",
            verbs.join(" ")
        );
        errors.push(FieldError::forbidden(&Path::new("status").child("devices"), detail));
    }
}

/// Returns the message of the rejection if the authorizers do not allow the request.
fn check(asked: &AuthorizedRequest<'_>, question: &Attributes<'_>) -> Result<(), String> {
    let decision = asked.authorizer.authorize(question);
    if decision.is_allowed() {
        return Ok(());
    }
    Err(forbidden(question, decision.reason()).message)
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
