//! Admission policies in complete requests.

use serde_json::{Value, json};

use crate::harness::{Answer, Api, TestServer, config_map, start};

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";

/// Returns the spec of a policy for ConfigMaps, with additional fields.
fn about_config_maps(more: Value) -> Value {
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"]});
    let mut spec = json!({"matchConstraints": {"resourceRules": [rule]}});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    spec
}

async fn write(api: &Api, plural: &str, name: &str, spec: Value) -> Answer {
    let object = json!({"metadata": {"name": name}, "spec": spec});
    api.post(&format!("{GROUP}/{plural}"), &object).await
}

/// Creates and binds a policy. Objects in a list are also visible to admission.
async fn bound(api: &Api, side: &str, spec: Value, binding: Value) {
    let mut bound = json!({"policyName": "p"});
    bound.as_object_mut().unwrap().extend(binding.as_object().unwrap().clone());
    write(api, &format!("{side}admissionpolicies"), "p", about_config_maps(spec)).await.ok();
    write(api, &format!("{side}admissionpolicybindings"), "b", bound).await.ok();
    seen(api, side).await;
}

async fn seen(api: &Api, side: &str) {
    for plural in ["policies", "policybindings"] {
        api.get(&format!("{GROUP}/{side}admission{plural}")).await.ok();
    }
}

async fn server() -> (TestServer, Api, String) {
    let server = start(|_| {}).await;
    let api = server.admin();
    let namespace = api.namespace().await;
    (server, api, format!("/api/v1/namespaces/{namespace}/configmaps"))
}

#[tokio::test(flavor = "multi_thread")]
async fn enforces_policy_while_bound() {
    let (server, api, maps) = server().await;
    api.post(&maps, &config_map("limits", json!({"most": "3"}))).await.ok();
    let spec = json!({
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "variables": [{"name": "most", "expression": "int(params.data.most)"}],
        "matchConditions": [{"name": "new", "expression": "!object.metadata.name.startsWith('old')"}],
        "validations": [
            {"expression": "size(object.data) <= variables.most", "messageExpression": "'at most ' + string(variables.most)"},
            {"expression": "authorizer.requestResource.check('delete').allowed()", "message": "not yours", "reason": "Forbidden"},
        ],
    });
    let binding = json!({"validationActions": ["Deny"], "paramRef": {"name": "limits", "parameterNotFoundAction": "Deny"}});
    bound(&api, "validating", spec, binding).await;
    let four = json!({"a": "1", "b": "2", "c": "3", "d": "4"});
    let refused = api.post(&maps, &config_map("m", four.clone())).await.refused(422, "Invalid");
    assert_eq!(
        refused,
        "configmaps \"m\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: at most 3"
    );
    api.post(&maps, &config_map("m", json!({"a": "1"}))).await.ok();
    api.put(&format!("{maps}/m"), &config_map("m", four.clone())).await.refused(422, "Invalid");
    api.post(&maps, &config_map("old", four.clone())).await.ok();
    // The authorizer call in the policy concerns the named user.
    let role = json!({"metadata": {"name": "writer"}, "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]}]});
    let roles = "/apis/rbac.authorization.k8s.io/v1";
    api.post(&format!("{roles}/clusterroles"), &role).await.ok();
    let grant = json!({"metadata": {"name": "writer"}, "subjects": [{"kind": "User", "name": "alice", "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "writer"}});
    api.post(&format!("{roles}/clusterrolebindings"), &grant).await.ok();
    api.get(&format!("{roles}/clusterrolebindings")).await.ok();
    let alice = server.user("alice", &[]);
    let refused =
        alice.post(&maps, &config_map("hers", json!({"a": "1"}))).await.refused(403, "Forbidden");
    assert!(refused.ends_with("denied request: not yours"), "{refused}");
    // Without its parameter, the policy rejects all matching requests.
    api.delete(&format!("{maps}/limits"), &json!({})).await.ok();
    let refused = api.post(&maps, &config_map("n", json!({}))).await.refused(422, "Invalid");
    assert!(refused.contains("no params found for policy binding"), "{refused}");
    api.delete(&format!("{GROUP}/validatingadmissionpolicybindings/b"), &json!({})).await.ok();
    seen(&api, "validating").await;
    api.post(&maps, &config_map("n", four)).await.ok();
    server.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn allows_deletion_of_policy_that_rejects_all() {
    let (server, api, maps) = server().await;
    let everything = json!({"matchConstraints": {"resourceRules": [
        {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]},
    ]}, "validations": [{"expression": "false", "message": "never"}]});
    bound(&api, "validating", everything, json!({"validationActions": ["Deny"]})).await;
    api.post(&maps, &config_map("m", json!({}))).await.refused(422, "Invalid");
    let review = json!({"spec": {"nonResourceAttributes": {"path": "/x", "verb": "get"}}});
    api.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", &review).await.ok();
    api.delete(&format!("{GROUP}/validatingadmissionpolicies/p"), &json!({})).await.ok();
    seen(&api, "validating").await;
    api.post(&maps, &config_map("m", json!({}))).await.ok();
    server.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn applies_mutating_policies() {
    let (server, api, maps) = server().await;
    let spec = json!({"reinvocationPolicy": "Never", "failurePolicy": "Fail", "mutations": [
        {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": "Object{metadata: Object.metadata{labels: {'team': namespaceObject.metadata.name}}}"}},
        {"patchType": "JSONPatch", "jsonPatch": {"expression": "[JSONPatch{op: 'add', path: '/data/seen', value: object.metadata.labels.team}]"}},
    ]});
    bound(&api, "mutating", spec, json!({})).await;
    let made = api.post(&maps, &config_map("m", json!({"a": "1"}))).await.ok();
    let namespace = made["metadata"]["namespace"].clone();
    assert_eq!(made["metadata"]["labels"], json!({"team": namespace}));
    assert_eq!(made["data"], json!({"a": "1", "seen": namespace}));
    server.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn validates_results_of_mutating_policies() {
    for (expression, wanted) in [
        // The caller may not be allowed to write to the other namespace.
        (
            "Object{metadata: Object.metadata{namespace: 'kube-system'}}",
            "does not match the namespace",
        ),
        ("Object{spec: Object.spec{x: 1}}", ".spec: field not declared in schema"),
        (
            "Object{metadata: Object.wrong{labels: {'a': 'b'}}}",
            "type mismatch: unexpected type name",
        ),
        ("Object{metadata: Object.metadata{labels: {'a': 'b c'}}}", "a valid label"),
    ] {
        let (server, api, maps) = server().await;
        let mutation = json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}});
        let spec = json!({"reinvocationPolicy": "Never", "failurePolicy": "Fail", "mutations": [mutation]});
        bound(&api, "mutating", spec, json!({})).await;
        let answer = api.post(&maps, &config_map("m", json!({"a": "1"}))).await;
        let message = answer.json()["message"].as_str().unwrap_or_default().to_owned();
        assert!(answer.code >= 400 && message.contains(wanted), "{expression}: {message}");
        server.tasks.shutdown().stop();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rejects_policies_that_do_not_compile() {
    let (server, api, _) = server().await;
    let deep = format!("{}true{}", "(".repeat(100_000), ")".repeat(100_000));
    for expression in ["object.", "1", "nobody == 1", &deep] {
        let validations = json!({"validations": [{"expression": expression}]});
        let spec = about_config_maps(validations);
        let refused = write(&api, "validatingadmissionpolicies", "p", spec).await;
        let refused = refused.refused(422, "Invalid");
        assert!(
            refused.contains("spec.validations[0].expression: Invalid value"),
            "{}",
            &refused[..200]
        );
        let conditions = json!({"matchConditions": [{"name": "c", "expression": expression}], "validations": [{"expression": "true"}]});
        let refused =
            write(&api, "validatingadmissionpolicies", "p", about_config_maps(conditions)).await;
        assert!(refused.refused(422, "Invalid").contains("spec.matchConditions[0].expression"));
        for kind in ["validating", "mutating"] {
            let hook = json!({"metadata": {"name": "w"}, "webhooks": [{"name": "a.b.c", "clientConfig": {"url": "https://x.example"},
                "sideEffects": "None", "admissionReviewVersions": ["v1"], "matchConditions": [{"name": "c", "expression": expression}]}]});
            let refused = api.post(&format!("{GROUP}/{kind}webhookconfigurations"), &hook).await;
            assert!(
                refused
                    .refused(422, "Invalid")
                    .contains("webhooks[0].matchConditions[0].expression")
            );
        }
    }
    server.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_policy_checks_in_metrics() {
    let (server, api, maps) = server().await;
    let bad = "object.metadata.name != 'broken' || object.data.nothing == 'x'";
    let validations = json!([
        {"expression": "object.metadata.name != 'evil'", "message": "denied"},
        {"expression": bad},
    ]);
    let spec = json!({"validations": validations, "failurePolicy": "Ignore"});
    bound(&api, "validating", spec, json!({"validationActions": ["Deny", "Audit"]})).await;
    let label =
        |value: &str| format!("Object{{metadata: Object.metadata{{labels: {{'a': {value}}}}}}}");
    let mutation = |value: &str| json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": label(value)}});
    let spec = json!({
        "reinvocationPolicy": "Never",
        "failurePolicy": "Ignore",
        "mutations": [mutation("'b'"), mutation("object.metadata.name == 'odd' ? object.data.none : 'b'")],
    });
    bound(&api, "mutating", spec, json!({})).await;
    for name in ["good", "broken", "odd"] {
        api.post(&maps, &config_map(name, json!({}))).await.ok();
    }
    api.post(&maps, &config_map("evil", json!({}))).await.refused(422, "Invalid");
    let metrics = api.get("/metrics").await.body;
    let metrics = String::from_utf8(metrics.to_vec()).unwrap();
    let validating = |action: &str| {
        format!(
            "apiserver_validating_admission_policy_check_total{{enforcement_action=\"{action}\",error_type=\"invalid_error\",policy=\"p\",policy_binding=\"b\"}} 1\n"
        )
    };
    let mutating = |error: &str, count: u32| {
        format!(
            "apiserver_mutating_admission_policy_check_total{{error_type=\"{error}\",policy=\"p\",policy_binding=\"b\"}} {count}\n"
        )
    };
    let took = "apiserver_validating_admission_policy_check_duration_seconds_count{enforcement_action=\"deny\",error_type=\"invalid_error\",policy=\"p\",policy_binding=\"b\"} 1\n".to_owned();
    let series = ["deny", "audit", "allow"].map(validating).into_iter();
    for series in series.chain([mutating("no_error", 7), mutating("invalid_error", 1), took]) {
        assert!(metrics.contains(&series), "{series}");
    }
    drop(server);
}
