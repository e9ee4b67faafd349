//! Prevents privilege escalation: a user may grant only permissions that the user holds, unless `escalate` or `bind` is
//! allowed.

use std::fmt::Display;

use api_meta::{
    Attributes, GroupResource, Status, Tree as _, UserInfo, garbage_collection_only, go_quote,
    user::GROUP_MASTERS,
};
use serde_json::Value;

use super::request::AuthorizedRequest;
use crate::rbac::{PolicyRule, Rbac, RoleRef, quoted_list, uncovered};

/// Reports whether a write needs no check: the user is in `system:masters`, or only changes fields that the garbage
/// collector changes. Label changes are checked, because an `aggregationRule` selects by labels.
fn is_free(authorized: &AuthorizedRequest<'_>) -> bool {
    authorized.request.user.in_group(GROUP_MASTERS)
        || authorized.old.is_some_and(|old| garbage_collection_only(old, authorized.new))
}

/// Rejects a write of a Role or ClusterRole with permissions that the user does not hold.
pub(super) fn authorize_role(authorized: &AuthorizedRequest<'_>) -> Result<(), Status> {
    let request = authorized.request;
    let escalate = Attributes { verb: "escalate", version: "*", ..*request };
    if is_free(authorized) || authorized.allows(&escalate) {
        return Ok(());
    }
    let rules = PolicyRule::list(&authorized.new["rules"])
        .map_err(|e| Status::bad_request(format!("cannot read the rules of the role: {e}")))?;
    check_held(authorized.rbac, request.user, request.namespace, &rules)
        .map_err(|error| forbidden_write(authorized, error))?;
    if !aggregates(authorized.new) && !authorized.old.is_some_and(aggregates) {
        return Ok(());
    }
    // Such a role can gain any permission, and keeps the aggregated rules when its selectors are removed.
    check_held(authorized.rbac, request.user, request.namespace, &PolicyRule::full_authority())
        .map_err(|_| {
            forbidden_write(
                authorized,
                "must have cluster-admin privileges to use the aggregationRule",
            )
        })
}

fn aggregates(role: &Value) -> bool {
    !role.items("aggregationRule.clusterRoleSelectors").is_empty()
}

/// Rejects a write of a binding to a role whose permissions the user does not hold and may not bind.
pub(super) fn authorize_binding(authorized: &AuthorizedRequest<'_>) -> Result<(), Status> {
    let request = authorized.request;
    let role = RoleRef::of_binding(
        authorized.new.text("roleRef.kind"),
        authorized.new.text("roleRef.name"),
        request.namespace,
    );
    let kind =
        if role.is_cluster_role() { GroupResource::CLUSTER_ROLES } else { GroupResource::ROLES };
    let bind = Attributes::resource(request.user, "bind", &kind.group, &kind.resource);
    let bind = Attributes { version: "*", ..bind };
    if is_free(authorized)
        || authorized.allows(&bind.in_namespace(request.namespace).named(&role.name))
    {
        return Ok(());
    }
    let Some(rules) = authorized.rbac.rules_of(&role) else {
        return Err(Status::not_found(&kind, &role.name));
    };
    check_held(authorized.rbac, request.user, request.namespace, &rules)
        .map_err(|error| forbidden_write(authorized, error))
}

fn forbidden_write(authorized: &AuthorizedRequest<'_>, cause: impl Display) -> Status {
    let request = authorized.request;
    let resource = GroupResource::new(request.group.to_owned(), request.resource.to_owned());
    let name = authorized.new.name();
    Status::forbidden(&resource, name, cause)
}

/// The error for a user who grants permissions without holding them, with upstream's message. The parts are formatted.
#[derive(Debug, thiserror::Error)]
#[error(
    "user {user} (groups={groups}) is attempting to grant RBAC permissions not currently held:\n{missing}{unresolved}"
)]
struct NotHeld {
    user: String,
    groups: String,
    missing: String,
    unresolved: String,
}

fn check_held(
    rbac: &Rbac,
    user: &UserInfo,
    namespace: &str,
    wanted: &[PolicyRule],
) -> Result<(), NotHeld> {
    let (held, unresolved) = rbac.rules_for(user, namespace);
    let missing = uncovered(&held, wanted);
    if missing.is_empty() {
        return Ok(());
    }
    let missing: Vec<String> = missing.iter().map(PolicyRule::compact).collect();
    let unresolved = match unresolved.as_slice() {
        [] => String::new(),
        list => format!("; resolution errors: [{}]", list.join(", ")),
    };
    Err(NotHeld {
        user: go_quote(&user.name),
        groups: quoted_list(&user.groups),
        missing: missing.join("\n"),
        unresolved,
    })
}

#[cfg(test)]
mod tests;
