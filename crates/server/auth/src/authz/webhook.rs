//! Authorization webhooks: match conditions, reviews and the evaluation of answers. The API server makes the calls.

use std::collections::BTreeMap;

use api_config::authorization::MatchCondition;
use api_meta::{Attributes, Decision, Operator, Reason, Tree as _};
use api_rules::expressions::ACCESS_REVIEW;
use cel::{Env, EvalError, Issues, Limits, Program, Value as Cel};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// The maximum total length of the attributes of a cached answer. Longer attributes may be forged to fill the cache.
const MAX_REMEMBERED: usize = 10_000;

/// Returns the spec of a SubjectAccessReview of version 1.
pub fn spec(request: &Attributes<'_>) -> Value {
    let user = request.user;
    let mut spec = Map::new();
    if request.is_resource {
        let named = [
            ("namespace", request.namespace),
            ("verb", request.verb),
            ("group", request.group),
            ("version", request.version),
            ("resource", request.resource),
            ("subresource", request.subresource),
            ("name", request.name),
        ];
        let mut resource = texts(named);
        for (name, terms) in
            [("fieldSelector", field_terms(request)), ("labelSelector", label_terms(request))]
        {
            if !terms.is_empty() {
                resource.insert(name.to_owned(), json!({"requirements": terms}));
            }
        }
        spec.insert("resourceAttributes".to_owned(), resource.into());
    } else {
        let path = texts([("path", request.path), ("verb", request.verb)]);
        spec.insert("nonResourceAttributes".to_owned(), path.into());
    }
    spec.extend(texts([("user", &user.name), ("uid", &user.uid)]));
    if !user.groups.is_empty() {
        spec.insert("groups".to_owned(), json!(user.groups));
    }
    if !user.extra.is_empty() {
        spec.insert("extra".to_owned(), json!(user.extra));
    }
    spec.into()
}

/// Returns the non-empty strings.
fn texts<const N: usize>(named: [(&str, &str); N]) -> Map<String, Value> {
    let given = named.into_iter().filter(|(_, text)| !text.is_empty());
    given.map(|(name, text)| (name.to_owned(), text.into())).collect()
}

fn field_terms(request: &Attributes<'_>) -> Vec<Value> {
    let terms = request.field_selector.map(|s| s.terms.as_slice()).unwrap_or_default();
    let terms = terms.iter().map(|term| {
        let operator = if term.equal { "In" } else { "NotIn" };
        json!({"key": term.field, "operator": operator, "values": [term.value]})
    });
    terms.collect()
}

fn label_terms(request: &Attributes<'_>) -> Vec<Value> {
    let terms = request.label_selector.map(|s| s.requirements()).unwrap_or_default();
    let terms = terms.iter().filter_map(|term| {
        let operator = match term.operator() {
            Operator::Equals | Operator::DoubleEquals | Operator::In => "In",
            Operator::NotEquals | Operator::NotIn => "NotIn",
            Operator::Exists => "Exists",
            Operator::DoesNotExist => "DoesNotExist",
            // An omitted term makes the request broader, which is safe.
            _ => return None,
        };
        let mut out = json!({"key": term.key(), "operator": operator});
        if !term.values().is_empty() {
            out.put(&["values"], term.values());
        }
        Some(out)
    });
    terms.collect()
}

/// Reports whether the answer may be cached.
pub fn may_remember(request: &Attributes<'_>) -> bool {
    let controlled = [
        request.namespace,
        request.verb,
        request.group,
        request.version,
        request.resource,
        request.subresource,
        request.name,
        request.path,
    ];
    controlled.iter().map(|text| text.len()).sum::<usize>() < MAX_REMEMBERED
}

/// Builds a review of a version from the spec of version 1.
pub fn review(version: &str, spec: &Value) -> Value {
    let mut spec = spec.clone();
    // v1beta1 names this field differently.
    if version == "v1beta1"
        && let Some(groups) = spec.as_object_mut().and_then(|spec| spec.remove("groups"))
        && let Some(spec) = spec.as_object_mut()
    {
        spec.insert("group".to_owned(), groups);
    }
    json!({
        "kind": "SubjectAccessReview", "apiVersion": format!("authorization.k8s.io/{version}"),
        "metadata": {}, "spec": spec, "status": {"allowed": false},
    })
}

/// The answer of a webhook.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Answer {
    /// `true` if the webhook allows the request.
    pub allowed: bool,
    denied: bool,
    reason: String,
}

/// The reason why a webhook's answer is invalid.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    #[error("couldn't read the answer as a SubjectAccessReview: {0}")]
    Json(#[from] serde_json::Error),
    #[error("expected a SubjectAccessReview of {expected}, got {kind} of {version}")]
    Kind { expected: String, kind: String, version: String },
}

impl Answer {
    /// Parses the returned review.
    pub fn read(version: &str, json: &[u8]) -> Result<Self, AnswerError> {
        #[derive(Deserialize)]
        struct Review {
            #[serde(default, rename = "apiVersion")]
            api_version: String,
            #[serde(default)]
            kind: String,
            #[serde(default)]
            status: Answer,
        }
        let read = |json: &[u8]| {
            let tree: Map<String, Value> = serde_json::from_slice(json)?;
            Review::deserialize(Value::Object(tree))
        };
        let review = read(json)?;
        let expected = format!("authorization.k8s.io/{version}");
        let is = |value: &str, expected: &str| value.is_empty() || value == expected;
        if is(&review.kind, "SubjectAccessReview") && is(&review.api_version, &expected) {
            Ok(review.status)
        } else {
            let Review { kind, api_version: version, .. } = review;
            Err(AnswerError::Kind { expected, kind, version })
        }
    }

    /// Returns the decision.
    pub fn decision(&self) -> Decision {
        let reason: Reason = (!self.reason.is_empty()).then(|| self.reason.as_str().into());
        match (self.denied, self.allowed) {
            (true, true) => Decision::Failed {
                denied: true,
                reason,
                error: "webhook subject access review returned both allow and deny response".into(),
            },
            (true, false) => Decision::Deny(reason),
            (false, true) => Decision::Allow(reason),
            (false, false) => Decision::NoOpinion(reason),
        }
    }
}

/// The reason why match conditions have no result, with upstream's messages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConditionError {
    #[error("compilation failed: {0}")]
    Compilation(#[from] Issues),
    #[error("must evaluate to bool but got {0}")]
    ResultType(String),
    #[error(transparent)]
    Request(#[from] EvalError),
    #[error("cel evaluation error: expression '{expression}' resulted in error: {source}")]
    Evaluation { expression: String, source: EvalError },
    #[error("[{}]", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Several(Vec<Self>),
}

/// The match conditions of a webhook, which must all be true.
#[derive(Debug, Default)]
pub struct Conditions(Vec<(String, Program)>);

impl Conditions {
    /// Compiles and adds a condition.
    pub fn add(&mut self, condition: &MatchCondition) -> Result<(), ConditionError> {
        let text = &condition.expression;
        let env = Env::default().variable("request", ACCESS_REVIEW.clone());
        let program = Program::compile(&env, text)?;
        let result = program.result().declared();
        if *result != *"bool" {
            return Err(ConditionError::ResultType(result.to_string()));
        }
        self.0.push((text.clone(), program));
        Ok(())
    }

    /// Reports whether there are no conditions.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reports whether all conditions are true. A false condition wins over an error in another one.
    pub fn hold(&self, spec: &Value) -> Result<bool, ConditionError> {
        let shown = with_all_strings(spec);
        let shown = Cel::from_json(&shown, &ACCESS_REVIEW)?;
        let mut errors = Vec::new();
        for (text, program) in &self.0 {
            let failed = |source| ConditionError::Evaluation { expression: text.clone(), source };
            match program.evaluate(&[Some(shown.clone())], Limits::default()).value {
                Ok(Cel::Bool(true)) => {}
                Ok(Cel::Bool(false)) => return Ok(false),
                Ok(_) => {
                    errors.push(failed(EvalError::Failed("the result is not a boolean".to_owned())))
                }
                Err(error) => errors.push(failed(error)),
            }
        }
        match errors.len() {
            0 => Ok(true),
            1 => Err(errors.swap_remove(0)),
            _ => Err(ConditionError::Several(errors)),
        }
    }
}

/// Returns the spec for conditions, in which all string fields are present.
fn with_all_strings(spec: &Value) -> Value {
    let mut out = spec.as_object().cloned().unwrap_or_default();
    let fill = |map: &mut Map<String, Value>, names: &[&str]| {
        for name in names {
            map.entry(*name).or_insert_with(|| "".into());
        }
    };
    fill(&mut out, &["user", "uid"]);
    out.entry("groups").or_insert_with(|| json!([]));
    out.entry("extra").or_insert_with(|| json!(BTreeMap::<String, String>::new()));
    for (part, names) in [
        (
            "resourceAttributes",
            &["namespace", "verb", "group", "version", "resource", "subresource", "name"][..],
        ),
        ("nonResourceAttributes", &["path", "verb"]),
    ] {
        if let Some(Value::Object(part)) = out.get_mut(part) {
            fill(part, names);
        }
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use api_meta::UserInfo;

    use super::*;

    fn condition(text: &str) -> Result<Conditions, ConditionError> {
        let mut conditions = Conditions::default();
        conditions.add(&MatchCondition { expression: text.to_owned() }).map(|()| conditions)
    }

    #[test]
    fn builds_review_of_request() {
        let user = UserInfo::new("bob", &["dev"]);
        let labels = "a in (x,y),!b".parse().unwrap();
        let fields = "metadata.name=n".parse().unwrap();
        let list = Attributes {
            version: "v1",
            namespace: "ns",
            label_selector: Some(&labels),
            field_selector: Some(&fields),
            ..Attributes::resource(&user, "list", "apps", "deployments")
        };
        let spec = spec(&list);
        assert_eq!(
            spec,
            json!({
                "user": "bob", "groups": ["dev"],
                "resourceAttributes": {
                    "namespace": "ns", "verb": "list", "group": "apps", "version": "v1",
                    "resource": "deployments",
                    "fieldSelector": {"requirements": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]},
                    "labelSelector": {"requirements": [
                        {"key": "a", "operator": "In", "values": ["x", "y"]}, {"key": "b", "operator": "DoesNotExist"}]},
                }
            })
        );
        let old = review("v1beta1", &spec);
        assert_eq!(
            (&old["spec"]["group"], &old["spec"]["groups"]),
            (&json!(["dev"]), &Value::Null)
        );
        let long = "x".repeat(MAX_REMEMBERED);
        assert!(may_remember(&list) && !may_remember(&list.named(&long)));
    }

    #[test]
    fn evaluates_match_conditions() {
        let user = UserInfo::new("bob", &["dev"]);
        let pods = spec(&Attributes::resource(&user, "list", "", "pods").in_namespace("ns"));
        for (text, wanted) in [
            ("request.user == 'bob' && 'dev' in request.groups", Ok(true)),
            ("request.resourceAttributes.namespace == 'ns'", Ok(true)),
            ("request.resourceAttributes.name == ''", Ok(true)),
            ("has(request.nonResourceAttributes)", Ok(false)),
            ("request.extra.size() == 0 && request.uid == ''", Ok(true)),
            ("request.nonResourceAttributes.path == '/'", Err(())),
        ] {
            let held = condition(text).unwrap().hold(&pods);
            assert_eq!(held.clone().map_err(drop), wanted, "{text}: {held:?}");
        }
        let mut both = condition("request.nonResourceAttributes.path == '/'").unwrap();
        both.add(&MatchCondition { expression: "false".into() }).unwrap();
        assert_eq!(both.hold(&pods), Ok(false));
        let error = |text: &str| condition(text).unwrap_err().to_string();
        assert_eq!(error("request.user"), "must evaluate to bool but got string");
        assert!(error("request.foo == ''").contains("undefined field 'foo'"));
    }

    #[test]
    fn rejects_invalid_answers() {
        let read = |json: &str| {
            let answer = Answer::read("v1", json.as_bytes());
            answer.map(|answer| answer.decision()).map_err(|error| error.to_string())
        };
        let kind = r#""kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1""#;
        let says = |status: &str| read(&format!("{{{kind},\"status\":{{{status}}}}}"));
        assert_eq!(says(r#""allowed":true,"reason":"r""#), Ok(Decision::Allow(Some("r".into()))));
        assert_eq!(says(r#""allowed":false"#), Ok(Decision::NoOpinion(None)));
        assert_eq!(says(r#""denied":true"#), Ok(Decision::Deny(None)));
        assert!(matches!(
            says(r#""denied":true,"allowed":true"#),
            Ok(Decision::Failed { denied: true, .. })
        ));
        for bad in [
            "",
            "<html>",
            "[]",
            "null",
            r#"{"status":{"allowed":"true"}}"#,
            r#"{"kind":"Status","status":{"allowed":true}}"#,
            r#"{"apiVersion":"authorization.k8s.io/v1beta1","status":{"allowed":true}}"#,
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
