//! Checks on the parameters of admission policies: the author must be allowed to read them, because a policy's messages
//! can reveal their contents.

use api_meta::{
    Attributes, ErrorList, FieldError, GroupResource, Path, Tree as _, UserInfo, go_quote,
    user::GROUP_MASTERS,
};
use serde_json::Value;

use super::request::AuthorizedRequest;

/// The resource of parameters; `*` if unknown.
struct Parameters {
    group: String,
    version: String,
    resource: String,
}

impl Parameters {
    /// Resolves a `paramKind`. Also returns the step that failed, if any.
    fn of(authorized: &AuthorizedRequest<'_>, kind: &Value) -> (Self, Option<&'static str>) {
        let all = || "*".to_owned();
        let api_version = kind.text("apiVersion");
        let (group, version) = match api_version.split_once('/') {
            Some((_, version)) if version.contains('/') => {
                return (Self { group: all(), version: all(), resource: all() }, Some("parse"));
            }
            Some(both) => both,
            None => ("", api_version),
        };
        let found = authorized.objects.resource_of(group, kind.text("kind"));
        let unresolved = found.is_none().then_some("resolve");
        let resource = found.map_or_else(all, |(resource, _)| resource.resource.into_owned());
        (Self { group: group.to_owned(), version: version.to_owned(), resource }, unresolved)
    }

    fn question<'q>(&'q self, user: &'q UserInfo, verb: &'q str) -> Attributes<'q> {
        let question = Attributes::resource(user, verb, &self.group, &self.resource);
        Attributes { version: &self.version, ..question }
    }
}

/// Checks that the author of a policy may `get` all objects of its `paramKind`.
pub(super) fn validate_param_kind(authorized: &AuthorizedRequest<'_>, errors: &mut ErrorList) {
    let kind = authorized.new.at("spec.paramKind");
    let same = authorized.old.is_some_and(|old| *old.at("spec.paramKind") == *kind);
    // Upstream checks only valid objects.
    if kind.is_null()
        || same
        || !errors.is_empty()
        || authorized.request.user.in_group(GROUP_MASTERS)
    {
        return;
    }
    let user = authorized.request.user;
    let (parameters, _) = Parameters::of(authorized, kind);
    let question = parameters.question(user, "get");
    if authorized.allows(&question.in_namespace("*").named("*")) {
        return;
    }
    let detail = format!(
        "user {} must have \"get\" permission on all objects of the referenced paramKind (kind={}, apiVersion={})",
        format_user_like_go(user),
        kind.text("kind"),
        kind.text("apiVersion")
    );
    errors.push(FieldError::forbidden(&Path::new("spec").child("paramKind"), detail));
}

/// Checks that the author of a binding may read the objects of its `paramRef`.
pub(super) fn validate_param_ref(authorized: &AuthorizedRequest<'_>, errors: &mut ErrorList) {
    let spec = &authorized.new["spec"];
    let (reference, policy) = (&spec["paramRef"], &spec["policyName"]);
    let same = authorized.old.is_some_and(|old| {
        *old.at("spec.paramRef") == *reference && *old.at("spec.policyName") == *policy
    });
    let user = authorized.request.user;
    if reference.is_null() || same || !errors.is_empty() || user.in_group(GROUP_MASTERS) {
        return;
    }
    let policy = policy.as_str().unwrap_or_default();
    // The name of the policy's resource follows from the binding's.
    let kept = authorized.request.resource.replace("policybindings", "policies");
    let kept = GroupResource::new(authorized.request.group.to_owned(), kept);
    let found = authorized.objects.get(&kept, "", policy);
    let kind = found.as_deref().map_or(&Value::Null, |policy| policy.at("spec.paramKind"));
    let (parameters, failed) = match kind {
        Value::Null => {
            (Parameters { group: "*".into(), version: "*".into(), resource: "*".into() }, None)
        }
        kind => Parameters::of(authorized, kind),
    };
    let verb = if reference.text("name").is_empty() { "list" } else { "get" };
    let question = parameters.question(user, verb);
    if authorized
        .allows(&question.in_namespace(reference.text("namespace")).named(reference.text("name")))
    {
        return;
    }
    let (who, verb) = (format_user_like_go(user), go_quote(verb));
    let unknown = match (found.is_none(), failed) {
        (true, _) => Some(format!("get policy {policy}")),
        (_, Some(what)) => Some(format!(
            "{what} paramKind &ParamKind{{APIVersion:{},Kind:{},}}",
            kind.text("apiVersion"),
            kind.text("kind")
        )),
        _ => None,
    };
    let detail = match unknown {
        Some(what) => format!(
            "unable to {what} to determine minimum required permissions and user {who} does not \
            have {verb} permission for all groups, versions and resources"
        ),
        None => format!(
            "user {who} does not have {verb} permission on the object referenced by paramRef"
        ),
    };
    errors.push(FieldError::forbidden(&Path::new("spec").child("paramRef"), detail));
}

/// Formats a user as Go does, for upstream's messages.
fn format_user_like_go(user: &UserInfo) -> String {
    let extra: Vec<String> =
        user.extra.iter().map(|(key, values)| format!("{key}:[{}]", values.join(" "))).collect();
    format!("&{{{} {} [{}] map[{}]}}", user.name, user.uid, user.groups.join(" "), extra.join(" "))
}
