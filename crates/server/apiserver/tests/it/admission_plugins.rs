//! Admission plugins in requests of nodes and users.

use admission::{AdmissionResult, Plugin, Request};
use serde_json::{Value, json};

use crate::{
    admission::{JSON, send},
    harness::{Api, config_map, pod, shared, start_with},
};

/// A plugin that sets fields which only the server may set.
struct ServerFieldsSetter;

impl Plugin for ServerFieldsSetter {
    fn mutates(&self, request: &Request<'_>) -> bool {
        request.creates() && request.kind.kind == "CertificateSigningRequest"
    }

    fn mutate(&self, _: &Request<'_>, object: &mut Value) -> AdmissionResult {
        object["metadata"]["uid"] = json!("mine");
        object["spec"]["username"] = json!("somebody-else");
        object["status"] = json!({"certificate": "bGllcw=="});
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sets_server_fields_after_admission() {
    let server = start_with(|_| {}, |chain| chain.and(ServerFieldsSetter)).await;
    let api = server.admin();
    let key = pki::Key::generate(pki::KeyAlgorithm::EcdsaP256).unwrap();
    let request = pki::SigningRequest::create(&pki::Subject::new("x"), &[], &key);
    let pem = request.unwrap().to_pem();
    let encoded = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, pem);
    let csr = json!({"metadata": {"name": "c"}, "spec": {"request": encoded, "signerName": "example.com/s", "usages": ["client auth"]}});
    let path = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let made = api.post(path, &csr).await.ok();
    assert_ne!(made["metadata"]["uid"], "mine");
    assert_eq!(made["spec"]["username"], "admin");
    assert_eq!(made["status"], json!({}));
    // The QoS class of a Pod is derived from its final resources.
    let ns = api.namespace().await;
    let core = format!("/api/v1/namespaces/{ns}");
    let range = json!({"metadata": {"name": "r"}, "spec": {"limits": [{"type": "Container", "defaultRequest": {"cpu": "1"}}]}});
    api.post(&format!("{core}/limitranges"), &range).await.ok();
    let made = api.post(&format!("{core}/pods"), &pod("p")).await.ok();
    assert_eq!(made["spec"]["containers"][0]["resources"]["requests"]["cpu"], "1");
    assert_eq!(made["status"]["qosClass"], "Burstable");
    server.tasks.shutdown().stop();
}

fn node(name: &str) -> Api {
    shared().user(&format!("system:node:{name}"), &["system:nodes"])
}

/// Creates a running Pod of node `e1`, and a budget that allows one disruption.
async fn guarded_pod() -> (Api, String, String) {
    let api = shared().admin();
    let namespace = api.namespace().await;
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let mut running = pod("a");
    running["metadata"]["labels"] = json!({"app": "x"});
    running["spec"]["nodeName"] = json!("e1");
    api.post(&pods, &running).await.ok();
    let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    api.patch(&format!("{pods}/a/status"), "merge", &status).await.ok();
    let budgets = format!("/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets");
    let budget = json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}});
    api.post(&budgets, &budget).await.ok();
    let status = json!({"status": {"observedGeneration": 1, "disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2}});
    api.patch(&format!("{budgets}/b/status"), "merge", &status).await.ok();
    (api, format!("{pods}/a"), format!("{budgets}/b"))
}

#[tokio::test(flavor = "multi_thread")]
async fn allows_node_to_evict_only_own_pods() {
    let (api, pod, budget) = guarded_pod().await;
    let eviction = json!({"metadata": {"name": "a"}});
    let path = format!("{pod}/eviction");
    let refused = node("e2").post(&path, &eviction).await;
    assert_eq!(
        refused.refused(403, "Forbidden"),
        "pods \"a\" is forbidden: node e2 can only evict pods with spec.nodeName set to itself"
    );
    // A rejected eviction uses no budget and sets no condition.
    let untouched = api.get(&budget).await.ok();
    assert_eq!(untouched["status"]["disruptionsAllowed"], 1, "{untouched}");
    assert!(untouched["status"]["disruptedPods"].is_null(), "{untouched}");
    let stays = api.get(&pod).await.ok();
    assert!(stays["metadata"]["deletionTimestamp"].is_null(), "{stays}");
    assert_eq!(stays["status"]["conditions"].as_array().unwrap().len(), 1, "{stays}");
    // The same holds for a body that names another Pod.
    let other = json!({"metadata": {"name": "z"}});
    for wrong in [&other, &json!({})] {
        let message = node("e1").post(&path, wrong).await.refused(400, "BadRequest");
        assert_eq!(message, "name in URL does not match name in Eviction object");
    }
    assert_eq!(api.get(&budget).await.ok()["status"]["disruptionsAllowed"], 1);
    assert_eq!(node("e1").post(&path, &eviction).await.code, 201);
    assert!(api.get(&pod).await.ok()["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(api.get(&budget).await.ok()["status"]["disruptionsAllowed"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_topology_labels_on_binding() {
    let (api, namespace) = (shared().admin(), shared().admin().namespace().await);
    let labels = json!({"topology.kubernetes.io/zone": "z1", "topology.kubernetes.io/region": "r1", "other": "x"});
    api.post("/api/v1/nodes", &json!({"metadata": {"name": "topo", "labels": labels}})).await.ok();
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    for name in ["p", "q"] {
        api.post(&pods, &pod(name)).await.ok();
    }
    let binding = json!({"metadata": {"name": "p", "labels": {"topology.kubernetes.io/zone": "lie"}}, "target": {"kind": "Node", "name": "topo"}});
    // The binding must name the Pod of the URL.
    let message = api.post(&format!("{pods}/q/binding"), &binding).await.refused(400, "BadRequest");
    assert_eq!(message, "name in URL does not match name in Binding object");
    assert_eq!(api.post(&format!("{pods}/p/binding"), &binding).await.code, 201);
    let bound = api.get(&format!("{pods}/p")).await.ok();
    assert_eq!(bound["spec"]["nodeName"], "topo");
    assert_eq!(
        bound["metadata"]["labels"],
        json!({"topology.kubernetes.io/zone": "z1", "topology.kubernetes.io/region": "r1"})
    );
    // A node may not bind Pods.
    let binding = json!({"metadata": {"name": "q"}, "target": {"kind": "Node", "name": "topo"}});
    node("topo").post(&format!("{pods}/q/binding"), &binding).await.refused(403, "Forbidden");
}

/// CVE-2023-2728.
#[tokio::test(flavor = "multi_thread")]
async fn limits_ephemeral_containers_to_mountable_secrets() {
    let (api, namespace) = (shared().admin(), shared().admin().namespace().await);
    let core = format!("/api/v1/namespaces/{namespace}");
    let account = json!({"metadata": {"name": "strict", "annotations": {"kubernetes.io/enforce-mountable-secrets": "true"}}, "secrets": [{"name": "known"}]});
    api.post(&format!("{core}/serviceaccounts"), &account).await.ok();
    let mut strict = pod("p");
    strict["spec"]["serviceAccountName"] = json!("strict");
    api.post(&format!("{core}/pods"), &strict).await.ok();
    let add = async |name: &str, fields: Value| {
        let mut container = json!({"name": name, "image": "i"});
        container.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let patch = json!({"spec": {"ephemeralContainers": [container]}});
        api.patch(&format!("{core}/pods/p/ephemeralcontainers"), "strategic", &patch).await
    };
    let env = |secret: &str| json!({"env": [{"name": "V", "valueFrom": {"secretKeyRef": {"name": secret, "key": "k"}}}]});
    let from = |secret: &str| json!({"envFrom": [{"secretRef": {"name": secret}}]});
    for (fields, how) in [(env("other"), "envVar V"), (from("other"), "envFrom")] {
        let message = add("d", fields).await.refused(403, "Forbidden");
        assert_eq!(
            message,
            format!(
                "pods \"p\" is forbidden: ephemeral container d with {how} referencing secret.secretName=\"other\" is not allowed because service account strict does not reference that secret"
            )
        );
    }
    add("e", env("known")).await.ok();
    add("f", from("known")).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn rejects_deletion_with_unknown_dry_run() {
    let (api, namespace) = (shared().admin(), shared().admin().namespace().await);
    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    api.post(&maps, &config_map("a", json!({}))).await.ok();
    let none = Value::Null;
    for (path, body) in [
        (format!("{maps}/a?dryRun=all"), &none),
        (format!("{maps}/a"), &json!({"dryRun": ["all"]})),
        (format!("{maps}?dryRun=all"), &none),
    ] {
        let message = send(&api, "DELETE", &path, JSON, body).await.refused(422, "Invalid");
        assert!(message.contains("dryRun: Unsupported value: [\"all\"]"), "{message}");
    }
    api.get(&format!("{maps}/a")).await.ok();
}

/// Clients create Pods right after a namespace, whose account `default` a controller creates.
#[tokio::test(flavor = "multi_thread")]
async fn pods_of_new_namespace_wait_for_its_default_account() {
    let api = shared().admin();
    for i in 0..5 {
        let name = format!("unready-{i}");
        api.post("/api/v1/namespaces", &json!({"metadata": {"name": name}})).await.ok();
        let core = format!("/api/v1/namespaces/{name}");
        let (pods, accounts) = (format!("{core}/pods"), format!("{core}/serviceaccounts"));
        let (new_pod, account) = (pod("p"), json!({"metadata": {"name": "default"}}));
        let (made, _) = tokio::join!(api.post(&pods, &new_pod), api.post(&accounts, &account));
        made.ok();
    }
    let mut other = pod("q");
    other["spec"]["serviceAccountName"] = json!("absent");
    let told =
        api.post("/api/v1/namespaces/unready-0/pods", &other).await.refused(403, "Forbidden");
    assert!(told.contains("serviceaccount \"absent\" not found"), "{told}");
}
