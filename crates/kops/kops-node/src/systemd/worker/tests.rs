//! A worker below a temporary root, and our kops-controller.

use std::fs;

use api_config::Kubeconfig;
use client::Resource;
use kops_core::content_hash;
use pki::{Authority, Cert, LeafSpec, Subject, Usage, Validity};
use serve::{Limits, ServerTls};
use sys::RecordedPrograms;

use super::*;
use crate::{
    controller::{
        HOSTS,
        host_tests::{HostController, controller},
        tests::{FakeCluster, ready_node},
    },
    systemd::{
        configure,
        tests::{BASE, assets, is_root, prepare, programs},
    },
};

const MACHINE: &str = "worker-1";
const NAME: &str = "kops-controller.internal.demo.example.com";
/// The ID of the key pair that signs certificates.
const KEYPAIR: &str = "7";
/// The path of the node configuration in the state store.
const CONFIG: &str = "igconfig/node/nodes/nodeupconfig.yaml";

fn hour() -> Validity {
    Validity::starting(rt::now(), Duration::from_secs(3600))
}

/// A worker below a temporary root, with its cluster.
struct TestWorker {
    dir: tempfile::TempDir,
    programs: RecordedPrograms,
    store: tempfile::TempDir,
    authority: Cert,
    cluster: Arc<FakeCluster>,
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
        let store = tempfile::tempdir().unwrap();
        let write = |path: &str, content: &str| {
            let path = store.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        };
        write(CONFIG, &config);
        write("secrets/dockerconfig", r#"{"Data": "e30="}"#);
        let trusted = authority.cert().clone();
        let HostController { handler, cluster } = controller(store.path(), authority, KEYPAIR);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("https://{}/", listener.local_addr().unwrap());
        let tasks = rt::Tasks::new(rt::Shutdown::new());
        let own = tasks.clone();
        tasks.spawn("kops-controller", async move {
            serve::serve(listener, Some(tls), Limits::default(), handler, own).await;
        });
        let programs = programs(dir.path());
        Self { dir, programs, store, authority: trusted, cluster, server, hash, tasks }
    }

    /// Creates the machine's Host.
    fn enroll(&self) {
        let spec = json!({"instanceGroup": "nodes", "publicKey": self.text(PUBLIC_KEY)});
        self.cluster.put(&HOSTS, MACHINE, json!({"spec": spec}));
    }

    async fn run(&self) -> Result<Vec<String>, Error> {
        let boot = json!({
            "CloudProvider": "metal", "ClusterName": BASE, "InstanceGroupName": "nodes",
            "InstanceGroupRole": "Node", "NodeupConfigHash": self.hash, "APIServerIPs": ["192.0.2.10"],
            "ConfigServer": {
                "servers": ["https://127.0.0.1:1/", self.server], "tlsServerName": NAME,
                "CACertificates": self.authority.to_pem(),
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
    worker.enroll();

    worker.run().await.unwrap_or_else(|error| panic!("{error}"));
    let authority = worker.authority.to_pem();
    assert_eq!(worker.text("srv/kubernetes/ca.crt"), authority);
    let path = worker.dir.path().join("var/lib/kubelet/kubeconfig");
    let kubeconfig = Kubeconfig::load(&path).unwrap();
    assert_eq!(kubeconfig.clusters[0].cluster.server, "https://api.internal.demo.example.com");
    let serving = Cert::from_pem(&worker.text("srv/kubernetes/kubelet-server.crt")).unwrap();
    serving.check_signed_by(&worker.authority).unwrap();
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
    let kubelet = "var/lib/nodeup/certificates/kubelet.crt";
    let before = worker.text(kubelet);
    assert_eq!(worker.run().await.unwrap(), Vec::<String>::new());
    assert_eq!(worker.text(kubelet), before);
}

#[tokio::test]
async fn leaves_registered_worker_as_it_is() {
    if !is_root() {
        return;
    }
    let worker = TestWorker::new().await;
    worker.run().await.unwrap_err();
    worker.enroll();
    worker.cluster.put(&Resource::NODES, MACHINE, ready_node(rt::now().into()));
    assert_eq!(worker.run().await.unwrap(), Vec::<String>::new());
    assert!(!worker.dir.path().join("var/lib/kubelet").exists());
}

#[tokio::test]
async fn rejects_configuration_of_other_hash_and_key_of_other_curve() {
    let worker = TestWorker::new().await;
    worker.run().await.unwrap_err();
    worker.enroll();
    let path = worker.store.path().join(CONFIG);
    fs::write(&path, fs::read_to_string(&path).unwrap() + "\n").unwrap();
    let error = worker.run().await.unwrap_err();
    assert!(matches!(error, Error::NodeConfig), "{error}");
    let key = Key::generate(KeyAlgorithm::EcdsaP384).unwrap();
    pki::write_key(&worker.dir.path().join(KEY), &key).unwrap();
    let error = worker.run().await.unwrap_err();
    assert!(matches!(error, Error::Systemd(SystemdError::MachineKey { .. })), "{error}");
}
