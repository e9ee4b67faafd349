//! Custom kinds, from their definition to its deletion.

use serde_json::{Value, json};

use crate::harness::{Api, admin};

pub(crate) fn definition(plural: &str, kind: &str) -> Value {
    json!({
        "kind": "CustomResourceDefinition",
        "apiVersion": "apiextensions.k8s.io/v1",
        "metadata": {"name": format!("{plural}.test.example.com")},
        "spec": {
            "group": "test.example.com",
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind, "shortNames": [format!("{}s", kind.to_lowercase())]},
            "versions": [{
                "name": "v1",
                "served": true,
                "storage": true,
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
                "additionalPrinterColumns": [
                    {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
                    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
                ],
                "selectableFields": [{"jsonPath": ".spec.color"}],
                "schema": {"openAPIV3Schema": {
                    "type": "object",
                    "required": ["spec"],
                    "properties": {
                        "spec": {
                            "type": "object",
                            "properties": {
                                "size": {"type": "integer", "minimum": 1, "default": 3},
                                "color": {"type": "string", "enum": ["red", "blue"]},
                                "replicas": {"type": "integer"},
                            },
                        },
                        "status": {"type": "object", "properties": {"replicas": {"type": "integer"}, "phase": {"type": "string"}}},
                    },
                }},
            }],
        },
    })
}

pub(crate) const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

pub(crate) async fn define(api: &Api, definition: &Value) -> String {
    let made = api.post(DEFINITIONS, definition).await.ok();
    let name = made["metadata"]["name"].as_str().unwrap().to_owned();
    let holds = |o: &Value, kind: &str| {
        o["status"]["conditions"]
            .as_array()
            .is_some_and(|all| all.iter().any(|c| c["type"] == kind && c["status"] == "True"))
    };
    let started = std::time::Instant::now();
    loop {
        let now = api.get(&format!("{DEFINITIONS}/{name}")).await.ok();
        if holds(&now, "Established") && holds(&now, "NamesAccepted") {
            return name;
        }
        assert!(started.elapsed().as_secs() < 30, "{now}");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({"kind": kind, "apiVersion": "test.example.com/v1", "metadata": {"name": name}, "spec": spec})
}

#[tokio::test(flavor = "multi_thread")]
async fn enforces_validation_rules_of_definition() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let mut ruled = definition("ruleds", "Ruled");
    let pointer = "/spec/versions/0/schema/openAPIV3Schema/x-kubernetes-validations";
    let set = |definition: &mut Value, rules: Value| {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        let parent = definition.pointer_mut(parent).and_then(Value::as_object_mut).unwrap();
        parent.insert(key.to_owned(), rules);
    };
    set(&mut ruled, json!([{"rule": "self.spec.sizes > 1"}]));
    let message = api.post(DEFINITIONS, &ruled).await.refused(422, "Invalid");
    let wanted = "compilation failed: ERROR: <input>:1:10: undefined field 'sizes'";
    assert!(message.contains(wanted), "{message}");
    set(
        &mut ruled,
        json!([
            {"rule": "self.spec.size > 1", "message": "too small", "fieldPath": ".spec.size"},
            {"rule": "self.spec.color == oldSelf.spec.color", "message": "color does not change"},
            {"rule": "self.kind == 'Ruled' && self.apiVersion == 'test.example.com/v1' && self.metadata.name.size() == 1"},
        ]),
    );
    define(&api, &ruled).await;
    let path = format!("/apis/test.example.com/v1/namespaces/{namespace}/ruleds");
    let small = object("Ruled", "a", json!({"size": 1, "color": "red"}));
    let message = api.post(&path, &small).await.refused(422, "Invalid");
    assert_eq!(
        message,
        "Ruled.test.example.com \"a\" is invalid: spec.size: Invalid value: too small"
    );
    let made = api.post(&path, &object("Ruled", "a", json!({"color": "red"}))).await.ok();
    let mut changed = made.clone();
    changed["spec"]["color"] = json!("blue");
    let message = api.put(&format!("{path}/a"), &changed).await.refused(422, "Invalid");
    assert!(
        message.ends_with("is invalid: <nil>: Invalid value: color does not change"),
        "{message}"
    );
    changed["spec"] = json!({"color": "red", "size": 7});
    api.put(&format!("{path}/a"), &changed).await.ok();
    let metrics = String::from_utf8(api.get("/metrics").await.body.to_vec()).unwrap();
    for part in ["compilation", "evaluation"] {
        let name = format!("apiserver_cel_{part}_duration_seconds");
        assert!(metrics.contains(&format!("{name}_bucket{{le=\"0.005\"}}")), "{metrics}");
        assert!(!metrics.contains(&format!("{name}_count 0\n")), "{metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn serves_custom_kind_like_built_in_kind() {
    let (api, namespace) = (admin(), admin().namespace().await);
    define(&api, &definition("gadgets", "Gadget")).await;
    let listed = api.get("/apis/test.example.com/v1").await.ok();
    let listed = listed["resources"].as_array().unwrap().iter().find(|r| r["name"] == "gadgets");
    // For `test.example.com/v1/Gadget`, as computed by upstream.
    assert_eq!(listed.unwrap()["storageVersionHash"], "LMfR4jy7AgA=");
    let path = format!("/apis/test.example.com/v1/namespaces/{namespace}/gadgets");
    let made = api.post(&path, &object("Gadget", "a", json!({"color": "red", "unknown": 1}))).await;
    assert_eq!(made.warnings(), [r#"299 - "unknown field \"spec.unknown\"""#]);
    let made = made.ok();
    assert_eq!(made["spec"], json!({"color": "red", "size": 3}), "defaulted and pruned");
    assert_eq!(made["metadata"]["generation"], 1);
    for (spec, wanted) in [
        (
            json!({"size": 0}),
            "spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1",
        ),
        (
            json!({"color": "green"}),
            "spec.color: Unsupported value: \"green\": supported values: \"red\", \"blue\"",
        ),
        (
            json!({"size": "big"}),
            "spec.size: Invalid value: \"string\": spec.size in body must be of type integer: \"string\"",
        ),
    ] {
        let message = api.post(&path, &object("Gadget", "b", spec)).await.refused(422, "Invalid");
        assert!(
            message.starts_with("Gadget.test.example.com \"b\" is invalid: ")
                && message.contains(wanted),
            "{message}"
        );
    }
    let strict = format!("{path}?fieldValidation=Strict");
    api.post(&strict, &object("Gadget", "b", json!({"x": 1}))).await.refused(400, "BadRequest");
    // Its status and scale.
    let one = format!("{path}/a");
    let mut changed = made.clone();
    changed["status"] = json!({"phase": "Up", "replicas": 2});
    changed["spec"]["size"] = json!(9);
    let updated = api.put(&format!("{one}/status"), &changed).await.ok();
    assert_eq!((&updated["status"]["phase"], &updated["spec"]["size"]), (&json!("Up"), &json!(3)));
    let scale = format!("{one}/scale");
    let message = api.get(&scale).await.refused(500, "InternalError");
    assert!(message.ends_with("the spec replicas field \".spec.replicas\" does not exist"));
    let message = api.patch(&scale, "merge", &json!({})).await.refused(400, "BadRequest");
    assert_eq!(message, "the spec replicas field \".spec.replicas\" cannot be empty");
    let scale = api.patch(&scale, "merge", &json!({"spec": {"replicas": 5}})).await.ok();
    assert_eq!((&scale["spec"]["replicas"], &scale["status"]["replicas"]), (&json!(5), &json!(2)));
    // Updates require a resourceVersion.
    api.put(&one, &object("Gadget", "a", json!({}))).await.refused(422, "Invalid");
    api.patch(&one, "strategic", &json!({})).await.refused(415, "UnsupportedMediaType");
    let larger = object("Gadget", "a", json!({"size": 8}));
    let applied = api.patch(&format!("{one}?fieldManager=m"), "apply", &larger).await;
    applied.refused(409, "Conflict");
    // Its table, selectors and list.
    let accept = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let table = api.send("GET", &path, &accept, "").await.ok();
    let names: Vec<_> =
        table["columnDefinitions"].as_array().unwrap().iter().map(|c| &c["name"]).collect();
    assert_eq!(names, ["Name", "Size", "Age"]);
    assert_eq!(
        table["columnDefinitions"][1]["description"],
        "Custom resource definition column (in JSONPath format): .spec.size"
    );
    let described = table["columnDefinitions"][0]["description"].as_str().unwrap_or_default();
    let words = "Name must be unique within a namespace. Is required when creating resources";
    assert!(described.starts_with(words), "{described}");
    assert_eq!(table["rows"][0]["cells"][1], 3);
    for (color, count) in [("red", 1), ("blue", 0)] {
        let list = api.get(&format!("{path}?fieldSelector=spec.color%3D{color}")).await.ok();
        assert_eq!(list["items"].as_array().unwrap().len(), count, "{color}");
    }
    let list = api.get(&path).await.ok();
    assert_eq!(
        (&list["kind"], &list["items"][0]["kind"]),
        (&json!("GadgetList"), &json!("Gadget"))
    );
    let document = api.get("/openapi/v3/apis/test.example.com/v1").await.ok();
    assert!(document.to_string().contains("com.example.test.v1.Gadget"));
}

#[tokio::test(flavor = "multi_thread")]
async fn applies_changed_schema_to_old_objects() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let name = define(&api, &definition("widgets", "Widget")).await;
    let path = format!("/apis/test.example.com/v1/namespaces/{namespace}/widgets");
    api.post(&path, &object("Widget", "a", json!({"color": "red", "replicas": 1}))).await.ok();
    let at = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    let patch = json!([
        {"op": "add", "path": format!("{at}/weight"), "value": {"type": "integer", "default": 7}},
        {"op": "remove", "path": format!("{at}/color")},
        {"op": "remove", "path": "/spec/versions/0/selectableFields"},
        {"op": "add", "path": "/spec/versions/-", "value": {
            "name": "v2", "served": true, "storage": false,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties": {
                "size": {"type": "integer"}, "extra": {"type": "string", "default": "e"},
            }}}}},
        }},
    ]);
    api.patch(&format!("{DEFINITIONS}/{name}"), "json", &patch).await.ok();
    let started = std::time::Instant::now();
    loop {
        let shown = api.get(&format!("{path}/a")).await.ok();
        if shown["spec"]["weight"] == 7 {
            assert_eq!(shown["spec"], json!({"size": 3, "weight": 7, "replicas": 1}));
            break;
        }
        assert!(started.elapsed().as_secs() < 30, "{shown}");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    // The other version has only its own fields.
    let newer = format!("/apis/test.example.com/v2/namespaces/{namespace}/widgets/a");
    let shown = api.get(&newer).await.ok();
    assert_eq!(
        (&shown["apiVersion"], &shown["spec"]),
        (&json!("test.example.com/v2"), &json!({"size": 3, "extra": "e"}))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn rejects_invalid_definitions() {
    let api = admin();
    let mut misnamed = definition("nails", "Nail");
    misnamed["metadata"]["name"] = json!("hammer.test.example.com");
    let message = api.post(DEFINITIONS, &misnamed).await.refused(422, "Invalid");
    assert!(message.contains("must be spec.names.plural+\".\"+spec.group"), "{message}");
    let mut loose = definition("nails", "Nail");
    loose["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        ["x"] = json!({});
    let message = api.post(DEFINITIONS, &loose).await.refused(422, "Invalid");
    let field =
        "spec.validation.openAPIV3Schema.properties[spec].properties[x].type: Required value";
    assert!(message.contains(field), "{message}");
    // Two kinds cannot share a name: the later definition is stored but not served.
    define(&api, &definition("bolts", "Bolt")).await;
    let mut second = definition("screws", "Screw");
    second["spec"]["names"]["kind"] = json!("Bolt");
    api.post(DEFINITIONS, &second).await.ok();
    let path = format!("{DEFINITIONS}/screws.test.example.com");
    let started = std::time::Instant::now();
    loop {
        let now = api.get(&path).await.ok();
        let conditions = now["status"]["conditions"].as_array().cloned().unwrap_or_default();
        if let Some(names) = conditions.iter().find(|c| c["type"] == "NamesAccepted") {
            assert_eq!(
                (&names["status"], &names["reason"]),
                (&json!("False"), &json!("ListKindConflict")),
                "the last of several conflicts is told"
            );
            break;
        }
        assert!(started.elapsed().as_secs() < 30, "{now}");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    api.get("/apis/test.example.com/v1/screws").await.refused(404, "NotFound");
}

#[tokio::test(flavor = "multi_thread")]
async fn deletes_objects_with_their_definition() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let name = define(&api, &definition("sprockets", "Sprocket")).await;
    let path = format!("/apis/test.example.com/v1/namespaces/{namespace}/sprockets");
    let mut kept = object("Sprocket", "a", json!({}));
    kept["metadata"]["finalizers"] = json!(["example.com/hold"]);
    api.post(&path, &kept).await.ok();
    api.post(&path, &object("Sprocket", "b", json!({}))).await.ok();
    let one = format!("{DEFINITIONS}/{name}");
    let pending = api.delete(&one, &json!({})).await.ok();
    assert_eq!(
        pending["metadata"]["finalizers"],
        json!(["customresourcecleanup.apiextensions.k8s.io"])
    );
    let started = std::time::Instant::now();
    while api.get(&format!("{path}/b")).await.code != 404 {
        assert!(started.elapsed().as_secs() < 30);
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    // The finalizer keeps the object, and the object keeps its definition.
    assert_eq!(api.get(&one).await.code, 200);
    api.patch(&format!("{path}/a"), "merge", &json!({"metadata": {"finalizers": null}})).await.ok();
    while api.get(&one).await.code != 404 || api.get(&path).await.code != 404 {
        assert!(started.elapsed().as_secs() < 60);
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

async fn condition(api: &Api, name: &str, kind: &str) -> Value {
    let crd = api.get(&format!("{DEFINITIONS}/{name}")).await.ok();
    let all = crd["status"]["conditions"].as_array().cloned().unwrap_or_default();
    all.into_iter().find(|c| c["type"] == kind).unwrap_or_default()
}

/// Waits until a condition is true, for as long as a definition may take.
async fn soon<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let started = std::time::Instant::now();
    while !holds().await {
        assert!(started.elapsed().as_secs() < 30, "{what}");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rejects_objects_of_terminating_kind() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let mut two = definition("levers", "Lever");
    let mut unserved = two["spec"]["versions"][0].clone();
    unserved["name"] = json!("v2");
    unserved["storage"] = json!(false);
    two["spec"]["versions"].as_array_mut().unwrap().push(unserved);
    let name = define(&api, &two).await;
    let path = format!("/apis/test.example.com/v1/namespaces/{namespace}/levers");
    let mut kept = object("Lever", "a", json!({}));
    kept["metadata"]["finalizers"] = json!(["example.com/hold"]);
    api.post(&path, &kept).await.ok();
    api.post(&path, &object("Lever", "b", json!({}))).await.ok();
    let pending = api.delete(&format!("{DEFINITIONS}/{name}"), &json!({})).await.ok();
    let terminating = |crd: &Value| {
        let all = crd["status"]["conditions"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|c| c["type"] == "Terminating").unwrap_or_default()
    };
    assert_eq!(terminating(&pending)["reason"], "InstanceDeletionPending");
    let refused = api.post(&path, &object("Lever", "c", json!({}))).await;
    assert_eq!(
        refused.refused(405, "MethodNotAllowed"),
        "create not allowed while custom resource definition is terminating"
    );
    soon("the deletion is under way", || async {
        condition(&api, &name, "Terminating").await["reason"] == "InstanceDeletionInProgress"
    })
    .await;
    // Without any served version, the stored objects are deleted all the same.
    let patch = json!([
        {"op": "replace", "path": "/spec/versions/0/served", "value": false},
        {"op": "replace", "path": "/spec/versions/1/served", "value": false},
    ]);
    let free = json!({"metadata": {"finalizers": null}});
    api.patch(&format!("{path}/a"), "merge", &free).await.ok();
    api.patch(&format!("{DEFINITIONS}/{name}"), "json", &patch).await;
    soon("the definition goes", || async {
        api.get(&format!("{DEFINITIONS}/{name}")).await.code == 404
    })
    .await;
    // A new kind of the same name starts without the old objects.
    define(&api, &definition("levers", "Lever")).await;
    assert_eq!(api.get(&path).await.ok()["items"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn keeps_objects_of_disabled_version() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let mut two = definition("cranks", "Crank");
    let mut next = two["spec"]["versions"][0].clone();
    next["name"] = json!("v2");
    next["storage"] = json!(false);
    two["spec"]["versions"].as_array_mut().unwrap().push(next);
    let name = define(&api, &two).await;
    let at =
        |version: &str| format!("/apis/test.example.com/{version}/namespaces/{namespace}/cranks");
    api.post(&at("v1"), &object("Crank", "a", json!({"size": 5}))).await.ok();
    let patch = json!([
        {"op": "replace", "path": "/spec/versions/0/served", "value": false},
        {"op": "replace", "path": "/spec/versions/0/storage", "value": false},
        {"op": "replace", "path": "/spec/versions/1/storage", "value": true},
    ]);
    let changed = api.patch(&format!("{DEFINITIONS}/{name}"), "json", &patch).await.ok();
    assert_eq!(changed["status"]["storedVersions"], json!(["v1", "v2"]));
    soon("v1 is not served", || async { api.get(&at("v1")).await.code == 404 }).await;
    assert_eq!(api.get(&format!("{}/a", at("v2"))).await.ok()["spec"]["size"], 5);
    let listed = api.get("/apis/test.example.com/v1").await;
    let names = |answer: &crate::harness::Answer| answer.json()["resources"].to_string();
    assert!(listed.code == 404 || !names(&listed).contains("cranks"));
    assert!(names(&api.get("/apis/test.example.com/v2").await).contains("cranks"));
    // A version in which objects may be stored cannot be removed.
    let drop = json!([{"op": "remove", "path": "/spec/versions/0"}]);
    let refused = api.patch(&format!("{DEFINITIONS}/{name}"), "json", &drop).await;
    let message = refused.refused(422, "Invalid");
    assert!(
        message.contains("status.storedVersions[0]: Invalid value: \"v1\": missing from spec.versions; v1 was previously a storage version"),
        "{message}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn releases_names_of_deleted_definition() {
    let api = admin();
    let first = define(&api, &definition("pulleys", "Pulley")).await;
    let mut second = definition("sheaves", "Sheave");
    second["spec"]["names"]["shortNames"] = json!(["pulleys"]);
    api.post(DEFINITIONS, &second).await.ok();
    let name = "sheaves.test.example.com";
    soon("the conflict is seen", || async {
        let names = condition(&api, name, "NamesAccepted").await;
        names["status"] == "False"
            && names["reason"] == "ShortNamesConflict"
            && names["message"] == "\"pulleys\" is already in use"
            && condition(&api, name, "Established").await["reason"] == "NotAccepted"
    })
    .await;
    api.delete(&format!("{DEFINITIONS}/{first}"), &json!({})).await.ok();
    soon("the name is free", || async {
        condition(&api, name, "Established").await["status"] == "True"
    })
    .await;
    // An established kind keeps its names when it asks for a name of another one.
    define(&api, &definition("winches", "Winch")).await;
    let path = "/spec/names/shortNames";
    let greedy = json!([{"op": "replace", "path": path, "value": ["winches"]}]);
    api.patch(&format!("{DEFINITIONS}/{name}"), "json", &greedy).await.ok();
    soon("the second conflict is seen", || async {
        condition(&api, name, "NamesAccepted").await["status"] == "False"
    })
    .await;
    let crd = api.get(&format!("{DEFINITIONS}/{name}")).await.ok();
    assert_eq!(crd["status"]["acceptedNames"]["shortNames"], json!(["pulleys"]));
    assert_eq!(condition(&api, name, "Established").await["status"], "True");
    assert_eq!(api.get("/apis/test.example.com/v1/sheaves").await.code, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn requires_approval_for_protected_groups() {
    let api = admin();
    let mut ours = definition("things", "Thing");
    ours["metadata"]["name"] = json!("things.test.k8s.io");
    ours["spec"]["group"] = json!("test.k8s.io");
    let message = api.post(DEFINITIONS, &ours).await.refused(422, "Invalid");
    assert!(
        message.contains("metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups must have approval annotation"),
        "{message}"
    );
    ours["metadata"]["annotations"] = json!({"api-approved.kubernetes.io": "unapproved, a test"});
    let name = define(&api, &ours).await;
    let approval = condition(&api, &name, "KubernetesAPIApprovalPolicyConformant").await;
    assert_eq!(approval["reason"], "UnapprovedAnnotation");
}

#[tokio::test(flavor = "multi_thread")]
async fn requires_kind_in_custom_objects() {
    let api = admin();
    define(&api, &definition("nouns", "Noun")).await;
    let nouns = format!("/apis/test.example.com/v1/namespaces/{}/nouns", api.namespace().await);
    let json = [("content-type", "application/json")];
    let this = r#""kind": "Noun", "apiVersion": "test.example.com/v1""#;
    for (body, code, reason) in [
        ("[]".to_owned(), 400, "BadRequest"),
        ("null".to_owned(), 400, "BadRequest"),
        (r#""text""#.to_owned(), 400, "BadRequest"),
        (r#"{"metadata": {"name": "a"}, "spec": {}}"#.to_owned(), 400, "BadRequest"),
        (
            r#"{"kind": "Noun", "metadata": {"name": "a"}, "spec": {}}"#.to_owned(),
            400,
            "BadRequest",
        ),
        (
            r#"{"apiVersion": "test.example.com/v1", "metadata": {"name": "a"}}"#.to_owned(),
            400,
            "BadRequest",
        ),
        (
            format!("{{{}, \"metadata\": {{\"name\": \"a\"}}}}", this.replace("Noun", "Verb")),
            422,
            "Invalid",
        ),
    ] {
        let message = api.send("POST", &nouns, &json, body.clone()).await.refused(code, reason);
        let nameless = body.starts_with('{') && !body.contains("\"kind\"");
        assert!(!nameless || message.contains("Object 'Kind' is missing in"), "{message}");
    }
    api.post(&nouns, &object("Noun", "a", json!({}))).await.ok();
    let one = format!("{nouns}/a");
    for change in [json!({"kind": "Verb"}), json!({"apiVersion": "test.example.com/v2"})] {
        api.patch(&one, "merge", &change).await.refused(422, "Invalid");
    }
    let whole = json!([{"op": "replace", "path": "", "value": []}]);
    assert!(api.patch(&one, "json", &whole).await.code >= 400);
    // Only its metadata has a protobuf encoding.
    let protobuf = "application/vnd.kubernetes.protobuf";
    let only = api.send("GET", &one, &[("accept", protobuf)], "").await;
    assert_eq!(only.code, 406);
    let either = format!("{protobuf},application/json");
    assert_eq!(api.send("GET", &one, &[("accept", &either)], "").await.ok()["kind"], "Noun");
    let partial = format!("{protobuf};as=PartialObjectMetadata;v=v1;g=meta.k8s.io");
    assert_eq!(api.send("GET", &one, &[("accept", &partial)], "").await.code, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn detects_conflicts_across_versions() {
    let api = admin();
    let mut definition = definition("terms", "Term");
    let mut second = definition["spec"]["versions"][0].clone();
    second["name"] = json!("v2");
    second["storage"] = json!(false);
    definition["spec"]["versions"].as_array_mut().unwrap().push(second);
    define(&api, &definition).await;
    let namespace = api.namespace().await;
    let at =
        |version: &str| format!("/apis/test.example.com/{version}/namespaces/{namespace}/terms");
    let of = |version: &str, size: u32| {
        let mut object = object("Term", "a", json!({"size": size}));
        object["apiVersion"] = json!(format!("test.example.com/{version}"));
        object
    };
    let first = format!("{}/a?fieldManager=first", at("v1"));
    api.patch(&first, "apply", &of("v1", 1)).await.ok();
    let second = format!("{}/a?fieldManager=second", at("v2"));
    let refused = api.patch(&second, "apply", &of("v2", 2)).await;
    let message = refused.refused(409, "Conflict");
    assert!(message.contains("conflict with \"first\": .spec.size"), "{message}");
    let taken = api.patch(&format!("{second}&force=true"), "apply", &of("v2", 2)).await.ok();
    let owners = taken["metadata"]["managedFields"].as_array().unwrap();
    assert_eq!(owners.len(), 1, "{owners:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn warns_about_deprecated_versions() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let mut deprecated = definition("relics", "Relic");
    let mut version = deprecated["spec"]["versions"][0].clone();
    version["storage"] = json!(false);
    for (name, given, warning) in [
        ("v1beta1", json!(true), Value::Null),
        ("v1alpha1", json!(true), json!("ask for another")),
        ("v1beta2", json!(false), Value::Null),
        ("v2", json!(true), Value::Null),
    ] {
        version["name"] = json!(name);
        version["deprecated"] = given;
        version["deprecationWarning"] = warning;
        deprecated["spec"]["versions"].as_array_mut().unwrap().push(version.clone());
    }
    define(&api, &deprecated).await;
    for (version, want) in [
        (
            "v1beta1",
            "299 - \"test.example.com/v1beta1 Relic is deprecated; use test.example.com/v1 Relic\"",
        ),
        ("v1alpha1", "299 - \"ask for another\""),
        ("v2", "299 - \"test.example.com/v2 Relic is deprecated\""),
        ("v1beta2", ""),
    ] {
        let path = format!("/apis/test.example.com/{version}/namespaces/{namespace}/relics");
        let relic = json!({"kind": "Relic", "apiVersion": format!("test.example.com/{version}"),
            "metadata": {"name": version}, "spec": {}});
        let made = api.post(&path, &relic).await;
        assert_eq!(made.code, 201);
        assert_eq!(made.warnings().concat(), want, "{version}");
        for read in [path.clone(), format!("{path}/{version}"), format!("{path}/nosuch")] {
            assert_eq!(api.get(&read).await.warnings().concat(), want, "{read}");
        }
    }
    // A custom collection cannot be deleted in all namespaces at once.
    let all = "/apis/test.example.com/v1/relics";
    api.delete(all, &json!({})).await.refused(404, "NotFound");
}

#[tokio::test(flavor = "multi_thread")]
async fn applies_defaults_to_status() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let mut beacons = definition("beacons", "Beacon");
    let status = json!({"type": "object", "default": {"phase": "Waiting"}, "properties": {"phase": {"type": "string"}}});
    beacons["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"] = status;
    beacons["spec"]["versions"][0]["subresources"] = json!({"status": {}});
    define(&api, &beacons).await;
    let path = format!("/apis/test.example.com/v1/namespaces/{namespace}/beacons");
    let mut beacon = json!({"kind": "Beacon", "apiVersion": "test.example.com/v1",
        "metadata": {"name": "b"}, "spec": {}});
    beacon["status"] = json!({"phase": "Lit"});
    let made = api.post(&path, &beacon).await.ok();
    assert_eq!(made["status"], json!({"phase": "Waiting"}));
    assert_eq!(api.get(&format!("{path}/b")).await.ok()["status"], made["status"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn records_observed_generation_and_manager_of_definition() {
    let api = admin();
    let name = define(&api, &definition("counters", "Counter")).await;
    let path = format!("{DEFINITIONS}/{name}");
    let found = api.get(&path).await.ok();
    let status = &found["status"];
    assert_eq!(
        (&found["metadata"]["generation"], &status["observedGeneration"]),
        (&json!(1), &json!(1))
    );
    for condition in status["conditions"].as_array().unwrap() {
        assert_eq!(condition["observedGeneration"], 1, "{condition}");
    }
    let managers = found["metadata"]["managedFields"].as_array().unwrap();
    let of_status = managers.iter().find(|entry| entry["subresource"] == "status").unwrap();
    assert_eq!(of_status["manager"], "kube-apiserver");
    let column = json!({"name": "Color", "type": "string", "jsonPath": ".spec.color"});
    let pointer = "/spec/versions/0/additionalPrinterColumns";
    let change = json!([{"op": "add", "path": pointer, "value": [column]}]);
    api.patch(&path, "json", &change).await.ok();
    let observed = || async {
        let found = api.get(&path).await.ok();
        if found["status"]["observedGeneration"] == 2 { Ok(()) } else { Err(found) }
    };
    let (longest, every) =
        (std::time::Duration::from_secs(30), std::time::Duration::from_millis(10));
    rt::retry(longest, every, |_| true, observed).await.unwrap();
}
