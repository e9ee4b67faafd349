use super::*;

const OF: GroupVersionName<'static> = GroupVersionName { group: "g.example.com", version: "v1" };

#[test]
fn keeps_only_resources_of_own_group_and_version() {
    let list = json!({"items": [
        {"metadata": {"name": "apps"}, "versions": [{"version": "v1", "resources": [{"resource": "deployments"}]}]},
        {"metadata": {"name": "g.example.com"}, "versions": [
            {"version": "v2", "resources": [{"resource": "others"}]},
            {"version": "v1", "freshness": "Current", "resources": [
                {"resource": "things", "scope": "Namespaced", "singularResource": "thing", "verbs": ["get"],
                 "responseKind": {"group": "g.example.com", "version": "v1", "kind": "Thing"},
                 "unknown": {"huge": true},
                 "subresources": [{"subresource": "status", "verbs": null}]},
                {"resource": "../secrets", "verbs": []},
                {"resource": "", "verbs": []},
            ]},
        ]},
    ]});
    let wanted = json!([{
        "resource": "things", "scope": "Namespaced", "singularResource": "thing", "verbs": ["get"],
        "responseKind": {"group": "g.example.com", "version": "v1", "kind": "Thing"},
        "subresources": [{"subresource": "status", "verbs": []}],
    }]);
    assert_eq!(json!(resources(list, OF).unwrap()), wanted);
    assert!(resources(json!({"items": []}), OF).unwrap().is_empty());
}

#[test]
fn reads_resources_from_legacy_list() {
    let list = json!({"resources": [
        {"name": "things/status", "namespaced": true, "kind": "Thing", "verbs": ["get"]},
        {"name": "things", "singularName": "thing", "namespaced": true, "kind": "Thing", "verbs": ["get"],
         "shortNames": ["th"]},
        {"name": "alone/scale", "namespaced": true, "group": "autoscaling", "version": "v1", "kind": "Scale", "verbs": ["get"]},
    ]});
    let kind = json!({"group": "g.example.com", "version": "v1", "kind": "Thing"});
    let scale = json!({"group": "autoscaling", "version": "v1", "kind": "Scale"});
    let wanted = json!([
        {"resource": "alone", "scope": "Namespaced", "singularResource": "", "verbs": [],
         "subresources": [{"subresource": "scale", "responseKind": scale, "verbs": ["get"]}]},
        {"resource": "things", "scope": "Namespaced", "singularResource": "thing", "verbs": ["get"],
         "shortNames": ["th"], "responseKind": kind,
         "subresources": [{"subresource": "status", "responseKind": kind, "verbs": ["get"]}]},
    ]);
    assert_eq!(json!(legacy(list, OF).unwrap()), wanted);
}

#[test]
fn rejects_wrong_types_and_deep_nesting() {
    let of_version = |resources: Value| json!({"items": [{"metadata": {"name": "g.example.com"}, "versions": [{"version": "v1", "resources": resources}]}]});
    for wrong in [
        json!([]),
        json!({"items": 7}),
        json!({"items": [{"metadata": "x"}]}),
        of_version(json!("things")),
        of_version(json!([{"resource": 7}])),
        of_version(json!([{"resource": "things", "verbs": "get"}])),
        of_version(json!([{"resource": "things", "scope": "Galaxy"}])),
        of_version(json!([{"resource": "things", "responseKind": []}])),
    ] {
        assert!(resources(wrong.clone(), OF).is_err(), "{wrong}");
    }
    assert!(legacy(json!({"resources": [{"name": 1}]}), OF).is_err());
    let deep = format!("{}1{}", "[".repeat(DEPTH + 1), "]".repeat(DEPTH + 1));
    assert!(read("/apis", deep.as_bytes()).is_err());
    // Each parsed map takes a hundred times the memory of its text.
    let dense = format!("[{}0]", r#"{"":0},"#.repeat(DISCOVERY.response_bytes / 7 - 1));
    assert!(dense.len() <= DISCOVERY.response_bytes && read("/apis", dense.as_bytes()).is_err());
}

#[test]
fn extracts_paths_with_their_references() {
    let document = json!({
        "paths": {
            "/apis/g.example.com/v1/things": {"get": {"schema": {"$ref": "#/definitions/Thing"}, "parameters": [{"$ref": "#/parameters/p"}]}},
            "/apis/g.example.com/v10/things": {"get": {"schema": {"$ref": "#/definitions/Other"}}},
            "/api/v1/pods": {"get": {}},
            "/apis/g.example.com/v1/odd": 7,
        },
        "definitions": {
            "Thing": {"properties": {"meta": {"$ref": "#/definitions/Meta"}, "self": {"$ref": "#/definitions/Thing"},
                "gone": {"$ref": "#/definitions/Gone"}, "file": {"$ref": "https://example.com/x"}}},
            "Meta": {"type": "object"}, "Other": {"type": "object"},
        },
        "parameters": {"p": {"in": "query"}, "unused": {"in": "query"}},
    });
    let part = extract_paths(&document, &OF.path());
    assert_eq!(part["paths"].as_object().unwrap().len(), 1);
    let names: Vec<_> = part["definitions"].as_object().unwrap().keys().collect();
    assert_eq!(names, ["Meta", "Thing"]);
    assert_eq!(part["parameters"], json!({"p": {"in": "query"}}));
}
