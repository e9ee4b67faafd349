//! SubjectAccessReview and its relatives: asking the API server what someone may do.

use api_meta::{Attributes, Authorizer, Decision, FieldSelector, Selector, Status, UserInfo};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::rbac::{PolicyRule, Rbac};

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    resource_attributes: Option<Resource>,
    non_resource_attributes: Option<NonResource>,
    user: Option<String>,
    groups: Option<Vec<String>>,
    extra: Option<std::collections::BTreeMap<String, Vec<String>>>,
    uid: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Resource {
    namespace: String,
    verb: String,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    name: String,
    field_selector: Option<RawSelector>,
    label_selector: Option<RawSelector>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawSelector {
    raw_selector: String,
    requirements: Option<Vec<SelectorTerm>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct SelectorTerm {
    key: String,
    operator: String,
    values: Option<Vec<String>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct NonResource {
    path: String,
    verb: String,
}

/// Whose access a review asks about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject<'a> {
    /// The caller: SelfSubjectAccessReview.
    Caller(&'a UserInfo),
    /// The user in the spec: SubjectAccessReview.
    Named,
    /// The same, within one namespace: LocalSubjectAccessReview.
    NamedIn(&'a str),
}

/// Fills in the `status` of an access review.
pub fn access_review(
    review: &mut Value,
    subject: Subject<'_>,
    authorizer: &dyn Authorizer,
) -> Result<(), Status> {
    let spec = Spec::deserialize(&review["spec"]).map_err(|e| {
        Status::bad_request(format!("cannot read the spec of the access review: {e}"))
    })?;
    let named = UserInfo {
        name: spec.user.unwrap_or_default(),
        uid: spec.uid.unwrap_or_default(),
        groups: spec.groups.unwrap_or_default(),
        extra: spec.extra.unwrap_or_default(),
    };
    let user = match subject {
        Subject::Caller(user) => user,
        Subject::Named | Subject::NamedIn(_) => {
            if named.name.is_empty() && named.groups.is_empty() {
                return Err(Status::bad_request("at least one of user or group must be specified"));
            }
            &named
        }
    };
    let decision = match (&spec.resource_attributes, &spec.non_resource_attributes) {
        (Some(resource), None) => {
            if let Subject::NamedIn(namespace) = subject
                && resource.namespace != namespace
            {
                return Err(Status::bad_request(format!(
                    "spec.resourceAttributes.namespace must match namespace: {namespace}"
                )));
            }
            on_resource(resource, user, authorizer)
        }
        (None, Some(_)) if matches!(subject, Subject::NamedIn(_)) => {
            return Err(Status::bad_request("disallowed on this kind of request"));
        }
        (None, Some(path)) => authorizer.authorize(&Attributes::path(user, &path.verb, &path.path)),
        _ => {
            return Err(Status::bad_request(
                "exactly one of nonResourceAttributes or resourceAttributes must be specified",
            ));
        }
    };
    review["status"] = status_of(&decision);
    Ok(())
}

fn on_resource(resource: &Resource, user: &UserInfo, authorizer: &dyn Authorizer) -> Decision {
    // A selector that cannot be read narrows nothing, and so is left out.
    let fields: Option<FieldSelector> =
        resource.field_selector.as_ref().and_then(|s| s.text().parse().ok());
    let labels: Option<Selector> =
        resource.label_selector.as_ref().and_then(|s| s.text().parse().ok());
    authorizer.authorize(&Attributes {
        version: &resource.version,
        subresource: &resource.subresource,
        namespace: &resource.namespace,
        name: &resource.name,
        field_selector: fields.as_ref(),
        label_selector: labels.as_ref(),
        ..Attributes::resource(user, &resource.verb, &resource.group, &resource.resource)
    })
}

impl RawSelector {
    /// The selector in its query form.
    fn text(&self) -> String {
        let Some(requirements) = &self.requirements else { return self.raw_selector.clone() };
        let term = |t: &SelectorTerm| {
            let values = t.values.as_deref().unwrap_or_default();
            match (t.operator.as_str(), values) {
                ("In", [one]) => format!("{}={one}", t.key),
                ("NotIn", [one]) => format!("{}!={one}", t.key),
                ("In", values) => format!("{} in ({})", t.key, values.join(",")),
                ("NotIn", values) => format!("{} notin ({})", t.key, values.join(",")),
                ("DoesNotExist", _) => format!("!{}", t.key),
                _ => t.key.clone(),
            }
        };
        requirements.iter().map(term).collect::<Vec<_>>().join(",")
    }
}

fn status_of(decision: &Decision) -> Value {
    let mut status = json!({"allowed": decision.is_allowed()});
    if matches!(decision, Decision::Deny(_)) {
        status["denied"] = true.into();
    }
    if !decision.reason().is_empty() {
        status["reason"] = decision.reason().into();
    }
    status
}

/// Fills in the `status` of a SelfSubjectRulesReview: what the caller may do in a namespace, as far as RBAC knows.
pub fn rules_review(review: &mut Value, user: &UserInfo, rbac: &Rbac) -> Result<(), Status> {
    let namespace = review["spec"]["namespace"].as_str().unwrap_or("").to_owned();
    if namespace.is_empty() {
        return Err(Status::bad_request("no namespace on request"));
    }
    let (rules, missing) = rbac.rules_for(user, &namespace);
    let (on_paths, on_resources): (Vec<&PolicyRule>, Vec<&PolicyRule>) =
        rules.iter().partition(|rule| !rule.non_resource_urls.is_empty());
    // The Node authoriser cannot list its rules.
    let mut errors = missing;
    if user.as_node().is_some() {
        errors.push("node authorizer does not support user rule resolution".into());
    }
    let mut status = json!({
        "resourceRules": on_resources,
        "nonResourceRules": on_paths,
        "incomplete": !errors.is_empty()
    });
    if !errors.is_empty() {
        status["evaluationError"] = errors.join(", ").into();
    }
    review["status"] = status;
    Ok(())
}

#[cfg(test)]
mod tests {
    use api_meta::Observer;

    use super::*;
    use crate::rbac::bootstrap_objects;

    fn rbac() -> Rbac {
        let rbac = Rbac::new();
        for (resource, object) in bootstrap_objects() {
            rbac.changed(resource, None, Some(object));
        }
        rbac
    }

    #[test]
    fn answers_who_may_do_what() {
        let rbac = rbac();
        let admin = UserInfo::new("root", &["system:masters"]);
        let get = json!({"namespace": "ns", "verb": "get", "resource": "pods"});
        let cases = [
            (json!({"resourceAttributes": get}), Subject::Caller(&admin), Ok(true)),
            (json!({"resourceAttributes": get, "user": "bob"}), Subject::Named, Ok(false)),
            (
                json!({"resourceAttributes": get, "groups": ["system:masters"]}),
                Subject::Named,
                Ok(true),
            ),
            (json!({"resourceAttributes": get, "user": "bob"}), Subject::NamedIn("ns"), Ok(false)),
            (
                json!({"resourceAttributes": get, "user": "bob"}),
                Subject::NamedIn("other"),
                Err(400),
            ),
            (json!({"resourceAttributes": get}), Subject::Named, Err(400)),
            (
                json!({"nonResourceAttributes": {"path": "/livez", "verb": "get"}, "groups": ["system:authenticated"]}),
                Subject::Named,
                Ok(true),
            ),
            (json!({}), Subject::Caller(&admin), Err(400)),
            (json!({"resourceAttributes": "x"}), Subject::Caller(&admin), Err(400)),
        ];
        for (spec, subject, want) in cases {
            let mut review = json!({"spec": spec});
            let got = access_review(&mut review, subject, &rbac).map_err(|status| status.code);
            assert_eq!(got.map(|()| review["status"]["allowed"] == true), want, "{review}");
        }
    }

    #[test]
    fn lists_the_callers_rules() {
        let mut review = json!({"spec": {"namespace": "default"}});
        rules_review(&mut review, &UserInfo::new("bob", &["system:authenticated"]), &rbac())
            .unwrap();
        let status = &review["status"];
        assert_eq!(status["incomplete"], false);
        assert!(
            status["resourceRules"]
                .as_array()
                .unwrap()
                .iter()
                .any(|r| r["resources"][0] == "selfsubjectaccessreviews")
        );
        assert!(!status["nonResourceRules"].as_array().unwrap().is_empty());
    }
}
