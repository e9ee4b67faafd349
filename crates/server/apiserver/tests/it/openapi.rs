//! OpenAPI documents as clients fetch them.

use serde_json::{Value, json};

use crate::harness::admin;

const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";

#[tokio::test(flavor = "multi_thread")]
async fn serves_openapi_v2_as_json_and_protobuf() {
    let api = admin();
    let json = api.get("/openapi/v2").await;
    let document = json.ok();
    assert_eq!(document["swagger"], "2.0");
    assert!(
        document["definitions"]["io.k8s.api.core.v1.Pod"]["properties"]["spec"]["$ref"].is_string()
    );
    let services = &document["definitions"]["io.k8s.api.core.v1.ServiceList"]["properties"];
    assert_eq!(services["items"]["description"], "List of services.");
    assert!(document["paths"]["/api/v1/watch/pods"]["get"].is_object());
    let etag = json.header("etag").to_owned();
    let again = api.send("GET", "/openapi/v2", &[("if-none-match", &etag)], "").await;
    assert_eq!((again.code, again.body.len()), (304, 0));
    let protobuf = api.send("GET", "/openapi/v2", &[("accept", PROTOBUF)], "").await;
    assert_eq!(protobuf.code, 200);
    assert_eq!(
        protobuf.header("content-type"),
        "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
    );
    // Field 1, `swagger`, is among the members, and the document is far smaller than the JSON.
    assert!(protobuf.body.windows(5).any(|w| w == b"\x0a\x032.0"));
    assert!(protobuf.body.len() < json.body.len());
    let neither = api.send("GET", "/openapi/v2", &[("accept", "text/html")], "").await;
    assert_eq!(neither.code, 406);
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_cacheable_documents_in_index() {
    let api = admin();
    let index = api.get("/openapi/v3").await.ok();
    for path in ["api", "apis", "apis/apps", "apis/apps/v1", "version", "openid/v1/jwks"] {
        let url = index["paths"][path]["serverRelativeURL"].as_str();
        let url = url.unwrap_or_else(|| panic!("{path} is not in the index"));
        let found = api.get(url).await;
        assert_eq!(found.ok()["openapi"], "3.0.0", "{path}");
        assert_eq!(found.header("cache-control"), "public, immutable");
        assert!(found.header("expires").ends_with(" GMT"));
    }
    let stale = api.get("/openapi/v3/apis/apps/v1?hash=0123").await;
    assert_eq!(stale.code, 301);
    assert_eq!(
        stale.header("location"),
        index["paths"]["apis/apps/v1"]["serverRelativeURL"].as_str().unwrap()
    );
    api.get("/openapi/v3/apis/nothing/v1").await.refused(404, "NotFound");
}

#[tokio::test(flavor = "multi_thread")]
async fn publishes_custom_kinds_in_v2_and_v3() {
    let api = admin();
    let definition = json!({
        "kind": "CustomResourceDefinition",
        "apiVersion": "apiextensions.k8s.io/v1",
        "metadata": {"name": "papers.openapi.example.com"},
        "spec": {
            "group": "openapi.example.com",
            "scope": "Namespaced",
            "names": {"plural": "papers", "kind": "Paper"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object",
                "description": "A sheet.",
                "properties": {"spec": {"type": "object", "properties": {
                    "size": {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": true},
                    "title": {"type": "string", "default": "none"},
                    "maybe": {"type": "object", "nullable": true, "properties": {"x": {"type": "string"}}},
                }}},
            }}}],
        },
    });
    api.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await.ok();
    let started = std::time::Instant::now();
    let name = "com.example.openapi.v1.Paper";
    let published: Value = loop {
        let found = api.get("/openapi/v2").await.ok()["definitions"][name].clone();
        if found.is_object() {
            break found;
        }
        assert!(started.elapsed().as_secs() < 20);
    };
    assert_eq!(published["description"], "A sheet.");
    let spec = &published["properties"]["spec"]["properties"];
    assert_eq!(spec["size"], json!({"x-kubernetes-int-or-string": true}));
    assert_eq!(spec["title"], json!({"type": "string"}));
    assert_eq!(spec["maybe"], json!({}), "version 2 cannot say null");
    let index = api.get("/openapi/v3").await.ok();
    let url = index["paths"]["apis/openapi.example.com/v1"]["serverRelativeURL"].as_str().unwrap();
    let v3 = api.get(url).await.ok();
    assert_eq!(
        v3["components"]["schemas"][name]["properties"]["spec"]["properties"]["title"]["default"],
        "none"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_and_compresses_large_list() {
    use std::io::Read as _;
    let (api, namespace) = (admin(), admin().namespace().await);
    let path = format!("/api/v1/namespaces/{namespace}/configmaps");
    for n in 0..40 {
        let data = json!({"k": format!("{n}-").repeat(2000)});
        let map = crate::harness::config_map(&format!("m{n:02}"), data);
        api.post(&path, &map).await.ok();
    }
    let plain = api.get(&path).await;
    let items = plain.ok()["items"].as_array().unwrap().len();
    assert_eq!(items, 40);
    assert_eq!(plain.header("content-encoding"), "");
    let zipped = api.send("GET", &path, &[("accept-encoding", "gzip")], "").await;
    assert_eq!(zipped.header("content-encoding"), "gzip");
    let mut text = Vec::new();
    flate2::read::GzDecoder::new(&*zipped.body).read_to_end(&mut text).unwrap();
    assert_eq!(text, plain.body);
    let small = format!("{path}?limit=1");
    let small = api.send("GET", &small, &[("accept-encoding", "gzip")], "").await;
    assert_eq!(small.header("content-encoding"), "");
}
