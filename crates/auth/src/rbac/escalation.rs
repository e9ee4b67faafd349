use api_meta::{
    Attributes, Authorizer, GroupResource, Status, UserInfo, go_quote, user::GROUP_MASTERS,
};

use super::{PolicyRule, Rbac, RoleRef, quoted_list, uncovered};

/// A binding that someone wants to write.
pub struct BindingGrant<'a> {
    pub name: &'a str,
    /// Empty for a ClusterRoleBinding.
    pub namespace: &'a str,
    pub role: &'a RoleRef,
}

/// Refuses a write of a role (in `namespace`; empty for a ClusterRole) that would grant what the writer does not hold.
///
/// `old` is absent on create. A write that does not change the rules is let through, so that controllers that only
/// touch metadata (finalizers, owner references) need no more than `update`.
pub fn check_role(
    rbac: &Rbac,
    authorizer: &dyn Authorizer,
    user: &UserInfo,
    name: &str,
    namespace: &str,
    old: Option<&[PolicyRule]>,
    new: &[PolicyRule],
) -> Result<(), Status> {
    let resource =
        if namespace.is_empty() { GroupResource::CLUSTER_ROLES } else { GroupResource::ROLES };
    let may_escalate = |user: &UserInfo| {
        let request = Attributes::resource(user, "escalate", &resource.group, &resource.resource);
        authorizer.authorize(&request.in_namespace(namespace).named(name)).is_allowed()
    };
    if old == Some(new) || user.in_group(GROUP_MASTERS) || may_escalate(user) {
        return Ok(());
    }
    check_held(rbac, user, namespace, new)
        .map_err(|cause| Status::forbidden(&resource, name, cause))
}

/// Refuses a write of a binding that would grant what the writer neither holds nor may bind.
pub fn check_binding(
    rbac: &Rbac,
    authorizer: &dyn Authorizer,
    user: &UserInfo,
    binding: &BindingGrant<'_>,
) -> Result<(), Status> {
    let cluster_role = binding.role.is_cluster_role();
    let role_kind = if cluster_role { GroupResource::CLUSTER_ROLES } else { GroupResource::ROLES };
    let request = Attributes::resource(user, "bind", &role_kind.group, &role_kind.resource);
    let request = request.in_namespace(binding.namespace).named(&binding.role.name);
    if user.in_group(GROUP_MASTERS) || authorizer.authorize(&request).is_allowed() {
        return Ok(());
    }
    let Some(rules) = rbac.rules_of(binding.role) else {
        return Err(Status::not_found(&role_kind, &binding.role.name));
    };
    let resource = if binding.namespace.is_empty() {
        GroupResource::CLUSTER_ROLE_BINDINGS
    } else {
        GroupResource::ROLE_BINDINGS
    };
    check_held(rbac, user, binding.namespace, &rules)
        .map_err(|c| Status::forbidden(&resource, binding.name, c))
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
