use serde_json::Map;

use super::*;

/// Returns the document of a group version as one tree.
fn document(group: &str, version: &str, custom: &[CustomKind<'_>]) -> Value {
    let contents = Contents::of_version(group, version, custom);
    let (mut paths, mut schemas) = (Map::new(), Map::new());
    let Ok::<_, std::convert::Infallible>(names) = contents.paths(|path, item| {
        paths.insert(path, item);
        Ok(())
    });
    let Ok::<_, std::convert::Infallible>(()) = contents.schemas(names, |name, schema| {
        schemas.insert(name, schema);
        Ok(())
    });
    json!({"paths": paths, "components": {"schemas": schemas}})
}

#[test]
fn has_operations_and_schemas_for_kubectl() {
    let document = document("apps", "v1", &[]);
    let patch =
        &document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"];
    assert_eq!(patch["x-kubernetes-action"], "patch");
    assert_eq!(patch["x-kubernetes-group-version-kind"]["kind"], "Deployment");
    assert!(patch["parameters"].as_array().unwrap().iter().any(|p| p["name"] == "fieldValidation"));
    assert!(!patch["requestBody"]["content"]["application/strategic-merge-patch+json"].is_null());
    let schemas = &document["components"]["schemas"];
    let ports = &schemas["io.k8s.api.core.v1.Container"]["properties"]["ports"];
    assert_eq!(ports["x-kubernetes-patch-merge-key"], "containerPort");
    for name in references(&document) {
        assert!(!schemas[name.as_str()].is_null(), "{name} is referred to and is not there");
    }
}

#[test]
fn describes_list_types_of_all_resources() {
    let versions: BTreeSet<_> = crate::resources().iter().map(|r| (r.group, r.version)).collect();
    let contents = Contents::whole(Vec::new(), versions.into_iter().collect(), &[]);
    let Ok::<_, std::convert::Infallible>(names) = contents.paths(|_, _| Ok(()));
    let (mut lists, mut without) = (0, Vec::new());
    let Ok::<_, std::convert::Infallible>(()) = contents.schemas(names, |name, schema| {
        if name.ends_with("List") && schema["properties"]["items"].is_object() {
            lists += 1;
            let text = schema["properties"]["items"]["description"].as_str().unwrap_or_default();
            if !text.starts_with("List of ") || !schema["description"].is_string() {
                without.push(name);
            }
        }
        Ok(())
    });
    assert!(lists > 80 && without.is_empty(), "{lists} lists, no descriptions: {without:?}");
    let document = document("", "v1", &[]);
    let services = &document["components"]["schemas"]["io.k8s.api.core.v1.ServiceList"];
    assert_eq!(services["description"], "ServiceList is a list of Service");
    assert_eq!(services["properties"]["items"]["description"], "List of services.");
}

fn widget(read: &dyn Fn() -> CustomSource) -> CustomKind<'_> {
    CustomKind {
        group: "example.com",
        version: "v1",
        plural: "widgets",
        kind: "Widget",
        list_kind: "WidgetList",
        namespaced: true,
        read,
        status: true,
        scale: true,
    }
}

#[test]
fn documents_custom_resources() {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"n": {"type": "integer"}}}}});
    let read = || CustomSource { open_api_v3: schema.clone(), ..CustomSource::default() };
    let kind = widget(&read);
    let document = document("example.com", "v1", &[kind]);
    let widget = &document["components"]["schemas"]["com.example.v1.Widget"];
    assert_eq!(widget["properties"]["spec"]["properties"]["n"]["type"], "integer");
    assert_eq!(widget["x-kubernetes-group-version-kind"][0]["kind"], "Widget");
    assert!(
        !document["components"]["schemas"]["io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"]
            .is_null()
    );
    let path = "/apis/example.com/v1/namespaces/{namespace}/widgets/{name}";
    let patches = document["paths"][path]["patch"]["requestBody"]["content"].as_object().unwrap();
    assert!(!patches.contains_key("application/strategic-merge-patch+json"));
    assert!(!document["paths"][format!("{path}/scale")]["put"].is_null());
}

/// Implied keywords are added, and v2 contains only keywords that kubectl can read.
#[test]
fn applies_markers_of_definitions() {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"a": {"type": "string"}}});
    let either = json!([{"type": "integer"}, {"type": "string"}]);
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "required": ["a", "b"], "properties": {
        "a": {"type": "string", "nullable": true},
        "b": {"x-kubernetes-int-or-string": true},
        "c": {"x-kubernetes-int-or-string": true, "anyOf": either, "pattern": "^x"},
        "d": {"type": "array", "items": open},
        "e": {"type": "object", "x-kubernetes-embedded-resource": true, "required": ["spec"]},
    }}}});
    let read = || CustomSource {
        open_api_v3: schema.clone(),
        selectable_fields: json!([{"jsonPath": ".spec.a"}]),
    };
    let kind = widget(&read);
    let [v3, v2] = [false, true].map(|old| {
        let [(_, object), _] = kind.components(old);
        let spec = object["properties"]["spec"].clone();
        assert_eq!(object["x-kubernetes-selectable-fields"], json!([{"fieldPath": "spec.a"}]));
        assert_eq!(spec["properties"]["b"]["anyOf"], either);
        assert_eq!(spec["properties"]["c"]["anyOf"], either);
        assert_eq!(spec["properties"]["e"]["required"], json!(["spec", "kind", "apiVersion"]));
        spec
    });
    assert_eq!(v3["required"], json!(["a", "b"]));
    assert_eq!(v2["required"], json!(["b"]));
    assert_eq!(v3["properties"]["d"]["items"], open);
    assert_eq!(
        v2["properties"]["d"]["items"],
        json!({"x-kubernetes-preserve-unknown-fields": true})
    );
    let read = || CustomSource { open_api_v3: open.clone(), ..CustomSource::default() };
    let [(_, root), _] = widget(&read).components(true);
    assert_eq!(root["properties"], Value::Null);
    assert_eq!(root["type"], "object");
}
