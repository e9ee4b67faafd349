use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Who makes a request, as the authenticators found. Its JSON is the API's `UserInfo`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct UserInfo {
    #[serde(rename = "username", default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Tells a user from an earlier one of the name; often empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, Vec<String>>,
}

/// The user of requests without credentials.
pub const ANONYMOUS: &str = "system:anonymous";
/// The group of everybody who proved who he is.
pub const GROUP_AUTHENTICATED: &str = "system:authenticated";
/// The group of everybody who did not.
pub const GROUP_UNAUTHENTICATED: &str = "system:unauthenticated";
/// The group that may do everything, even when RBAC is broken.
pub const GROUP_MASTERS: &str = "system:masters";
/// The group of all nodes.
pub const GROUP_NODES: &str = "system:nodes";
/// The group of all service accounts.
pub(crate) const GROUP_SERVICE_ACCOUNTS: &str = "system:serviceaccounts";
/// The extra field that names the certificate or token which proved who a user is.
pub const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";
const NODE_PREFIX: &str = "system:node:";
const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";

impl UserInfo {
    /// A user without UID or extra fields. `system:authenticated` is among the groups only if it is given.
    pub fn new(name: impl Into<String>, groups: &[&str]) -> Self {
        let groups = groups.iter().map(|g| (*g).to_owned()).collect();
        Self { name: name.into(), groups, ..Self::default() }
    }

    /// Whoever asks without credentials.
    pub fn anonymous() -> Self {
        Self::new(ANONYMOUS, &[GROUP_UNAUTHENTICATED])
    }

    /// The user that a service account acts as.
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

    /// Whether the user is in the group, by its exact name.
    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }

    /// The namespace and name of the service account that this user is.
    pub fn as_service_account(&self) -> Option<(&str, &str)> {
        let (namespace, name) = self.name.strip_prefix(SERVICE_ACCOUNT_PREFIX)?.split_once(':')?;
        (!namespace.is_empty() && !name.is_empty() && !name.contains(':'))
            .then_some((namespace, name))
    }

    /// The node that a kubelet's user stands for. `None` when the user is no kubelet; an empty name when it is one
    /// that does not say which.
    pub fn as_node(&self) -> Option<&str> {
        let name = self.name.strip_prefix(NODE_PREFIX)?;
        self.in_group(GROUP_NODES).then_some(name)
    }

    /// The one value of an extra key, where there is exactly one.
    pub fn extra_value(&self, key: &str) -> Option<&str> {
        match self.extra.get(key)?.as_slice() {
            [value] => Some(value),
            _ => None,
        }
    }
}
