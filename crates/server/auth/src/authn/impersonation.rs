//! User impersonation by `Impersonate-*` headers.
//!
//! There are four constrained modes (upstream's `ConstrainedImpersonation`) and the unconstrained one. A constrained
//! mode needs a permission for the identity, and `impersonate-on:<mode>:<verb>` for the request itself. The
//! unconstrained mode with the verb `impersonate` is tried last.

use api_meta::{
    Attributes, Authorizer, FieldError, Path, Status, UserInfo, aggregate, go_quote,
    user::{ANONYMOUS, GROUP_AUTHENTICATED, GROUP_MASTERS, GROUP_NODES, GROUP_UNAUTHENTICATED},
    validation,
};
use http::{HeaderMap, HeaderValue};

use super::{front_proxy::unescape, service_account::NODE_NAME};
use crate::forbidden;

#[cfg(test)]
mod tests;

const EXTRA_PREFIX: &str = "impersonate-extra-";
const AUTHENTICATION: &str = "authentication.k8s.io";

/// A constrained impersonation mode.
struct Mode {
    /// The name, which is part of the verbs.
    name: &'static str,
    /// Reports whether the mode applies to this requested user and this requestor.
    fits: fn(&UserInfo, &UserInfo) -> bool,
}

/// The constrained modes, in the order in which they are tried.
const MODES: [Mode; 4] = [
    Mode {
        name: "associated-node",
        fits: |wanted, requestor| {
            let own = requestor.as_service_account().and_then(|_| requestor.extra_value(NODE_NAME));
            is_bare(wanted) && own.is_some() && node_of(wanted) == own
        },
    },
    Mode { name: "arbitrary-node", fits: |wanted, _| is_bare(wanted) && node_of(wanted).is_some() },
    Mode {
        name: "serviceaccount",
        fits: |wanted, _| is_bare(wanted) && wanted.as_service_account().is_some(),
    },
    Mode {
        name: "user-info",
        fits: |wanted, _| node_of(wanted).is_none() && wanted.as_service_account().is_none(),
    },
];

/// Reports whether only a name is requested. The server sets the groups of nodes and service accounts.
fn is_bare(wanted: &UserInfo) -> bool {
    wanted.uid.is_empty() && wanted.groups.is_empty() && wanted.extra.is_empty()
}

fn node_of(user: &UserInfo) -> Option<&str> {
    let name = user.name.strip_prefix("system:node:")?;
    validation::dns1123_subdomain(name).is_empty().then_some(name)
}

/// Returns the impersonated user, or `None` without impersonation headers. `request` is the requestor's request.
///
/// Every part of the requested identity needs its own permission.
pub fn impersonate(
    headers: &HeaderMap,
    request: &Attributes<'_>,
    authorizer: &dyn Authorizer,
) -> Result<Option<UserInfo>, Status> {
    let Some(wanted) = requested_identity(headers)? else { return Ok(None) };
    let mut first = None;
    for mode in MODES.iter().filter(|mode| (mode.fits)(&wanted, request.user)) {
        match impersonate_in_mode(mode, &wanted, request, authorizer) {
            Ok(user) => return Ok(Some(user)),
            Err(status) => drop(first.get_or_insert(status)),
        }
    }
    let verb = "impersonate".to_owned();
    let check = Check { authorizer, user: request.user, verb, constrained: false, any_node: false };
    match check.authorize_user(&wanted) {
        Ok(()) => Ok(Some(with_implied_groups(wanted))),
        Err(status) => Err(first.unwrap_or(status)),
    }
}

fn impersonate_in_mode(
    mode: &Mode,
    wanted: &UserInfo,
    request: &Attributes<'_>,
    authorizer: &dyn Authorizer,
) -> Result<UserInfo, Status> {
    let any_node = mode.name == "associated-node";
    // The association is already verified. Authorizers see only that there is one, and decide for all nodes alike.
    let associated = any_node.then(|| {
        let keys = request.user.extra.keys().cloned().collect();
        let key = "authentication.kubernetes.io/associated-node-keys".to_owned();
        UserInfo { extra: [(key, keys)].into(), ..request.user.clone() }
    });
    let user = associated.as_ref().unwrap_or(request.user);
    let verb = format!("impersonate-on:{}:{}", mode.name, request.verb);
    require_permission(authorizer, &Attributes { user, verb: &verb, ..*request })?;
    let verb = format!("impersonate:{}", mode.name);
    Check { authorizer, user, verb, constrained: true, any_node }.authorize_user(wanted)?;
    let mut wanted = wanted.clone();
    if node_of(&wanted).is_some() {
        wanted.groups = vec![GROUP_NODES.to_owned()];
    }
    Ok(with_implied_groups(wanted))
}

fn require_permission(
    authorizer: &dyn Authorizer,
    question: &Attributes<'_>,
) -> Result<(), Status> {
    let decision = authorizer.authorize(question);
    if decision.is_allowed() { Ok(()) } else { Err(forbidden(question, decision.reason())) }
}

/// Checks the permissions for the parts of an identity.
struct Check<'a> {
    authorizer: &'a dyn Authorizer,
    user: &'a UserInfo,
    verb: String,
    constrained: bool,
    /// `true` if the node's name is ignored, because it is the requestor's own node.
    any_node: bool,
}

/// The number of groups or extra values from which on a permission for all of them is checked first.
const MANY: usize = 4;

impl Check<'_> {
    fn on<'q>(&'q self, group: &'q str, resource: &'q str) -> Attributes<'q> {
        let question = Attributes::resource(self.user, &self.verb, group, resource);
        Attributes { version: "v1", ..question }
    }

    /// Returns the API group of users, groups and service accounts, which differs in constrained modes.
    fn group(&self) -> &'static str {
        if self.constrained { AUTHENTICATION } else { "" }
    }

    fn authorize(&self, question: &Attributes<'_>) -> Result<(), Status> {
        require_permission(self.authorizer, question)
    }

    fn authorize_user(&self, wanted: &UserInfo) -> Result<(), Status> {
        self.name(wanted)?;
        if !wanted.uid.is_empty() {
            self.authorize(&self.on(AUTHENTICATION, "uids").named(&wanted.uid))?;
        }
        self.groups(&wanted.groups)?;
        self.extra(wanted)
    }

    fn name(&self, wanted: &UserInfo) -> Result<(), Status> {
        if let Some((namespace, name)) = wanted.as_service_account() {
            let question = self.on(self.group(), "serviceaccounts");
            return self.authorize(&question.in_namespace(namespace).named(name));
        }
        match node_of(wanted).filter(|_| self.constrained) {
            Some(node) => {
                let name = if self.any_node { "*" } else { node };
                self.authorize(&self.on(AUTHENTICATION, "nodes").named(name))
            }
            None => self.authorize(&self.on(self.group(), "users").named(&wanted.name)),
        }
    }

    fn groups(&self, groups: &[String]) -> Result<(), Status> {
        let question = || self.on(self.group(), "groups");
        if self.constrained {
            if groups.iter().any(String::is_empty) {
                let cause = "impersonating the empty string group is not allowed";
                return Err(forbidden(&question(), cause));
            }
            if groups.iter().any(|group| group == GROUP_MASTERS) {
                let cause = "impersonating the system:masters group is not allowed";
                return Err(forbidden(&question().named(GROUP_MASTERS), cause));
            }
            if groups.len() >= MANY && self.authorize(&question().named("*")).is_ok() {
                return Ok(());
            }
        }
        groups.iter().try_for_each(|group| self.authorize(&question().named(group)))
    }

    fn extra(&self, wanted: &UserInfo) -> Result<(), Status> {
        let question = || self.on(AUTHENTICATION, "userextras");
        let extra = &wanted.extra;
        if self.constrained {
            for (key, values) in extra {
                validate_extra(key, values)
                    .map_err(|error| forbidden(&question(), &error.to_string()))?;
            }
            let many = extra.len() >= MANY || extra.values().map(Vec::len).sum::<usize>() >= MANY;
            if many && self.authorize(&question().with_subresource("*").named("*")).is_ok() {
                return Ok(());
            }
        }
        for (key, values) in extra {
            for value in values {
                self.authorize(&question().with_subresource(key).named(value))?;
            }
        }
        Ok(())
    }
}

/// The reason why an extra field cannot be impersonated, with upstream's messages.
#[derive(Debug, thiserror::Error)]
enum ExtraError {
    #[error("impersonating the empty string key in extra is not allowed")]
    EmptyKey,
    #[error("impersonating an invalid key in extra is not allowed: {}", aggregate(.0))]
    InvalidKey(Vec<FieldError>),
    #[error("impersonating a non-lowercase key in extra is not allowed: {}", go_quote(.0))]
    UppercaseKey(String),
    #[error("impersonating the empty string value in extra is not allowed")]
    EmptyValue,
}

fn validate_extra(key: &str, values: &[String]) -> Result<(), ExtraError> {
    if key.is_empty() {
        return Err(ExtraError::EmptyKey);
    }
    let path = Path::new("extra").child("key");
    let problems = validation::domain_prefixed_path(key);
    let problems: Vec<FieldError> =
        problems.into_iter().map(|detail| FieldError::invalid(&path, key, detail)).collect();
    if !problems.is_empty() {
        return Err(ExtraError::InvalidKey(problems));
    }
    if key.chars().any(char::is_uppercase) {
        return Err(ExtraError::UppercaseKey(key.to_owned()));
    }
    if values.iter().any(String::is_empty) {
        return Err(ExtraError::EmptyValue);
    }
    Ok(())
}

/// Parses the impersonation headers. An invalid header is rejected, because ignoring it would select another identity.
fn requested_identity(headers: &HeaderMap) -> Result<Option<UserInfo>, Status> {
    let text = |name: &str, value: &HeaderValue| {
        String::from_utf8(value.as_bytes().to_vec()).map_err(|_| {
            Status::bad_request(format!("the header {name} is not UTF-8; send it encoded so"))
        })
    };
    let mut wanted = UserInfo::default();
    let (mut names, mut uids) = (Vec::new(), Vec::new());
    // Almost no request has these headers, so they are searched once.
    for (name, value) in headers {
        let name = name.as_str();
        let Some(part) = name.strip_prefix("impersonate-") else { continue };
        match part {
            "user" => names.push(text(name, value)?),
            "uid" => uids.push(text(name, value)?),
            "group" => wanted.groups.push(text(name, value)?),
            _ => {
                if let Some(key) = name.strip_prefix(EXTRA_PREFIX) {
                    let value = text(name, value)?;
                    wanted.extra.entry(unescape(key)).or_default().push(value);
                }
            }
        }
    }
    // The first of several values counts.
    wanted.name = names.into_iter().next().unwrap_or_default();
    wanted.uid = uids.into_iter().next().unwrap_or_default();
    if !wanted.name.is_empty() {
        return Ok(Some(wanted));
    }
    if wanted == UserInfo::default() {
        return Ok(None);
    }
    Err(Status::bad_request(format!("requested {wanted:?} without impersonating a user name")))
}

fn with_implied_groups(mut user: UserInfo) -> UserInfo {
    if let (Some((namespace, name)), true) = (user.as_service_account(), user.groups.is_empty()) {
        user.groups = UserInfo::service_account(namespace, name).groups;
    }
    let implied = if user.name == ANONYMOUS { GROUP_UNAUTHENTICATED } else { GROUP_AUTHENTICATED };
    if !user.in_group(GROUP_UNAUTHENTICATED) && !user.in_group(implied) {
        user.groups.push(implied.to_owned());
    }
    user
}
