//! Runs our API server and upstream's in turns on one etcd, with upstream's binaries from `WINDLASS_PEER`.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    time::{Duration, Instant},
};

use client::Client;
use http::Request;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use crate::processes::{ControlPlane, Process};

/// Returns the directory with upstream's binaries, or prints that it is missing.
pub(crate) fn peer() -> Option<PathBuf> {
    let found = std::env::var_os("WINDLASS_PEER").map(PathBuf::from);
    let found =
        found.filter(|dir| dir.join("kube-apiserver").exists() && dir.join("etcd").exists());
    if found.is_none() {
        eprintln!(
            "skipped: WINDLASS_PEER names no directory with upstream's kube-apiserver and etcd"
        );
    }
    found
}

pub(crate) async fn send(
    client: &Client,
    method: &str,
    path: &str,
    body: &Value,
) -> Option<(u16, Value)> {
    let content_type = match method {
        "PATCH" => "application/merge-patch+json",
        _ => "application/json",
    };
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let request = Request::builder().method(method).uri(path).header("content-type", content_type);
    let request = request.header("accept", "application/json").body(client::full(body)).unwrap();
    let response = client.request(request).await.ok()?;
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.ok()?.to_bytes();
    Some((code, serde_json::from_slice(&bytes).unwrap_or_default()))
}

#[track_caller]
fn good(what: &str, answer: Option<(u16, Value)>) -> Value {
    match answer {
        Some((code, body)) if code < 300 => body,
        other => panic!("{what}: {other:?}"),
    }
}

/// The running API server and a client of it.
pub(crate) struct ServerRun {
    pub(crate) client: Client,
    _process: Process,
}

impl ServerRun {
    pub(crate) async fn begin(plane: &ControlPlane, process: Process) -> Self {
        let client = plane.client("super-admin.conf", plane.api_port);
        let started = Instant::now();
        while !matches!(send(&client, "GET", "/readyz", &Value::Null).await, Some((200, _))) {
            assert!(started.elapsed() < Duration::from_secs(60), "{}", plane.logs());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Self { client, _process: process }
    }

    /// Lists objects, and retries while the kind's storage is being set up: upstream is ready before its custom kinds
    /// are.
    async fn list(&self, path: &str) -> Value {
        let started = Instant::now();
        loop {
            match send(&self.client, "GET", path, &Value::Null).await {
                Some((429, _)) if started.elapsed().as_secs() < 30 => {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                answer => return good(path, answer),
            }
        }
    }

    /// Returns every object of every served kind in its preferred version, by its path.
    async fn everything(&self) -> BTreeMap<String, Value> {
        let groups = good("/apis", send(&self.client, "GET", "/apis", &Value::Null).await);
        let mut places = vec!["/api/v1".to_owned()];
        for group in groups["groups"].as_array().unwrap() {
            let version = group["preferredVersion"]["groupVersion"].as_str().unwrap();
            places.push(format!("/apis/{version}"));
        }
        let mut all = BTreeMap::new();
        for place in places {
            let found = good(&place, send(&self.client, "GET", &place, &Value::Null).await);
            for resource in found["resources"].as_array().unwrap() {
                let (name, verbs) = (resource["name"].as_str().unwrap(), &resource["verbs"]);
                let lists = verbs.as_array().unwrap().iter().any(|v| v == "list");
                // Each server creates these from its own state.
                if !lists || matches!(name, "componentstatuses" | "apiservices") {
                    continue;
                }
                let path = format!("{place}/{name}");
                let list = self.list(&path).await;
                for item in list["items"].as_array().into_iter().flatten() {
                    let meta = &item["metadata"];
                    let text = |field: &str| meta[field].as_str().unwrap_or_default();
                    all.insert(
                        format!("{path} {}/{}", text("namespace"), text("name")),
                        item.clone(),
                    );
                }
            }
        }
        all
    }
}

fn objects() -> Vec<(&'static str, Value)> {
    let meta = |name: &str| json!({"name": name, "labels": {"turn": "first"}});
    let template = json!({"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": "i",
        "ports": [{"containerPort": 80}], "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}}]}});
    let selector = json!({"matchLabels": {"app": "a"}});
    vec![
        ("/api/v1/namespaces", json!({"metadata": {"name": "turns"}})),
        ("/api/v1/namespaces/turns/serviceaccounts", json!({"metadata": meta("default")})),
        (
            "/api/v1/namespaces/turns/configmaps",
            json!({"metadata": meta("a"), "data": {"k": "v"}, "binaryData": {"b": "AAEC"}}),
        ),
        (
            "/api/v1/namespaces/turns/secrets",
            json!({"metadata": meta("a"), "type": "Opaque", "stringData": {"p": "w"}}),
        ),
        (
            "/api/v1/namespaces/turns/services",
            json!({"metadata": meta("a"), "spec": {"type": "NodePort", "selector": {"app": "a"},
            "ports": [{"port": 80, "targetPort": "http"}]}}),
        ),
        ("/api/v1/namespaces/turns/pods", json!({"metadata": meta("a"), "spec": template["spec"]})),
        (
            "/api/v1/namespaces/turns/persistentvolumeclaims",
            json!({"metadata": meta("a"), "spec": {"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}}),
        ),
        (
            "/apis/apps/v1/namespaces/turns/deployments",
            json!({"metadata": meta("a"), "spec": {"selector": selector, "template": template}}),
        ),
        (
            "/apis/apps/v1/namespaces/turns/statefulsets",
            json!({"metadata": meta("a"), "spec": {"serviceName": "a", "selector": selector, "template": template}}),
        ),
        (
            "/apis/batch/v1/namespaces/turns/jobs",
            json!({"metadata": meta("a"), "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}}),
        ),
        (
            "/apis/autoscaling/v2/namespaces/turns/horizontalpodautoscalers",
            json!({"metadata": meta("a"), "spec": {"maxReplicas": 3,
            "scaleTargetRef": {"kind": "Deployment", "name": "a", "apiVersion": "apps/v1"},
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}]}}),
        ),
        (
            "/apis/networking.k8s.io/v1/namespaces/turns/ingresses",
            json!({"metadata": meta("a"), "spec": {"defaultBackend": {"service": {"name": "a", "port": {"number": 80}}}}}),
        ),
        (
            "/apis/networking.k8s.io/v1/namespaces/turns/networkpolicies",
            json!({"metadata": meta("a"), "spec": {"podSelector": {}, "policyTypes": ["Ingress"]}}),
        ),
        (
            "/apis/policy/v1/namespaces/turns/poddisruptionbudgets",
            json!({"metadata": meta("a"), "spec": {"minAvailable": "50%", "selector": selector}}),
        ),
        (
            "/apis/rbac.authorization.k8s.io/v1/namespaces/turns/roles",
            json!({"metadata": meta("a"), "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]}),
        ),
        (
            "/apis/coordination.k8s.io/v1/namespaces/turns/leases",
            json!({"metadata": meta("a"), "spec": {"holderIdentity": "x", "renewTime": "2026-01-02T03:04:05.000006Z"}}),
        ),
        (
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            json!({"metadata": meta("turns"), "value": 7}),
        ),
        (
            "/apis/storage.k8s.io/v1/storageclasses",
            json!({"metadata": meta("turns"), "provisioner": "example.com/p"}),
        ),
        (
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            json!({"metadata": {"name": "turns.example.com"},
            "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "turns", "kind": "Turn"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object",
                    "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer", "default": 3}}}}}}}]}}),
        ),
    ]
}

/// Returns the differences between the objects of two servers, except in objects that each server maintains itself.
fn differences(before: &BTreeMap<String, Value>, after: &BTreeMap<String, Value>) -> Vec<String> {
    let own = |place: &str| {
        [
            "/leases kube-system/",
            "/leases kube-node-lease/",
            "/events ",
            "/endpointslices default/",
            "/endpoints default/",
        ]
        .iter()
        .any(|p| place.contains(p))
            || place.contains("identityleases")
            || place.contains("/flowschemas")
            || place.contains("/prioritylevelconfigurations")
            || place.contains("/configmaps kube-system/")
            || place.contains("/clusterrole")
    };
    let mut found = Vec::new();
    for (place, old) in before.iter().filter(|(place, _)| !own(place)) {
        match after.get(place) {
            None => found.push(format!("{place} is gone")),
            Some(new) if new != old => found.push(format!("{place}:\n  {old}\n  {new}")),
            Some(_) => {}
        }
    }
    let new = after.keys().filter(|place| !own(place) && !before.contains_key(*place));
    found.extend(new.map(|place| format!("{place} is new")));
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn shares_etcd_with_upstream_in_turns() {
    let Some(peer) = peer() else { return };
    let plane = ControlPlane::prepare_with(&peer.join("etcd"));
    let upstream = || plane.start_apiserver_of(&peer.join("kube-apiserver"));

    let turn = ServerRun::begin(&plane, upstream()).await;
    for (path, object) in objects() {
        good(path, send(&turn.client, "POST", path, &object).await);
    }
    let custom = "/apis/example.com/v1/namespaces/turns/turns";
    let started = Instant::now();
    while send(&turn.client, "POST", custom, &json!({"kind": "Turn", "apiVersion": "example.com/v1", "metadata": {"name": "a"}, "spec": {}}))
        .await
        .is_none_or(|(code, _)| code != 201)
    {
        assert!(started.elapsed() < Duration::from_secs(30));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let first = turn.everything().await;
    drop(turn);

    // Ours must show upstream's objects unchanged. Then ours writes.
    let turn = ServerRun::begin(&plane, plane.start_apiserver()).await;
    let shown = turn.everything().await;
    let found = differences(&first, &shown);
    assert!(found.is_empty(), "{} differences after upstream:\n{}", found.len(), found.join("\n"));
    let mut places: Vec<String> = objects()
        .iter()
        .skip(1)
        .map(|(path, object)| format!("{path}/{}", object["metadata"]["name"].as_str().unwrap()))
        .collect();
    places.push(format!("{custom}/a"));
    let patch = json!({"metadata": {"annotations": {"turn": "second"}}});
    for place in &places {
        good(place, send(&turn.client, "PATCH", place, &patch).await);
    }
    for (path, mut object) in objects().into_iter().filter(|(path, _)| path.contains("/turns/")) {
        object["metadata"]["name"] = json!("b");
        good(path, send(&turn.client, "POST", path, &object).await);
    }
    let gone = "/api/v1/namespaces/turns/secrets/a";
    good(gone, send(&turn.client, "DELETE", gone, &Value::Null).await);
    let second = turn.everything().await;
    drop(turn);

    // Upstream must show our objects unchanged.
    let turn = ServerRun::begin(&plane, upstream()).await;
    let started = Instant::now();
    let third = loop {
        let third = turn.everything().await;
        // Upstream serves its custom kinds a moment after it is ready.
        if third.keys().any(|place| place.starts_with("/apis/example.com"))
            || started.elapsed().as_secs() > 30
        {
            break third;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let found = differences(&second, &third);
    assert!(found.is_empty(), "{} differences after ours:\n{}", found.len(), found.join("\n"));
    good("a change", send(&turn.client, "PATCH", &places[1], &patch).await);
}
