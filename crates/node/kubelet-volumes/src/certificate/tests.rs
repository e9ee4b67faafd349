use std::sync::Arc;

use client::{PatchTarget, Resource};
use k8s_openapi::api::core::v1::{Pod, Volume};
use parking_lot::Mutex;
use pki::{Authority, Key, KeyAlgorithm, LeafSpec, SigningRequest, Subject, Usage, Validity};
use pod_core::fields::NodeFacts;
use rt::Clock as _;
use serde_json::{Value, json};
use sys::mount::RecordedMounts;
use testkit::FakeApi;

use super::*;
use crate::{Certificates, Tokens, Volumes};

const REQUESTS: Resource = Resource::POD_CERTIFICATE_REQUESTS;

/// A clock that tests set.
struct ManualClock(Mutex<std::time::SystemTime>);

impl ManualClock {
    fn advance(&self, by: Duration) {
        *self.0.lock() += by;
    }
}

impl rt::Clock for ManualClock {
    fn now(&self) -> std::time::SystemTime {
        *self.0.lock()
    }
}

/// A kubelet with a Pod that has a certificate, and a signer.
struct Scene {
    api: FakeApi,
    clock: Arc<ManualClock>,
    volumes: Volumes,
    pod: Pod,
    volume: Volume,
    authority: Authority,
    _root: tempfile::TempDir,
}

impl Scene {
    async fn new() -> Self {
        let api = FakeApi::default();
        let now = std::time::UNIX_EPOCH + Duration::from_secs(1_790_000_000);
        let clock = Arc::new(ManualClock(Mutex::new(now)));
        api.create(&Resource::NODES, json!({"metadata": {"name": "node"}})).await;
        let account = json!({"metadata": {"name": "default", "namespace": "d"}});
        api.create(&Resource::SERVICE_ACCOUNTS, account).await;
        let root = tempfile::tempdir().unwrap();
        let mounts = Arc::new(RecordedMounts::default());
        let mut volumes = crate::tests::volumes(root.path(), mounts, Some(api.client("kubelet")));
        volumes.clock = clock.clone();
        while volumes.node.get().is_none() {
            tokio::task::yield_now().await;
        }
        let pod = json!({"metadata": {"name": "p", "namespace": "d", "uid": "u"},
            "spec": {"containers": [], "securityContext": {"fsGroup": 7}}});
        let validity = Validity::starting(now, Duration::from_secs(1 << 25));
        Self {
            api,
            clock,
            volumes,
            pod: serde_json::from_value(pod).unwrap(),
            volume: serde_json::from_value(json!({"name": "v"})).unwrap(),
            authority: Authority::create("ca", KeyAlgorithm::EcdsaP256, validity).unwrap(),
            _root: root,
        }
    }

    async fn files(&self) -> Result<Files, Error> {
        let (node, tokens) = (NodeFacts::default, Tokens::default());
        let request = Request {
            volumes: &self.volumes,
            pod: &self.pod,
            volume: &self.volume,
            node: &node,
            tokens: &tokens,
        };
        let projection = json!({"signerName": "a.b/c", "keyType": "ECDSAP256", "maxExpirationSeconds": 7200,
            "credentialBundlePath": "bundle.pem", "keyPath": "key.pem", "certificateChainPath": "chain.pem",
            "userAnnotations": {"a.b/c": "d"}});
        files(&request, 0, &serde_json::from_value(projection).unwrap(), 0o644).await
    }

    /// Waits until the kubelet has made this number of requests, and returns the last.
    async fn request(&self, count: usize) -> Value {
        loop {
            let mut all = self.api.list(&REQUESTS, "d");
            if all.len() == count {
                all.sort_by_key(|request| request["metadata"]["name"].to_string());
                return all.pop().unwrap();
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Returns a certificate for the key of a request.
    fn certificate(&self, request: &Value) -> String {
        let stub = request["spec"]["stubPKCS10Request"].as_str().unwrap();
        let stub = data_encoding::BASE64.decode(stub.as_bytes()).unwrap();
        let stub = SigningRequest::from_der(stub).unwrap();
        let validity = Validity {
            not_before: self.volumes.clock.now(),
            not_after: self.volumes.clock.now() + Duration::from_secs(7200),
        };
        let issued = self.authority.issue_to(&leaf(), stub.public_key().unwrap(), validity);
        issued.unwrap().to_pem()
    }

    async fn answer(&self, request: &Value, status: Value) {
        let name = request["metadata"]["name"].as_str().unwrap();
        let at = PatchTarget { namespace: "d", name, subresource: "status" };
        self.api.merge(&REQUESTS, at, json!({"status": status})).await;
    }

    fn issued(&self, chain: &str) -> Value {
        let now = Timestamp::from(self.volumes.clock.now());
        json!({"certificateChain": chain, "notBefore": now,
            "beginRefreshAt": now.plus(Duration::from_secs(3600)),
            "notAfter": now.plus(Duration::from_secs(7200)),
            "conditions": [{"type": "Issued", "status": "True", "reason": "Signed"}]})
    }
}

fn leaf() -> LeafSpec {
    LeafSpec { subject: Subject::new("p"), alt_names: Vec::new(), usage: Usage::Client }
}

fn text(files: &Files, name: &str) -> String {
    String::from_utf8(files[name].content.to_vec()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn key_stays_on_the_node_and_certificate_is_refreshed() {
    let scene = Scene::new().await;
    let sign = async {
        let request = scene.request(1).await;
        scene.answer(&request, scene.issued(&scene.certificate(&request))).await;
        request
    };
    let (files, request) = tokio::join!(scene.files(), sign);
    let files = files.unwrap();
    let spec = &request["spec"];
    assert_eq!((&spec["podUID"], &spec["nodeName"]), (&json!("u"), &json!("node")));
    assert_eq!(
        (&spec["maxExpirationSeconds"], &spec["signerName"]),
        (&json!(7200), &json!("a.b/c"))
    );
    assert_eq!(spec["unverifiedUserAnnotations"], json!({"a.b/c": "d"}));
    assert!(!request.to_string().contains("PRIVATE"), "{request}");
    let (key, chain) = (text(&files, "key.pem"), text(&files, "chain.pem"));
    pki::Cert::from_pem(&chain).unwrap().check_key(&Key::from_pem(&key).unwrap()).unwrap();
    assert_eq!(text(&files, "bundle.pem"), format!("{key}{chain}"));
    assert!(files.values().all(|file| file.mode == 0o600), "only the Pod's group reads them");
    // Nothing is requested before it is time.
    let due = scene.volumes.certificates.due("u").unwrap();
    assert!(due >= Timestamp::from(scene.clock.now()).plus(Duration::from_secs(3600)));
    assert_eq!(text(&scene.files().await.unwrap(), "key.pem"), key);
    assert_eq!(scene.api.list(&REQUESTS, "d").len(), 1);
    // The old certificate stays until the new one is issued.
    scene.clock.advance(Duration::from_secs(3600) + JITTER);
    assert_eq!(text(&scene.files().await.unwrap(), "key.pem"), key);
    assert_eq!(scene.volumes.certificates.due("u"), None);
    let request = scene.request(2).await;
    assert_eq!(text(&scene.files().await.unwrap(), "key.pem"), key);
    scene.answer(&request, scene.issued(&scene.certificate(&request))).await;
    let files = scene.files().await.unwrap();
    let (second, chain) = (text(&files, "key.pem"), text(&files, "chain.pem"));
    assert_ne!(second, key);
    pki::Cert::from_pem(&chain).unwrap().check_key(&Key::from_pem(&second).unwrap()).unwrap();
    scene.volumes.certificates.forget("u");
    assert_eq!(scene.volumes.certificates.due("u"), None);
}

#[tokio::test(start_paused = true)]
async fn unanswered_request_is_repeated_only_when_it_was_deleted() {
    let scene = Scene::new().await;
    for _ in 0..3 {
        let error = scene.files().await.unwrap_err().to_string();
        assert_eq!(error, "credential bundle is not issued yet");
    }
    let request = scene.request(1).await;
    let name = request["metadata"]["name"].as_str().unwrap();
    let client = scene.api.client("gc");
    client.delete(&REQUESTS, "d", name, &Default::default()).await.unwrap();
    scene.files().await.unwrap_err();
    assert!(scene.api.list(&REQUESTS, "d").is_empty());
    scene.clock.advance(ABANDONED);
    scene.files().await.unwrap_err();
    assert_eq!(scene.api.list(&REQUESTS, "d").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn refusals_and_hostile_chains_are_final() {
    let other = Key::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let refused = |kind: &str| json!({"conditions": [{"type": kind, "status": "True", "reason": "No", "message": "never"}]});
    let garbage = pki::encode("CERTIFICATE", &[7; 64]);
    let huge = "x".repeat(1 << 20);
    for (answer, words) in [
        (refused("Denied"), "permanently denied: reason=\"No\" message=\"never\""),
        (refused("Failed"), "permanently failed: reason=\"No\" message=\"never\""),
        (json!({"chain": ""}), "it has no certificate"),
        (json!({"chain": "garbage"}), "it has no certificate"),
        (json!({"chain": garbage}), "cannot be parsed"),
        (json!({"chain": huge}), "it is longer than 102400 bytes"),
        (json!({"chain": other.to_pem().unwrap()}), "PEM block \"EC PRIVATE KEY\""),
        (json!({"other": true}), "its first certificate has another public key"),
        (json!({"untimed": true}), "the status has no beginRefreshAt"),
    ] {
        let scene = Scene::new().await;
        let sign = async {
            let request = scene.request(1).await;
            let validity = Validity::starting(scene.clock.now(), Duration::from_secs(7200));
            let foreign = scene.authority.issue(&leaf(), &other, validity).unwrap().to_pem();
            let mut status = match (&answer["chain"], &answer["other"], &answer["untimed"]) {
                (Value::String(chain), _, _) => scene.issued(chain),
                (_, Value::Bool(true), _) => scene.issued(&foreign),
                (_, _, Value::Bool(true)) => scene.issued(&scene.certificate(&request)),
                _ => answer.clone(),
            };
            if answer["untimed"] == true {
                status["beginRefreshAt"] = Value::Null;
            }
            scene.answer(&request, status).await;
        };
        let (files, ()) = tokio::join!(scene.files(), sign);
        let error = files.unwrap_err().to_string();
        assert!(error.contains(words), "{words}: {error}");
        assert_eq!(scene.files().await.unwrap_err().to_string(), error);
        assert_eq!(scene.api.list(&REQUESTS, "d").len(), 1, "{words}");
    }
}

#[tokio::test(start_paused = true)]
async fn source_is_an_error_while_the_gate_is_off() {
    let mut scene = Scene::new().await;
    scene.volumes.certificates = Certificates::new(false);
    let error = scene.files().await.unwrap_err().to_string();
    assert!(error.contains("feature gate PodCertificateRequest"), "{error}");
    assert!(scene.api.list(&REQUESTS, "d").is_empty());
}
