//! Bodies: encodings, field validation, and invalid input.

use serde_json::{Value, json};

use crate::harness::{Api, admin, config_map, pod};

async fn maps(api: &Api) -> String {
    format!("/api/v1/namespaces/{}/configmaps", api.namespace().await)
}

#[tokio::test(flavor = "multi_thread")]
async fn validates_unknown_and_duplicate_fields() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let body = r#"{"metadata": {"name": "NAME"}, "spec": {"nodeNam": "x", "hostname": "a", "hostname": "b", "containers": [{"name": "c", "image": "i", "imag": "j"}]}}"#;
    let json = [("content-type", "application/json")];
    let path = |validation: &str| format!("{pods}?fieldValidation={validation}");
    let warned = api.send("POST", &pods, &json, body.replace("NAME", "a")).await;
    warned.ok();
    let mut warnings = warned.warnings();
    warnings.sort_unstable();
    assert_eq!(
        warnings,
        [
            r#"299 - "duplicate field \"spec.hostname\"""#,
            r#"299 - "unknown field \"spec.containers[0].imag\"""#,
            r#"299 - "unknown field \"spec.nodeNam\"""#,
        ]
    );
    let quiet = api.send("POST", &path("Ignore"), &json, body.replace("NAME", "b")).await;
    quiet.ok();
    assert!(quiet.warnings().is_empty());
    let strict = api.send("POST", &path("Strict"), &json, body.replace("NAME", "c")).await;
    let message = strict.refused(400, "BadRequest");
    assert!(message.contains("strict decoding error: "), "{message}");
    for part in [
        r#"unknown field "spec.nodeNam""#,
        r#"duplicate field "spec.hostname""#,
        r#"unknown field "spec.containers[0].imag""#,
    ] {
        assert!(message.contains(part), "{message}");
    }
    api.send("POST", &path("Maybe"), &json, body).await.refused(422, "Invalid");
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_duplicate_keys_of_yaml_bodies() {
    let api = admin();
    let maps = maps(&api).await;
    let body = "metadata: {name: a}\nfoo: 1\ndata:\n  a: b\n  a: c\n  b: d\n  b: e\n";
    let yaml = [("content-type", "application/yaml")];
    let path = |validation: &str| format!("{maps}?dryRun=All&fieldValidation={validation}");
    let strict = api.send("POST", &path("Strict"), &yaml, body).await;
    assert_eq!(
        strict.refused(400, "BadRequest"),
        "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: yaml: unmarshal errors:\n  line 5: key \"a\" already set in map\n  line 7: key \"b\" already set in map, unknown field \"foo\""
    );
    let warned = api.send("POST", &path("Warn"), &yaml, body).await;
    assert_eq!(warned.ok()["data"], json!({"a": "c", "b": "e"}));
    assert_eq!(
        warned.warnings(),
        [
            r#"299 - "line 5: key \"a\" already set in map""#,
            r#"299 - "line 7: key \"b\" already set in map""#,
            r#"299 - "unknown field \"foo\"""#,
        ]
    );
    let bad = api.send("POST", &maps, &yaml, "a: [").await;
    assert_eq!(
        bad.refused(400, "BadRequest"),
        "the object provided is unrecognized (must be of type ConfigMap): yaml: line 1: did not find expected node content (613a205b)"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn rejects_invalid_input() {
    let api = admin();
    let maps = maps(&api).await;
    let json = "application/json";
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    let big = format!("{{\"data\": {{\"k\": \"{}\"}}}}", "x".repeat(4 << 20));
    let table: [(&str, &str, u16, &str); 12] = [
        (json, "{", 400, "BadRequest"),
        (json, "", 400, "BadRequest"),
        (json, "[]", 400, "BadRequest"),
        (json, "null", 400, "BadRequest"),
        (json, r#"{"metadata": {"name": 7}}"#, 400, "BadRequest"),
        (json, r#"{"metadata": {"name": "a"}, "data": "text"}"#, 400, "BadRequest"),
        (
            json,
            r#"{"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a"}}"#,
            400,
            "BadRequest",
        ),
        (json, &deep, 400, "BadRequest"),
        (json, &big, 413, "RequestEntityTooLarge"),
        ("text/html", "{}", 415, "UnsupportedMediaType"),
        // A page of another site can send this without asking the browser's user.
        ("application/x-www-form-urlencoded", "{}", 415, "UnsupportedMediaType"),
        ("application/vnd.kubernetes.protobuf", "k8s\0junk", 400, "BadRequest"),
    ];
    for (content_type, body, code, reason) in table {
        let answer =
            api.send("POST", &maps, &[("content-type", content_type)], body.to_owned()).await;
        let message = answer.refused(code, reason);
        assert!(!message.is_empty(), "{content_type} {}", &body[..body.len().min(80)]);
    }
    let answer = api.send("GET", &maps, &[("accept", "image/png")], "").await;
    answer.refused(406, "NotAcceptable");
    for kind in ["merge", "strategic", "json", "apply"] {
        let content_type = match kind {
            "json" => "application/json-patch+json",
            "merge" => "application/merge-patch+json",
            "strategic" => "application/strategic-merge-patch+json",
            _ => "application/apply-patch+yaml",
        };
        let path = format!("{maps}/a?fieldManager=m");
        api.post(&maps, &config_map("a", json!({}))).await;
        let answer = api.send("PATCH", &path, &[("content-type", content_type)], "{]").await;
        answer.refused(400, "BadRequest");
    }
    let answer = api.send("PATCH", &format!("{maps}/a"), &[("content-type", json)], "{}").await;
    answer.refused(415, "UnsupportedMediaType");
}

#[tokio::test(flavor = "multi_thread")]
async fn rejects_object_too_large_for_store() {
    let api = admin();
    let maps = maps(&api).await;
    let map = config_map("a", json!({"k": "x".repeat(1_100_000)}));
    let message = api.post(&maps, &map).await.refused(422, "Invalid");
    assert!(message.contains("Too long: may not be more than 1048576 bytes"), "{message}");
    let mut map = config_map("a", json!({"k": "x".repeat(1_000_000)}));
    map["metadata"]["annotations"] = json!({"a": "x".repeat(250_000)});
    api.post(&maps, &map).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn accepts_and_returns_yaml() {
    let api = admin();
    let maps = maps(&api).await;
    let yaml = "application/yaml";
    let body = "kind: ConfigMap\napiVersion: v1\nmetadata:\n  name: a\ndata:\n  k: \"on\"\n";
    let headers = [("content-type", yaml), ("accept", yaml)];
    let answer = api.send("POST", &maps, &headers, body).await;
    assert_eq!((answer.code, answer.header("content-type")), (201, yaml));
    let text = String::from_utf8(answer.body.to_vec()).unwrap();
    assert!(text.contains("kind: ConfigMap\n"), "{text}");
    assert_eq!(api.get(&format!("{maps}/a")).await.ok()["data"]["k"], "on");
}

#[tokio::test(flavor = "multi_thread")]
async fn accepts_and_returns_protobuf() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let protobuf = "application/vnd.kubernetes.protobuf";
    let schema = api_schema::Schema::builtin();
    let body = api_codec::protobuf::to_protobuf(schema, "v1", "Pod", &pod("p")).unwrap();
    let headers = [("content-type", protobuf), ("accept", protobuf)];
    let made = api.send("POST", &pods, &headers, body).await;
    assert_eq!((made.code, made.header("content-type")), (201, protobuf));
    let made = api_codec::protobuf::from_protobuf(schema, &made.body).unwrap();
    let shown = api.get(&format!("{pods}/p")).await.ok();
    assert_eq!(made["metadata"]["uid"], shown["metadata"]["uid"]);
    assert_eq!(made["spec"]["containers"], shown["spec"]["containers"]);
    let list = api.send("GET", &pods, &[("accept", protobuf)], "").await;
    let list = api_codec::protobuf::from_protobuf(schema, &list.body).unwrap();
    assert_eq!(
        (&list["kind"], &list["items"][0]["metadata"]["name"]),
        (&json!("PodList"), &json!("p"))
    );
    let failure = api.send("GET", &format!("{pods}/none"), &[("accept", protobuf)], "").await;
    let failure = api_codec::protobuf::from_protobuf(schema, &failure.body).unwrap();
    assert_eq!((&failure["kind"], &failure["reason"]), (&json!("Status"), &json!("NotFound")));
}

#[tokio::test(flavor = "multi_thread")]
async fn indents_json_for_browsers_and_curl() {
    let api = admin();
    for (path, agent, pretty) in [
        ("/version", "curl/8", true),
        ("/version?pretty=true", "x", true),
        ("/version?pretty=false", "curl/8", false),
    ] {
        let answer = api.send("GET", path, &[("user-agent", agent)], "").await;
        assert_eq!(answer.body.starts_with(b"{\n  "), pretty, "{path} {agent}");
        assert_eq!(answer.ok()["gitVersion"], Value::from(version::BUILD_VERSION));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn resets_owners_with_empty_list() {
    let (api, maps) = (admin(), maps(&admin()).await);
    let made = api.post(&maps, &config_map("a", json!({"k": "v"}))).await.ok();
    assert_eq!(made["metadata"]["managedFields"].as_array().unwrap().len(), 1);
    let one = format!("{maps}/a");
    let kept = api.put(&one, &config_map("a", json!({"k": "w"}))).await.ok();
    assert_eq!(kept["metadata"]["managedFields"].as_array().unwrap().len(), 1);
    let mut without = config_map("a", json!({"k": "w"}));
    without["metadata"]["managedFields"] = json!([]);
    let forgotten = api.put(&one, &without).await.ok();
    assert_eq!(forgotten["metadata"].get("managedFields"), None);
}
