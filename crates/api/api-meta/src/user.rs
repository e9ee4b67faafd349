use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The user of a request, as the authenticators determined. Its JSON is the API's `UserInfo`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct UserInfo {
    /// The user name.
    #[serde(rename = "username", default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The UID, which differs for a later user of the same name; often empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The groups of the user.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Further attributes from the authenticator.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, Vec<String>>,
}

/// The user of requests without credentials.
pub const ANONYMOUS: &str = "system:anonymous";
/// The group of all authenticated users.
pub const GROUP_AUTHENTICATED: &str = "system:authenticated";
/// The group of all unauthenticated users.
pub const GROUP_UNAUTHENTICATED: &str = "system:unauthenticated";
/// The group that is allowed everything, even when RBAC is broken.
pub const GROUP_MASTERS: &str = "system:masters";
/// The group that may read the metrics and health of components.
pub(crate) const GROUP_MONITORING: &str = "system:monitoring";
/// The group of all nodes.
pub const GROUP_NODES: &str = "system:nodes";
/// The group of all service accounts.
pub(crate) const GROUP_SERVICE_ACCOUNTS: &str = "system:serviceaccounts";
/// The extra field that identifies the certificate or token of the user.
pub const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";
const NODE_PREFIX: &str = "system:node:";
const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";

impl UserInfo {
    /// Creates a user without UID and extra fields. `system:authenticated` is not added to the groups.
    pub fn new(name: impl Into<String>, groups: &[&str]) -> Self {
        let groups = groups.iter().map(|g| (*g).to_owned()).collect();
        Self { name: name.into(), groups, ..Self::default() }
    }

    /// Creates the user that a client certificate asserts: its common name, UID and organizations. `credential_id`
    /// identifies the certificate in audit logs. `system:authenticated` is not added to the groups.
    pub fn of_certificate(
        name: String,
        uid: String,
        groups: Vec<String>,
        credential_id: String,
    ) -> Self {
        let extra = [(CREDENTIAL_ID.to_owned(), vec![credential_id])].into();
        Self { name, uid, groups, extra }
    }

    /// Adds the group of all authenticated users.
    #[must_use]
    pub fn authenticated(mut self) -> Self {
        self.groups.push(GROUP_AUTHENTICATED.to_owned());
        self
    }

    /// Returns the user of requests without credentials.
    pub fn anonymous() -> Self {
        Self::new(ANONYMOUS, &[GROUP_UNAUTHENTICATED])
    }

    /// Returns the user of a ServiceAccount.
    pub fn service_account(namespace: &str, name: &str) -> Self {
        Self {
            name: format!("{SERVICE_ACCOUNT_PREFIX}{namespace}:{name}"),
            groups: vec![
                GROUP_SERVICE_ACCOUNTS.into(),
                format!("{GROUP_SERVICE_ACCOUNTS}:{namespace}"),
                GROUP_AUTHENTICATED.into(),
            ],
            ..Self::default()
        }
    }

    /// Returns `true` if the user is in the group.
    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }

    /// Returns `true` if the trace context of the user's requests decides whether they are recorded, as upstream.
    /// Others could have all of their requests recorded.
    pub fn may_decide_tracing(&self) -> bool {
        [GROUP_MASTERS, GROUP_MONITORING].iter().any(|group| self.in_group(group))
    }

    /// Returns the namespace and name of the ServiceAccount that this user is.
    pub fn as_service_account(&self) -> Option<(&str, &str)> {
        let (namespace, name) = self.name.strip_prefix(SERVICE_ACCOUNT_PREFIX)?.split_once(':')?;
        (!namespace.is_empty() && !name.is_empty() && !name.contains(':'))
            .then_some((namespace, name))
    }

    /// Returns the name of the node whose kubelet this user is. `None` for any other user; an empty name if the
    /// kubelet's user name does not contain one.
    pub fn as_node(&self) -> Option<&str> {
        let name = self.name.strip_prefix(NODE_PREFIX)?;
        self.in_group(GROUP_NODES).then_some(name)
    }

    /// Returns the value of an extra key if it has exactly one.
    pub fn extra_value(&self, key: &str) -> Option<&str> {
        match self.extra.get(key)?.as_slice() {
            [value] => Some(value),
            _ => None,
        }
    }
}
