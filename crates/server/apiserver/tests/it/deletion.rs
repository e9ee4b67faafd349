//! Deletion: preconditions, finalizers, grace, propagation, collections and namespaces.

use serde_json::{Value, json};

use crate::harness::{admin, config_map, deployment, pod, start};

#[tokio::test(flavor = "multi_thread")]
async fn enforces_preconditions() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    let made = api.post(&maps, &config_map("a", json!({}))).await.ok();
    let one = format!("{maps}/a");
    let uid = made["metadata"]["uid"].as_str().unwrap();
    let message = api
        .delete(&one, &json!({"preconditions": {"uid": "other"}}))
        .await
        .refused(409, "Conflict");
    assert_eq!(
        message,
        format!(
            "Operation cannot be fulfilled on ConfigMap \"a\": the UID in the precondition (other) does not match the UID in record ({uid}). The object might have been deleted and then recreated"
        )
    );
    api.delete(&one, &json!({"preconditions": {"resourceVersion": "1"}}))
        .await
        .refused(409, "Conflict");
    for wrong in [
        json!({"propagationPolicy": "Sideways"}),
        json!({"propagationPolicy": "Orphan", "orphanDependents": true}),
    ] {
        api.delete(&one, &wrong).await.refused(422, "Invalid");
    }
    let path = format!("{one}?gracePeriodSeconds=soon");
    let message = api.send("DELETE", &path, &[], Vec::new()).await.refused(400, "BadRequest");
    assert_eq!(message, "strconv.ParseInt: parsing \"soon\": invalid syntax");
    let exact = json!({"preconditions": {"uid": uid, "resourceVersion": made["metadata"]["resourceVersion"]}});
    api.delete(&one, &exact).await.ok();
    api.delete(&one, &json!({})).await.refused(404, "NotFound");
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_for_finalizers() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    let mut map = config_map("a", json!({}));
    map["metadata"]["finalizers"] = json!(["example.com/one", "example.com/two"]);
    api.post(&maps, &map).await.ok();
    let one = format!("{maps}/a");
    let pending = api.delete(&one, &json!({})).await.ok();
    assert!(pending["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(pending["metadata"]["deletionGracePeriodSeconds"], 0);
    // Now finalizers cannot be added, and the deletion cannot be undone.
    let more = json!({"metadata": {"finalizers": ["example.com/one", "example.com/two", "example.com/three"]}});
    api.patch(&one, "merge", &more).await.refused(422, "Invalid");
    let undo = json!({"metadata": {"deletionTimestamp": null}});
    assert!(
        api.patch(&one, "merge", &undo).await.ok()["metadata"]["deletionTimestamp"].is_string()
    );
    let less = json!({"metadata": {"finalizers": ["example.com/two"]}});
    api.patch(&one, "merge", &less).await.ok();
    api.patch(&one, "merge", &json!({"metadata": {"finalizers": null}})).await.ok();
    api.get(&one).await.refused(404, "NotFound");
}

#[tokio::test(flavor = "multi_thread")]
async fn follows_propagation_policies() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments");
    for (name, policy, finalizer) in [
        ("f", json!({"propagationPolicy": "Foreground"}), json!(["foregroundDeletion"])),
        ("o", json!({"propagationPolicy": "Orphan"}), json!(["orphan"])),
        ("p", json!({"orphanDependents": true}), json!(["orphan"])),
    ] {
        api.post(&path, &deployment(name)).await.ok();
        let one = format!("{path}/{name}");
        let pending = api.delete(&one, &policy).await.ok();
        assert_eq!(pending["metadata"]["finalizers"], finalizer, "{name}");
        assert_eq!(pending["metadata"]["generation"], 2);
        // A later deletion may change the propagation policy.
        api.delete(&one, &json!({"propagationPolicy": "Background"})).await.ok();
        api.get(&one).await.refused(404, "NotFound");
    }
    api.post(&path, &deployment("q")).await.ok();
    let query = format!("{path}/q?propagationPolicy=Foreground");
    let pending = api.send("DELETE", &query, &[], "").await.ok();
    assert_eq!(pending["metadata"]["finalizers"], json!(["foregroundDeletion"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn deletes_at_once_without_garbage_collector() {
    let server = start(|config| config.garbage_collection = false).await;
    let api = server.admin();
    let path = format!("/apis/apps/v1/namespaces/{}/deployments", api.namespace().await);
    for policy in ["Foreground", "Orphan"] {
        api.post(&path, &deployment("d")).await.ok();
        let one = format!("{path}/d");
        api.delete(&one, &json!({"propagationPolicy": policy})).await.ok();
        api.get(&one).await.refused(404, "NotFound");
    }
    server.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn honors_grace_period_of_pods() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let bound = |name: &str| {
        let mut pod = pod(name);
        pod["spec"]["nodeName"] = json!("n1");
        pod
    };
    // A Pod without a node is deleted at once, and returned.
    api.post(&pods, &pod("free")).await.ok();
    assert_eq!(api.delete(&format!("{pods}/free"), &json!({})).await.ok()["kind"], "Pod");
    api.get(&format!("{pods}/free")).await.refused(404, "NotFound");

    api.post(&pods, &bound("a")).await.ok();
    let one = format!("{pods}/a");
    let grace = |o: &Value| o["metadata"]["deletionGracePeriodSeconds"].clone();
    assert_eq!(grace(&api.delete(&one, &json!({})).await.ok()), 30);
    // Later deletions may shorten the grace period, but not extend it.
    assert_eq!(grace(&api.delete(&one, &json!({"gracePeriodSeconds": 60})).await.ok()), 30);
    assert_eq!(grace(&api.delete(&one, &json!({"gracePeriodSeconds": 5})).await.ok()), 5);
    // The kubelet's own deletion ends it.
    api.delete(&one, &json!({"gracePeriodSeconds": 0})).await.ok();
    api.get(&one).await.refused(404, "NotFound");

    // Regardless of the grace period, clients can parse the deletion timestamp.
    api.post(&pods, &bound("patient")).await.ok();
    let patient = format!("{pods}/patient");
    let going = api.delete(&patient, &json!({"gracePeriodSeconds": i64::MAX})).await.ok();
    assert_eq!(going["metadata"]["deletionTimestamp"].as_str().map(str::len), Some(20), "{going}");

    let mut over = bound("b");
    over["spec"]["terminationGracePeriodSeconds"] = json!(7);
    api.post(&pods, &over).await.ok();
    let one = format!("{pods}/b");
    let status = json!({"status": {"phase": "Succeeded"}});
    api.patch(&format!("{one}/status"), "merge", &status).await.ok();
    api.delete(&one, &json!({})).await.ok();
    api.get(&one).await.refused(404, "NotFound");
}

#[tokio::test(flavor = "multi_thread")]
async fn deletes_selected_collection() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    for (name, label) in [("a", "x"), ("b", "x"), ("c", "y")] {
        let mut map = config_map(name, json!({}));
        map["metadata"]["labels"] = json!({"l": label});
        api.post(&maps, &map).await.ok();
    }
    let gone = api.send("DELETE", &format!("{maps}?labelSelector=l%3Dx"), &[], "").await.ok();
    assert_eq!(
        (&gone["kind"], gone["items"].as_array().unwrap().len()),
        (&json!("ConfigMapList"), 2)
    );
    let left = api.get(&maps).await.ok();
    assert_eq!(left["items"].as_array().unwrap().len(), 1);
    api.send("DELETE", &format!("{maps}?dryRun=All"), &[], "").await.ok();
    assert_eq!(api.get(&maps).await.ok()["items"].as_array().unwrap().len(), 1);
    // Collections cannot be deleted in all namespaces at once.
    api.delete("/api/v1/configmaps", &json!({})).await.refused(405, "MethodNotAllowed");
    api.post("/api/v1/configmaps", &json!({})).await.refused(405, "MethodNotAllowed");
}

#[tokio::test(flavor = "multi_thread")]
async fn terminates_namespaces() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let one = format!("/api/v1/namespaces/{namespace}");
    let made = api.get(&one).await.ok();
    assert_eq!(made["spec"]["finalizers"], json!(["kubernetes"]));
    assert_eq!(made["status"]["phase"], "Active");
    assert_eq!(made["metadata"]["labels"]["kubernetes.io/metadata.name"], namespace);
    let pending = api.delete(&one, &json!({})).await.ok();
    assert_eq!(pending["status"]["phase"], "Terminating");
    let maps = format!("{one}/configmaps");
    let message = api.post(&maps, &config_map("a", json!({}))).await.refused(403, "Forbidden");
    assert!(
        message.contains(&format!(
            "unable to create new content in namespace {namespace} because it is being terminated"
        )),
        "{message}"
    );
    // The namespace controller is done: removing the last finalizer deletes the namespace.
    let mut done = pending.clone();
    done["spec"]["finalizers"] = json!([]);
    api.put(&format!("{one}/finalize"), &done).await.ok();
    api.get(&one).await.refused(404, "NotFound");
    for kept in ["default", "kube-system"] {
        let path = format!("/api/v1/namespaces/{kept}");
        let message = api.delete(&path, &json!({})).await.refused(403, "Forbidden");
        assert!(message.contains("this namespace may not be deleted"), "{message}");
    }
}
