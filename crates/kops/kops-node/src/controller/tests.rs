//! Requests of machines to kops-controller.

use std::collections::BTreeMap;

use api_meta::Timestamp;
use parking_lot::Mutex;
use pki::{Key, KeyAlgorithm};
use serve::full;

use super::*;

/// The objects of a cluster, by plural and name. Reading `null` fails.
#[derive(Default)]
pub(crate) struct FakeCluster(pub(crate) Mutex<BTreeMap<(String, String), Value>>);

impl FakeCluster {
    pub(crate) fn put(&self, resource: &Resource, name: &str, object: Value) {
        self.0.lock().insert((resource.plural.to_string(), name.to_owned()), object);
    }
}

impl Cluster for FakeCluster {
    fn find<'a>(
        &'a self,
        resource: &'a Resource,
        _: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Value>, client::Error>> {
        let found = self.0.lock().get(&(resource.plural.to_string(), name.to_owned())).cloned();
        let path = resource.plural.to_string();
        Box::pin(async {
            match found {
                Some(Value::Null) => Err(client::Error::TooLarge { path, limit: 0 }),
                found => Ok(found),
            }
        })
    }
}

/// Returns a Node that is Ready since `sign`.
pub(crate) fn ready_node(sign: Timestamp) -> Value {
    let ready = json!({"type": "Ready", "status": "True", "lastHeartbeatTime": sign.to_string()});
    json!({"status": {"conditions": [ready]}})
}

pub(super) struct TestController {
    _dir: tempfile::TempDir,
    pub(super) controller: Controller,
    pub(super) fleet: Authority,
}

pub(super) fn hour() -> Validity {
    Validity::starting(rt::now(), Duration::from_secs(3600))
}

pub(super) fn place(sign: Option<Timestamp>) -> TestController {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("igconfig/node/nodes-a");
    std::fs::create_dir_all(&config).unwrap();
    std::fs::write(config.join("nodeupconfig.yaml"), "ClusterName: a\n").unwrap();
    let make = |name| Authority::create(name, KeyAlgorithm::EcdsaP256, hour()).unwrap();
    let fleet = make("fleet");
    let cluster = FakeCluster::default();
    if let Some(sign) = sign {
        cluster.put(&Resource::NODES, "nodes-a-1", ready_node(sign));
    }
    let controller = Controller {
        store: Store::open(&format!("file://{}", dir.path().display())).unwrap(),
        authority: make("kubernetes-ca"),
        keypair: String::new(),
        cert_names: vec!["kubelet".to_owned(), "kube-proxy".to_owned()],
        proof: Proof::Certificate(ClientCa::from_pem(fleet.cert().to_pem().as_bytes()).unwrap()),
        cluster: Arc::new(cluster),
    };
    TestController { _dir: dir, controller, fleet }
}

pub(super) fn request(
    signer: &Authority,
    machine: &str,
    group: &str,
    asks_for: &str,
) -> Request<Body> {
    let spec = LeafSpec {
        subject: Subject::new(machine).in_group(group),
        alt_names: Vec::new(),
        usage: Usage::Client,
    };
    let (cert, _) = signer.issue_new(&spec, KeyAlgorithm::EcdsaP256, hour()).unwrap();
    let node = Subject::new(format!("system:node:{asks_for}")).in_group(NODES_GROUP);
    let certs = json!({"kubelet": csr(&node), "kube-proxy": csr(&Subject::new(PROXY_USER))});
    let body = json!({"apiVersion": API_VERSION, "certs": certs, "includeNodeConfig": true});
    let mut request = Request::post(PATH).body(full(body.to_string())).unwrap();
    let connection =
        Connection { client_certificates: vec![cert.to_rustls()], ..Connection::default() };
    request.extensions_mut().insert(Arc::new(connection));
    request
}

fn csr(subject: &Subject) -> String {
    let key = Key::generate(KeyAlgorithm::EcdsaP256).unwrap();
    SigningRequest::create(subject, &[], &key).unwrap().to_pem()
}

pub(super) async fn code(handler: &dyn Handler, request: Request<Body>) -> (u16, String) {
    let answer = handler.handle(request).await;
    let code = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (code, String::from_utf8_lossy(&body).into_owned())
}

#[tokio::test]
async fn rejects_certificates_of_other_users() {
    let place = self::place(None);
    let node = Subject::new("system:node:nodes-a-1").in_group(NODES_GROUP);
    let admin = Subject::new(PROXY_USER).in_group("system:masters");
    for (name, subject, wanted) in [
        ("kube-proxy", &admin, 403),
        ("kube-proxy", &node, 403),
        ("kubelet", &Subject::new(PROXY_USER), 403),
        ("kube-router", &node, 400),
    ] {
        let mut asked = request(&place.fleet, "nodes-a-1", "nodes-a", "nodes-a-1");
        let body = json!({"apiVersion": API_VERSION, "certs": {name: csr(subject)}});
        *asked.body_mut() = full(body.to_string());
        let (code, body) = code(&place.controller, asked).await;
        assert!(code == wanted && body.contains(name), "{name} {subject}: {code} {body}");
    }
}

#[tokio::test]
async fn machine_gets_its_certificates_and_configuration() {
    let place = place(None);
    let (code, body) =
        code(&place.controller, request(&place.fleet, "nodes-a-1", "nodes-a", "nodes-a-1")).await;
    assert_eq!(code, 200, "{body}");
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(answer.text("nodeConfig.nodeupConfig"), "ClusterName: a\n");
    let cert = pki::Cert::from_pem(answer.text("certs.kubelet")).unwrap();
    cert.check_signed_by(place.controller.authority.cert()).unwrap();
    assert_eq!(cert.info().unwrap().subject.common_name, "system:node:nodes-a-1");
    let proxy = pki::Cert::from_pem(answer.text("certs.kube-proxy")).unwrap();
    assert_eq!(proxy.info().unwrap().subject, Subject::new(PROXY_USER));
}

#[tokio::test]
async fn workers_get_the_credentials_of_registries_only() {
    let place = self::place(None);
    let secrets = place._dir.path().join("secrets");
    std::fs::create_dir_all(&secrets).unwrap();
    std::fs::write(secrets.join("encryptionconfig"), r#"{"Data": "a2V5"}"#).unwrap();
    let ask = || request(&place.fleet, "nodes-a-1", "nodes-a", "nodes-a-1");
    let (_, body) = code(&place.controller, ask()).await;
    assert!(!body.contains("nodeSecrets"), "{body}");
    std::fs::write(secrets.join("dockerconfig"), r#"{"Data": "e30="}"#).unwrap();
    let (status, body) = code(&place.controller, ask()).await;
    let answer: Value = serde_json::from_str(&body).unwrap();
    let secrets_of = answer.at("nodeConfig.nodeSecrets");
    assert_eq!((status, secrets_of), (200, &json!({"dockerconfig": "e30="})), "{body}");
    // Only an admitted worker gets them.
    let stranger = Authority::create("fleet", KeyAlgorithm::EcdsaP256, hour()).unwrap();
    let (status, body) =
        code(&place.controller, request(&stranger, "nodes-a-1", "nodes-a", "nodes-a-1")).await;
    assert!(status == 403 && !body.contains("e30="), "{body}");
    std::fs::write(secrets.join("dockerconfig"), r#"{"Data": "?"}"#).unwrap();
    assert_eq!(code(&place.controller, ask()).await.0, 503);
}

#[tokio::test]
async fn rejects_machines_without_rights() {
    let place = self::place(None);
    let stranger = Authority::create("fleet", KeyAlgorithm::EcdsaP256, hour()).unwrap();
    for (request, wanted) in [
        // Another authority of the same name, another machine's Node, another group, and a group that is not of
        // workers.
        (request(&stranger, "nodes-a-1", "nodes-a", "nodes-a-1"), 403),
        (request(&place.fleet, "nodes-a-1", "nodes-a", "nodes-a-2"), 403),
        (request(&place.fleet, "nodes-a-1", "nodes-b", "nodes-a-1"), 403),
        (request(&place.fleet, "control-plane-a-1", "control-plane-a", "control-plane-a-1"), 403),
        (request(&place.fleet, "../x-1", "../x", "../x-1"), 503),
        (Request::post(PATH).body(full("{}")).unwrap(), 403),
    ] {
        let (code, body) = code(&place.controller, request).await;
        assert_eq!(code, wanted, "{body}");
        assert!(!body.contains("CERTIFICATE"), "{body}");
    }
    // The identity is created now. A sign of life since then means that the name is taken; no sign means that it is
    // free.
    let own = Timestamp::from(rt::now());
    for (sign, wanted) in
        [(own.plus(Duration::from_secs(2)), 409), (Timestamp::from_unix(own.unix() - 2, 0), 200)]
    {
        let taken = self::place(Some(sign));
        let again = request(&taken.fleet, "nodes-a-1", "nodes-a", "nodes-a-1");
        assert_eq!(code(&taken.controller, again).await.0, wanted);
    }
    let mut large = request(&place.fleet, "nodes-a-1", "nodes-a", "nodes-a-1");
    *large.body_mut() = full(vec![b' '; LARGEST + 1]);
    assert_eq!(code(&place.controller, large).await.0, 400);
}

#[test]
fn parses_group_of_a_machines_name() {
    assert_eq!(group_of("nodes-a-12"), Some("nodes-a"));
    for name in ["nodes", "nodes-", "-1", "nodes-a"] {
        assert_eq!(group_of(name), None, "{name}");
    }
}
