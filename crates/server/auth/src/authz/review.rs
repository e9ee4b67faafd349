//! Access reviews: SubjectAccessReview, its variants, and SelfSubjectRulesReview.

use api_meta::{
    Attributes, Decision, ErrorList, FieldError, FieldSelector, GroupKind, Path, Selector, Status,
    Tree as _, UserInfo, values_error,
};
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

/// The user of an access review.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject<'a> {
    /// The caller, for a SelfSubjectAccessReview.
    Caller(&'a UserInfo),
    /// The user in the spec, for a SubjectAccessReview.
    Named,
    /// The user in the spec, within one namespace, for a LocalSubjectAccessReview.
    NamedIn(&'a str),
}

/// A validated access review.
pub struct Question {
    user: UserInfo,
    spec: Spec,
    fields: Option<FieldSelector>,
    labels: Option<Selector>,
    ignored: Vec<&'static str>,
}

impl Question {
    /// Reads and validates the `spec`.
    pub fn of(review: &Value, subject: Subject<'_>) -> Result<Self, Status> {
        let mut spec = Spec::deserialize(&review["spec"]).map_err(|e| {
            Status::bad_request(format!("cannot read the spec of the access review: {e}"))
        })?;
        let named = UserInfo {
            name: spec.user.take().unwrap_or_default(),
            uid: spec.uid.take().unwrap_or_default(),
            groups: spec.groups.take().unwrap_or_default(),
            extra: spec.extra.take().unwrap_or_default(),
        };
        check(&spec, &named, subject)?;
        let user = match subject {
            Subject::Caller(user) => user.clone(),
            Subject::Named | Subject::NamedIn(_) => named,
        };
        let mut question = Self { user, spec, fields: None, labels: None, ignored: Vec::new() };
        question.read_selectors();
        Ok(question)
    }

    /// Parses the selectors. An invalid selector is ignored, so it restricts nothing.
    fn read_selectors(&mut self) {
        let Some(resource) = &self.spec.resource_attributes else { return };
        let fields: Option<Option<FieldSelector>> =
            resource.field_selector.as_ref().map(|s| s.text().and_then(|text| text.parse().ok()));
        let labels: Option<Option<Selector>> =
            resource.label_selector.as_ref().map(|s| s.text().and_then(|text| text.parse().ok()));
        if matches!(fields, Some(None)) {
            self.ignored.push("spec.resourceAttributes.fieldSelector ignored due to parse error");
        }
        if matches!(labels, Some(None)) {
            self.ignored.push("spec.resourceAttributes.labelSelector ignored due to parse error");
        }
        (self.fields, self.labels) = (fields.flatten(), labels.flatten());
    }

    /// Returns the request attributes for authorizers.
    pub fn attributes(&self) -> Attributes<'_> {
        match (&self.spec.resource_attributes, &self.spec.non_resource_attributes) {
            (Some(resource), _) => Attributes {
                version: &resource.version,
                subresource: &resource.subresource,
                namespace: &resource.namespace,
                name: &resource.name,
                field_selector: self.fields.as_ref(),
                label_selector: self.labels.as_ref(),
                ..Attributes::resource(
                    &self.user,
                    &resource.verb,
                    &resource.group,
                    &resource.resource,
                )
            },
            (None, path) => {
                let (path, verb) =
                    path.as_ref().map_or(("", ""), |p| (p.path.as_str(), p.verb.as_str()));
                Attributes::path(&self.user, verb, path)
            }
        }
    }

    /// Sets the `status` of the review.
    pub fn answer(&self, review: &mut Value, decision: &Decision) {
        let mut errors: Vec<&str> = self.ignored.clone();
        if let Decision::Failed { error, .. } = decision {
            errors.insert(0, error);
        }
        review.put(&["status"], status_of(decision));
        if !errors.is_empty() {
            review.put(&["status", "evaluationError"], errors.join(", "));
        }
    }
}

/// Validates the spec with upstream's messages. The status has no name, and uses the fields of upstream's internal
/// types.
fn check(spec: &Spec, named: &UserInfo, subject: Subject<'_>) -> Result<(), Status> {
    let (path, mut errors) = (Path::new("spec"), ErrorList::new());
    let (resource, other) = (path.child("resourceAttributes"), path.child("nonResourceAttributes"));
    let shown = |path: &NonResource| json!({"Path": path.path, "Verb": path.verb});
    match (&spec.resource_attributes, &spec.non_resource_attributes) {
        (Some(_), Some(both)) => {
            let detail = "cannot be specified in combination with resourceAttributes";
            errors.push(FieldError::invalid(&other, shown(both), detail));
        }
        (None, None) => {
            let detail =
                "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            errors.push(FieldError::invalid(&resource, Value::Null, detail));
        }
        _ => {}
    }
    if !matches!(subject, Subject::Caller(_)) && named.name.is_empty() && named.groups.is_empty() {
        let detail = "at least one of user or group must be specified";
        errors.push(FieldError::invalid(&path.child("user"), "", detail));
    }
    if let Some(attributes) = &spec.resource_attributes {
        validate_selectors(attributes, &resource, &mut errors);
    }
    if let Subject::NamedIn(namespace) = subject {
        let requested = spec.resource_attributes.as_ref().map(|r| r.namespace.as_str());
        if let Some(requested) = requested.filter(|requested| *requested != namespace) {
            let detail = "must match metadata.namespace";
            errors.push(FieldError::invalid(&resource.child("namespace"), requested, detail));
        }
        if let Some(attributes) = &spec.non_resource_attributes {
            let detail = "disallowed on this kind of request";
            errors.push(FieldError::invalid(&other, shown(attributes), detail));
        }
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(Status::invalid(&GroupKind::new("authorization.k8s.io", ""), "", &errors))
    }
}

fn validate_selectors(resource: &Resource, path: &Path, errors: &mut ErrorList) {
    let selectors =
        [("fieldSelector", &resource.field_selector), ("labelSelector", &resource.label_selector)];
    for (name, selector) in selectors {
        let Some(selector) = selector else { continue };
        let path = path.child(name);
        let terms = selector.requirements.as_deref().unwrap_or_default();
        if !selector.raw_selector.is_empty() && !terms.is_empty() {
            let detail = "may not specified at the same time as requirements";
            let raw = selector.raw_selector.as_str();
            errors.push(FieldError::invalid(&path.child("rawSelector"), raw, detail));
        }
        let requirements = path.child("requirements");
        if selector.raw_selector.is_empty() && terms.is_empty() {
            let detail = format!(
                "when {} is specified, requirements or rawSelector is required",
                path.as_str()
            );
            errors.push(FieldError::required(&requirements, detail));
        }
        for (i, term) in terms.iter().enumerate() {
            validate_term(term, &requirements.index(i), errors);
        }
    }
}

fn validate_term(term: &SelectorTerm, path: &Path, errors: &mut ErrorList) {
    let values = term.values.as_deref().unwrap_or_default();
    if term.key.is_empty() {
        errors.push(FieldError::required(&path.child("key"), "must be specified"));
    }
    errors.extend(values_error(&term.operator, values.is_empty(), path));
}

impl RawSelector {
    /// Returns the selector in its query form, or `None` for an unknown operator.
    fn text(&self) -> Option<String> {
        let Some(requirements) = &self.requirements else { return Some(self.raw_selector.clone()) };
        let term = |t: &SelectorTerm| {
            let values = t.values.as_deref().unwrap_or_default();
            Some(match (t.operator.as_str(), values) {
                ("In", [one]) => format!("{}={one}", t.key),
                ("NotIn", [one]) => format!("{}!={one}", t.key),
                ("In", values) => format!("{} in ({})", t.key, values.join(",")),
                ("NotIn", values) => format!("{} notin ({})", t.key, values.join(",")),
                ("DoesNotExist", _) => format!("!{}", t.key),
                ("Exists", _) => t.key.clone(),
                _ => return None,
            })
        };
        Some(requirements.iter().map(term).collect::<Option<Vec<_>>>()?.join(","))
    }
}

fn status_of(decision: &Decision) -> Value {
    let mut status = json!({"allowed": decision.is_allowed()});
    if matches!(decision, Decision::Deny(_) | Decision::Failed { denied: true, .. }) {
        status.put(&["denied"], true);
    }
    if !decision.reason().is_empty() {
        status.put(&["reason"], decision.reason());
    }
    status
}

/// Sets the `status` of a SelfSubjectRulesReview: the caller's RBAC rules in a namespace, if RBAC is enabled. `untold`
/// has messages about authorizers that cannot list their rules.
pub fn rules_review(
    review: &mut Value,
    user: &UserInfo,
    rbac: Option<&Rbac>,
    gaps: Vec<String>,
) -> Result<(), Status> {
    let namespace = review.text("spec.namespace").to_owned();
    if namespace.is_empty() {
        return Err(Status::bad_request("no namespace on request"));
    }
    let (rules, missing) = rbac.map(|rbac| rbac.rules_for(user, &namespace)).unwrap_or_default();
    let (on_paths, on_resources): (Vec<&PolicyRule>, Vec<&PolicyRule>) =
        rules.iter().partition(|rule| !rule.non_resource_urls.is_empty());
    // The Node authorizer cannot list its rules.
    let mut errors = missing;
    errors.extend(gaps);
    if user.as_node().is_some() {
        errors.push("node authorizer does not support user rule resolution".into());
    }
    let mut status = json!({
        "resourceRules": on_resources,
        "nonResourceRules": on_paths,
        "incomplete": !errors.is_empty()
    });
    if !errors.is_empty() {
        status.put(&["evaluationError"], errors.join(", "));
    }
    review.put(&["status"], status);
    Ok(())
}

#[cfg(test)]
mod tests {
    use api_meta::Authorizer as _;

    use super::*;
    use crate::testing::bootstrapped;

    fn access_review(review: &mut Value, subject: Subject<'_>, rbac: &Rbac) -> Result<(), Status> {
        let question = Question::of(review, subject)?;
        let decision = rbac.authorize(&question.attributes());
        question.answer(review, &decision);
        Ok(())
    }

    #[test]
    fn rejects_review_without_attributes() {
        let admin = UserInfo::new("root", &[]);
        let get = json!({"verb": "get", "resource": "pods"});
        let mut review = json!({"spec": {"resourceAttributes": get}});
        let question = Question::of(&review, Subject::Caller(&admin)).unwrap();
        let error = "no answer".into();
        question.answer(&mut review, &Decision::Failed { denied: true, reason: None, error });
        let wanted = json!({"allowed": false, "denied": true, "evaluationError": "no answer"});
        assert_eq!(review["status"], wanted);
    }

    #[test]
    fn answers_access_reviews() {
        let rbac = bootstrapped();
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
                Err(422),
            ),
            (json!({"resourceAttributes": get}), Subject::Named, Err(422)),
            (
                json!({"nonResourceAttributes": {"path": "/livez", "verb": "get"}, "groups": ["system:authenticated"]}),
                Subject::Named,
                Ok(true),
            ),
            (json!({}), Subject::Caller(&admin), Err(422)),
            (
                json!({"resourceAttributes": get, "nonResourceAttributes": {"path": "/"}}),
                Subject::Caller(&admin),
                Err(422),
            ),
            (json!({"resourceAttributes": "x"}), Subject::Caller(&admin), Err(400)),
        ];
        for (spec, subject, want) in cases {
            let mut review = json!({"spec": spec});
            let got = access_review(&mut review, subject, &rbac).map_err(|status| status.code);
            assert_eq!(got.map(|()| review["status"]["allowed"] == true), want, "{review}");
        }
    }

    #[test]
    fn rejects_invalid_selectors() {
        let admin = UserInfo::new("root", &["system:masters"]);
        let cases = [
            (json!({}), Err(1)),
            (
                json!({"rawSelector": "a=b", "requirements": [{"key": "a", "operator": "Exists"}]}),
                Err(1),
            ),
            (json!({"requirements": [{"key": "", "operator": "In"}]}), Err(2)),
            (
                json!({"requirements": [{"key": "a", "operator": "Exists", "values": ["b"]}]}),
                Err(1),
            ),
            (json!({"rawSelector": "!!"}), Ok(true)),
            (json!({"requirements": [{"key": "a", "operator": "Foo"}]}), Ok(true)),
            (json!({"requirements": [{"key": "a", "operator": "In", "values": ["b"]}]}), Ok(false)),
        ];
        for (selector, want) in cases {
            let mut review = json!({"spec": {"resourceAttributes": {"labelSelector": selector}}});
            let got = access_review(&mut review, Subject::Caller(&admin), &bootstrapped());
            let got = got.map_err(|status| status.details.map_or(0, |d| d.causes.len()));
            let ignored = review["status"]["evaluationError"].is_string();
            assert_eq!(got.map(|()| ignored), want, "{selector}");
        }
    }

    #[test]
    fn lists_rules_of_caller() {
        let mut review = json!({"spec": {"namespace": "default"}});
        let bob = UserInfo::new("bob", &["system:authenticated"]);
        rules_review(&mut review, &bob, Some(&bootstrapped()), Vec::new()).unwrap();
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
