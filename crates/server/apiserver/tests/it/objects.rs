//! Create, get, update, dry runs, preconditions and names.

use serde_json::{Value, json};

use crate::harness::{admin, config_map, deployment, pod};

#[tokio::test(flavor = "multi_thread")]
async fn creates_updates_and_deletes_object() {
    let (api, maps) =
        (admin(), format!("/api/v1/namespaces/{}/configmaps", admin().namespace().await));
    let made = api.post(&maps, &config_map("a", json!({"k": "v"}))).await;
    assert_eq!(made.code, 201);
    let made = made.ok();
    for field in ["uid", "creationTimestamp", "resourceVersion", "namespace"] {
        assert!(made["metadata"][field].is_string(), "{field} in {made}");
    }
    assert_eq!((&made["kind"], &made["apiVersion"]), (&json!("ConfigMap"), &json!("v1")));
    let got = api.get(&format!("{maps}/a")).await;
    assert_eq!(got.ok(), made);
    assert_eq!(got.header("content-type"), "application/json");
    assert_eq!(api.send("HEAD", &format!("{maps}/a"), &[], "").await.body.len(), 0);

    assert_eq!(
        api.post(&maps, &config_map("a", json!({}))).await.refused(409, "AlreadyExists"),
        "configmaps \"a\" already exists"
    );
    let mut changed = made.clone();
    changed["data"]["k"] = json!("w");
    let updated = api.put(&format!("{maps}/a"), &changed).await.ok();
    assert_eq!(updated["data"]["k"], "w");
    assert_ne!(updated["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);
    // The first resourceVersion is outdated.
    let message = api.put(&format!("{maps}/a"), &made).await.refused(409, "Conflict");
    assert!(
        message.contains(
            "the object has been modified; please apply your changes to the latest version"
        )
    );
    // Without a resourceVersion the update is unconditional.
    let mut free = made.clone();
    free["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    assert_eq!(api.put(&format!("{maps}/a"), &free).await.ok()["data"]["k"], "v");
    free["metadata"]["resourceVersion"] = json!("0");
    free["data"]["k"] = json!("zero");
    assert_eq!(api.put(&format!("{maps}/a"), &free).await.ok()["data"]["k"], "zero");
    free["metadata"]["uid"] = json!("another");
    api.put(&format!("{maps}/a"), &free).await.refused(409, "Conflict");

    let gone = api.delete(&format!("{maps}/a"), &json!({})).await.ok();
    assert_eq!((&gone["kind"], &gone["status"]), (&json!("Status"), &json!("Success")));
    assert_eq!(gone["details"]["uid"], made["metadata"]["uid"]);
    assert_eq!(
        api.get(&format!("{maps}/a")).await.refused(404, "NotFound"),
        "configmaps \"a\" not found"
    );
}

/// Nil lists of Go are null in every response. A write of an empty list instead is not a change.
#[tokio::test(flavor = "multi_thread")]
async fn shows_unset_lists_as_null() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let roles = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles");
    for (name, rules) in [("none", Value::Null), ("empty", json!([]))] {
        let made =
            api.post(&roles, &json!({"metadata": {"name": name}, "rules": rules})).await.ok();
        assert_eq!(made.get("rules"), Some(&Value::Null), "{name}");
        assert_eq!(api.get(&format!("{roles}/{name}")).await.ok(), made);
    }
    let claims = format!("/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims");
    let claim = json!({"metadata": {"name": "c"}, "spec": {"devices": {}}});
    let mut made = api.post(&claims, &claim).await.ok();
    assert_eq!(made["spec"]["devices"].get("requests"), Some(&Value::Null));
    made["spec"]["devices"]["requests"] = json!([]);
    let mut put = api.put(&format!("{claims}/c"), &made).await.ok();
    assert_eq!(put["spec"]["devices"].get("requests"), Some(&Value::Null));
    put["spec"]["devices"]["requests"] =
        json!([{"name": "r", "exactly": {"deviceClassName": "d"}}]);
    api.put(&format!("{claims}/c"), &put).await.refused(422, "Invalid");
}

#[tokio::test(flavor = "multi_thread")]
async fn skips_writes_without_changes() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments");
    let made = api.post(&path, &deployment("d")).await.ok();
    let version = &made["metadata"]["resourceVersion"];
    let one = format!("{path}/d");
    for again in [
        api.put(&one, &made).await.ok(),
        api.put(&one, &deployment("d")).await.ok(),
        api.patch(&one, "merge", &json!({"spec": {"replicas": 1}})).await.ok(),
        api.patch(&one, "strategic", &json!({})).await.ok(),
        api.put(&format!("{one}/status"), &made).await.ok(),
    ] {
        assert_eq!(&again["metadata"]["resourceVersion"], version);
        assert_eq!(again["metadata"]["generation"], 1);
    }
    let scaled = api.patch(&one, "merge", &json!({"spec": {"replicas": 2}})).await.ok();
    assert_eq!(scaled["metadata"]["generation"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn sets_server_managed_metadata() {
    let (api, maps) =
        (admin(), format!("/api/v1/namespaces/{}/configmaps", admin().namespace().await));
    let mut sent = config_map("a", json!({"k": "v"}));
    sent["metadata"]["uid"] = json!("mine");
    sent["metadata"]["creationTimestamp"] = json!("2001-01-01T00:00:00Z");
    sent["metadata"]["deletionTimestamp"] = json!("2001-01-01T00:00:00Z");
    sent["metadata"]["selfLink"] = json!("/x");
    let made = api.post(&maps, &sent).await.ok();
    assert_ne!(made["metadata"]["uid"], "mine");
    assert_ne!(made["metadata"]["creationTimestamp"], "2001-01-01T00:00:00Z");
    assert!(
        made["metadata"]["deletionTimestamp"].is_null() && made["metadata"]["selfLink"].is_null()
    );

    let managed = &made["metadata"]["managedFields"][0];
    assert_eq!(
        (&managed["manager"], &managed["operation"], &managed["apiVersion"]),
        (&json!("tests"), &json!("Update"), &json!("v1"))
    );
    let named =
        api.post(&format!("{maps}?fieldManager=me"), &config_map("b", json!({"x": "y"}))).await;
    let named = named.ok();
    assert_eq!(named["metadata"]["managedFields"][0]["manager"], "me");
    assert_eq!(
        named["metadata"]["managedFields"][0]["fieldsV1"],
        json!({"f:data": {".": {}, "f:x": {}}})
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn generates_names() {
    let (api, maps) =
        (admin(), format!("/api/v1/namespaces/{}/configmaps", admin().namespace().await));
    let body = json!({"metadata": {"generateName": "web-"}});
    let (one, two) = (api.post(&maps, &body).await.ok(), api.post(&maps, &body).await.ok());
    let name = |o: &Value| o["metadata"]["name"].as_str().unwrap().to_owned();
    assert!(name(&one).starts_with("web-") && name(&one).len() == 9, "{}", name(&one));
    assert_ne!(name(&one), name(&two));
    let message = api.post(&maps, &json!({"metadata": {}})).await.refused(422, "Invalid");
    assert_eq!(
        message,
        "ConfigMap \"\" is invalid: metadata.name: Required value: name or generateName is required"
    );
    // Other errors are listed as well.
    let nameless = json!({"metadata": {"labels": {"a b": "c"}}});
    let refused = api.post(&maps, &nameless).await;
    refused.refused(422, "Invalid");
    let causes = refused.json()["details"]["causes"].clone();
    let fields: Vec<&Value> = causes.as_array().unwrap().iter().map(|c| &c["field"]).collect();
    assert_eq!(fields, ["metadata.name", "metadata.labels"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn stores_nothing_in_dry_run() {
    let (api, maps) =
        (admin(), format!("/api/v1/namespaces/{}/configmaps", admin().namespace().await));
    let dry = format!("{maps}?dryRun=All");
    assert!(api.post(&dry, &config_map("a", json!({}))).await.ok()["metadata"]["uid"].is_string());
    api.get(&format!("{maps}/a")).await.refused(404, "NotFound");
    let made = api.post(&maps, &config_map("a", json!({"k": "v"}))).await.ok();
    api.post(&dry, &config_map("a", json!({}))).await.refused(409, "AlreadyExists");
    let mut changed = made.clone();
    changed["data"]["k"] = json!("w");
    let one = format!("{maps}/a");
    assert_eq!(api.put(&format!("{one}?dryRun=All"), &changed).await.ok()["data"]["k"], "w");
    let patch = json!({"data": {"k": "w"}});
    assert_eq!(
        api.patch(&format!("{one}?dryRun=All"), "merge", &patch).await.ok()["data"]["k"],
        "w"
    );
    api.delete(&one, &json!({"dryRun": ["All"]})).await.ok();
    api.send("DELETE", &format!("{one}?dryRun=All"), &[], "").await.ok();
    assert_eq!(api.get(&one).await.ok(), made);
    api.post(&format!("{maps}?dryRun=Some"), &config_map("b", json!({})))
        .await
        .refused(422, "Invalid");
}

#[tokio::test(flavor = "multi_thread")]
async fn rejects_wrong_paths_and_kinds() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    let mut elsewhere = config_map("a", json!({}));
    elsewhere["metadata"]["namespace"] = json!("elsewhere");
    let message = api.post(&maps, &elsewhere).await.refused(400, "BadRequest");
    assert!(message.contains(
        "namespace of the provided object does not match the namespace sent on the request"
    ));
    api.post(&maps, &pod("p")).await.refused(400, "BadRequest");
    let mut versioned = config_map("a", json!({}));
    versioned["metadata"]["resourceVersion"] = json!("5");
    let answer = api.post(&maps, &versioned).await;
    let message = "resourceVersion should not be set on objects to be created";
    assert_eq!((answer.code, &answer.json()["message"]), (500, &json!(message)));
    // A dry run does not reach the store's check.
    api.post(&format!("{maps}?dryRun=All"), &versioned).await.ok();
    api.put(&format!("{maps}/other"), &config_map("a", json!({}))).await.refused(400, "BadRequest");
    api.put(&format!("{maps}/a"), &config_map("a", json!({}))).await.refused(404, "NotFound");
    let all = "/api/v1/configmaps";
    api.post(all, &config_map("a", json!({}))).await.refused(405, "MethodNotAllowed");
    api.get(&format!("/api/v1/namespaces/{namespace}/nodes")).await.refused(404, "NotFound");
    api.get("/apis/nothing.example/v1/things").await.refused(404, "NotFound");
    api.send("PUT", &maps, &[], "{}").await.refused(405, "MethodNotAllowed");
    let missing = "/api/v1/namespaces/none/configmaps";
    let message = api.post(missing, &config_map("a", json!({}))).await.refused(404, "NotFound");
    assert_eq!(message, "namespaces \"none\" not found");
    let message = api.post(&maps, &config_map("A_b", json!({}))).await.refused(422, "Invalid");
    assert!(message.starts_with(
        "ConfigMap \"A_b\" is invalid: metadata.name: Invalid value: \"A_b\": a lowercase RFC 1123"
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn prevents_lost_updates() {
    let (api, maps) =
        (admin(), format!("/api/v1/namespaces/{}/configmaps", admin().namespace().await));
    api.post(&maps, &config_map("a", json!({}))).await.ok();
    let one = format!("{maps}/a");
    let writes = (0..16).map(|i| {
        let (api, one) = (api.clone(), one.clone());
        async move {
            let mut patch = json!({"data": {}});
            patch["data"][format!("k{i}")] = json!("v");
            api.patch(&one, "merge", &patch).await.ok();
        }
    });
    futures_util::future::join_all(writes).await;
    assert_eq!(api.get(&one).await.ok()["data"].as_object().unwrap().len(), 16);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn charges_concurrent_requests_to_quota() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let core = format!("/api/v1/namespaces/{namespace}");
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"configmaps": "5"}}});
    let mut quota = api.post(&format!("{core}/resourcequotas"), &quota).await.ok();
    quota["status"] = json!({"hard": {"configmaps": "5"}, "used": {"configmaps": "0"}});
    api.put(&format!("{core}/resourcequotas/q/status"), &quota).await.ok();
    let maps = format!("{core}/configmaps");
    let creates = (0..40).map(|n| {
        let (api, maps) = (api.clone(), maps.clone());
        let map = config_map(&format!("m{n}"), json!({}));
        tokio::spawn(async move { api.post(&maps, &map).await })
    });
    let mut made = 0;
    for create in creates.collect::<Vec<_>>() {
        let answer = create.await.unwrap();
        match answer.code {
            201 => made += 1,
            _ => assert!(answer.refused(403, "Forbidden").contains("exceeded quota: q")),
        }
    }
    assert_eq!(made, 5);
    let quota = api.get(&format!("{core}/resourcequotas/q")).await.ok();
    assert_eq!(quota["status"]["used"]["configmaps"], "5");
}

#[tokio::test(flavor = "multi_thread")]
async fn drops_namespace_of_cluster_scoped_object() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let name = format!("role-{namespace}");
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
    let role = || {
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": name, "namespace": namespace}, "rules": rules})
    };
    let one = format!("{path}/{name}");
    let applied = format!("{one}?fieldManager=chart");
    for made in [
        api.post(path, &role()).await.ok(),
        api.put(&one, &role()).await.ok(),
        api.patch(&one, "merge", &role()).await.ok(),
        api.patch(&applied, "apply", &role()).await.ok(),
    ] {
        assert_eq!(made["metadata"].get("namespace"), None);
    }
}
