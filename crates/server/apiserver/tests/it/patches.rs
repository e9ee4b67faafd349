//! The four patch types, and field ownership of server-side apply.

use serde_json::{Value, json};

use crate::harness::{admin, config_map, deployment, pod};

#[tokio::test(flavor = "multi_thread")]
async fn applies_four_patch_types() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments");
    api.post(&path, &deployment("d")).await.ok();
    let one = format!("{path}/d");
    let containers = |o: &Value| o["spec"]["template"]["spec"]["containers"].clone();

    let merged = api
        .patch(&one, "merge", &json!({"metadata": {"labels": {"a": "1", "b": null}}}))
        .await
        .ok();
    assert_eq!(merged["metadata"]["labels"], json!({"a": "1"}));
    let add =
        json!({"spec": {"template": {"spec": {"containers": [{"name": "side", "image": "s"}]}}}});
    let added = containers(&api.patch(&one, "strategic", &add).await.ok());
    assert_eq!((added.as_array().unwrap().len(), &added[0]["name"]), (2, &json!("side")));
    assert_eq!(added[0]["imagePullPolicy"], "Always", "defaults are filled in again");
    let delete = json!({"spec": {"template": {"spec": {"containers": [{"name": "side", "$patch": "delete"}]}}}});
    assert_eq!(
        containers(&api.patch(&one, "strategic", &delete).await.ok()).as_array().unwrap().len(),
        1
    );
    let json_patch = json!([
        {"op": "test", "path": "/metadata/labels/a", "value": "1"},
        {"op": "replace", "path": "/spec/replicas", "value": 3},
    ]);
    assert_eq!(api.patch(&one, "json", &json_patch).await.ok()["spec"]["replicas"], 3);
    let failing = json!([{"op": "test", "path": "/metadata/labels/a", "value": "2"}]);
    api.patch(&one, "json", &failing).await.refused(422, "Invalid");

    // A resourceVersion in a patch is a precondition.
    let stale = json!({"metadata": {"resourceVersion": "1", "labels": {"x": "y"}}});
    api.patch(&one, "merge", &stale).await.refused(409, "Conflict");
    api.patch(&one, "merge", &json!({"metadata": {"name": "e"}})).await.refused(400, "BadRequest");
    let wrong = json!({"spec": {"replicas": "many"}});
    for (kind, shown) in [("merge", r#"{\"apiVersion\""#), ("strategic", "map[spec:")] {
        let message = api.patch(&one, kind, &wrong).await.refused(422, "Invalid");
        let begin = format!(" \"\" is invalid: patch: Invalid value: \"{shown}");
        assert!(message.starts_with(&begin), "{message}");
    }
    let invalid = json!({"spec": {"replicas": -1}});
    let message = api.patch(&one, "merge", &invalid).await.refused(422, "Invalid");
    assert!(
        message.contains("spec.replicas: Invalid value: -1: must be greater than or equal to 0"),
        "{message}"
    );
    api.patch(&format!("{path}/none"), "merge", &json!({})).await.refused(404, "NotFound");
    let warned = api.patch(&one, "merge", &json!({"spec": {"replica": 1}})).await;
    assert_eq!(warned.warnings(), [r#"299 - "unknown field \"spec.replica\"""#]);
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_malformed_patches_as_upstream() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments");
    api.post(&path, &deployment("d")).await.ok();
    let not_map = "json: cannot unmarshal array into Go value of type map[string]interface {}";
    let cases = [
        (
            "json",
            "{}",
            "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp",
        ),
        (
            "json",
            r#"[{"op":5}]"#,
            "error decoding patch: json: cannot unmarshal number into Go struct field jsonPatchOp.op of type string",
        ),
        ("merge", "[]", &format!("error decoding patch: {not_map}")),
        ("merge", "null", "Invalid JSON Patch"),
        ("merge", "{", "error decoding patch: unexpected end of JSON input"),
        ("strategic", "[]", not_map),
        ("strategic", "{", "unexpected end of JSON input"),
    ];
    let media = |kind: &str| match kind {
        "strategic" => "application/strategic-merge-patch+json".to_owned(),
        kind => format!("application/{kind}-patch+json"),
    };
    for (kind, body, want) in cases {
        let media = media(kind);
        let headers = [("content-type", media.as_str())];
        let refused = api.send("PATCH", &format!("{path}/d"), &headers, body).await;
        assert_eq!(refused.refused(400, "BadRequest"), want);
        let none = api.send("PATCH", &format!("{path}/none"), &headers, body).await;
        none.refused(404, "NotFound");
    }
    let one = format!("{path}/d");
    let cases = [
        (
            "json",
            r#"[{"op":"test","path":"/kind","value":1,"value":"Deployment","x":1}]"#,
            vec![
                r#"299 - "json patch duplicate field \"[0].value\"""#,
                r#"299 - "json patch unknown field \"[0].x\"""#,
            ],
        ),
        (
            "merge",
            r#"{"spec":{"replicas":1,"replicas":2}}"#,
            vec![r#"299 - "duplicate field \"spec.replicas\"""#],
        ),
        (
            "strategic",
            r#"{"spec":{"replicas":1,"replicas":2}}"#,
            vec![r#"299 - "duplicate field \"spec.replicas\"""#],
        ),
    ];
    for (kind, body, want) in cases {
        let media = media(kind);
        let answer = api.send("PATCH", &one, &[("content-type", media.as_str())], body).await;
        assert_eq!(answer.warnings(), want);
    }
    let keyless = json!({"spec": {"template": {"spec": {"containers": [{"image": "i"}]}}}});
    let refused = api.patch(&one, "strategic", &keyless).await;
    assert_eq!((refused.code, refused.json().get("reason")), (500, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn does_not_own_fields_set_by_server() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let path = format!("/api/v1/namespaces/{namespace}/services");
    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}});
    let made = api.post(&path, &service).await.ok();
    assert!(made["spec"]["clusterIP"].is_string());
    let owned = made["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"].as_object().unwrap();
    let owned: Vec<&str> = owned.keys().map(String::as_str).collect();
    assert_eq!(owned, ["f:internalTrafficPolicy", "f:ports", "f:sessionAffinity", "f:type"]);

    // An empty list resets the owners.
    let forget = json!({"metadata": {"managedFields": []}});
    let forgotten = api.patch(&format!("{path}/s"), "merge", &forget).await.ok();
    assert_eq!(forgotten["metadata"].get("managedFields"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn rejects_invalid_options_of_apply() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let one = format!("/api/v1/namespaces/{namespace}/configmaps/c");
    for (query, want) in [
        (
            "fieldManager=%07a",
            "fieldManager: Invalid value: \"\\aa\": invalid character U+0007 (at position 0)",
        ),
        (
            "fieldManager=a&dryRun=All&dryRun=x",
            "dryRun: Unsupported value: [\"All\",\"x\"]: supported values: \"All\"",
        ),
    ] {
        let refused =
            api.patch(&format!("{one}?{query}"), "apply", &config_map("c", json!({}))).await;
        let message = refused.refused(422, "Invalid");
        assert_eq!(message, format!("PatchOptions.meta.k8s.io \"\" is invalid: {want}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn separates_field_owners_of_apply() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let one = format!("/api/v1/namespaces/{namespace}/configmaps/c");
    let apply = |manager: &str| format!("{one}?fieldManager={manager}");
    let made =
        api.patch(&apply("one"), "apply", &config_map("c", json!({"a": "1", "b": "1"}))).await;
    assert_eq!(made.code, 201);
    let managed = made.ok()["metadata"]["managedFields"].clone();
    assert_eq!(managed.as_array().unwrap().len(), 1, "{managed}");
    assert_eq!(
        (&managed[0]["operation"], &managed[0]["manager"]),
        (&json!("Apply"), &json!("one"))
    );

    let again =
        api.patch(&apply("one"), "apply", &config_map("c", json!({"a": "1", "b": "1"}))).await;
    assert_eq!((again.code, again.ok()), (200, made.ok()), "a second time changes nothing");

    let conflict = api.patch(&apply("two"), "apply", &config_map("c", json!({"a": "2"}))).await;
    let message = conflict.refused(409, "Conflict");
    assert_eq!(message, "Apply failed with 1 conflict: conflict with \"one\": .data.a");
    let cause = &conflict.json()["details"]["causes"][0];
    assert_eq!(
        (&cause["reason"], &cause["field"]),
        (&json!("FieldManagerConflict"), &json!(".data.a"))
    );
    let two = config_map("c", json!({"a": "2"}));
    let forced = api.patch(&format!("{}&force=true", apply("two")), "apply", &two).await;
    assert_eq!(forced.ok()["data"], json!({"a": "2", "b": "1"}));
    // A field that its last owner no longer applies is removed.
    let less = api.patch(&apply("one"), "apply", &config_map("c", json!({}))).await.ok();
    assert_eq!(less["data"], json!({"a": "2"}));

    api.patch(&one, "apply", &config_map("c", json!({}))).await.refused(422, "Invalid");
    let mut wrong = config_map("c", json!({}));
    wrong["metadata"]["managedFields"] = json!([{"manager": "x"}]);
    api.patch(&apply("one"), "apply", &wrong).await.refused(400, "BadRequest");
    let message = api.patch(&apply("one"), "apply", &pod("c")).await.refused(400, "BadRequest");
    assert_eq!(message, "invalid object type: /v1, Kind=Pod");
    api.patch(&format!("{one}?force=true"), "merge", &json!({})).await.refused(422, "Invalid");
    let twice = "apiVersion: v1\nkind: ConfigMap\ndata:\n  a: one\n  a: two\n";
    let headers = [("content-type", "application/apply-patch+yaml")];
    let path = format!("{}&force=true&fieldValidation", apply("one"));
    let strict = api.send("PATCH", &format!("{path}=Strict"), &headers, twice).await;
    let message = strict.refused(400, "BadRequest");
    assert!(message.ends_with("line 5: key \"a\" already set in map"), "{message}");
    let warned = api.send("PATCH", &format!("{path}=Warn"), &headers, twice).await;
    assert_eq!(warned.warnings(), [r#"299 - "line 5: key \"a\" already set in map""#]);
    assert_eq!(warned.ok()["data"]["a"], "two");
    for (value, at) in [("???", 0), ("YQ", 0), ("YQ=", 3)] {
        let mut bytes = config_map("c", json!({}));
        bytes["binaryData"] = json!({"k": value});
        let refused = api.patch(&format!("{}&force=true", apply("one")), "apply", &bytes).await;
        let (code, message) = (refused.code, refused.json()["message"].clone());
        assert_eq!(code, 500, "{message}");
        let cause = format!(
            "to proper version: unable to convert unstructured object to /v1, Kind=ConfigMap: error decoding from json: illegal base64 data at input byte {at}"
        );
        assert!(message.as_str().is_some_and(|message| message.ends_with(&cause)), "{message}");
    }
    let mut unknown = config_map("c", json!({}));
    (unknown["unknown"], unknown["metadata"]["other"]) = (json!(1), json!(1));
    for validation in ["Strict", "Ignore"] {
        let path = format!("{}&fieldValidation={validation}", apply("one"));
        let refused = api.patch(&path, "apply", &unknown).await;
        let message = &refused.json()["message"];
        assert_eq!(
            (refused.code, message.as_str()),
            (
                500,
                Some(
                    "failed to create typed patch object (/c; /v1, Kind=ConfigMap): errors:\n  \
             .metadata.other: field not declared in schema\n  .unknown: field not declared in schema"
                )
            )
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tracks_owners_of_status_separately() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments/d");
    api.patch(&format!("{path}?fieldManager=kubectl"), "apply", &deployment("d")).await.ok();
    let mut status =
        json!({"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": "d"}});
    status["status"] = json!({"replicas": 1, "observedGeneration": 1});
    status["spec"] = json!({"replicas": 9});
    let status_path = format!("{path}/status?fieldManager=controller&force=true");
    let changed = api.patch(&status_path, "apply", &status).await.ok();
    assert_eq!(
        (&changed["status"]["replicas"], &changed["spec"]["replicas"]),
        (&json!(1), &json!(1))
    );
    let managed = changed["metadata"]["managedFields"].as_array().unwrap();
    let of = |m: &Value| (m["manager"].clone(), m["subresource"].clone());
    let owners: Vec<_> = managed.iter().map(of).collect();
    assert!(owners.contains(&(json!("controller"), json!("status"))), "{owners:?}");
    let controller = managed.iter().find(|m| m["manager"] == "controller").unwrap();
    assert!(controller["fieldsV1"]["f:spec"].is_null(), "{controller}");
    // An update of the main resource does not change the status.
    let patch = json!({"status": {"replicas": 5}});
    assert_eq!(api.patch(&path, "merge", &patch).await.ok()["status"]["replicas"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn owns_and_removes_fields_applied_as_null() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments/d?fieldManager=m");
    let mut config = deployment("d");
    config["apiVersion"] = json!("apps/v1");
    config["kind"] = json!("Deployment");
    config["spec"]["template"]["spec"]["nodeSelector"] = json!({"a": "b"});
    api.patch(&path, "apply", &config).await.ok();
    config["spec"]["template"]["spec"]["nodeSelector"] = Value::Null;
    config["spec"]["template"]["spec"]["containers"][0]["command"] = Value::Null;
    let made = api.patch(&path, "apply", &config).await.ok();
    let spec = &made["spec"]["template"]["spec"];
    assert_eq!((spec.get("nodeSelector"), spec["containers"][0].get("command")), (None, None));
    let owned = &made["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]["f:template"]["f:spec"];
    assert_eq!(owned["f:nodeSelector"], json!({}));
    let container = owned["f:containers"].as_object().unwrap().values().next().unwrap();
    assert_eq!(container["f:command"], json!({}));

    // If the only owner applies nothing, the object has no owners left.
    let map = |data: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data});
    let one = format!("/api/v1/namespaces/{namespace}/configmaps/c?fieldManager=m");
    let made = api.patch(&one, "apply", &map(json!({"k": "v"}))).await.ok();
    assert_eq!(made["metadata"]["managedFields"].as_array().map(Vec::len), Some(1));
    let mut nothing = map(Value::Null);
    nothing.as_object_mut().unwrap().remove("data");
    let left = api.patch(&one, "apply", &nothing).await.ok();
    assert_eq!((left.get("data"), left["metadata"].get("managedFields")), (None, None));

    // A value of the wrong type is rejected.
    config["spec"]["template"]["spec"]["hostname"] = json!(1);
    let answer = api.patch(&path, "apply", &config).await;
    let message = answer.json()["message"].as_str().unwrap().to_owned();
    let want =
        ".spec.template.spec.hostname: expected string, got &value.valueUnstructured{Value:1}";
    assert!(answer.code == 500 && message.ends_with(want), "{message}");
}
