//! Tests of policies that are written as users write them.

use std::time::Duration;

use api_meta::{GroupVersionKind, GroupVersionResource, Status, UserInfo};
use serde_json::{Value, json};

use super::*;
use crate::{
    Outcome,
    matching::MatchedResource,
    testing::{Cluster, with_deployment},
};

fn shown() -> MatchedResource {
    MatchedResource {
        resource: GroupVersionResource::new("apps", "v1", "deployments"),
        kind: GroupVersionKind::new("apps", "v1", "Deployment"),
    }
}

/// Builds a policy for Deployments, changed by `change`.
fn policy(change: Value) -> Policy {
    let mut spec = json!({
        "failurePolicy": "Fail",
        "matchConstraints": {
            "resourceRules": [{"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["*"], "resources": ["deployments"]}],
            "namespaceSelector": {}, "objectSelector": {}, "matchPolicy": "Equivalent",
        },
    });
    for (key, value) in change.as_object().unwrap() {
        spec.as_object_mut().unwrap().insert(key.clone(), value.clone());
    }
    Policy::of(&json!({"metadata": {"name": "p"}, "spec": spec}))
}

fn binding(change: Value) -> Binding {
    let mut spec = json!({"policyName": "p", "validationActions": ["Deny"]});
    for (key, value) in change.as_object().unwrap() {
        spec.as_object_mut().unwrap().insert(key.clone(), value.clone());
    }
    Binding::of(&json!({"metadata": {"name": "b"}, "spec": spec}))
}

fn with<T>(change: impl FnOnce(&mut Request<'_>), then: impl FnOnce(&Request<'_>) -> T) -> T {
    let namespace = json!({"metadata": {"name": "ns", "labels": {"team": "red"}}});
    let cluster = Cluster::default().with(&GroupResource::NAMESPACES, namespace);
    with_deployment(&cluster, &UserInfo::new("alice", &["dev"]), change, then)
}

fn object() -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {"replicas": 5}})
}

/// Runs `then` with a question about the creation of a Deployment and this parameter.
fn questioned<T>(params: &Value, then: impl FnOnce(&Question<'_>) -> T) -> T {
    with(
        |_| {},
        |request| {
            let namespace = Policy::namespace(request).unwrap();
            let (shown, object) = (shown(), object());
            then(&Question {
                request,
                shown: &shown,
                objects: (&object, &Value::Null),
                namespace: &namespace,
                params,
            })
        },
    )
}

/// Evaluates one policy with one binding and one parameter on the creation of a Deployment.
fn asked(policy: &Policy, binding: &Binding, params: &Value) -> (Result<(), Box<Status>>, Outcome) {
    let (mut outcome, mut kept) = (Outcome::default(), Annotations::default());
    let mut denials = Denials::default();
    let settled = questioned(params, |question| {
        let judged = policy.judge(question, &|| Duration::ZERO);
        denials.take(policy, binding, judged, &mut outcome, &mut kept);
        denials.settle(question.request, &object())
    });
    kept.publish(policy, &mut outcome);
    (settled, outcome)
}

/// Returns the message with which a policy of one validation rejects the request, if it does.
fn refusal(validation: Value, rest: Value) -> Option<String> {
    let mut spec = rest;
    spec.as_object_mut().unwrap().insert("validations".to_owned(), json!([validation]));
    let (settled, _) = asked(&policy(spec), &binding(json!({})), &json!({"data": {"most": "3"}}));
    settled.err().map(|status| {
        let prefix = "deployments.apps \"web\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: ";
        status.message.strip_prefix(prefix).unwrap_or(&status.message).to_owned()
    })
}

#[test]
fn expressions_see_request_namespace_and_authorizer() {
    for expression in [
        "object.spec.replicas == 5 && object.kind == 'Deployment'",
        "oldObject == null",
        "request.operation == 'CREATE' && request.userInfo.username == 'alice' && request.name == 'web'",
        "request.kind.kind == 'Deployment' && request.resource.resource == 'deployments' && !request.dryRun",
        "namespaceObject.metadata.labels.team == 'red'",
        "authorizer.requestResource.check('breakglass').allowed()",
        "!authorizer.group('').resource('pods').check('get').allowed()",
        "params.data.most == '3'",
        "variables.limit == 3 && variables.over",
    ] {
        let variables = json!([
            {"name": "limit", "expression": "int(params.data.most)"},
            {"name": "over", "expression": "object.spec.replicas > variables.limit"},
        ]);
        let rest =
            json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}, "variables": variables});
        assert_eq!(refusal(json!({"expression": expression}), rest), None, "{expression}");
    }
}

#[test]
fn reports_failures_in_upstream_words() {
    let long = "x".repeat(6 * 1024);
    for (validation, rest, wanted) in [
        (
            json!({"expression": "object.spec.replicas < 5 "}),
            json!({}),
            "failed expression: object.spec.replicas < 5",
        ),
        (json!({"expression": "false", "message": " too many "}), json!({}), "too many"),
        (
            json!({"expression": "false", "message": "m", "messageExpression": "'at most ' + string(object.spec.replicas)"}),
            json!({}),
            "at most 5",
        ),
        (
            json!({"expression": "false", "message": "m", "messageExpression": "object.none"}),
            json!({}),
            "m",
        ),
        (
            json!({"expression": "false", "message": "m", "messageExpression": "'a\\nb'"}),
            json!({}),
            "m",
        ),
        (
            json!({"expression": "false", "message": "m", "messageExpression": format!("'{long}'")}),
            json!({}),
            "m",
        ),
        (
            json!({"expression": "object.none > 1"}),
            json!({}),
            "expression 'object.none > 1' resulted in error: no such key: none",
        ),
        (
            json!({"expression": "variables.a"}),
            json!({"variables": [{"name": "a", "expression": "object.none"}]}),
            "compilation error: must evaluate to bool but got dyn",
        ),
        (
            json!({"expression": "variables.a == 1"}),
            json!({"variables": [{"name": "a", "expression": "object.none"}]}),
            "expression 'variables.a == 1' resulted in error: composited variable \"a\" fails to evaluate: no such key: none",
        ),
        (
            json!({"expression": "true"}),
            json!({"matchConditions": [{"name": "c", "expression": "object.none == 1"}]}),
            "expression 'object.none == 1' resulted in error: no such key: none",
        ),
    ] {
        assert_eq!(refusal(validation.clone(), rest).as_deref(), Some(wanted), "{validation}");
    }
}

#[test]
fn ignores_errors_if_failure_policy_is_ignore() {
    let open = |rest: Value| {
        let mut rest = rest;
        rest.as_object_mut().unwrap().insert("failurePolicy".to_owned(), json!("Ignore"));
        rest
    };
    assert_eq!(refusal(json!({"expression": "object.none"}), open(json!({}))), None);
    let conditions = json!({"matchConditions": [{"name": "c", "expression": "object.none == 1"}]});
    assert_eq!(refusal(json!({"expression": "false"}), open(conditions)), None);
    // A false validation is no evaluation error.
    assert!(refusal(json!({"expression": "false"}), open(json!({}))).is_some());
}

#[test]
fn skips_policy_if_conditions_are_false() {
    let on = |expression: &str| {
        let conditions = json!([{"name": "c", "expression": expression}]);
        refusal(json!({"expression": "false"}), json!({"matchConditions": conditions})).is_some()
    };
    assert!(on("request.operation == 'CREATE'"));
    assert!(!on("request.operation == 'UPDATE'"));
    // As upstream, match conditions do not see the namespace.
    assert!(on("namespaceObject == null"));
}

#[test]
fn maps_reason_to_status_code() {
    for (reason, code) in [("", 422), ("Forbidden", 403), ("RequestEntityTooLarge", 413)] {
        let policy = policy(json!({"validations": [{"expression": "false", "reason": reason}]}));
        let status = asked(&policy, &binding(json!({})), &Value::Null).0.unwrap_err();
        assert_eq!(status.code, code);
        assert_eq!(status.reason.as_str(), if reason.is_empty() { "Invalid" } else { reason });
        let causes = status.details.unwrap().causes;
        assert!(causes[0].message.starts_with("ValidatingAdmissionPolicy 'p'"), "{causes:?}");
    }
}

#[test]
fn warns_and_audits_without_deny_action() {
    let policy = policy(json!({"validations": [{"expression": "true"}, {"expression": "1 > 2"}]}));
    let both = binding(json!({"validationActions": ["Warn", "Audit"]}));
    let (settled, outcome) = asked(&policy, &both, &Value::Null);
    assert_eq!(settled, Ok(()));
    assert_eq!(
        outcome.warnings,
        [
            "Validation failed for ValidatingAdmissionPolicy 'p' with binding 'b': failed expression: 1 > 2"
        ]
    );
    assert_eq!(
        outcome.audit["validation.policy.admission.k8s.io/validation_failure"],
        r#"[{"message":"failed expression: 1 \u003e 2","policy":"p","binding":"b","expressionIndex":1,"validationActions":["Warn","Audit"]}]"#
    );
}

#[test]
fn records_string_annotations_only() {
    let annotations = json!([
        {"key": "n", "valueExpression": "' ' + string(object.spec.replicas) + ' '"},
        {"key": "none", "valueExpression": "null"},
        {"key": "empty", "valueExpression": "'  '"},
    ]);
    let fine = policy(json!({"auditAnnotations": annotations}));
    let (settled, outcome) = asked(&fine, &binding(json!({})), &Value::Null);
    assert_eq!(settled, Ok(()));
    assert_eq!(outcome.audit, [("p/n".to_owned(), "5".to_owned())].into());
    // A failing annotation expression rejects the request, whatever the actions are.
    let annotations = json!([{"key": "n", "valueExpression": "string(object.none)"}]);
    let wrong = policy(json!({"auditAnnotations": annotations}));
    assert!(
        asked(&wrong, &binding(json!({"validationActions": ["Audit"]})), &Value::Null).0.is_err()
    );
}

#[test]
fn stops_evaluation_over_cost_budget() {
    // Ten thousand iterations each, which is within the limit of one expression.
    let list = "[1,2,3,4,5,6,7,8,9,10]";
    let text =
        format!("{list}.all(a, {list}.all(b, {list}.all(c, {list}.all(d, a + b + c + d > 0))))");
    let costly = |n: usize| vec![json!({"expression": text}); n];
    let one = policy(json!({"validations": costly(2)}));
    let (settled, _) = asked(&one, &binding(json!({})), &Value::Null);
    assert_eq!(settled, Ok(()), "each fits");
    let many = policy(json!({"validations": costly(100)}));
    let status = asked(&many, &binding(json!({})), &Value::Null).0.unwrap_err();
    assert!(status.message.ends_with("validation failed due to running out of cost budget, no further validation rules will be run"), "{status}");
}

#[test]
fn rejects_deep_chain_of_variables() {
    // Each variable reads the one before it.
    let chain: Vec<Value> = (0..2000)
        .map(|i| match i {
            0 => json!({"name": "v0", "expression": "1"}),
            i => json!({"name": format!("v{i}"), "expression": format!("variables.v{}", i - 1)}),
        })
        .collect();
    let said = refusal(json!({"expression": "variables.v1999 == 1"}), json!({"variables": chain}));
    assert!(said.unwrap().contains("variables are nested more than 32 levels deep"));
    // Of two variables with one name, the second refers to itself.
    let twice =
        json!([{"name": "a", "expression": "1"}, {"name": "a", "expression": "variables.a + 1"}]);
    let said = refusal(json!({"expression": "variables.a == 2"}), json!({"variables": twice}));
    assert!(said.unwrap().contains("fails to evaluate"));
}

#[test]
fn evaluates_variables_lazily() {
    let variables = json!([{"name": "bad", "expression": "object.none.none"}]);
    let said = |expression: &str| {
        refusal(json!({"expression": expression}), json!({"variables": variables}))
    };
    assert_eq!(said("true || variables.bad == 1"), None);
    assert_eq!(said("variables == variables"), None);
    // As upstream, `has()` evaluates the variable.
    assert!(said("has(variables.bad)").is_some() && said("variables.bad == 1").is_some());
}

#[test]
fn applies_match_constraints() {
    let about = |constraints: Value, change: fn(&mut Request<'_>)| {
        let mut all =
            json!({"namespaceSelector": {}, "objectSelector": {}, "matchPolicy": "Exact"});
        all.as_object_mut().unwrap().extend(constraints.as_object().unwrap().clone());
        let policy = policy(json!({"matchConstraints": all}));
        with(change, |request| policy.concerns(request, &object(), &Vec::new).unwrap().is_some())
    };
    let rule = |change: Value| {
        let mut rule = json!({"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["deployments"]});
        rule.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        json!([rule])
    };
    let plain = |_: &mut Request<'_>| {};
    assert!(about(json!({"resourceRules": rule(json!({}))}), plain));
    assert!(!about(json!({"resourceRules": rule(json!({"operations": ["UPDATE"]}))}), plain));
    assert!(about(json!({"resourceRules": rule(json!({"resourceNames": ["web"]}))}), plain));
    assert!(!about(json!({"resourceRules": rule(json!({"resourceNames": ["db"]}))}), plain));
    let both = json!({"resourceRules": rule(json!({})), "excludeResourceRules": rule(json!({"resourceNames": ["web"]}))});
    assert!(!about(both, plain));
    let team = |team: &str| json!({"resourceRules": rule(json!({})), "namespaceSelector": {"matchLabels": {"team": team}}});
    assert!(about(team("red"), plain) && !about(team("blue"), plain));
}

#[test]
fn exempts_policies_from_policies() {
    for (group, resource, exempt) in [
        ("admissionregistration.k8s.io", "validatingadmissionpolicybindings", true),
        ("admissionregistration.k8s.io", "mutatingwebhookconfigurations", true),
        ("authorization.k8s.io", "subjectaccessreviews", true),
        ("authorization.k8s.io", "others", false),
        ("", "pods", false),
    ] {
        let resource = GroupVersionResource::new(group, "v1", resource);
        let asked = with(|_| {}, |request| is_exempt(&Request { resource: &resource, ..*request }));
        assert_eq!(asked, exempt, "{resource:?}");
    }
}

#[test]
fn looks_up_parameters_of_binding() {
    let reference = |reference: Value| binding(json!({"paramRef": reference})).params.unwrap();
    let lookup = |given: Value, namespaced: bool, namespace: &'static str| {
        let reference = reference(given);
        with(
            |request| request.namespace = namespace,
            |request| {
                let found = reference.lookup(request, namespaced)?;
                Ok::<_, ParamError>(format!("{}/{}", found.namespace, found.name))
            },
        )
    };
    assert_eq!(lookup(json!({"name": "a"}), true, "ns").unwrap(), "ns/a");
    assert_eq!(lookup(json!({"name": "a", "namespace": "other"}), true, "ns").unwrap(), "other/a");
    assert_eq!(lookup(json!({"selector": {}}), false, "ns").unwrap(), "/");
    let said = lookup(json!({"name": "a"}), true, "").unwrap_err().to_string();
    assert_eq!(
        said,
        "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources"
    );
    let said = lookup(json!({"name": "a", "namespace": "x"}), false, "ns").unwrap_err().to_string();
    assert_eq!(said, "paramRef.namespace must not be provided for a cluster-scoped `paramKind`");
    let strict = reference(json!({"name": "a", "parameterNotFoundAction": "Deny"}));
    assert_eq!(
        strict.require(Vec::new()).unwrap_err().to_string(),
        "no params found for policy binding with `Deny` parameterNotFoundAction"
    );
    let lax = reference(json!({"name": "a", "parameterNotFoundAction": "Allow"}));
    assert_eq!(lax.require(Vec::new()).unwrap(), Vec::<Value>::new());
    let red = reference(json!({"selector": {"matchLabels": {"team": "red"}}}));
    assert!(red.selects(&json!({"metadata": {"labels": {"team": "red"}}})));
    assert!(!red.selects(&json!({"metadata": {}})));
}

/// Returns the changes that a policy's mutations make to a Deployment.
fn changes(mutation: Value) -> Result<Vec<Change>, String> {
    let policy = policy(json!({"mutations": [mutation]}));
    questioned(&Value::Null, |question| {
        let mutations = policy.mutations(question).map_err(|error| error.to_string())?;
        let changes = mutations.iter().map(|mutation| policy.change(mutation, question));
        changes.map(|change| change.map_err(|error| error.to_string())).collect()
    })
}

#[test]
fn evaluates_patches_and_apply_configurations() {
    let patch = |expression: &str| -> Result<String, String> {
        let made =
            changes(json!({"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}))?;
        match made.as_slice() {
            [Change::Patch(patch)] => Ok(String::from_utf8_lossy(patch).into_owned()),
            other => panic!("{other:?}"),
        }
    };
    let apply = |expression: &str| {
        changes(
            json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}),
        )
    };
    assert_eq!(
        patch("[JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('a/b'), value: string(object.spec.replicas)}]")
            .unwrap(),
        r#"[{"op":"add","path":"/metadata/labels/a~1b","value":"5"}]"#
    );
    assert_eq!(
        patch("[JSONPatch{op: 'test', path: '/x', value: Object.spec{replicas: 1}}, JSONPatch{op: 'move', from: '/a', path: '/b'}]")
            .unwrap(),
        r#"[{"op":"test","path":"/x","value":{"replicas":1}},{"from":"/a","op":"move","path":"/b"}]"#
    );
    assert_eq!(
        apply(
            "Object{metadata: Object.metadata{labels: {'a': 'b'}}, spec: Object.spec{replicas: object.spec.replicas + 1}}"
        ),
        Ok(vec![Change::Configuration(
            json!({"metadata": {"labels": {"a": "b"}}, "spec": {"replicas": 6}})
        )])
    );
    assert!(
        apply("Object{spec: Object.wrong{replicas: 1}}")
            .unwrap_err()
            .contains("unexpected type name")
    );
    assert_eq!(
        apply("{'spec': 1}").unwrap_err(),
        "must evaluate to Object but got map(string, int)"
    );
}
