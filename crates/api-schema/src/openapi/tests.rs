use super::*;

#[test]
fn kubectl_finds_what_it_looks_for() {
    let document = document("apps", "v1", &[], "v1.36.2");
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
fn custom_kinds_are_described_too() {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"n": {"type": "integer"}}}}});
    let kind = CustomKind {
        group: "example.com",
        version: "v1",
        plural: "widgets",
        kind: "Widget",
        list_kind: "WidgetList",
        namespaced: true,
        open_api_v3: &schema,
        status: true,
        scale: true,
    };
    let document = document("example.com", "v1", &[kind], "v1.36.2");
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
