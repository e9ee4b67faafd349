//! The RBAC authorizer.

use api_meta::{Attributes, Authorizer, Changed, Decision, GroupResource, Observer, UserInfo};
use parking_lot::{RwLock, RwLockReadGuard};

use super::{
    index::{Grant, Index, RoleRef},
    rules::PolicyRule,
};

/// The RBAC authorizer, which observes Roles and bindings.
#[derive(Default)]
pub struct Rbac {
    index: RwLock<Index>,
}

const WATCHED: [GroupResource; 4] = [
    GroupResource::CLUSTER_ROLES,
    GroupResource::ROLES,
    GroupResource::CLUSTER_ROLE_BINDINGS,
    GroupResource::ROLE_BINDINGS,
];

impl Rbac {
    /// Creates an authorizer without roles, which allows nothing.
    pub fn new() -> Self {
        Self::default()
    }

    fn read(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read()
    }

    /// Returns all rules of a user in a namespace (cluster-wide if it is empty), and an error for each missing role
    /// that a binding refers to.
    pub(crate) fn rules_for(
        &self,
        user: &UserInfo,
        namespace: &str,
    ) -> (Vec<PolicyRule>, Vec<String>) {
        let index = self.read();
        let (mut rules, mut missing) = (Vec::new(), Vec::new());
        for grant in index.grants(user, namespace) {
            match index.role(&grant.role) {
                Some(role) => rules.extend_from_slice(role),
                None => missing.push(grant.role.not_found()),
            }
        }
        (rules, missing)
    }

    /// Returns the rules of a role, or `None` if it does not exist.
    pub(crate) fn rules_of(&self, role: &RoleRef) -> Option<Vec<PolicyRule>> {
        self.read().role(role).map(<[PolicyRule]>::to_vec)
    }
}

impl Authorizer for Rbac {
    fn authorize(&self, request: &Attributes<'_>) -> Decision {
        let index = self.read();
        let mut missing: Vec<String> = Vec::new();
        for Grant { role, reason, .. } in index.grants(request.user, request.namespace) {
            match index.role(role) {
                Some(rules) if rules.iter().any(|rule| rule.allows(request)) => {
                    return Decision::Allow(Some(reason.clone()));
                }
                Some(_) => {}
                None => missing.push(role.not_found()),
            }
        }
        missing.dedup();
        Decision::NoOpinion(match missing.as_slice() {
            [] => None,
            [one] => Some(format!("RBAC: {one}").into()),
            several => Some(format!("RBAC: [{}]", several.join(", ")).into()),
        })
    }
}

impl Observer for Rbac {
    fn resources(&self) -> &[GroupResource] {
        &WATCHED
    }

    fn changed(&self, change: Changed<'_>) {
        let mut index = self.index.write();
        match change.resource.resource.as_ref() {
            "clusterroles" | "roles" => index.change_role(change),
            _ => index.change_binding(change),
        }
    }
}
