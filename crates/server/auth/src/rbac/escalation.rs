//! Prevents privilege escalation: a user may grant only permissions that the user holds, unless `escalate` or `bind` is
//! allowed.

use api_meta::{
    Attributes, GroupResource, Status, Tree as _, UserInfo, garbage_collection_only, go_quote,
    user::GROUP_MASTERS,
};
use serde_json::Value;

use super::{PolicyRule, Rbac, RoleRef, quoted_list, uncovered};
use crate::second::AuthorizedRequest;

/// Reports whether a write needs no check: the user is in `system:masters`, or only changes fields that the garbage
/// collector changes. Label changes are checked, because an `aggregationRule` selects by labels.
fn is_free(asked: &AuthorizedRequest<'_>) -> bool {
    asked.request.user.in_group(GROUP_MASTERS)
        || asked.old.is_some_and(|old| garbage_collection_only(old, asked.new))
}

/// Rejects a write of a Role or ClusterRole with permissions that the user does not hold.
pub(crate) fn may_write_role(asked: &AuthorizedRequest<'_>) -> Result<(), Status> {
    let request = asked.request;
    let escalate = Attributes { verb: "escalate", version: "*", ..*request };
    if is_free(asked) || asked.allows(&escalate) {
        return Ok(());
    }
    let rules = PolicyRule::list(&asked.new["rules"])
        .map_err(|e| Status::bad_request(format!("cannot read the rules of the role: {e}")))?;
    let refuse = |cause: String| forbidden_write(asked, cause);
    check_held(asked.rbac, request.user, request.namespace, &rules).map_err(refuse)?;
    if !aggregates(asked.new) && !asked.old.is_some_and(aggregates) {
        return Ok(());
    }
    // Such a role can gain any permission, and keeps the aggregated rules when its selectors are removed.
    check_held(asked.rbac, request.user, request.namespace, &PolicyRule::full_authority()).map_err(
        |_| refuse("must have cluster-admin privileges to use the aggregationRule".to_owned()),
    )
}

fn aggregates(role: &Value) -> bool {
    role["aggregationRule"]["clusterRoleSelectors"].as_array().is_some_and(|s| !s.is_empty())
}

/// Rejects a write of a binding to a role whose permissions the user does not hold and may not bind.
pub(crate) fn may_write_binding(asked: &AuthorizedRequest<'_>) -> Result<(), Status> {
    let request = asked.request;
    let role = RoleRef::of_binding(
        asked.new.text("roleRef.kind"),
        asked.new.text("roleRef.name"),
        request.namespace,
    );
    let kind =
        if role.is_cluster_role() { GroupResource::CLUSTER_ROLES } else { GroupResource::ROLES };
    let bind = Attributes::resource(request.user, "bind", &kind.group, &kind.resource);
    let bind = Attributes { version: "*", ..bind };
    if is_free(asked) || asked.allows(&bind.in_namespace(request.namespace).named(&role.name)) {
        return Ok(());
    }
    let Some(rules) = asked.rbac.rules_of(&role) else {
        return Err(Status::not_found(&kind, &role.name));
    };
    check_held(asked.rbac, request.user, request.namespace, &rules)
        .map_err(|cause| forbidden_write(asked, cause))
}

fn forbidden_write(asked: &AuthorizedRequest<'_>, cause: String) -> Status {
    let request = asked.request;
    let resource = GroupResource::new(request.group.to_owned(), request.resource.to_owned());
    let name = asked.new.name();
    Status::forbidden(&resource, name, cause)
}

fn check_held(
    rbac: &Rbac,
    user: &UserInfo,
    namespace: &str,
    wanted: &[PolicyRule],
) -> Result<(), String> {
    let (held, unresolved) = rbac.rules_for(user, namespace);
    let missing = uncovered(&held, wanted);
    if missing.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> = missing.iter().map(PolicyRule::compact).collect();
    let unresolved = match unresolved.as_slice() {
        [] => String::new(),
        list => format!("; resolution errors: [{}]", list.join(", ")),
    };
    Err(format!(
        "user {} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}{unresolved}",
        go_quote(&user.name),
        quoted_list(&user.groups),
        lines.join("\n")
    ))
}
