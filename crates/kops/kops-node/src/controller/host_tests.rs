//! Requests of machines that prove their identity by the key of their Host.

use api_meta::Timestamp;
use pki::{Key, KeyAlgorithm};
use serve::full;
use sha2::{Digest as _, Sha256};

use super::{
    tests::{FakeCluster, code, hour, ready_node},
    *,
};

const MACHINE: &str = "worker-1";
const SKEW: Duration = Duration::from_secs(300);
const REJECTED: &str = "failed to verify token";

/// Returns a controller of machines with Hosts. `store` is the directory of the state store.
pub(crate) fn controller(store: &Path, authority: Authority, keypair: &str) -> HostController {
    let cluster = Arc::new(FakeCluster::default());
    let controller = Controller {
        store: Store::open(&format!("file://{}", store.display())).unwrap(),
        authority,
        keypair: keypair.to_owned(),
        cert_names: ["kubelet", "kubelet-server", "kube-proxy"].map(str::to_owned).into(),
        proof: Proof::Host { skew: SKEW },
        cluster: cluster.clone(),
    };
    HostController { handler: Arc::new(controller), cluster }
}

/// A controller with its cluster.
pub(crate) struct HostController {
    pub(crate) handler: Arc<dyn Handler>,
    pub(crate) cluster: Arc<FakeCluster>,
}

/// A controller, its state store, and the key of a machine.
struct Place {
    _dir: tempfile::TempDir,
    handler: Arc<dyn Handler>,
    cluster: Arc<FakeCluster>,
    key: Key,
}

fn key() -> Key {
    Key::generate(KeyAlgorithm::EcdsaP256).unwrap()
}

fn host(group: &str, public_key: &str) -> Value {
    json!({"spec": {"instanceGroup": group, "publicKey": public_key}})
}

fn place() -> Place {
    let dir = tempfile::tempdir().unwrap();
    for path in ["node/workers", "controlplane/main"] {
        let config = dir.path().join("igconfig").join(path);
        std::fs::create_dir_all(&config).unwrap();
        std::fs::write(config.join("nodeupconfig.yaml"), "ClusterName: a\n").unwrap();
    }
    let authority = Authority::create(SIGNER, KeyAlgorithm::EcdsaP256, hour()).unwrap();
    let HostController { handler, cluster } = controller(dir.path(), authority, "7");
    let key = key();
    cluster.put(&HOSTS, MACHINE, host("workers", &key.public_pem().unwrap()));
    Place { _dir: dir, handler, cluster, key }
}

fn public_key() -> String {
    pki::encode(REQUEST_LABEL, &key().public_der().unwrap())
}

fn body() -> Value {
    json!({
        "apiVersion": API_VERSION, "certs": {"kubelet": public_key(), "kubelet-server": public_key()},
        "keypairIDs": {SIGNER: "7"}, "includeNodeConfig": true,
    })
}

fn claim(body: &str) -> Value {
    json!({
        "instance": MACHINE, "requestHash": STANDARD.encode(Sha256::digest(body)),
        "timestamp": Timestamp::from(rt::now()).unix(), "audience": AUDIENCE,
    })
}

/// Returns the token of a claim.
fn token(claim: &Value, key: &Key) -> String {
    let data = claim.to_string();
    let signature = STANDARD.encode(key.sign(data.as_bytes()).unwrap());
    json!({"data": STANDARD.encode(data), "signature": signature}).to_string()
}

fn request(token: &str, body: String) -> Request<Body> {
    let authorization = format!("{SCHEME} {}", STANDARD.encode(token));
    let request = Request::post(PATH).header(header::AUTHORIZATION, authorization);
    request.body(full(body)).unwrap()
}

impl Place {
    /// Sends a request of the machine.
    async fn send(&self, body: &Value) -> (u16, String) {
        let body = body.to_string();
        code(&*self.handler, request(&token(&claim(&body), &self.key), body)).await
    }

    /// Sends a request with a claim that differs.
    async fn send_claim(&self, field: &str, value: Value) -> (u16, String) {
        let body = body().to_string();
        let mut claim = claim(&body);
        claim[field] = value;
        code(&*self.handler, request(&token(&claim, &self.key), body)).await
    }
}

#[tokio::test]
async fn machine_with_a_host_gets_certificates_for_its_name_only() {
    let place = place();
    let (status, text) = place.send(&body()).await;
    assert_eq!(status, 200, "{text}");
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer.text("nodeConfig.nodeupConfig"), "ClusterName: a\n");
    let info = |name: &str| Cert::from_pem(answer.text(&["certs", name])).unwrap().info().unwrap();
    let (client, server) = (info("kubelet"), info("kubelet-server"));
    let node = Subject::new(format!("system:node:{MACHINE}")).in_group(NODES_GROUP);
    assert_eq!((client.subject, client.client_auth, client.server_auth), (node, true, false));
    assert_eq!(server.subject, Subject::new(MACHINE));
    assert!(server.server_auth && !server.client_auth && server.alt_names.is_empty());
}

#[tokio::test]
async fn rejects_claims_for_other_times_bodies_and_audiences() {
    let place = place();
    let now = Timestamp::from(rt::now()).unix();
    for skew in [-290, 290] {
        assert_eq!(place.send_claim("timestamp", (now + skew).into()).await.0, 200, "{skew}");
    }
    let other = STANDARD.encode(Sha256::digest("{}"));
    for (field, value) in [
        ("timestamp", json!(now - 310)),
        ("timestamp", json!(now + 310)),
        ("timestamp", json!(i64::MIN)),
        ("timestamp", json!(u64::MAX)),
        ("timestamp", Value::Null),
        ("requestHash", other.into()),
        ("audience", "kops.k8s.io/other".into()),
        ("audience", Value::Null),
        ("instance", "worker-2".into()),
        ("instance", "".into()),
        ("instance", "../nodes/worker-1".into()),
        ("instance", "a".repeat(6000).into()),
    ] {
        let shown = value.to_string();
        let answer = place.send_claim(field, value).await;
        assert_eq!(answer, (403, REJECTED.to_owned()), "{field} {shown:.80}");
    }
}

#[tokio::test]
async fn rejects_foreign_keys_and_malformed_tokens() {
    let place = place();
    let text = body().to_string();
    let own = token(&claim(&text), &place.key);
    let foreign = token(&claim(&text), &key());
    let nested = format!("{}{}", "[".repeat(4000), "]".repeat(4000));
    for token in ["", "{}", "null", "[1]", r#"{"data": "?", "signature": "?"}"#, &nested, &foreign]
    {
        let answer = code(&*place.handler, request(token, text.clone())).await;
        assert_eq!(answer, (403, REJECTED.to_owned()), "{token:.80}");
    }
    let encoded = STANDARD.encode(&own);
    let headers = [format!("Bearer {encoded}"), encoded, SCHEME.to_owned(), format!("{SCHEME} %")];
    for header in headers {
        let request = Request::post(PATH).header(header::AUTHORIZATION, &header);
        let answer = code(&*place.handler, request.body(full(text.clone())).unwrap()).await;
        assert_eq!(answer, (403, REJECTED.to_owned()), "{header:.80}");
    }
    let plain = Request::post(PATH).body(full(text.clone())).unwrap();
    assert_eq!(code(&*place.handler, plain).await.0, 403);
    // A Host without a usable key or group admits no machine.
    let own_key = place.key.public_pem().unwrap();
    let private = place.key.to_pem().unwrap();
    for (group, public_key) in [
        ("", own_key.as_str()),
        ("../node/workers", &own_key),
        ("workers", ""),
        ("workers", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"),
        ("workers", &private),
    ] {
        place.cluster.put(&HOSTS, MACHINE, host(group, public_key));
        let answer = code(&*place.handler, request(&own, text.clone())).await;
        assert_eq!(answer, (403, REJECTED.to_owned()), "{group} {public_key:.30}");
    }
}

#[tokio::test]
async fn rejects_what_a_machine_may_not_have() {
    let place = place();
    let csr = |name: &str| {
        let subject = Subject::new(name).in_group(NODES_GROUP);
        SigningRequest::create(&subject, &[], &key()).unwrap().to_pem()
    };
    let broken = pki::encode(REQUEST_LABEL, &[0x30, 0x03, 1, 2, 3]);
    for (name, content, wanted) in [
        ("kubelet", csr("system:node:worker-2"), 403),
        ("kubelet", csr("system:node:worker-1"), 200),
        ("kubelet", broken, 400),
        ("kubelet", public_key().repeat(2), 400),
        ("kubelet", public_key().replace("RSA ", ""), 400),
        ("kube-router", public_key(), 400),
        ("etcd-client-cilium", public_key(), 400),
    ] {
        let mut body = body();
        body["certs"] = json!({name: content});
        let (status, text) = place.send(&body).await;
        assert_eq!(status, wanted, "{name}: {text}");
    }
    let mut other = body();
    other["keypairIDs"] = json!({SIGNER: "8"});
    assert_eq!(place.send(&other).await.0, 400);
    let large = json!({"apiVersion": API_VERSION, "certs": {"kubelet": " ".repeat(LARGEST)}});
    assert_eq!(place.send(&large).await.0, 400);
    // Only groups of workers get a configuration.
    let own = place.key.public_pem().unwrap();
    for group in ["main", "unknown"] {
        place.cluster.put(&HOSTS, MACHINE, host(group, &own));
        let (status, text) = place.send(&body()).await;
        assert!(status == 403 && text.contains(group), "{status} {text}");
    }
}

#[tokio::test]
async fn rejects_machine_whose_node_is_ready() {
    let place = place();
    // The time of the last sign does not matter, because a Host has no time of creation of its machine.
    let old = Timestamp::from_unix(1, 0);
    place.cluster.put(&Resource::NODES, MACHINE, ready_node(old));
    let (status, text) = place.send(&body()).await;
    assert!(status == 409 && !text.contains("CERTIFICATE"), "{status} {text}");
    let mut silent = ready_node(old);
    silent["status"]["conditions"][0]["status"] = "Unknown".into();
    place.cluster.put(&Resource::NODES, MACHINE, silent);
    assert_eq!(place.send(&body()).await.0, 200);
}

#[tokio::test]
async fn admits_no_machine_while_the_api_fails() {
    for resource in [HOSTS, Resource::NODES] {
        let place = place();
        place.cluster.put(&resource, MACHINE, Value::Null);
        let (status, text) = place.send(&body()).await;
        assert!(status == 503 && !text.contains("CERTIFICATE"), "{status} {text}");
    }
}

#[test]
fn host_tokens() {
    let place = place();
    let text = body().to_string();
    let seed = token(&claim(&text), &place.key);
    fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "host-tokens", &[seed.as_bytes()], |input| {
        let authorization = format!("{SCHEME} {}", STANDARD.encode(input));
        let request = Request::post(PATH).header(header::AUTHORIZATION, authorization);
        let request = request.body(full(text.clone())).unwrap();
        let answer = place.handler.handle(request).now_or_never().unwrap();
        // A token that differs may still have the same data and signature.
        assert!([200, 403].contains(&answer.status().as_u16()), "{}", answer.status());
    });
}
