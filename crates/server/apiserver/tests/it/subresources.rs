//! Status, scale, binding, eviction and other subresources.

use std::net::SocketAddr;

use futures_util::future::BoxFuture;
use http::StatusCode;
use pki::{AltName, Authority, KeyAlgorithm};
use serde_json::{Value, json};

use crate::harness::{admin, deployment, listen, pod, start, validity};

#[tokio::test(flavor = "multi_thread")]
async fn separates_status_from_spec() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments");
    let mut sent = deployment("d");
    sent["status"] = json!({"replicas": 7});
    let made = api.post(&path, &sent).await.ok();
    assert_eq!(made["status"], json!({}));
    let one = format!("{path}/d");
    let mut changed = made.clone();
    changed["status"] = json!({"replicas": 3});
    changed["spec"]["replicas"] = json!(9);
    changed["metadata"]["labels"] = json!({"l": "v"});
    let updated = api.put(&format!("{one}/status"), &changed).await.ok();
    assert_eq!(
        (&updated["status"]["replicas"], &updated["spec"]["replicas"]),
        (&json!(3), &json!(1))
    );
    assert_eq!(updated["metadata"]["generation"], 1);
    assert_eq!(api.get(&format!("{one}/status")).await.ok(), updated);
    api.get(&format!("{one}/nothing")).await.refused(404, "NotFound");
    api.delete(&format!("{one}/status"), &json!({})).await.refused(405, "MethodNotAllowed");
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_and_updates_scale() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments");
    let made = api.post(&path, &deployment("d")).await.ok();
    let scale = format!("{path}/d/scale");
    let shown = api.get(&scale).await.ok();
    assert_eq!(
        (
            &shown["kind"],
            &shown["apiVersion"],
            &shown["spec"]["replicas"],
            &shown["status"]["selector"]
        ),
        (&json!("Scale"), &json!("autoscaling/v1"), &json!(1), &json!("app=d"))
    );
    assert_eq!(shown["metadata"]["uid"], made["metadata"]["uid"]);
    let mut wanted = shown.clone();
    wanted["spec"]["replicas"] = json!(4);
    assert_eq!(api.put(&scale, &wanted).await.ok()["spec"]["replicas"], 4);
    api.put(&scale, &wanted).await.refused(409, "Conflict");
    let patched = api.patch(&scale, "merge", &json!({"spec": {"replicas": 0}})).await.ok();
    assert_eq!(patched["spec"], json!({}));
    let now = api.get(&format!("{path}/d")).await.ok();
    assert_eq!((&now["spec"]["replicas"], &now["metadata"]["generation"]), (&json!(0), &json!(3)));
    api.patch(&scale, "merge", &json!({"spec": {"replicas": -1}})).await.refused(422, "Invalid");
}

#[tokio::test(flavor = "multi_thread")]
async fn applies_scale_with_conflicts() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let one = format!("/apis/apps/v1/namespaces/{namespace}/deployments/d");
    let mut sent = deployment("d");
    sent["spec"]["replicas"] = json!(1);
    api.patch(&format!("{one}?fieldManager=a"), "apply", &sent).await.ok();
    let wanted = json!({
        "apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "d"},
        "spec": {"replicas": 3}});
    let apply = format!("{one}/scale?fieldManager=b");
    let message = api.patch(&apply, "apply", &wanted).await.refused(409, "Conflict");
    assert_eq!(message, "Apply failed with 1 conflict: conflict with \"a\": .spec.replicas");
    let forced = api.patch(&format!("{apply}&force=true"), "apply", &wanted).await.ok();
    assert_eq!(forced["spec"]["replicas"], 3);
    let now = api.get(&one).await.ok();
    assert_eq!(now["spec"]["replicas"], 3);
    let owners = now["metadata"]["managedFields"].as_array().unwrap();
    let owner = owners.iter().find(|owner| owner["manager"] == "b").unwrap();
    let replicas = json!({"f:spec": {"f:replicas": {}}});
    assert_eq!(
        (&owner["subresource"], &owner["operation"], &owner["apiVersion"], &owner["fieldsV1"]),
        (&json!("scale"), &json!("Apply"), &json!("apps/v1"), &replicas)
    );
    let other = owners.iter().find(|owner| owner["manager"] == "a").unwrap();
    assert_eq!(other["fieldsV1"]["f:spec"].get("f:replicas"), None);
    // A body of another kind, and an unknown field.
    let message = api.patch(&apply, "apply", &sent).await.refused(400, "BadRequest");
    assert_eq!(message, "invalid object type: apps/v1, Kind=Deployment");
    let unknown = json!({"spec": {"replica": 1}});
    let warned = api.patch(&format!("{one}/scale"), "merge", &unknown).await;
    assert_eq!(warned.warnings(), [r#"299 - "unknown field \"spec.replica\"""#]);
}

fn binding(name: &str, node: &str) -> Value {
    json!({
        "metadata": {"name": name, "annotations": {"a": "1"}, "labels": {"topology.kubernetes.io/zone": "z"}},
        "target": {"kind": "Node", "name": node},
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn binds_pod_to_node() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    api.post(&pods, &pod("p")).await.ok();
    let answer = api.post(&format!("{pods}/p/binding"), &binding("p", "n1")).await;
    assert_eq!((answer.code, &answer.json()["kind"]), (201, &json!("Status")));
    let bound = api.get(&format!("{pods}/p")).await.ok();
    assert_eq!(
        (&bound["spec"]["nodeName"], &bound["metadata"]["annotations"]["a"]),
        (&json!("n1"), &json!("1"))
    );
    assert_eq!(bound["metadata"]["labels"]["topology.kubernetes.io/zone"], "z");
    let condition = &bound["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["status"]),
        (&json!("PodScheduled"), &json!("True"))
    );
    let message =
        api.post(&format!("{pods}/p/binding"), &binding("p", "n2")).await.refused(409, "Conflict");
    assert!(message.contains("pod p is already assigned to node \"n1\""), "{message}");
    api.post(&pods, &pod("q")).await.ok();
    let mut stale = binding("q", "n1");
    stale["metadata"]["resourceVersion"] = json!("1");
    let message = api.post(&format!("{pods}/q/binding"), &stale).await.refused(409, "Conflict");
    assert!(message.contains("ResourceVersion in precondition: 1, "), "{message}");
    let bindings = format!("/api/v1/namespaces/{namespace}/bindings");
    api.post(&bindings, &binding("q", "n2")).await.ok();
    api.post(&format!("{pods}/none/binding"), &binding("none", "n1"))
        .await
        .refused(404, "NotFound");
    let mut gated = pod("g");
    gated["spec"]["schedulingGates"] = json!([{"name": "example.com/wait"}]);
    api.post(&pods, &gated).await.ok();
    api.post(&format!("{pods}/g/binding"), &binding("g", "n1")).await.refused(409, "Conflict");
}

#[tokio::test(flavor = "multi_thread")]
async fn respects_disruption_budgets_on_eviction() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    for name in ["a", "b"] {
        let mut pod = pod(name);
        pod["metadata"]["labels"] = json!({"app": "x"});
        pod["spec"]["nodeName"] = json!("n1");
        api.post(&pods, &pod).await.ok();
        let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        api.patch(&format!("{pods}/{name}/status"), "merge", &status).await.ok();
    }
    let budgets = format!("/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets");
    let budget = json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}});
    api.post(&budgets, &budget).await.ok();
    let evict =
        |name: &str| (format!("{pods}/{name}/eviction"), json!({"metadata": {"name": name}}));
    let (path, eviction) = evict("a");
    // Evictions are rejected until the disruption controller has processed the budget.
    let early = api.post(&path, &eviction).await;
    assert_eq!(early.json()["details"]["retryAfterSeconds"], 10);
    let message = early.refused(429, "TooManyRequests");
    let other = json!({"metadata": {"name": "b"}});
    api.post(&path, &other).await.refused(400, "BadRequest");
    assert_eq!(message, "Cannot evict pod as it would violate the pod's disruption budget.");
    let status = json!({"status": {"observedGeneration": 1, "disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2}});
    api.patch(&format!("{budgets}/b/status"), "merge", &status).await.ok();
    api.get(&budgets).await.ok();
    // A dry run uses no budget and deletes no Pod.
    let mut rehearsal = eviction.clone();
    rehearsal["deleteOptions"] = json!({"dryRun": ["All"]});
    assert_eq!(api.post(&path, &rehearsal).await.code, 201);
    let stays = api.get(&format!("{pods}/a")).await.ok();
    assert!(stays["metadata"]["deletionTimestamp"].is_null(), "{stays}");
    assert_eq!(stays["status"]["conditions"].as_array().unwrap().len(), 1, "{stays}");
    assert_eq!(api.post(&path, &eviction).await.code, 201);
    let goes = api.get(&format!("{pods}/a")).await.ok();
    assert!(goes["metadata"]["deletionTimestamp"].is_string());
    let told = &goes["status"]["conditions"][1];
    assert_eq!(
        (&told["type"], &told["status"], &told["reason"]),
        (&json!("DisruptionTarget"), &json!("True"), &json!("EvictionByEvictionAPI")),
        "{goes}"
    );
    let now = api.get(&format!("{budgets}/b")).await.ok();
    assert_eq!(now["status"]["disruptionsAllowed"], 0);
    assert!(now["status"]["disruptedPods"]["a"].is_string());
    let (path, mut eviction) = evict("b");
    eviction["kind"] = json!("Eviction");
    eviction["apiVersion"] = json!("policy/v2");
    api.post(&path, &eviction).await.refused(400, "BadRequest");
    // The former API version is still accepted.
    eviction["apiVersion"] = json!("policy/v1beta1");
    let refused = api.post(&path, &eviction).await;
    refused.refused(429, "TooManyRequests");
    let cause = &refused.json()["details"]["causes"][0];
    assert_eq!(cause["reason"], "DisruptionBudget");
    assert_eq!(
        cause["message"],
        "The disruption budget b needs 1 healthy pods and has 2 currently"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn serves_events_in_both_groups() {
    let server = start(|config| config.event_ttl = std::time::Duration::from_secs(1)).await;
    let api = server.admin();
    let namespace = api.namespace().await;
    let core = format!("/api/v1/namespaces/{namespace}/events");
    let event = json!({"metadata": {"name": "e", "namespace": namespace}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": namespace}, "reason": "Why", "message": "what", "type": "Normal"});
    api.post(&core, &event).await.ok();
    // Both groups show the same event with their own field names.
    let newer = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events/e");
    let shown = api.get(&newer).await;
    if shown.code == 200 {
        let shown = shown.ok();
        assert_eq!((&shown["note"], &shown["regarding"]["name"]), (&json!("what"), &json!("p")));
        assert_eq!(shown["apiVersion"], "events.k8s.io/v1");
    }
    let list = format!("{core}?fieldSelector=involvedObject.name%3Dp&watch=true&timeoutSeconds=10");
    let seen = api.get(&list).await;
    let text = String::from_utf8(seen.body.to_vec()).unwrap();
    assert!(text.contains("\"DELETED\""), "{text}");
    api.get(&format!("{core}/e")).await.refused(404, "NotFound");
    server.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn resizes_shared_resources_of_pod() {
    let api = admin();
    let namespace = api.namespace().await;
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let mut shared = pod("shared");
    shared["spec"]["resources"] =
        json!({"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}});
    api.post(&pods, &shared).await.ok();
    let resize = format!("{pods}/shared/resize");
    let larger = json!({"spec": {"resources": {"limits": {"cpu": "4"}}}});
    let resized = api.patch(&resize, "strategic", &larger).await.ok();
    assert_eq!(resized["spec"]["resources"]["limits"], json!({"cpu": "4", "memory": "1Gi"}));
    assert_eq!(resized["metadata"]["generation"], 2);
    // Only the kubelet reports what it has applied.
    assert!(resized["status"].get("resources").is_none(), "{resized}");
    let removed = json!({"spec": {"resources": {"limits": {"cpu": null}}}});
    let message = api.patch(&resize, "strategic", &removed).await.refused(422, "Invalid");
    assert!(message.contains("pod-level resource limits cannot be removed"), "{message}");
    let status = json!({"status": {"resources": {"limits": {"cpu": "4"}}, "allocatedResources": {"cpu": "1"}}});
    let reported = api.patch(&format!("{pods}/shared/status"), "strategic", &status).await.ok();
    assert_eq!(reported["status"]["resources"], json!({"limits": {"cpu": "4"}}));
    assert_eq!(reported["status"]["allocatedResources"], json!({"cpu": "1"}));
}

/// A component that answers its health check with a status and a body of some length.
struct Component(SocketAddr, StatusCode, usize);

impl serve::Handler for Component {
    fn handle(
        &self,
        request: http::Request<serve::Body>,
    ) -> BoxFuture<'_, http::Response<serve::Body>> {
        assert_eq!(request.uri().path(), "/healthz");
        assert!(request.headers().get(http::header::AUTHORIZATION).is_none());
        let mut answer = http::Response::new(serve::full("o".repeat(self.2)));
        *answer.status_mut() = self.1;
        Box::pin(async { answer })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shows_components_by_their_health() {
    let authority = Authority::create("components", KeyAlgorithm::EcdsaP256, validity()).unwrap();
    let component = async |code, length| {
        let names = vec![AltName::Dns("elsewhere".into())];
        listen(&authority, names, |address, _| Component(address, code, length)).await.0
    };
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let gone =
        format!("Get \"https://{unused}/healthz\": dial tcp {unused}: connect: connection refused");
    let failing = "HTTP probe failed with statuscode: 500";
    for (address, healthy, message) in [
        (component(StatusCode::OK, 2).await, "True", "oo"),
        (component(StatusCode::INTERNAL_SERVER_ERROR, 9).await, "False", failing),
        (
            component(StatusCode::OK, 1 << 24).await,
            "False",
            "the answer is longer than 10240 bytes",
        ),
        (unused, "False", &gone),
    ] {
        let server = start(|config| config.components.scheduler = address).await;
        let path = "/api/v1/componentstatuses";
        let condition =
            server.admin().get(&format!("{path}/scheduler")).await.ok()["conditions"][0].take();
        assert_eq!(condition["status"], healthy, "{condition}");
        assert!(condition["message"].as_str().unwrap().ends_with(message), "{condition}");
        let message =
            server.admin().get(&format!("{path}/nonsense")).await.refused(404, "NotFound");
        assert_eq!(message, "componentstatus \"nonsense\" not found");
        server.user("nobody", &[]).get(path).await.refused(403, "Forbidden");
        server.tasks.shutdown().stop();
    }
}
