//! The requests that secondary authorization checks.

use api_meta::{Attributes, Authorizer, Objects};
use serde_json::Value;

use crate::rbac::Rbac;

/// An authorized request and the write or connection that it leads to.
#[derive(Clone, Copy)]
pub struct AuthorizedRequest<'a> {
    /// The attributes that the filter chain authorized.
    pub request: &'a Attributes<'a>,
    /// The old object; `None` for a new one.
    pub old: Option<&'a Value>,
    /// The new object; null for a connection.
    pub new: &'a Value,
    /// The authorizer chain.
    pub authorizer: &'a dyn Authorizer,
    /// The RBAC index.
    pub rbac: &'a Rbac,
    /// The objects of the cluster.
    pub objects: &'a dyn Objects,
}

impl AuthorizedRequest<'_> {
    /// Reports whether the authorizers allow another request of the same user.
    pub(crate) fn allows(&self, question: &Attributes<'_>) -> bool {
        self.authorizer.authorize(question).is_allowed()
    }
}
