use std::{fmt, sync::Arc};

use crate::{FieldSelector, Selector, UserInfo, go_quote};

/// What a request asks to do: what authorisers decide on.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    pub user: &'a UserInfo,
    pub verb: &'a str,
    pub is_resource: bool,
    pub group: &'a str,
    pub version: &'a str,
    pub resource: &'a str,
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    /// The URL's path, for requests that are not for a resource.
    pub path: &'a str,
    pub field_selector: Option<&'a FieldSelector>,
    pub label_selector: Option<&'a Selector>,
}

impl<'a> Attributes<'a> {
    /// A request for a resource; fill in what else it names with struct update.
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

    /// A request for a path that is no resource's, such as `/healthz`.
    pub fn path(user: &'a UserInfo, verb: &'a str, path: &'a str) -> Self {
        Self { is_resource: false, path, ..Self::resource(user, verb, "", "") }
    }

    /// The same, in a namespace.
    #[must_use]
    pub fn in_namespace(self, namespace: &'a str) -> Self {
        Self { namespace, ..self }
    }

    /// The same, for one object.
    #[must_use]
    pub fn named(self, name: &'a str) -> Self {
        Self { name, ..self }
    }

    /// The same, for a subresource.
    #[must_use]
    pub fn with_subresource(self, subresource: &'a str) -> Self {
        Self { subresource, ..self }
    }

    /// The value that a field selector pins a field to.
    pub fn pinned_field(&self, field: &str) -> Option<&'a str> {
        self.field_selector?.requires_exact(field)
    }
}

impl fmt::Display for Attributes<'_> {
    /// What was attempted, in the words of a 403.
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

/// Why a decision was made, where there is something to say.
pub type Reason = Option<Arc<str>>;

/// What an authoriser says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Allow(Reason),
    /// No later authoriser may allow it.
    Deny(Reason),
    /// Somebody else may allow it; if nobody does, it is refused.
    NoOpinion(Reason),
    /// It is not allowed, and nobody says that it is forbidden either: an answer that was needed did not come. `denied`
    /// where this is to count as a refusal, whatever later authorisers say.
    Failed {
        denied: bool,
        reason: Reason,
        error: Arc<str>,
    },
}

impl Decision {
    /// Whether the request may go on. No opinion is no.
    pub fn is_allowed(&self) -> bool {
        matches!(self, Self::Allow(_))
    }

    /// The reason, or nothing.
    pub fn reason(&self) -> &str {
        match self {
            Self::Allow(reason)
            | Self::Deny(reason)
            | Self::NoOpinion(reason)
            | Self::Failed { reason, .. } => reason.as_deref().unwrap_or(""),
        }
    }
}

/// Whoever decides what users may do. Whoever asks a webhook keeps its caller waiting: a request's own question is put to
/// the API server's chain, which waits without a thread.
pub trait Authorizer: Send + Sync {
    fn authorize(&self, attributes: &Attributes<'_>) -> Decision;
}

impl<A: Authorizer + ?Sized> Authorizer for Arc<A> {
    fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
        (**self).authorize(attributes)
    }
}
