//! Nobody grants by RBAC what he does not hold, unless he may `escalate` or `bind`.

use api_meta::{
    Attributes, GroupResource, Status, Tree as _, UserInfo, garbage_collection_only, go_quote,
    user::GROUP_MASTERS,
};
use serde_json::Value;

use super::{PolicyRule, Rbac, RoleRef, quoted_list, uncovered};
use crate::second::Asked;

/// Whether the writer needs to hold nothing: he is above RBAC, or only does what the garbage collector does. Any other
/// change counts, of labels too, because they are what another role's `aggregationRule` selects by.
fn is_free(asked: &Asked<'_>) -> bool {
    asked.request.user.in_group(GROUP_MASTERS)
        || asked.old.is_some_and(|old| garbage_collection_only(old, asked.new))
}

/// Refuses a write of a Role or ClusterRole that would grant what the writer does not hold.
pub(crate) fn may_write_role(asked: &Asked<'_>) -> Result<(), Status> {
    let request = asked.request;
    let escalate = Attributes { verb: "escalate", version: "*", ..*request };
    if is_free(asked) || asked.allows(&escalate) {
        return Ok(());
    }
    let rules = PolicyRule::list(&asked.new["rules"])
        .map_err(|e| Status::bad_request(format!("cannot read the rules of the role: {e}")))?;
    let refuse = |cause: String| refused(asked, cause);
    check_held(asked.rbac, request.user, request.namespace, &rules).map_err(refuse)?;
    if !aggregates(asked.new) && !asked.old.is_some_and(aggregates) {
        return Ok(());
    }
    // Such a role gathers anything, and what it has gathered may stay when its selectors are taken from it.
    check_held(asked.rbac, request.user, request.namespace, &PolicyRule::full_authority()).map_err(
        |_| refuse("must have cluster-admin privileges to use the aggregationRule".to_owned()),
    )
}

fn aggregates(role: &Value) -> bool {
    role["aggregationRule"]["clusterRoleSelectors"].as_array().is_some_and(|s| !s.is_empty())
}

/// Refuses a write of a binding that would grant what the writer neither holds nor may bind.
pub(crate) fn may_write_binding(asked: &Asked<'_>) -> Result<(), Status> {
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
        .map_err(|cause| refused(asked, cause))
}

fn refused(asked: &Asked<'_>, cause: String) -> Status {
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
