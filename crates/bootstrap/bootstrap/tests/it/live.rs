//! `init` and `join` against a fake API server: the objects that they write and the checks of a joining machine.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use api_config::kubeadm::{
    ApiEndpoint, BootstrapTokenDiscovery, JoinConfiguration, JoinControlPlane, Timeouts,
};
use bootstrap::{
    Error, FileChange, containers::NoRuntime, host::Host, init, join, node::Node, phase,
    service::KubeletService,
};
use bootstrap_core::{
    Layout,
    config::{self, Documents, Facts, Init},
    discovery,
    tokens::Token,
};
use client::Resource;
use futures_util::future::BoxFuture;
use rt::{Clock, ManualClock, SystemClock};
use serde_json::{Value, json};
use telemetry::{Progress, Recorder};
use testkit::FakeApi;

const TOKEN: &str = "abcdef.0123456789abcdef";

fn facts(name: &str) -> Facts {
    Facts {
        hostname: name.into(),
        address: Some([127, 0, 0, 1].into()),
        token: Some(TOKEN.into()),
        ..Facts::default()
    }
}

pub(crate) fn machine(root: &Path, name: &str) -> Node {
    let mut documents = Documents::default();
    let cluster = documents.cluster.get_or_insert_default();
    cluster.encryption_algorithm = "ECDSA-P256".into();
    cluster.networking.pod_subnet = "10.244.0.0/16".into();
    let all = Init::complete(documents, &facts(name));
    let mut node = Node::new(
        all,
        Layout::under(root),
        Host::under(root),
        Arc::new(SystemClock),
        Arc::new(NoRuntime("this is a test".into())),
    );
    node.service = Arc::new(NoService);
    node
}

/// A service that starts no kubelet on the machine that runs the tests.
struct NoService;

impl KubeletService for NoService {
    fn install(&self, _: bool) -> BoxFuture<'_, Result<Vec<FileChange>, Error>> {
        Box::pin(async { Ok(Vec::new()) })
    }
    fn start(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }
    fn stop(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }
    fn uninstall(&self) -> BoxFuture<'_, Vec<String>> {
        Box::pin(async { Vec::new() })
    }
    fn last_words(&self) -> String {
        String::new()
    }
}

pub(crate) fn quiet() -> Progress {
    Progress::silent(Recorder::none())
}

pub(crate) fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|n| (*n).to_owned()).collect()
}

/// Sets up a first control plane: its files below `root`, its objects in `api`; returns its server's address too.
async fn cluster(root: &Path, api: &FakeApi) -> (init::Ctx, String) {
    let mut ctx = init::Ctx::new(machine(root, "first"));
    ctx.upload_certs = true;
    ctx.skip_certificate_key_print = true;
    ctx.node.use_client(api.client("test"));
    phase::run(&init::phases(), &owned(&["certs"]), &[], &quiet(), &mut ctx).await.unwrap();
    let address = super::server::serve(api, &ctx.node.layout.certificates).await;
    ctx.node.config.init.local_api_endpoint.bind_port = address.port().into();
    ctx.node.config.cluster.control_plane_endpoint = address.to_string();
    let live = ["kubeconfig", "upload-config", "upload-certs", "bootstrap-token", "addon"];
    phase::run(&init::phases(), &owned(&live), &[], &quiet(), &mut ctx).await.unwrap();
    sign_with(&api.client("signer")).await;
    (ctx, address.to_string())
}

/// Signs cluster-info like the controller manager's bootstrap signer.
pub(crate) async fn sign_with(client: &client::Client) {
    let token: Token = TOKEN.parse().unwrap();
    let info: Value =
        client.get(&Resource::CONFIG_MAPS, "kube-public", "cluster-info").await.unwrap();
    let jws = discovery::sign(info["data"]["kubeconfig"].as_str().unwrap(), &token);
    let patch = json!({"data": {format!("{}{}", discovery::SIGNATURE_PREFIX, token.id): jws}});
    let at = client::PatchTarget {
        namespace: "kube-public",
        name: "cluster-info",
        ..Default::default()
    };
    client
        .patch::<Value>(&Resource::CONFIG_MAPS, at, client::PatchKind::Merge, &patch)
        .await
        .unwrap();
}

pub(crate) fn joining(server: &str, pin: &str) -> JoinConfiguration {
    let mut join = JoinConfiguration::default();
    join.discovery.bootstrap_token = Some(BootstrapTokenDiscovery {
        token: TOKEN.into(),
        api_server_endpoint: server.into(),
        ca_cert_hashes: vec![pin.into()],
        ..Default::default()
    });
    join.timeouts =
        Some(Timeouts { discovery: Some("300ms".parse().unwrap()), ..Default::default() });
    join
}

pub(crate) fn complete(mut join: JoinConfiguration, name: &str) -> JoinConfiguration {
    config::default_join(&mut join, &facts(name));
    config::validate_join(&join).unwrap();
    join
}

/// Runs the phases of a join that need no kubelet.
pub(crate) async fn try_join(
    root: &Path,
    join: JoinConfiguration,
    name: &str,
) -> Result<join::Ctx, Error> {
    join_at(root, join, name, Arc::new(SystemClock)).await
}

async fn join_at(
    root: &Path,
    join: JoinConfiguration,
    name: &str,
    clock: Arc<dyn Clock>,
) -> Result<join::Ctx, Error> {
    let mut node = machine(root, name);
    node.clock = clock;
    node.config.init.node_registration = join.node_registration.clone();
    if let Some(control_plane) = &join.control_plane {
        node.config.init.local_api_endpoint = control_plane.local_api_endpoint.clone();
    }
    let mut ctx = join::Ctx::new(join, node);
    let phases = owned(&["control-plane-prepare", "kubelet-start"]);
    phase::run(&join::phases(), &phases, &[], &quiet(), &mut ctx).await?;
    Ok(ctx)
}

#[tokio::test(flavor = "current_thread")]
async fn join_reports_wrong_clock() {
    let (root, worker, api) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), FakeApi::default());
    let (first, server) = cluster(root.path(), &api).await;
    let pin = pki::read_cert(&first.node.layout.pki("ca", "crt")).unwrap().pin().unwrap();
    let day = Duration::from_secs(86_400);
    for (now, wanted) in [
        (SystemTime::now() - day, "check this machine's clock"),
        (SystemTime::now() + 4000 * day, "has expired"),
    ] {
        let clock = Arc::new(ManualClock::new(now));
        let join = complete(joining(&server, &pin), "second");
        let error = join_at(worker.path(), join, "second", clock).await.err().unwrap().to_string();
        assert!(error.contains(wanted), "{error}");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn init_creates_kubeadm_objects_and_can_run_again() {
    let (root, api) = (tempfile::tempdir().unwrap(), FakeApi::default());
    let (mut ctx, _) = cluster(root.path(), &api).await;
    let wanted: &[(&Resource, &str, &[&str])] = &[
        (
            &Resource::CONFIG_MAPS,
            "kube-system",
            &["coredns", "kube-proxy", "kubeadm-config", "kubelet-config"],
        ),
        (&Resource::CONFIG_MAPS, "kube-public", &["cluster-info"]),
        (
            &Resource::ROLES,
            "kube-system",
            &[
                "kube-proxy",
                "kubeadm:kubeadm-certs",
                "kubeadm:kubelet-config",
                "kubeadm:nodes-kubeadm-config",
            ],
        ),
        (&Resource::DAEMON_SETS, "kube-system", &["kube-proxy"]),
        (&Resource::DEPLOYMENTS, "kube-system", &["coredns"]),
        (&Resource::SERVICES, "kube-system", &["kube-dns"]),
    ];
    for (resource, namespace, names) in wanted {
        let found: Vec<_> = api
            .list(resource, namespace)
            .iter()
            .map(|o| o["metadata"]["name"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(found, *names, "{}", resource.kind);
    }
    let kubelet = api.get(&Resource::CONFIG_MAPS, "kube-system", "kubelet-config").unwrap();
    assert!(bootstrap_core::hash::is_untouched(&kubelet));
    assert!(
        !kubelet["data"]["kubelet"].as_str().unwrap().contains("containerd.sock"),
        "each machine has its own runtime"
    );
    let secrets = api.list(&Resource::SECRETS, "kube-system");
    let types: Vec<_> = secrets.iter().map(|s| s["type"].as_str().unwrap_or_default()).collect();
    assert_eq!(types.iter().filter(|t| **t == "bootstrap.kubernetes.io/token").count(), 2);
    let live = ["upload-config", "bootstrap-token", "addon"];
    phase::run(&init::phases(), &owned(&live), &[], &quiet(), &mut ctx).await.unwrap();
}

#[tokio::test(flavor = "current_thread")]
async fn worker_joins_with_token_and_pin() {
    let (root, worker, api) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), FakeApi::default());
    let (first, server) = cluster(root.path(), &api).await;
    let ca = pki::read_cert(&first.node.layout.pki("ca", "crt")).unwrap();
    let ctx =
        try_join(worker.path(), complete(joining(&server, &ca.pin().unwrap()), "second"), "second")
            .await
            .unwrap();
    let layout = &ctx.node.layout;
    let config =
        api_config::Kubeconfig::load(&layout.kubeconfig("bootstrap-kubelet.conf")).unwrap();
    let current = config.current().unwrap();
    assert_eq!(
        (current.user.token.as_str(), current.cluster.server.as_str()),
        (TOKEN, format!("https://{server}").as_str())
    );
    assert_eq!(pki::read_cert(&layout.pki("ca", "crt")).unwrap(), ca);
    let kubelet = std::fs::read_to_string(layout.kubelet_config()).unwrap();
    assert!(
        kubelet.contains("containerRuntimeEndpoint: unix:///var/run/containerd/containerd.sock"),
        "{kubelet}"
    );
    assert!(
        !layout.manifests().exists() && !layout.pki("sa", "key").exists(),
        "a worker gets nothing of a control plane"
    );
}

#[tokio::test(flavor = "current_thread")]
async fn rejects_untrusted_cluster_and_writes_nothing() {
    let (root, api) = (tempfile::tempdir().unwrap(), FakeApi::default());
    let (first, server) = cluster(root.path(), &api).await;
    let pin = pki::read_cert(&first.node.layout.pki("ca", "crt")).unwrap().pin().unwrap();
    type Damage = fn(&mut BootstrapTokenDiscovery);
    let cases: &[(Damage, &str)] = &[
        (|d| d.token = "abcdef.fedcba9876543210".into(), "can't trust this API Server"),
        (
            |d| d.token = "xxxxxx.0123456789abcdef".into(),
            "invalid for this cluster or it has expired",
        ),
        (|d| d.ca_cert_hashes = vec![format!("sha256:{}", "0".repeat(64))], "are pinned"),
        (|d| d.api_server_endpoint = "127.0.0.1:1".into(), "refused"),
    ];
    for (damage, wanted) in cases {
        let worker = tempfile::tempdir().unwrap();
        let mut join = joining(&server, &pin);
        damage(join.discovery.bootstrap_token.as_mut().unwrap());
        let error = try_join(worker.path(), complete(join, "second"), "second")
            .await
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains(wanted), "wanted {wanted}, got {error}");
        assert!(!error.contains("0123456789abcdef") && !error.contains("fedcba"), "{error}");
        assert_eq!(std::fs::read_dir(worker.path()).unwrap().count(), 0);
    }
    let client = api.client("kubelet");
    let node = json!({"metadata": {"name": "second"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    client.create::<_, Value>(&Resource::NODES, "", &node).await.unwrap();
    let worker = tempfile::tempdir().unwrap();
    let error = try_join(worker.path(), complete(joining(&server, &pin), "second"), "second")
        .await
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("a Node with name \"second\" and status \"Ready\" already exists"),
        "{error}"
    );
}

#[tokio::test(flavor = "current_thread")]
async fn control_plane_joins_with_shared_certificates() {
    let (root, second, api) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), FakeApi::default());
    let (first, server) = cluster(root.path(), &api).await;
    let pin = pki::read_cert(&first.node.layout.pki("ca", "crt")).unwrap().pin().unwrap();
    let mut join = joining(&server, &pin);
    let local = ApiEndpoint { advertise_address: "10.0.0.2".into(), bind_port: 6443 };
    let key = first.node.config.init.certificate_key.clone();
    join.control_plane = Some(JoinControlPlane { local_api_endpoint: local, certificate_key: key });
    let ctx = try_join(second.path(), complete(join.clone(), "second"), "second").await.unwrap();
    let layout = &ctx.node.layout;
    for file in ["ca.key", "sa.key", "etcd/ca.key"] {
        assert_eq!(
            std::fs::read(layout.certificates.join(file)).unwrap(),
            std::fs::read(first.node.layout.certificates.join(file)).unwrap(),
            "{file}"
        );
    }
    let serving = pki::read_cert(&layout.pki("apiserver", "crt")).unwrap();
    serving.check_signed_by(&pki::read_cert(&first.node.layout.pki("ca", "crt")).unwrap()).unwrap();
    serving.check_names(&["10.0.0.2".parse().unwrap(), "second".parse().unwrap()]).unwrap();
    serving.check_valid_at(SystemTime::now()).unwrap();
    assert!(layout.manifests().join("kube-apiserver.yaml").exists());
    assert!(!layout.kubeconfig("super-admin.conf").exists());
    // The kubelet of a control plane uses the API server on its machine.
    let config =
        api_config::Kubeconfig::load(&layout.kubeconfig("bootstrap-kubelet.conf")).unwrap();
    assert_eq!(config.current().unwrap().cluster.server, "https://10.0.0.2:6443");
    let third = tempfile::tempdir().unwrap();
    join.control_plane.as_mut().unwrap().certificate_key = "0".repeat(64);
    let error = try_join(third.path(), complete(join.clone(), "third"), "third")
        .await
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("certificate key is another one"), "{error}");
    join.control_plane.as_mut().unwrap().certificate_key.clear();
    let error =
        try_join(third.path(), complete(join, "third"), "third").await.err().unwrap().to_string();
    assert!(error.contains("ca.crt is missing") && error.contains("--certificate-key"), "{error}");
}

#[tokio::test(flavor = "current_thread")]
async fn reset_removes_files_of_init() {
    let root = tempfile::tempdir().unwrap();
    let mut ctx = init::Ctx::new(machine(root.path(), "first"));
    let offline = ["certs", "kubeconfig", "etcd", "control-plane", "kubelet-start"];
    phase::run(&init::phases(), &owned(&offline), &[], &quiet(), &mut ctx).await.unwrap();
    let data = root.path().join("var/lib/etcd");
    std::fs::write(data.join("member"), "").unwrap();
    // A manifest may name any directory.
    std::fs::write(data.join("photo.jpg"), "").unwrap();
    let files = |dir: &Path| -> Vec<String> {
        let mut found = Vec::new();
        let mut open = vec![dir.to_owned()];
        while let Some(dir) = open.pop() {
            for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
                if entry.file_type().unwrap().is_dir() {
                    open.push(entry.path());
                } else {
                    found.push(entry.path().display().to_string());
                }
            }
        }
        found
    };
    assert_eq!(files(root.path()).len(), 36, "{:?}", files(root.path()));
    let mut reset = bootstrap::reset::Ctx {
        reset: Default::default(),
        node: ctx.node,
        ignored: Default::default(),
        clean_up: |_| Vec::new(),
        snapshots: None,
    };
    phase::run(&bootstrap::reset::phases(), &owned(&["cleanup-node"]), &[], &quiet(), &mut reset)
        .await
        .unwrap();
    let photo = data.join("photo.jpg").display().to_string();
    assert_eq!(
        files(root.path()),
        [photo],
        "what is no cluster's stays, and so does its directory"
    );
}
