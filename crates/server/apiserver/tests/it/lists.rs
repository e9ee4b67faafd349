//! Lists: selectors, pages, revisions, tables and partial metadata.

use serde_json::{Value, json};

use crate::harness::{Api, admin, config_map, pod, start};

fn names(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().unwrap();
    items.iter().map(|o| o["metadata"]["name"].as_str().unwrap()).collect()
}

async fn some(api: &Api, count: usize) -> String {
    let maps = format!("/api/v1/namespaces/{}/configmaps", api.namespace().await);
    for i in 0..count {
        let mut map = config_map(&format!("m{i}"), json!({"i": i.to_string()}));
        map["metadata"]["labels"] =
            json!({"half": if i % 2 == 0 { "even" } else { "odd" }, "i": i.to_string()});
        api.post(&maps, &map).await.ok();
    }
    maps
}

#[tokio::test(flavor = "multi_thread")]
async fn filters_by_selectors() {
    let api = admin();
    let maps = some(&api, 4).await;
    let table = [
        ("labelSelector=half%3Deven", vec!["m0", "m2"]),
        ("labelSelector=half!%3Deven", vec!["m1", "m3"]),
        ("labelSelector=i+in+(1,2),half", vec!["m1", "m2"]),
        ("labelSelector=!half", vec![]),
        ("labelSelector=", vec!["m0", "m1", "m2", "m3"]),
        ("fieldSelector=metadata.name%3Dm3", vec!["m3"]),
        ("fieldSelector=metadata.name!%3Dm3", vec!["m0", "m1", "m2"]),
        ("fieldSelector=metadata.name%3Dm3&labelSelector=half%3Deven", vec![]),
    ];
    for (query, expected) in table {
        let list = api.get(&format!("{maps}?{query}")).await.ok();
        assert_eq!(names(&list), expected, "{query}");
        assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("ConfigMapList"), &json!("v1")));
    }
    // All namespaces, by name.
    let all = api.get("/api/v1/configmaps?fieldSelector=metadata.name%3Dm3").await.ok();
    assert!(names(&all).contains(&"m3"));
    for query in [
        "labelSelector=a%3D%3D%3D",
        "fieldSelector=data.k%3Dv",
        "limit=x",
        "timeoutSeconds=x",
        "resourceVersion=x",
    ] {
        api.get(&format!("{maps}?{query}")).await.refused(400, "BadRequest");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn selects_pods_by_fields() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    api.post(&pods, &pod("free")).await.ok();
    let mut bound = pod("bound");
    bound["spec"]["nodeName"] = json!("n1");
    api.post(&pods, &bound).await.ok();
    let table = [
        ("spec.nodeName%3Dn1", vec!["bound"]),
        ("spec.nodeName%3D", vec!["free"]),
        ("status.phase%3DPending", vec!["bound", "free"]),
        ("status.phase!%3DPending", vec![]),
        ("spec.restartPolicy%3DAlways,spec.nodeName!%3D", vec!["bound"]),
        ("spec.serviceAccountName%3Ddefault", vec!["bound", "free"]),
    ];
    for (selector, expected) in table {
        let list = api.get(&format!("{pods}?fieldSelector={selector}")).await.ok();
        assert_eq!(names(&list), expected, "{selector}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn serves_all_pages_at_one_revision() {
    let server = start(|_| {}).await;
    let api = server.admin();
    let maps = some(&api, 5).await;
    let first = api.get(&format!("{maps}?limit=2")).await.ok();
    assert_eq!(
        (names(&first), &first["metadata"]["remainingItemCount"]),
        (vec!["m0", "m1"], &json!(3))
    );
    // Later changes do not show in the pages.
    api.delete(&format!("{maps}/m2"), &json!({})).await.ok();
    api.post(&maps, &config_map("m1a", json!({}))).await.ok();
    let token = first["metadata"]["continue"].as_str().unwrap();
    let second = api.get(&format!("{maps}?limit=2&continue={token}")).await.ok();
    assert_eq!(
        (names(&second), &second["metadata"]["remainingItemCount"]),
        (vec!["m2", "m3"], &json!(1))
    );
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    let next = second["metadata"]["continue"].as_str().unwrap();
    let last = api.get(&format!("{maps}?limit=2&continue={next}")).await.ok();
    assert_eq!(names(&last), ["m4"]);
    assert!(
        last["metadata"]["continue"].is_null() && last["metadata"]["remainingItemCount"].is_null()
    );
    // With a selector, the remaining items are not counted.
    let some = api.get(&format!("{maps}?limit=1&labelSelector=half%3Dodd")).await.ok();
    assert!(
        some["metadata"]["continue"].is_string()
            && some["metadata"]["remainingItemCount"].is_null()
    );

    let revision = first["metadata"]["resourceVersion"].as_str().unwrap();
    let exact = format!("{maps}?resourceVersion={revision}&resourceVersionMatch=Exact");
    assert_eq!(names(&api.get(&exact).await.ok()), ["m0", "m1", "m2", "m3", "m4"]);
    // After compaction, the error contains a token that continues at the current revision.
    server.store.compact(server.store.revision().await.unwrap()).await.unwrap();
    assert!(api.get(&exact).await.refused(410, "Expired").contains("too old"));
    let expired = api.get(&format!("{maps}?continue={token}")).await;
    let message = expired.refused(410, "Expired");
    assert!(message.starts_with(
        "The provided continue parameter is too old to display a consistent list result."
    ));
    let token = expired.json()["metadata"]["continue"].as_str().unwrap().to_owned();
    assert_eq!(
        names(&api.get(&format!("{maps}?continue={token}")).await.ok()),
        ["m1a", "m3", "m4"]
    );

    for bad in
        ["continue=x", "continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiIuLi94In0"]
    {
        api.get(&format!("{maps}?{bad}")).await.refused(400, "BadRequest");
    }
    server.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn rejects_invalid_list_options() {
    let api = admin();
    let maps = some(&api, 1).await;
    for (query, code, reason) in [
        ("resourceVersionMatch=Exact", 422, "Invalid"),
        ("resourceVersion=0&resourceVersionMatch=Exact", 422, "Invalid"),
        ("resourceVersion=1&resourceVersionMatch=Never", 422, "Invalid"),
        ("sendInitialEvents=true", 422, "Invalid"),
        ("resourceVersion=99999999", 504, "Timeout"),
    ] {
        api.get(&format!("{maps}?{query}")).await.refused(code, reason);
    }
    assert_eq!(names(&api.get(&format!("{maps}?resourceVersion=0")).await.ok()), ["m0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_tables_and_partial_metadata() {
    let api = admin();
    let maps = some(&api, 2).await;
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let found = api.send("GET", &maps, &[("accept", table)], "").await.ok();
    assert_eq!((&found["kind"], &found["apiVersion"]), (&json!("Table"), &json!("meta.k8s.io/v1")));
    let columns: Vec<_> =
        found["columnDefinitions"].as_array().unwrap().iter().map(|c| &c["name"]).collect();
    assert_eq!(columns, ["Name", "Data", "Age"]);
    let row = &found["rows"][1];
    assert_eq!((&row["cells"][0], &row["cells"][1]), (&json!("m1"), &json!(1)));
    assert_eq!(row["object"]["kind"], "PartialObjectMetadata");
    assert_eq!(row["object"]["metadata"]["name"], "m1");
    for (include, kind) in [("None", Value::Null), ("Object", json!("ConfigMap"))] {
        let path = format!("{maps}/m0?includeObject={include}");
        let found = api.send("GET", &path, &[("accept", table)], "").await.ok();
        assert_eq!(found["rows"][0]["object"]["kind"], kind, "{include}");
    }
    let partial = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    let found = api.send("GET", &maps, &[("accept", partial)], "").await.ok();
    assert_eq!(found["kind"], "PartialObjectMetadataList");
    assert_eq!(found["items"][0]["metadata"]["labels"]["half"], "even");
    assert!(found["items"][0]["data"].is_null());
    let partial = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
    let found = api.send("GET", &format!("{maps}/m0"), &[("accept", partial)], "").await.ok();
    assert_eq!((&found["kind"], found.get("data")), (&json!("PartialObjectMetadata"), None));
    api.send("GET", &maps, &[("accept", partial)], "").await.refused(406, "NotAcceptable");
    let older = table.replace("v=v1", "v=v1beta1");
    let found = api.send("GET", &maps, &[("accept", &older)], "").await.ok();
    assert_eq!(found["apiVersion"], "meta.k8s.io/v1beta1");
    assert_eq!(found["rows"][0]["object"]["apiVersion"], "meta.k8s.io/v1beta1");
    let protobuf = "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io";
    api.send("GET", &maps, &[("accept", protobuf)], "").await.refused(406, "NotAcceptable");
}

#[tokio::test(flavor = "multi_thread")]
async fn serves_aggregated_discovery_without_fallback() {
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    for path in ["/api", "/apis"] {
        let found = admin().send("GET", path, &[("accept", accept)], "").await.ok();
        assert_eq!(found["kind"], "APIGroupDiscoveryList", "{path}");
    }
    let pods = admin().send("GET", "/api/v1/pods", &[("accept", accept)], "").await;
    pods.refused(406, "NotAcceptable");
}

#[tokio::test(flavor = "multi_thread")]
async fn rejects_tables_of_unstored_resources() {
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let review = json!({"spec": {"nonResourceAttributes": {"path": "/", "verb": "get"}}});
    let ask = async |accept: &str| {
        let headers = [("accept", accept), ("content-type", "application/json")];
        admin().send("POST", path, &headers, review.to_string()).await
    };
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    ask(table).await.refused(406, "NotAcceptable");
    let either = format!("{table},application/json");
    assert_eq!(ask(&either).await.ok()["kind"], "SelfSubjectAccessReview");
}

#[tokio::test(flavor = "multi_thread")]
async fn selects_by_many_requirements() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    for (name, labels) in
        [("a", json!({"x": "1"})), ("b", json!({"x": "1", "k5": ""})), ("c", json!({}))]
    {
        let mut map = config_map(name, json!({}));
        map["metadata"]["labels"] = labels;
        api.post(&maps, &map).await.ok();
    }
    let absent: String = (0..20).map(|n| format!(",!k{n}")).collect();
    let list = api.get(&format!("{maps}?labelSelector=x=1{absent}")).await.ok();
    assert_eq!(names(&list), ["a"]);
}
