//! A worker below a temporary root, and a kops-controller that checks requests as upstream's does.

use std::fs;

use api_config::Kubeconfig;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, ParsedPublicKey};
use futures_util::future::BoxFuture;
use http::Response;
use http_body_util::BodyExt as _;
use kops_core::content_hash;
use parking_lot::Mutex;
use pki::{Authority, Cert, LeafSpec, Subject, Usage, Validity};
use serve::{Body, Handler, Limits, ServerTls, answer};
use sys::RecordedPrograms;

use super::*;
use crate::systemd::{
    configure,
    tests::{BASE, assets, is_root, prepare, programs},
};

const MACHINE: &str = "worker-1";
const NAME: &str = "kops-controller.internal.demo.example.com";
/// The ID of the key pair that signs certificates.
const KEYPAIR: &str = "7";

/// The state of the cluster.
#[derive(Default)]
struct ClusterState {
    /// The public key of the machine's Host; empty without a Host.
    host: String,
    /// `true` if the machine's Node is ready.
    is_ready: bool,
    /// The node configuration.
    config: String,
    /// The number of certificates that were issued.
    issued: usize,
}

struct FakeController {
    authority: Authority,
    state: Mutex<ClusterState>,
}

fn hour() -> Validity {
    Validity::starting(rt::now(), Duration::from_secs(3600))
}

/// Returns the content of a PEM block with this label.
fn der(pem: &str, label: &str) -> Option<Vec<u8>> {
    let body = pem.strip_prefix(&format!("-----BEGIN {label}-----\n"))?;
    let body: String = body.lines().take_while(|line| !line.starts_with('-')).collect();
    STANDARD.decode(body).ok()
}

impl FakeController {
    /// Returns the machine that signed a request.
    fn verify(&self, authorization: &str, body: &[u8]) -> Option<String> {
        let token = STANDARD.decode(authorization.strip_prefix("x-pki-tpm ")?).ok()?;
        let token: Value = serde_json::from_slice(&token).ok()?;
        let part = |name: &str| STANDARD.decode(token.text(name)).ok();
        let (data, signature) = (part("data")?, part("signature")?);
        let host = der(&self.state.lock().host, "PUBLIC KEY")?;
        let key = ParsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &host).ok()?;
        key.verify_sig(&data, &signature).ok()?;
        let claim: Value = serde_json::from_slice(&data).ok()?;
        let skew = claim.at("timestamp").as_i64()? - Timestamp::from(rt::now()).unix();
        let is_current = skew.abs() < 300 && claim.text("audience") == "kops.k8s.io/node-bootstrap";
        let is_own = claim.text("requestHash") == STANDARD.encode(Sha256::digest(body));
        (is_current && is_own).then(|| claim.text("instance").to_owned())
    }

    fn issue(&self, name: &str, key: &str, machine: &str) -> Option<String> {
        let (subject, usage) = match name {
            "kubelet" => {
                let subject = Subject::new(format!("system:node:{machine}"));
                (subject.in_group("system:nodes"), Usage::Client)
            }
            "kubelet-server" => (Subject::new(machine), Usage::Server),
            "kube-proxy" => (Subject::new("system:kube-proxy"), Usage::Client),
            _ => return None,
        };
        let spec = LeafSpec { subject, alt_names: Vec::new(), usage };
        let cert = self.authority.issue_to(&spec, &der(key, "RSA PUBLIC KEY")?, hour()).ok()?;
        self.state.lock().issued += 1;
        Some(cert.to_pem())
    }

    fn answer(&self, authorization: &str, body: &[u8]) -> Response<Body> {
        let refuse = |status, text: &str| answer(status, "text/plain", text.to_owned());
        let Some(machine) = self.verify(authorization, body) else {
            return refuse(StatusCode::FORBIDDEN, "failed to verify token");
        };
        if self.state.lock().is_ready {
            return refuse(StatusCode::CONFLICT, "node already registered");
        }
        let request: Value = serde_json::from_slice(body).unwrap();
        let mut tree = json!({"Certs": {}});
        for (name, key) in request.pairs("certs") {
            assert_eq!(request["keypairIDs"], json!({"kubernetes-ca": KEYPAIR}));
            match self.issue(name, key.as_str().unwrap(), &machine) {
                Some(cert) => tree["Certs"][name] = cert.into(),
                None => return refuse(StatusCode::BAD_REQUEST, "failed to issue"),
            }
        }
        if request.flag("includeNodeConfig") {
            let secrets = json!({"dockerconfig": STANDARD.encode("{}")});
            let config = self.state.lock().config.clone();
            tree["nodeConfig"] = json!({"nodeupConfig": config, "nodeSecrets": secrets});
        }
        answer(StatusCode::OK, "application/json", tree.to_string())
    }
}

impl Handler for FakeController {
    fn handle(&self, request: Request<Body>) -> BoxFuture<'_, Response<Body>> {
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let authorization = head.headers.get(header::AUTHORIZATION);
            let authorization = authorization.and_then(|value| value.to_str().ok());
            let body = body.collect().await.unwrap().to_bytes();
            self.answer(authorization.unwrap_or_default(), &body)
        })
    }
}

/// A worker below a temporary root, with its cluster.
struct TestWorker {
    dir: tempfile::TempDir,
    programs: RecordedPrograms,
    controller: Arc<FakeController>,
    server: String,
    hash: String,
    tasks: rt::Tasks,
}

impl TestWorker {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        prepare(dir.path(), MACHINE);
        let authority =
            Authority::create("kubernetes-ca", KeyAlgorithm::EcdsaP256, hour()).unwrap();
        let spec = LeafSpec {
            subject: Subject::new("kops-controller"),
            alt_names: vec![NAME.parse().unwrap()],
            usage: Usage::Server,
        };
        let (cert, key) = authority.issue_new(&spec, KeyAlgorithm::EcdsaP256, hour()).unwrap();
        let (cert, key) = (cert.to_pem(), key.to_pem().unwrap());
        let tls = ServerTls::new(cert.as_bytes(), key.as_bytes(), Vec::new()).unwrap();
        let config = config(dir.path()).to_string();
        let hash = content_hash(config.as_bytes());
        let state = Mutex::new(ClusterState { config, ..ClusterState::default() });
        let controller = Arc::new(FakeController { authority, state });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("https://{}/", listener.local_addr().unwrap());
        let tasks = rt::Tasks::new(rt::Shutdown::new());
        let (handler, own) = (controller.clone(), tasks.clone());
        tasks.spawn("kops-controller", async move {
            serve::serve(listener, Some(tls), Limits::default(), handler, own).await;
        });
        let programs = programs(dir.path());
        Self { dir, programs, controller, server, hash, tasks }
    }

    fn state(&self) -> parking_lot::MutexGuard<'_, ClusterState> {
        self.controller.state.lock()
    }

    async fn run(&self) -> Result<Vec<String>, Error> {
        let boot = json!({
            "CloudProvider": "metal", "ClusterName": BASE, "InstanceGroupName": "nodes",
            "InstanceGroupRole": "Node", "NodeupConfigHash": self.hash, "APIServerIPs": ["192.0.2.10"],
            "ConfigServer": {
                "servers": ["https://127.0.0.1:1/", self.server], "tlsServerName": NAME,
                "CACertificates": self.controller.authority.cert().to_pem(),
            },
        });
        configure(self.dir.path(), boot, &self.programs).await
    }

    fn text(&self, path: &str) -> String {
        let path = self.dir.path().join(path);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }
}

impl Drop for TestWorker {
    fn drop(&mut self) {
        self.tasks.shutdown().stop();
    }
}

/// Returns a worker's node configuration.
fn config(root: &Path) -> Value {
    json!({
        "ClusterName": BASE, "KubernetesVersion": "1.36.2", "CAs": {},
        "KeypairIDs": {"kubernetes-ca": KEYPAIR}, "Assets": assets(root),
        "Networking": {"nonMasqueradeCIDR": "100.64.0.0/10", "serviceClusterIPRange": "100.64.0.0/13"},
        "KubeletConfig": {
            "podManifestPath": "/etc/kubernetes/manifests", "clusterDNS": "100.64.0.10", "maxPods": 20,
            "kubeconfigPath": "/var/lib/kubelet/kubeconfig",
        },
        "KubeProxy": {"image": "registry.k8s.io/kube-proxy:v1.36.2"},
        "containerdConfig": {"version": "1.6.20"}, "FileAssets": [{"name": "note", "content": "hello"}],
        "UpdatePolicy": "external", "usesNoneDNS": true, "usesLegacyGossip": false,
    })
}

#[tokio::test]
async fn configures_worker_once_its_host_exists() {
    if !is_root() {
        return;
    }
    let worker = TestWorker::new().await;
    // Without a Host, the machine has its key and nothing else.
    let error = worker.run().await.unwrap_err().to_string();
    for part in ["403: failed to verify token", "Host worker-1", "group nodes", "public.pem"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert!(!worker.dir.path().join("var/lib/kubelet").exists());
    worker.state().host = worker.text(PUBLIC_KEY);

    worker.run().await.unwrap_or_else(|error| panic!("{error}"));
    let authority = worker.controller.authority.cert().to_pem();
    assert_eq!(worker.text("srv/kubernetes/ca.crt"), authority);
    let path = worker.dir.path().join("var/lib/kubelet/kubeconfig");
    let kubeconfig = Kubeconfig::load(&path).unwrap();
    assert_eq!(kubeconfig.clusters[0].cluster.server, "https://api.internal.demo.example.com");
    let serving = Cert::from_pem(&worker.text("srv/kubernetes/kubelet-server.crt")).unwrap();
    serving.check_signed_by(worker.controller.authority.cert()).unwrap();
    assert_eq!(serving.info().unwrap().subject, Subject::new(MACHINE));
    let hosts = worker.text("etc/hosts");
    for name in [&format!("api.internal.{BASE}"), NAME] {
        assert!(hosts.contains(&format!("192.0.2.10\t{name}\n")), "{hosts}");
    }
    assert_eq!(worker.text("root/.docker/config.json"), "{}");
    assert!(worker.text("etc/kubernetes/manifests/kube-proxy.manifest").contains("kube-proxy"));
    let calls = worker.programs.calls();
    assert!(calls.iter().any(|call| call == "systemctl restart --no-block kubelet.service"));

    // Nothing differs, so no certificate is requested again.
    assert_eq!(worker.run().await.unwrap(), Vec::<String>::new());
    assert_eq!(worker.state().issued, 3);
}

#[tokio::test]
async fn leaves_registered_worker_as_it_is() {
    if !is_root() {
        return;
    }
    let worker = TestWorker::new().await;
    worker.run().await.unwrap_err();
    worker.state().host = worker.text(PUBLIC_KEY);
    worker.state().is_ready = true;
    assert_eq!(worker.run().await.unwrap(), Vec::<String>::new());
    assert!(!worker.dir.path().join("var/lib/kubelet").exists());
}

#[tokio::test]
async fn rejects_configuration_of_other_hash_and_key_of_other_curve() {
    let worker = TestWorker::new().await;
    worker.run().await.unwrap_err();
    worker.state().host = worker.text(PUBLIC_KEY);
    worker.state().config.push('\n');
    let error = worker.run().await.unwrap_err();
    assert!(matches!(error, Error::NodeConfig), "{error}");
    let key = Key::generate(KeyAlgorithm::EcdsaP384).unwrap();
    pki::write_key(&worker.dir.path().join(KEY), &key).unwrap();
    let error = worker.run().await.unwrap_err();
    assert!(matches!(error, Error::Systemd(SystemdError::MachineKey { .. })), "{error}");
}
