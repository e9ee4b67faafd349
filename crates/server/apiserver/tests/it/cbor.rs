//! CBOR with the feature gate `CBORServingAndStorage`.

use std::time::Duration;

use api_codec::cbor::{PREFIX, from_cbor, to_cbor};
use http::Request;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use crate::{
    custom::{DEFINITIONS, define, definition},
    harness::{Answer, Api, TestServer, admin, config_map, start},
};

const CBOR: &str = "application/cbor";
const BOTH: [(&str, &str); 2] = [("accept", CBOR), ("content-type", CBOR)];

async fn server() -> TestServer {
    start(|config| {
        let gate = ["CBORServingAndStorage=true"];
        config.features = apiserver::FeatureGates::parse(gate).unwrap();
    })
    .await
}

impl Api {
    async fn send_cbor(&self, method: &str, path: &str, body: &Value) -> Answer {
        self.send(method, path, &BOTH, to_cbor(body)).await
    }
}

impl Answer {
    /// Returns the tree of a response in CBOR.
    #[track_caller]
    fn cbor(&self) -> Value {
        assert_eq!(self.header("content-type"), CBOR, "{:?}", String::from_utf8_lossy(&self.body));
        assert!(self.body.starts_with(PREFIX));
        from_cbor(&self.body).unwrap()
    }
}

/// Reads the first events of a watch.
async fn events(api: &Api, path: &str, accept: &str, count: usize) -> Vec<Value> {
    let request = Request::get(path).header("accept", accept).body(client::full("")).unwrap();
    let response = api.0.request(request).await.unwrap();
    assert_eq!(response.headers()["content-type"], "application/cbor-seq");
    let (mut body, mut read, mut events) = (response.into_body(), Vec::new(), Vec::new());
    while events.len() < count {
        let frame = tokio::time::timeout(Duration::from_secs(20), body.frame()).await.unwrap();
        let piece = frame.unwrap().unwrap().into_data().unwrap();
        read.extend_from_slice(&piece);
        // The server sends whole items.
        if let Ok(event) = from_cbor(&read) {
            events.push(event);
            read.clear();
        }
    }
    events
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_and_writes_built_in_kinds() {
    let server = server().await;
    let api = server.admin();
    let maps = format!("/api/v1/namespaces/{}/configmaps", api.namespace().await);
    let mut wanted = config_map("a", json!({"k": "v"}));
    // A field of bytes, as base64.
    wanted["binaryData"] = json!({"b": "AAEC/w=="});
    let made = api.send_cbor("POST", &maps, &wanted).await;
    assert_eq!((made.code, &made.cbor()["data"]["k"]), (201, &json!("v")));
    let stored = api.get(&format!("{maps}/a")).await.ok();
    assert_eq!(
        (&stored["binaryData"]["b"], &stored["kind"]),
        (&json!("AAEC/w=="), &json!("ConfigMap"))
    );
    assert_eq!(made.cbor(), stored, "both encodings have the same tree");

    let listed = api.send("GET", &maps, &[("accept", CBOR)], "").await.cbor();
    assert_eq!(
        (&listed["kind"], &listed["items"][0]["data"]["k"]),
        (&json!("ConfigMapList"), &json!("v"))
    );
    let table = "application/cbor;as=Table;g=meta.k8s.io;v=v1, application/json";
    let table = api.send("GET", &maps, &[("accept", table)], "").await.cbor();
    assert_eq!((&table["kind"], &table["rows"][0]["cells"][0]), (&json!("Table"), &json!("a")));
    let missing = api.send("GET", &format!("{maps}/b"), &[("accept", CBOR)], "").await;
    assert_eq!((missing.code, &missing.cbor()["reason"]), (404, &json!("NotFound")));

    // An empty list of owners removes them.
    let mut changed = stored.clone();
    assert!(
        changed["metadata"]["managedFields"].as_array().is_some_and(|owners| !owners.is_empty())
    );
    changed["metadata"]["managedFields"] = json!([]);
    let owners = |answer: &Answer| answer.cbor()["metadata"].get("managedFields").cloned();
    let updated = api.send_cbor("PUT", &format!("{maps}/a"), &changed).await;
    assert_eq!((updated.code, owners(&updated)), (200, None));

    let applied = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a"}, "data": {"x": "y"}});
    let headers = [("accept", CBOR), ("content-type", "application/apply-patch+cbor")];
    let path = format!("{maps}/a?fieldManager=tests");
    let answer = api.send("PATCH", &path, &headers, to_cbor(&applied)).await;
    assert_eq!((answer.code, &answer.cbor()["data"]), (200, &json!({"k": "v", "x": "y"})));

    let events = events(&api, &format!("{maps}?watch=true"), "application/cbor-seq", 1).await;
    assert_eq!(
        (&events[0]["type"], &events[0]["object"]["data"]["x"]),
        (&json!("ADDED"), &json!("y"))
    );
    let deleted = api
        .send_cbor(
            "DELETE",
            &format!("{maps}/a"),
            &json!({"kind": "DeleteOptions", "apiVersion": "v1"}),
        )
        .await;
    assert_eq!((deleted.code, &deleted.cbor()["status"]), (200, &json!("Success")));
    server.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_and_writes_custom_kinds() {
    let server = server().await;
    let api = server.admin();
    define(&api, &definition("cborthings", "CborThing")).await;
    let things =
        format!("/apis/test.example.com/v1/namespaces/{}/cborthings", api.namespace().await);
    let thing = json!({"kind": "CborThing", "apiVersion": "test.example.com/v1", "metadata": {"name": "a"}, "spec": {"color": "red"}});
    let made = api.send_cbor("POST", &things, &thing).await;
    assert_eq!((made.code, &made.cbor()["spec"]), (201, &json!({"color": "red", "size": 3})));
    let mut invalid = thing.clone();
    invalid["spec"]["size"] = json!(1.5);
    let refused = api.send_cbor("POST", &things, &invalid).await;
    assert_eq!(refused.code, 422, "{}", refused.cbor());
    let both = events(&api, &format!("{things}?watch=true"), "application/cbor", 1).await;
    assert_eq!(both[0]["object"]["spec"]["color"], "red");
    api.delete(&format!("{DEFINITIONS}/cborthings.test.example.com"), &json!({})).await.ok();
    server.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn rejects_invalid_cbor() {
    let server = server().await;
    let api = server.admin();
    let maps = format!("/api/v1/namespaces/{}/configmaps", api.namespace().await);
    let content = [("content-type", CBOR)];
    let twice = b"\xa1\x44data\xa2\x41k\x41v\x41k\x41w".to_vec();
    for (body, cause) in [
        (Vec::new(), "unexpected EOF"),
        (twice, "cbor: found duplicate map key \"k\""),
        (b"\xf6\xf6".to_vec(), "cbor: 1 bytes of extraneous data starting at index 1"),
        (vec![0x81; 100_000], "exceeded max depth of 112"),
        (b"\xbb\x7f\xff\xff\xff\xff\xff\xff\xff".to_vec(), "unexpected EOF"),
    ] {
        let message = api.send("POST", &maps, &content, body).await.refused(400, "BadRequest");
        let unrecognized = "the object provided is unrecognized (must be of type ConfigMap): ";
        assert_eq!(message, format!("{unrecognized}{cause}"));
    }
    let mut dense = b"\x9a\x00\x2d\x00\x00".to_vec();
    dense.resize(dense.len() + 0x2d_0000, 0x80);
    api.send("POST", &maps, &content, dense).await.refused(413, "RequestEntityTooLarge");
    let apply = [("content-type", "application/apply-patch+cbor")];
    let path = format!("{maps}/a?fieldManager=tests");
    let message = api.send("PATCH", &path, &apply, "\u{1}").await.refused(400, "BadRequest");
    assert!(message.contains("cannot unmarshal number into Go value"), "{message}");
    let message = api.send("PATCH", &path, &apply, "").await.refused(400, "BadRequest");
    assert_eq!(message, "error decoding CBOR: unexpected EOF");
    // Only a watch is a sequence of items.
    let sequence = [("accept", "application/cbor-seq")];
    assert_eq!(api.send("GET", &maps, &sequence, "").await.code, 406);
    let strict = api
        .send_cbor(
            "POST",
            &format!("{maps}?fieldValidation=Strict"),
            &json!({"metadata": {"name": "a"}, "dat": 1}),
        )
        .await;
    assert_eq!((strict.code, &strict.cbor()["reason"]), (400, &json!("BadRequest")));
    // A user without rights gets no further than with JSON.
    let nobody =
        server.user("nobody", &[]).send_cbor("POST", &maps, &config_map("a", json!({}))).await;
    assert_eq!((nobody.code, &nobody.cbor()["reason"]), (403, &json!("Forbidden")));
    server.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn rejects_cbor_without_feature_gate() {
    let api = admin();
    let maps = format!("/api/v1/namespaces/{}/configmaps", api.namespace().await);
    assert_eq!(api.send("GET", &maps, &[("accept", CBOR)], "").await.code, 406);
    let body = to_cbor(&config_map("a", json!({})));
    let content = [("content-type", CBOR)];
    api.send("POST", &maps, &content, body.clone()).await.refused(415, "UnsupportedMediaType");
    let apply = [("content-type", "application/apply-patch+cbor")];
    let path = format!("{maps}/a?fieldManager=tests");
    api.send("PATCH", &path, &apply, body).await.refused(415, "UnsupportedMediaType");
}
