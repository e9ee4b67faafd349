use std::{collections::HashMap, sync::Arc};

use api_meta::{Tree as _, UserInfo, go_quote};
use serde::Deserialize;
use serde_json::Value;

use super::PolicyRule;

/// The role that a binding grants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RoleRef {
    /// Empty for a ClusterRole.
    pub(super) namespace: String,
    pub(super) name: String,
}

impl RoleRef {
    pub(super) fn is_cluster_role(&self) -> bool {
        self.namespace.is_empty()
    }

    /// The role that `roleRef` of a binding in `namespace` names.
    pub(super) fn of_binding(kind: &str, name: &str, namespace: &str) -> Self {
        let namespace = if kind == "Role" { namespace } else { "" };
        Self { namespace: namespace.into(), name: name.into() }
    }

    pub(super) fn not_found(&self) -> String {
        let kind = if self.is_cluster_role() { "clusterrole" } else { "role" };
        format!("{kind}.rbac.authorization.k8s.io {} not found", go_quote(&self.name))
    }
}

/// A role that one binding gives to one subject.
pub(super) struct Grant {
    pub(super) role: RoleRef,
    /// What the audit log says about a request allowed by this.
    pub(super) reason: Arc<str>,
    binding: Arc<str>,
}

/// The grants of one namespace, or of the cluster.
#[derive(Default)]
struct Scope {
    users: HashMap<String, Vec<Grant>>,
    groups: HashMap<String, Vec<Grant>>,
}

#[derive(Default)]
pub(super) struct Index {
    /// By namespace, empty for cluster roles; then by name.
    roles: HashMap<String, HashMap<String, Arc<[PolicyRule]>>>,
    scopes: HashMap<String, Scope>,
}

#[derive(Deserialize)]
struct Meta {
    name: String,
    #[serde(default)]
    namespace: String,
}

#[derive(Deserialize)]
struct Role {
    metadata: Meta,
    #[serde(default)]
    rules: Option<Vec<PolicyRule>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Binding {
    metadata: Meta,
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
                // A RoleBinding's service account without a namespace is one of the binding's own.
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

/// An object that cannot be read grants nothing, and says so in the log.
fn read<'v, T: Deserialize<'v>>(object: Option<&'v Value>) -> Option<T> {
    let object = object?;
    T::deserialize(object)
        .inspect_err(|error| {
            let name = object.opt_text("metadata.name").unwrap_or("?");
            tracing::error!(name, %error, "cannot read an RBAC object; it grants nothing until it is corrected");
        })
        .ok()
}

impl Index {
    pub(super) fn role(&self, role: &RoleRef) -> Option<&[PolicyRule]> {
        self.roles.get(&role.namespace)?.get(&role.name).map(|rules| &**rules)
    }

    /// The grants that apply to a user: the cluster's, then the namespace's.
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

    pub(super) fn change_role(&mut self, old: Option<&Value>, new: Option<&Value>) {
        if let Some(Role { metadata, rules }) = read::<Role>(new) {
            self.roles
                .entry(metadata.namespace)
                .or_default()
                .insert(metadata.name, rules.unwrap_or_default().into());
        } else if let Some(Role { metadata, .. }) = read::<Role>(old.or(new))
            && let Some(roles) = self.roles.get_mut(&metadata.namespace)
        {
            roles.remove(&metadata.name);
            if roles.is_empty() {
                self.roles.remove(&metadata.namespace);
            }
        }
    }

    pub(super) fn change_binding(&mut self, old: Option<&Value>, new: Option<&Value>) {
        if let Some(old) = read::<Binding>(old) {
            self.remove_binding(&old);
        }
        if let Some(new) = read::<Binding>(new) {
            self.add_binding(&new);
        }
    }

    fn remove_binding(&mut self, binding: &Binding) {
        let namespace = &binding.metadata.namespace;
        let Some(scope) = self.scopes.get_mut(namespace) else { return };
        for subject in binding.subjects.iter().flatten() {
            if let Some(grants) = subject.grants_in(scope, namespace) {
                grants.retain(|grant| *grant.binding != *binding.metadata.name);
            }
        }
        scope.users.retain(|_, grants| !grants.is_empty());
        scope.groups.retain(|_, grants| !grants.is_empty());
        if scope.users.is_empty() && scope.groups.is_empty() {
            self.scopes.remove(namespace);
        }
    }

    fn add_binding(&mut self, binding: &Binding) {
        let Meta { name, namespace } = &binding.metadata;
        let scope = self.scopes.entry(namespace.clone()).or_default();
        let key: Arc<str> = name.as_str().into();
        let (kind, described) = match namespace.as_str() {
            "" => ("ClusterRoleBinding", go_quote(name)),
            namespace => ("RoleBinding", go_quote(&format!("{name}/{namespace}"))),
        };
        for subject in binding.subjects.iter().flatten() {
            let Some(grants) = subject.grants_in(scope, namespace) else { continue };
            let reason = format!(
                "RBAC: allowed by {kind} {described} of {} {} to {}",
                binding.role_ref.kind,
                go_quote(&binding.role_ref.name),
                subject.described()
            );
            grants.push(Grant {
                role: RoleRef::of_binding(
                    &binding.role_ref.kind,
                    &binding.role_ref.name,
                    namespace,
                ),
                reason: reason.into(),
                binding: key.clone(),
            });
        }
    }
}
