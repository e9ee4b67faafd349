use std::{fmt, sync::Arc};

use crate::{field_selector::FieldSelector, quote::go_quote, selector::Selector, user::UserInfo};

/// The attributes of a request that authorizers decide on.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    /// The user who sends the request.
    pub user: &'a UserInfo,
    /// The verb, such as `get` or `list`.
    pub verb: &'a str,
    /// `true` for a request for a resource, `false` for a URL path.
    pub is_resource: bool,
    /// The API group; empty for the core group.
    pub group: &'a str,
    /// The version of the API group.
    pub version: &'a str,
    /// The resource, such as `pods`.
    pub resource: &'a str,
    /// The subresource; empty for the object itself.
    pub subresource: &'a str,
    /// The namespace; empty for cluster-scoped resources and for all namespaces.
    pub namespace: &'a str,
    /// The name of the object; empty for a collection.
    pub name: &'a str,
    /// The URL path of a request that is not for a resource.
    pub path: &'a str,
    /// The field selector of a list or watch.
    pub field_selector: Option<&'a FieldSelector>,
    /// The label selector of a list or watch.
    pub label_selector: Option<&'a Selector>,
}

impl<'a> Attributes<'a> {
    /// Returns the attributes of a request for a resource. Set further fields with struct update syntax.
    pub fn resource(user: &'a UserInfo, verb: &'a str, group: &'a str, resource: &'a str) -> Self {
        Self {
            user,
            verb,
            is_resource: true,
            group,
            version: "",
            resource,
            subresource: "",
            namespace: "",
            name: "",
            path: "",
            field_selector: None,
            label_selector: None,
        }
    }

    /// Returns the attributes of a request for a non-resource path, such as `/healthz`.
    pub fn path(user: &'a UserInfo, verb: &'a str, path: &'a str) -> Self {
        Self { is_resource: false, path, ..Self::resource(user, verb, "", "") }
    }

    /// Sets the namespace.
    #[must_use]
    pub fn in_namespace(self, namespace: &'a str) -> Self {
        Self { namespace, ..self }
    }

    /// Sets the name of the object.
    #[must_use]
    pub fn named(self, name: &'a str) -> Self {
        Self { name, ..self }
    }

    /// Sets the subresource.
    #[must_use]
    pub fn with_subresource(self, subresource: &'a str) -> Self {
        Self { subresource, ..self }
    }

    /// Returns the value that the field selector requires for a field.
    pub fn pinned_field(&self, field: &str) -> Option<&'a str> {
        self.field_selector?.requires_exact(field)
    }
}

impl fmt::Display for Attributes<'_> {
    /// Formats the attempted action as in a 403 message.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (user, verb) = (go_quote(&self.user.name), self.verb);
        if !self.is_resource {
            return write!(f, "User {user} cannot {verb} path {}", go_quote(self.path));
        }
        let slash = if self.subresource.is_empty() { "" } else { "/" };
        let resource = go_quote(&format!("{}{slash}{}", self.resource, self.subresource));
        write!(
            f,
            "User {user} cannot {verb} resource {resource} in API group {}",
            go_quote(self.group)
        )?;
        match self.namespace {
            "" => f.write_str(" at the cluster scope"),
            namespace => write!(f, " in the namespace {}", go_quote(namespace)),
        }
    }
}

/// The reason for a decision, if the authorizer gives one.
pub type Reason = Option<Arc<str>>;

/// The decision of an authorizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The request is allowed.
    Allow(Reason),
    /// The request is denied. Later authorizers cannot allow it.
    Deny(Reason),
    /// The authorizer does not decide. The request is rejected if no other authorizer allows it.
    NoOpinion(Reason),
    /// The authorizer could not decide, because a webhook failed. `denied` makes this a denial that later
    /// authorizers cannot change.
    Failed { denied: bool, reason: Reason, error: Arc<str> },
}

impl Decision {
    /// Returns `true` if the request is allowed. No opinion means that it is not.
    pub fn is_allowed(&self) -> bool {
        matches!(self, Self::Allow(_))
    }

    /// Returns the reason, or an empty string.
    pub fn reason(&self) -> &str {
        match self {
            Self::Allow(reason)
            | Self::Deny(reason)
            | Self::NoOpinion(reason)
            | Self::Failed { reason, .. } => reason.as_deref().unwrap_or(""),
        }
    }
}

/// Decides on the actions of users. An authorizer that calls a webhook blocks its caller. Requests to the API server
/// are therefore authorized by its chain, which waits without blocking a thread.
pub trait Authorizer: Send + Sync {
    /// Decides if the action is allowed.
    fn authorize(&self, attributes: &Attributes<'_>) -> Decision;
}

impl<A: Authorizer + ?Sized> Authorizer for Arc<A> {
    fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
        (**self).authorize(attributes)
    }
}
