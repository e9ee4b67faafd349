//! Requests that try to use excessive resources: each is rejected, and the server keeps serving.

use api_codec::protobuf;
use serde_json::{Value, json};

use crate::{
    custom::{define, definition},
    harness::{admin, config_map},
};

/// Returns a protobuf message with one field.
fn field(number: u32, inner: &[u8]) -> Vec<u8> {
    protobuf::message(&[(number, inner)])
}

#[tokio::test(flavor = "multi_thread")]
async fn rejects_scale_path_through_string() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let mut crossing = definition("crossings", "Crossing");
    crossing["spec"]["versions"][0]["subresources"]["scale"]["specReplicasPath"] =
        json!(".spec.color.replicas");
    define(&api, &crossing).await;
    let path = format!("/apis/test.example.com/v1/namespaces/{namespace}/crossings");
    let made = json!({"kind": "Crossing", "apiVersion": "test.example.com/v1", "metadata": {"name": "a"}, "spec": {"color": "red"}});
    api.post(&path, &made).await.ok();
    let one = format!("{path}/a/scale");
    let scale = json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": {"name": "a"}, "spec": {"replicas": 2}});
    let wanted = ".spec.color.replicas accessor error: red is of the type string, expected map[string]interface{}";
    let answers = [
        api.put(&one, &scale).await,
        api.patch(&one, "merge", &json!({"spec": {"replicas": 2}})).await,
        api.get(&one).await,
    ];
    for answer in answers {
        assert_eq!((answer.code, &answer.json()["message"]), (500, &json!(wanted)));
    }
    let made = json!({"kind": "Crossing", "apiVersion": "test.example.com/v1", "metadata": {"name": "b"}, "spec": {}});
    api.post(&path, &made).await.ok();
    let mut other = scale;
    other["metadata"]["name"] = json!("b");
    // Missing maps are created. The schema then rejects a map as color.
    let answer = api.put(&format!("{path}/b/scale"), &other).await;
    assert!(answer.code < 500, "{}", answer.json());
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_memory_of_json_patch() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    api.post(&maps, &config_map("a", json!({"k": "v".repeat(100)}))).await.ok();
    let one = format!("{maps}/a");
    let copies = |from: &str| -> Value {
        (0..27)
            .map(|i| json!({"op": "copy", "from": from, "path": format!("{from}/a{i}")}))
            .collect()
    };
    for from in ["/metadata", "/data"] {
        let answer = api.patch(&one, "json", &copies(from)).await;
        assert!(matches!(answer.code, 413 | 422), "{}", answer.json());
    }
    let deep: Value = (1..200)
        .map(
            |i| json!({"op": "add", "path": format!("/metadata/x{}", "/a".repeat(i)), "value": {}}),
        )
        .collect();
    assert!(matches!(api.patch(&one, "json", &deep).await.code, 413 | 422));
    assert_eq!(api.get(&one).await.ok()["data"]["k"], "v".repeat(100));
}

#[tokio::test(flavor = "multi_thread")]
async fn survives_nested_envelopes() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let headers = [("content-type", "application/vnd.kubernetes.protobuf")];
    let revisions = format!("/apis/apps/v1/namespaces/{namespace}/controllerrevisions");
    let data = (0..1500).fold(b"{}".to_vec(), |inner, _| {
        protobuf::envelope("apps/v1", "ControllerRevision", &field(2, &field(1, &inner)))
    });
    api.send("POST", &revisions, &headers, data).await.refused(400, "BadRequest");
    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    let fields = (0..1500).fold(b"{}".to_vec(), |inner, _| {
        let entry = field(7, &field(1, &inner));
        // Field 17 of ObjectMeta is managedFields.
        protobuf::envelope("v1", "ConfigMap", &field(1, &field(17, &entry)))
    });
    api.send("POST", &maps, &headers, fields).await.refused(400, "BadRequest");
    api.get(&maps).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_memory_of_defaults() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let many = "{},".repeat(900_000);
    let body = format!(
        r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"p"}},"spec":{{"containers":[{many}{{}}]}}}}"#
    );
    let json = [("content-type", "application/json")];
    api.send("POST", &pods, &json, body).await.refused(413, "RequestEntityTooLarge");
    // A default of a custom kind may be large, and applies to every item that a user sends.
    let mut filled = definition("fillings", "Filling");
    filled["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        ["list"] = json!({"type": "array", "items": {"type": "object", "properties": {
            "text": {"type": "string", "default": "x".repeat(10_000)}}}});
    define(&api, &filled).await;
    let path = format!("/apis/test.example.com/v1/namespaces/{namespace}/fillings");
    let many = "{},".repeat(100_000);
    let body = format!(
        r#"{{"kind":"Filling","apiVersion":"test.example.com/v1","metadata":{{"name":"f"}},"spec":{{"list":[{many}{{}}]}}}}"#
    );
    api.send("POST", &path, &json, body).await.refused(413, "RequestEntityTooLarge");
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_deep_objects_with_owners_and_in_lists() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let revisions = format!("/apis/apps/v1/namespaces/{namespace}/controllerrevisions");
    let deep = |levels: usize| (0..levels).fold(json!("x"), |inner, _| json!({"a": inner}));
    let revision = |levels| json!({"kind": "ControllerRevision", "apiVersion": "apps/v1", "metadata": {"name": "r"}, "revision": 1, "data": deep(levels)});
    api.post(&revisions, &revision(112)).await.refused(400, "BadRequest");
    api.post(&revisions, &revision(111)).await.ok();
    let mut free = definition("depths", "Depth");
    free["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        ["any"] = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    define(&api, &free).await;
    let path = format!("/apis/test.example.com/v1/namespaces/{namespace}/depths");
    let made = json!({"kind": "Depth", "apiVersion": "test.example.com/v1", "metadata": {"name": "d"}, "spec": {"any": deep(110)}});
    api.post(&path, &made).await.ok();
    for (list, one) in [(&revisions, "r"), (&path, "d")] {
        let shown = api.get(&format!("{list}/{one}")).await.ok();
        assert_eq!(api.get(list).await.ok()["items"][0]["metadata"], shown["metadata"]);
        // The fields of managedFields are as deeply nested as the object, and are accepted back.
        assert_eq!(
            api.put(&format!("{list}/{one}"), &shown).await.ok()["metadata"],
            shown["metadata"]
        );
        api.patch(&format!("{list}/{one}"), "merge", &json!({"metadata": {"labels": {"a": "b"}}}))
            .await
            .ok();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_bytes_of_events_in_a_namespace() {
    let (api, full, other) = (admin(), admin().namespace().await, admin().namespace().await);
    let event = |namespace: &str| {
        json!({"metadata": {"generateName": "e"}, "message": "m".repeat(1 << 20),
            "involvedObject": {"kind": "Pod", "name": "p", "namespace": namespace}})
    };
    let path = |namespace: &str| format!("/api/v1/namespaces/{namespace}/events");
    for _ in 0..63 {
        api.post(&path(&full), &event(&full)).await.ok();
    }
    let last = api.post(&path(&full), &event(&full)).await.ok();
    let refused = api.post(&path(&full), &event(&full)).await;
    refused.refused(429, "TooManyRequests");
    assert!(refused.json()["details"].get("retryAfterSeconds").is_none());
    let one = format!("{}/{}", path(&full), last["metadata"]["name"].as_str().unwrap());
    api.patch(&one, "merge", &json!({"count": 2})).await.refused(429, "TooManyRequests");
    api.post(&path(&other), &event(&other)).await.ok();
    api.delete(&one, &json!({})).await.ok();
    api.post(&path(&full), &event(&full)).await.ok();
    api.delete(&path(&full), &json!({})).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_requirements_of_watches() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let selector = |count: usize| -> String {
        let requirements: Vec<_> = (0..count).map(|n| format!("!a{n}")).collect();
        format!("labelSelector={}", requirements.join(","))
    };
    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    api.get(&format!("{maps}?{}", selector(257))).await.ok();
    let watch = format!("{maps}?watch=true&timeoutSeconds=1");
    assert_eq!(api.get(&format!("{watch}&{}", selector(256))).await.code, 200);
    let more = api.get(&format!("{watch}&{}&fieldSelector=metadata.name!=b", selector(256))).await;
    more.refused(400, "BadRequest");
}
