use api_meta::{GroupVersionKind, GroupVersionResource, Status, UserInfo};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::*;
use crate::{
    MutatorKind, Rounds,
    matching::MatchedResource,
    testing::{Cluster, with_deployment},
};

fn webhooks(webhooks: Value) -> Vec<Webhook> {
    Webhook::all(&json!({"metadata": {"name": "conf"}, "webhooks": webhooks}))
}

/// Builds a webhook with the API's defaults, changed by `change`.
fn hook(change: Value) -> Webhook {
    let mut made = json!({
        "name": "a.b.c", "clientConfig": {"url": "https://x"}, "rules": [
            {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"], "scope": "*"}],
        "failurePolicy": "Fail", "matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {},
        "sideEffects": "None", "timeoutSeconds": 10, "admissionReviewVersions": ["v1"],
    });
    for (key, value) in change.as_object().unwrap() {
        made.as_object_mut().unwrap().insert(key.clone(), value.clone());
    }
    webhooks(json!([made])).remove(0)
}

fn with<T>(change: impl FnOnce(&mut Request<'_>), then: impl FnOnce(&Request<'_>) -> T) -> T {
    let mut user = UserInfo::new("alice", &["dev"]);
    user.extra.insert("scope".into(), vec!["all".into()]);
    with_deployment(&Cluster::default(), &user, change, then)
}

fn shown() -> MatchedResource {
    MatchedResource {
        resource: GroupVersionResource::new("apps", "v1beta1", "deployments"),
        kind: GroupVersionKind::new("apps", "v1beta1", "Deployment"),
    }
}

fn ask(hook: &Webhook, change: impl FnOnce(&mut Request<'_>)) -> Result<WebhookReview, Failure> {
    let object = json!({"metadata": {"name": "web"}});
    with(change, |request| {
        hook.review(request, &shown(), (&object, &Value::Null), "u-1".to_owned())
    })
}

#[test]
fn review_has_requested_and_matched_resource() {
    let asked = ask(&hook(json!({})), |r| {
        r.subresource = "status";
        r.dry_run = true;
    });
    let review: Value = serde_json::from_slice(&asked.unwrap().body).unwrap();
    assert_eq!(
        review,
        json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": {
            "uid": "u-1",
            "kind": {"group": "apps", "version": "v1beta1", "kind": "Deployment"},
            "resource": {"group": "apps", "version": "v1beta1", "resource": "deployments"},
            "subResource": "status",
            "requestKind": {"group": "apps", "version": "v1", "kind": "Deployment"},
            "requestResource": {"group": "apps", "version": "v1", "resource": "deployments"},
            "requestSubResource": "status",
            "name": "web", "namespace": "ns", "operation": "CREATE",
            "userInfo": {"username": "alice", "groups": ["dev"], "extra": {"scope": ["all"]}},
            "object": {"kind": "Deployment", "apiVersion": "apps/v1beta1", "metadata": {"name": "web"}},
            "oldObject": null, "dryRun": true, "options": {"kind": "CreateOptions"},
        }})
    );
}

#[test]
fn sends_first_supported_review_version() {
    let table = [
        (json!(["v1"]), Ok("admission.k8s.io/v1")),
        (json!(["v7", "v1beta1", "v1"]), Ok("admission.k8s.io/v1beta1")),
        (
            json!(["v7"]),
            Err(
                "could not create admission objects: webhook does not accept known AdmissionReview versions (v1, v1beta1)",
            ),
        ),
    ];
    for (versions, wanted) in table {
        let hook = hook(json!({"admissionReviewVersions": versions}));
        let asked = ask(&hook, |_| {});
        let found = asked.map(|asked| {
            let review: Value = serde_json::from_slice(&asked.body).unwrap();
            review["apiVersion"].as_str().unwrap().to_owned()
        });
        let wanted = wanted.map(str::to_owned).map_err(|cause| Failure::call(cause, 400));
        assert_eq!(found, wanted);
    }
}

#[test]
fn rejects_dry_run_with_side_effects() {
    for (effects, wanted) in [
        (json!("None"), None),
        (json!("NoneOnDryRun"), None),
        (json!("Some"), Some("admission webhook \"a.b.c\" does not support dry run")),
        (json!("Unknown"), Some("admission webhook \"a.b.c\" does not support dry run")),
        (
            Value::Null,
            Some(
                "Internal error occurred: failed calling webhook \"a.b.c\": Webhook SideEffects is nil",
            ),
        ),
    ] {
        let hook = hook(json!({"sideEffects": effects}));
        assert!(ask(&hook, |_| {}).is_ok());
        let refused = ask(&hook, |r| r.dry_run = true).err();
        let refused = refused.map(|failure| hook.settle(failure).unwrap_err().message);
        assert_eq!(refused.as_deref(), wanted, "{effects}");
    }
}

/// Returns the verdict on an answer, or the message of the failure.
fn read(mutating: bool, versions: &str, answer: &Value) -> Result<Verdict, String> {
    let hook = hook(json!({"admissionReviewVersions": [versions]}));
    let asked = ask(&hook, |_| {}).unwrap();
    let text = match answer {
        Value::String(text) => text.clone(),
        answer => answer.to_string(),
    };
    let answer = Answer::read(text.as_bytes()).map_err(|error| error.to_string())?;
    hook.verdict(&asked, answer, mutating).map_err(|failure| match failure {
        Failure::Call { cause, .. } => cause,
        other => format!("{other:?}"),
    })
}

fn review(response: Value) -> Value {
    json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response})
}

#[test]
fn validates_answers() {
    let patch = STANDARD.encode("[]");
    let invalid = "received invalid webhook response: ";
    let table = [
        (review(json!({"uid": "u-1", "allowed": true})), true, ""),
        (
            review(json!({"uid": "u-2", "allowed": true})),
            true,
            "expected response.uid=\"u-1\", got \"u-2\"",
        ),
        (review(Value::Null), true, "webhook response was absent"),
        (json!({}), false, "webhook response was absent"),
        (
            json!({"response": {"uid": "u-1", "allowed": true}}),
            true,
            "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got /, Kind=",
        ),
        (
            json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1beta1", "response": {"uid": "u-1"}}),
            true,
            "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got admission.k8s.io/v1beta1, Kind=AdmissionReview",
        ),
        (
            review(json!({"uid": "u-1", "allowed": true, "patch": patch})),
            true,
            "webhook returned response.patch but not response.patchType",
        ),
        (
            review(json!({"uid": "u-1", "allowed": true, "patchType": "JSONPatch"})),
            true,
            "webhook returned response.patchType but not response.patch",
        ),
        (
            review(json!({"uid": "u-1", "allowed": true, "patch": patch, "patchType": ""})),
            true,
            "webhook returned invalid response.patchType of \"\"",
        ),
        (
            review(
                json!({"uid": "u-1", "allowed": true, "patch": patch, "patchType": "JSONPatch"}),
            ),
            false,
            "validating webhook may not return response.patch",
        ),
        (
            review(json!({"uid": "u-1", "allowed": true, "patchType": "JSONPatch"})),
            false,
            "validating webhook may not return response.patchType",
        ),
    ];
    for (answer, mutating, wanted) in table {
        let found = read(mutating, "v1", &answer).map(|_| String::new()).unwrap_or_else(|e| e);
        let wanted = if wanted.is_empty() { String::new() } else { format!("{invalid}{wanted}") };
        assert_eq!(found, wanted, "{answer}");
    }
    let unknown = json!({"uid": "u-1", "allowed": true, "patch": patch, "patchType": "Merge"});
    assert_eq!(read(true, "v1", &review(unknown)).unwrap_err(), "unsupported patch type \"Merge\"");
    // v1beta1 does not validate these fields.
    let beta = json!({"response": {"allowed": true, "patch": patch}});
    assert_eq!(read(true, "v1beta1", &beta).unwrap().patch.unwrap(), b"[]");
    assert_eq!(read(false, "v1beta1", &beta).unwrap(), Verdict::default());
}

#[test]
fn rejects_malformed_answers() {
    for garbage in [
        json!(""),
        json!("<html>"),
        json!("[1]"),
        json!("{\"response\": 7}"),
        review(json!({"uid": 7})),
        review(json!({"uid": "u-1", "allowed": "yes"})),
        review(json!({"uid": "u-1", "allowed": true, "patch": "%", "patchType": "JSONPatch"})),
        review(json!({"uid": "u-1", "allowed": true, "warnings": [1]})),
        json!(format!("{}1{}", "[".repeat(5000), "]".repeat(5000))),
    ] {
        assert!(read(true, "v1", &garbage).is_err(), "{garbage}");
    }
}

#[test]
fn denial_names_webhook_and_has_error_code() {
    let denied = "admission webhook \"a.b.c\" denied the request";
    let table = [
        (json!(null), 400, format!("{denied} without explanation")),
        (json!({}), 400, format!("{denied} without explanation")),
        (json!({"message": "no"}), 400, format!("{denied}: no")),
        (json!({"reason": "Because"}), 400, format!("{denied}: Because")),
        (json!({"message": "no", "reason": "Because", "code": 403}), 403, format!("{denied}: no")),
        (json!({"code": 200, "status": "Success"}), 400, format!("{denied} without explanation")),
        (json!({"code": -1}), 400, format!("{denied} without explanation")),
        (json!({"code": 70000}), 400, format!("{denied} without explanation")),
        (
            json!({"message": "later", "code": 429, "details": {"retryAfterSeconds": 3}}),
            429,
            format!("{denied}: later"),
        ),
    ];
    for (status, code, message) in table {
        let answer = review(json!({"uid": "u-1", "allowed": false, "status": status}));
        let refusal = read(false, "v1", &answer).unwrap().refusal.unwrap();
        assert_eq!((refusal.code, &refusal.message), (code, &message), "{status}");
        assert_eq!(refusal.status, "Failure");
        if code == 429 {
            assert_eq!(refusal.details.unwrap().retry_after_seconds, 3);
        }
    }
}

#[test]
fn returns_warnings_and_annotations() {
    let answer = review(json!({"uid": "u-1", "allowed": true, "warnings": ["one", "two"],
        "auditAnnotations": {"key": "value"}, "patch": STANDARD.encode("[1]"), "patchType": "JSONPatch"}));
    let verdict = read(true, "v1", &answer).unwrap();
    assert_eq!(verdict.warnings, ["one", "two"]);
    assert_eq!(verdict.audit, [("a.b.c/key".to_owned(), "value".to_owned())].into());
    assert_eq!((verdict.patch.as_deref(), verdict.refusal), (Some(&b"[1]"[..]), None));
}

#[test]
fn failure_policy_applies_to_failed_calls_only() {
    let (open, closed) = (hook(json!({"failurePolicy": "Ignore"})), hook(json!({})));
    let call = Failure::call("failed to call webhook: Post \"https://x\": EOF", 503);
    assert_eq!(open.settle(call.clone()), Ok(()));
    let status = closed.settle(call).unwrap_err();
    assert_eq!(
        (status.code, status.message.as_str()),
        (
            500,
            "Internal error occurred: failed calling webhook \"a.b.c\": failed to call webhook: Post \"https://x\": EOF"
        )
    );
    for hook in [open, closed] {
        let no = Box::new(Status::bad_request("no"));
        assert_eq!(hook.settle(Failure::Rejection(no.clone())), Err(no.clone()));
        assert_eq!(hook.settle(Failure::Server(no.clone())), Err(no));
    }
}

/// Evaluates conditions for the creation of a Deployment. Returns the message of the rejection as an error.
fn hold(policy: &str, conditions: &[&str]) -> Result<bool, String> {
    let conditions: Vec<Value> = conditions
        .iter()
        .enumerate()
        .map(|(i, expression)| json!({"name": format!("c{i}"), "expression": expression}))
        .collect();
    let hook = hook(json!({"matchConditions": conditions, "failurePolicy": policy}));
    assert!(hook.is_conditional());
    let object =
        json!({"metadata": {"name": "web", "labels": {"app": "x"}}, "spec": {"replicas": 3}});
    let held =
        with(|_| {}, |request| hook.conditions_hold(request, &shown(), (&object, &Value::Null)));
    held.map_err(|status| {
        assert_eq!(status.code, 403);
        status.message
    })
}

#[test]
fn conditions_see_request_objects_and_authorizer() {
    for (expression, wanted) in [
        ("true", true),
        ("object.spec.replicas > 2", true),
        ("object.metadata.labels['app'] == 'y'", false),
        ("oldObject == null", true),
        ("request.operation == 'CREATE' && !request.dryRun", true),
        ("request.kind.version == 'v1beta1' && request.requestKind.version == 'v1'", true),
        ("request.resource.resource == 'deployments' && request.namespace == 'ns'", true),
        ("has(request.subResource)", false),
        ("request.userInfo.username == 'alice' && 'dev' in request.userInfo.groups", true),
        ("request.userInfo.extra['scope'] == ['all']", true),
        ("request.options.kind == 'CreateOptions'", true),
        ("authorizer.requestResource.check('breakglass').allowed()", true),
        ("authorizer.requestResource.check('other').allowed()", false),
        (
            "authorizer.group('apps').resource('deployments').name('web').check('breakglass').allowed()",
            true,
        ),
    ] {
        assert_eq!(hold("Fail", &[expression]), Ok(wanted), "{expression}");
    }
}

#[test]
fn applies_failure_policy_to_failing_condition() {
    let missing = "object.nonsense == 1";
    assert_eq!(hold("Ignore", &[missing]), Ok(false));
    assert_eq!(
        hold("Fail", &[missing]),
        Err("deployments.apps \"web\" is forbidden: expression 'object.nonsense == 1' resulted in error: no such key: nonsense".to_owned())
    );
    // A false condition wins over an error, in any position.
    assert_eq!(hold("Fail", &[missing, "false"]), Ok(false));
    assert_eq!(hold("Fail", &["true", "false", missing]), Ok(false));
    let both = hold("Fail", &[missing, "true", "object.none == 1", missing]).unwrap_err();
    assert!(both.contains("forbidden: [expression 'object.nonsense == 1'"), "{both}");
    assert_eq!(both.matches("nonsense ==").count(), 1, "said once: {both}");
    for broken in ["object.", "'text'", "1", "nobody == 1", "request.nonsense == ''"] {
        assert_eq!(hold("Ignore", &[broken]), Ok(false), "{broken}");
        let refused = hold("Fail", &[broken]).unwrap_err();
        assert!(refused.contains("compilation error: "), "{broken}: {refused}");
    }
    let endless = "[1,2,3,4,5,6,7,8,9].all(a, [1,2,3,4,5,6,7,8,9].all(b, [1,2,3,4,5,6,7,8,9].all(c, [1,2,3,4,5,6,7,8,9].all(d, [1,2,3,4,5,6,7,8,9].all(e, [1,2,3,4,5,6,7,8,9].all(f, [1,2,3,4,5,6,7,8,9].all(g, a > 0)))))))";
    let refused = hold("Fail", &[endless]).unwrap_err();
    assert!(refused.contains("cost limit exceeded"), "{refused}");
}

#[test]
fn matches_equivalent_resource_only_if_requested() {
    let rules = json!([{"operations": ["*"], "apiGroups": ["apps"], "apiVersions": ["v1beta1"], "resources": ["*"]}]);
    for (policy, wanted) in [("Equivalent", Some(shown())), ("Exact", None)] {
        let hook = hook(json!({"rules": rules, "matchPolicy": policy}));
        let found = with(|_| {}, |request| hook.concerns(request, &json!({}), || vec![shown()]));
        assert_eq!(found, Ok(wanted));
    }
}

#[test]
fn exempts_webhook_configurations() {
    for (group, kind, exempt) in [
        ("admissionregistration.k8s.io", "MutatingWebhookConfiguration", true),
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding", true),
        ("admissionregistration.k8s.io", "Other", false),
        ("example.com", "MutatingWebhookConfiguration", false),
    ] {
        let kind = GroupVersionKind::new(group, "v1", kind);
        let request = |request: &Request<'_>| is_exempt(&Request { kind: &kind, ..*request });
        assert_eq!(with(|_| {}, request), exempt, "{kind:?}");
    }
}

/// Simulates the rounds of webhooks that are named by letters; an upper-case one is reinvocable. `changes` lists the
/// name and round of each webhook that changes the object, and `plugins` for a change between rounds. Returns the
/// calls.
fn play(names: &str, changes: &[&str]) -> String {
    let all = names.chars().map(|name| {
        let policy = if name.is_uppercase() { "IfNeeded" } else { "Never" };
        hook(json!({"name": name.to_string(), "reinvocationPolicy": policy}))
    });
    let all: Vec<Webhook> = all.collect();
    let (mut rounds, mut object, mut log) = (Rounds::default(), json!(0), String::new());
    loop {
        rounds.begin(MutatorKind::Webhooks, &object);
        for hook in &all {
            if !rounds.includes(MutatorKind::Webhooks, &hook.id) {
                continue;
            }
            log.push_str(&hook.name);
            let changed = changes.contains(&format!("{}{}", hook.name, rounds.number()).as_str());
            if changed {
                object = json!(object.as_u64().unwrap() + 1);
            }
            rounds.record_call(MutatorKind::Webhooks, &hook.id, hook.reinvocable, changed);
        }
        rounds.end(MutatorKind::Webhooks, &object);
        if rounds.is_over() {
            return log;
        }
        log.push('|');
        if changes.contains(&"plugins") {
            object = json!(object.as_u64().unwrap() + 1);
        }
    }
}

#[test]
fn reinvokes_once_after_later_change() {
    for (names, changes, wanted) in [
        ("Ab", &[][..], "Ab"),
        // A webhook does not see its own change again.
        ("A", &["A0"], "A|"),
        ("Ab", &["b0"], "Ab|A"),
        ("ab", &["b0"], "ab|"),
        ("AB", &["A0"], "AB|"),
        ("AB", &["B0"], "AB|A"),
        ("AbC", &["A0", "b0", "C0"], "AbC|A"),
        // Changes by plugins concern all webhooks, but a change by plugins alone starts no second round.
        ("AB", &["A0", "plugins"], "AB|AB"),
        ("AB", &["plugins"], "AB"),
        // There is no third round.
        ("AB", &["A0", "B0", "A1", "B1"], "AB|AB"),
        ("AB", &["A0", "B0", "A1", "B1", "plugins"], "AB|AB"),
    ] {
        assert_eq!(play(names, changes), wanted, "{names} {changes:?}");
    }
}

#[test]
fn distinguishes_webhooks_of_same_name() {
    let two = webhooks(json!([{"name": "a"}, {"name": "a"}, {"name": "b"}]));
    let ids: std::collections::BTreeSet<&str> = two.iter().map(|hook| hook.id.as_str()).collect();
    assert_eq!(ids.len(), 3);
}
