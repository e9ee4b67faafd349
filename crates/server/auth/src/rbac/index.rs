//! The roles and the bindings by subject.

use std::{collections::HashMap, sync::Arc};

use api_meta::{Changed, UserInfo, go_quote};
use serde::Deserialize;

use super::rules::PolicyRule;

/// A reference to the role of a binding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RoleRef {
    /// The role's namespace; empty for a ClusterRole.
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl RoleRef {
    pub(crate) fn is_cluster_role(&self) -> bool {
        self.namespace.is_empty()
    }

    /// Resolves the `roleRef` of a binding in `namespace`.
    pub(crate) fn of_binding(kind: &str, name: &str, namespace: &str) -> Self {
        let namespace = if kind == "Role" { namespace } else { "" };
        Self { namespace: namespace.into(), name: name.into() }
    }

    pub(crate) fn not_found(&self) -> String {
        let kind = if self.is_cluster_role() { "clusterrole" } else { "role" };
        format!("{kind}.rbac.authorization.k8s.io {} not found", go_quote(&self.name))
    }
}

/// A role that a binding grants to a subject.
pub(super) struct Grant {
    pub(super) role: RoleRef,
    /// The audit log's reason for requests that this grant allows.
    pub(super) reason: Arc<str>,
    binding: Arc<str>,
}

/// The grants in one namespace, or cluster-wide.
#[derive(Default)]
struct Scope {
    users: HashMap<String, Vec<Grant>>,
    groups: HashMap<String, Vec<Grant>>,
}

#[derive(Default)]
pub(super) struct Index {
    /// The rules by namespace (empty for ClusterRoles) and name.
    roles: HashMap<String, HashMap<String, Arc<[PolicyRule]>>>,
    scopes: HashMap<String, Scope>,
    /// The subjects of each binding, by namespace and name.
    bindings: HashMap<(String, String), Vec<Subject>>,
}

#[derive(Deserialize)]
struct Role {
    #[serde(default)]
    rules: Option<Vec<PolicyRule>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Binding {
    role_ref: NamedKind,
    #[serde(default)]
    subjects: Option<Vec<Subject>>,
}

#[derive(Deserialize)]
struct NamedKind {
    kind: String,
    name: String,
}

#[derive(Deserialize)]
struct Subject {
    kind: String,
    name: String,
    #[serde(default)]
    namespace: String,
}

impl Subject {
    fn described(&self) -> String {
        match self.kind.as_str() {
            "ServiceAccount" => {
                format!("ServiceAccount {}", go_quote(&format!("{}/{}", self.name, self.namespace)))
            }
            kind => format!("{kind} {}", go_quote(&self.name)),
        }
    }

    fn grants_in<'s>(&self, scope: &'s mut Scope, namespace: &str) -> Option<&'s mut Vec<Grant>> {
        match self.kind.as_str() {
            "User" => Some(scope.users.entry(self.name.clone()).or_default()),
            "Group" => Some(scope.groups.entry(self.name.clone()).or_default()),
            "ServiceAccount" => {
                // A service account without a namespace is in the RoleBinding's namespace.
                let namespace = if self.namespace.is_empty() { namespace } else { &self.namespace };
                if namespace.is_empty() {
                    return None;
                }
                let user = UserInfo::service_account(namespace, &self.name).name;
                Some(scope.users.entry(user).or_default())
            }
            _ => None,
        }
    }
}

/// Decodes an object. An invalid object is logged and grants nothing.
fn read<'v, T: Deserialize<'v>>(change: Changed<'v>) -> Option<T> {
    T::deserialize(change.object?)
        .inspect_err(|error| {
            tracing::error!(name = change.name, %error, "cannot read an RBAC object; it grants \
                nothing until it is corrected");
        })
        .ok()
}

impl Index {
    pub(super) fn role(&self, role: &RoleRef) -> Option<&[PolicyRule]> {
        self.roles.get(&role.namespace)?.get(&role.name).map(|rules| &**rules)
    }

    /// Returns the grants of a user: cluster-wide ones, then those in the namespace.
    pub(super) fn grants<'i>(
        &'i self,
        user: &'i UserInfo,
        namespace: &str,
    ) -> impl Iterator<Item = &'i Grant> {
        let cluster = self.scopes.get("");
        let own = if namespace.is_empty() { None } else { self.scopes.get(namespace) };
        [cluster, own].into_iter().flatten().flat_map(|scope| {
            let by_user = scope.users.get(&user.name);
            let by_group = user.groups.iter().filter_map(|group| scope.groups.get(group));
            by_user.into_iter().chain(by_group).flatten()
        })
    }

    pub(super) fn change_role(&mut self, change: Changed<'_>) {
        let (namespace, name) = (change.namespace, change.name);
        if let Some(Role { rules }) = read(change) {
            let roles = self.roles.entry(namespace.to_owned()).or_default();
            roles.insert(name.to_owned(), rules.unwrap_or_default().into());
        } else if let Some(roles) = self.roles.get_mut(namespace) {
            roles.remove(name);
            if roles.is_empty() {
                self.roles.remove(namespace);
            }
        }
    }

    pub(super) fn change_binding(&mut self, change: Changed<'_>) {
        let key = (change.namespace.to_owned(), change.name.to_owned());
        if let Some(subjects) = self.bindings.remove(&key) {
            self.remove_binding(&key, &subjects);
        }
        if let Some(Binding { role_ref, subjects }) = read(change) {
            let subjects = subjects.unwrap_or_default();
            self.add_binding(&key, &role_ref, &subjects);
            self.bindings.insert(key, subjects);
        }
    }

    fn remove_binding(&mut self, (namespace, name): &(String, String), subjects: &[Subject]) {
        let Some(scope) = self.scopes.get_mut(namespace) else { return };
        for subject in subjects {
            if let Some(grants) = subject.grants_in(scope, namespace) {
                grants.retain(|grant| *grant.binding != **name);
            }
        }
        scope.users.retain(|_, grants| !grants.is_empty());
        scope.groups.retain(|_, grants| !grants.is_empty());
        if scope.users.is_empty() && scope.groups.is_empty() {
            self.scopes.remove(namespace);
        }
    }

    fn add_binding(
        &mut self,
        (namespace, name): &(String, String),
        role_ref: &NamedKind,
        subjects: &[Subject],
    ) {
        let scope = self.scopes.entry(namespace.clone()).or_default();
        let key: Arc<str> = name.as_str().into();
        let (kind, described) = match namespace.as_str() {
            "" => ("ClusterRoleBinding", go_quote(name)),
            namespace => ("RoleBinding", go_quote(&format!("{name}/{namespace}"))),
        };
        for subject in subjects {
            let Some(grants) = subject.grants_in(scope, namespace) else { continue };
            let reason = format!(
                "RBAC: allowed by {kind} {described} of {} {} to {}",
                role_ref.kind,
                go_quote(&role_ref.name),
                subject.described()
            );
            grants.push(Grant {
                role: RoleRef::of_binding(&role_ref.kind, &role_ref.name, namespace),
                reason: reason.into(),
                binding: key.clone(),
            });
        }
    }
}
