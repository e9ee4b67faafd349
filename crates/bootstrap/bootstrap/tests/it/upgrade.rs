//! `upgrade` of a control plane against a fake API server and a simulated kubelet.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use api_config::{kubeadm::Timeouts, yaml};
use bootstrap::{
    Error,
    containers::NoRuntime,
    host::Host,
    init,
    node::Node,
    phase,
    upgrade::{self, Ctx, Options, Role},
};
use bootstrap_core::{
    Layout,
    config::{Facts, Init},
    upgrade::{Allowed, parse_version},
};
use client::Resource;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use rt::SystemClock;
use serde_json::{Value, json};
use testkit::FakeApi;

use super::live::{machine, owned, quiet};

const FILES: [&str; 3] =
    ["kube-apiserver.yaml", "kube-controller-manager.yaml", "kube-scheduler.yaml"];

/// A control plane of v1.36.1 with files below a directory, and its simulated kubelet.
struct Site {
    root: tempfile::TempDir,
    api: FakeApi,
    kubelet: tokio::task::JoinHandle<()>,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.kubelet.abort();
    }
}

impl Site {
    /// Creates the control plane. Its kubelet never gets Pods ready whose manifest contains `broken`.
    async fn new(broken: &'static str) -> Self {
        let (root, api) = (tempfile::tempdir().unwrap(), FakeApi::default());
        let mut node = machine(root.path(), "first");
        node.config.cluster.kubernetes_version = "v1.36.1".to_owned();
        node.use_client(api.client("test"));
        let mut ctx = init::Ctx::new(node);
        let phases = ["certs", "kubeconfig", "control-plane", "upload-config", "addon"];
        phase::run(&init::phases(), &owned(&phases), &[], &quiet(), &mut ctx).await.unwrap();
        let manifests = ctx.node.layout.manifests();
        let kubelet = tokio::spawn(simulate_kubelet(api.clone(), manifests, broken));
        Self { root, api, kubelet }
    }

    fn layout(&self) -> Layout {
        Layout::under(self.root.path())
    }

    fn manifests(&self) -> BTreeMap<&'static str, String> {
        let read = |file| fs::read_to_string(self.layout().manifests().join(file)).unwrap();
        FILES.into_iter().map(|file| (file, read(file))).collect()
    }

    /// Reads the machine again, as each run of the command does.
    async fn context(&self) -> Ctx {
        let client = self.api.client("test");
        let read = upgrade::read_machine(&client, &self.layout()).await.unwrap();
        assert_eq!(
            (read.role, read.custom_kubelet, read.custom_proxy),
            (Role::ControlPlane, false, false)
        );
        let mut documents = read.documents;
        documents.cluster.as_mut().unwrap().kubernetes_version = "v1.36.2".to_owned();
        documents.init.as_mut().unwrap().timeouts = Some(Timeouts {
            upgrade_manifests: Some("1s".parse().unwrap()),
            control_plane_component_health_check: Some("5s".parse().unwrap()),
            ..Timeouts::default()
        });
        let all = Init::complete(documents, &Facts::default());
        assert_eq!(all.init.node_registration.name, "first");
        let mut node = Node::new(
            all,
            self.layout(),
            Host::under(self.root.path()),
            Arc::new(SystemClock),
            Arc::new(NoRuntime("this is a test".into())),
        );
        node.use_client(client);
        let options = Options {
            allowed: Allowed::default(),
            renew_certificates: true,
            // etcd's snapshot needs an etcd.
            etcd: false,
            force: false,
        };
        let target = parse_version("v1.36.2").unwrap();
        let mut ctx = Ctx::new(node, Role::ControlPlane, target, options);
        ctx.wait_for_health = |_, _| Box::pin(async { Ok(()) });
        ctx
    }

    async fn run(&self, phases: &[&str]) -> Result<(), Error> {
        let mut ctx = self.context().await;
        phase::run(&upgrade::apply_phases(), &owned(phases), &[], &quiet(), &mut ctx).await
    }

    fn is_upgraded(&self) -> bool {
        self.manifests().values().all(|text| text.contains(":v1.36.2"))
    }

    fn serial(&self, base: &str) -> String {
        fs::read_to_string(self.layout().pki(base, "crt")).unwrap()
    }
}

/// Reports a mirror Pod for each manifest, a moment after the manifest changes.
async fn simulate_kubelet(api: FakeApi, manifests: PathBuf, broken: &'static str) {
    let client = api.client("kubelet");
    let mut running: BTreeMap<PathBuf, String> = BTreeMap::new();
    let mut ticks = tokio::time::interval(Duration::from_millis(20));
    loop {
        for path in fs::read_dir(&manifests).into_iter().flatten().flatten().map(|e| e.path()) {
            let Ok(text) = fs::read_to_string(&path) else { continue };
            if path.extension().is_none_or(|e| e != "yaml") || running.get(&path) == Some(&text) {
                continue;
            }
            let mut pod = yaml::parse(&text).unwrap();
            let name = format!("{}-first", pod["metadata"]["name"].as_str().unwrap());
            let ready = if !broken.is_empty() && text.contains(broken) { "False" } else { "True" };
            pod["metadata"]["name"] = json!(name);
            pod["metadata"]["annotations"]["kubernetes.io/config.hash"] = json!(hash(&text));
            pod["spec"]["nodeName"] = json!("first");
            pod["status"] = json!({"conditions": [{"type": "Ready", "status": ready}]});
            let options = client::DeleteOptions::default();
            let _ = client.delete(&Resource::PODS, "kube-system", &name, &options).await;
            let _ = client.create::<_, Value>(&Resource::PODS, "kube-system", &pod).await;
            running.insert(path, text);
        }
        ticks.tick().await;
    }
}

fn hash(text: &str) -> String {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    format!("{:x}", hasher.finish())
}

fn backups(root: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(root.join("etc/kubernetes/tmp")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

#[tokio::test(flavor = "current_thread")]
async fn replaces_static_pods_and_renews_their_certificates() {
    let site = Site::new("").await;
    let (old, leaves) =
        (site.manifests(), ["apiserver", "front-proxy-client", "apiserver-kubelet-client"]);
    let before = leaves.map(|base| site.serial(base));
    site.run(&["control-plane"]).await.unwrap();
    assert!(site.is_upgraded());
    for (base, before) in leaves.iter().zip(&before) {
        assert_ne!(site.serial(base), *before, "{base}");
    }
    let [backup] = &backups(site.root.path())[..] else {
        panic!("{:?}", backups(site.root.path()))
    };
    for (file, text) in &old {
        assert_eq!(fs::read_to_string(backup.join("manifests").join(file)).unwrap(), *text);
    }
    // A second time there is nothing to do.
    let (now, renewed) = (site.manifests(), site.serial("apiserver"));
    site.run(&["control-plane"]).await.unwrap();
    assert_eq!((site.manifests(), site.serial("apiserver")), (now, renewed));
}

#[tokio::test(flavor = "current_thread")]
async fn returns_to_earlier_static_pods_if_one_does_not_start() {
    let site = Site::new("kube-scheduler:v1.36.2").await;
    let old = site.manifests();
    let error = site.run(&["control-plane"]).await.unwrap_err().to_string();
    assert!(
        error.contains("couldn't upgrade kube-scheduler, and the earlier static Pods run again"),
        "{error}"
    );
    assert_eq!(site.manifests(), old);
    let [backup] = &backups(site.root.path())[..] else {
        panic!("{:?}", backups(site.root.path()))
    };
    let rejected = fs::read_to_string(backup.join("rejected/kube-scheduler.yaml")).unwrap();
    assert!(rejected.contains("kube-scheduler:v1.36.2"), "{rejected}");
}

#[tokio::test(flavor = "current_thread")]
async fn upgrade_that_was_killed_at_any_time_can_be_repeated() {
    // Without renewals a run takes about 100 ms, most of it in waits.
    for killed_after in [0, 5, 20, 40, 60, 90, 130, 200, 300, 400, 550] {
        let site = Site::new("").await;
        let mut ctx = site.context().await;
        ctx.options.renew_certificates = false;
        let phases = owned(&["control-plane", "upload-config", "addon"]);
        let all = upgrade::apply_phases();
        let progress = quiet();
        let run = phase::run(&all, &phases, &[], &progress, &mut ctx);
        let _ = tokio::time::timeout(Duration::from_millis(killed_after), run).await;
        site.run(&["control-plane", "upload-config", "addon"]).await.unwrap();
        assert!(site.is_upgraded(), "killed after {killed_after} ms");
        let config = site.api.get(&Resource::CONFIG_MAPS, "kube-system", "kubeadm-config").unwrap();
        let text = config["data"]["ClusterConfiguration"].as_str().unwrap();
        assert!(text.contains("kubernetesVersion: v1.36.2"), "{text}");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn keeps_what_users_changed_in_addons() {
    let site = Site::new("").await;
    let system =
        |name| client::PatchTarget { namespace: "kube-system", name, ..Default::default() };
    let corefile = ".:53 {\n    forward . 192.0.2.53\n}\n";
    let maps = Resource::CONFIG_MAPS;
    site.api.merge(&maps, system("coredns"), json!({"data": {"Corefile": corefile}})).await;
    site.api
        .merge(&Resource::DEPLOYMENTS, system("coredns"), json!({"spec": {"replicas": 5}}))
        .await;
    // The other control plane has the earlier version: add-ons wait for it.
    let other = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "kube-apiserver-second", "namespace": "kube-system",
                     "labels": {"component": "kube-apiserver", "tier": "control-plane"}},
        "spec": {"nodeName": "second", "containers": [{"name": "c", "image": "a/kube-apiserver:v1.36.1"}]},
    });
    site.api.create(&Resource::PODS, other).await;
    let proxy = || {
        let set = site.api.get(&Resource::DAEMON_SETS, "kube-system", "kube-proxy").unwrap();
        set["spec"]["template"]["spec"]["containers"][0]["image"].as_str().unwrap().to_owned()
    };
    site.run(&["control-plane", "addon"]).await.unwrap();
    assert!(proxy().ends_with(":v1.36.1"), "{}", proxy());
    let image =
        json!({"spec": {"containers": [{"name": "c", "image": "a/kube-apiserver:v1.36.2"}]}});
    site.api.merge(&Resource::PODS, system("kube-apiserver-second"), image).await;
    site.run(&["addon"]).await.unwrap();
    assert!(proxy().ends_with(":v1.36.2"), "{}", proxy());
    let map = site.api.get(&maps, "kube-system", "coredns").unwrap();
    assert_eq!(map["data"]["Corefile"], corefile);
    let dns = site.api.get(&Resource::DEPLOYMENTS, "kube-system", "coredns").unwrap();
    assert_eq!(dns["spec"]["replicas"], 5);
}

/// The fake API server with a version, which `upgrade plan` reads.
struct WithVersion(client::Client);

impl client::Transport for WithVersion {
    fn send(
        &self,
        request: http::Request<client::Body>,
    ) -> BoxFuture<'_, Result<http::Response<client::Body>, client::Error>> {
        Box::pin(async move {
            if request.uri().path() == "/version" {
                return Ok(http::Response::new(client::full(r#"{"gitVersion": "v1.36.1"}"#)));
            }
            self.0.request(request).await
        })
    }
}

#[tokio::test(flavor = "current_thread")]
async fn checks_and_migrates_the_corefile_of_a_user() {
    let site = Site::new("").await;
    let at =
        client::PatchTarget { namespace: "kube-system", name: "coredns", ..Default::default() };
    let data = json!({"data": {"Corefile": "former\n", "names": "of a user"}});
    site.api.merge(&Resource::CONFIG_MAPS, at, data).await;
    let corefile = || site.api.get(&Resource::CONFIG_MAPS, "kube-system", "coredns").unwrap();
    let review = |errors: bool| -> upgrade::ReviewCorefile {
        let accepted = |_: &str| upgrade::CorefileReview {
            migrated: "new\n".to_owned(),
            notices: vec!["Corefile line 1: a change".to_owned()],
            errors: Vec::new(),
        };
        let refused = |text: &str| upgrade::CorefileReview {
            migrated: text.to_owned(),
            errors: vec!["Corefile line 3: unknown plugin \"etcd\"".to_owned()],
            ..Default::default()
        };
        if errors { refused } else { accepted }
    };
    let plan = async |errors: bool, ignored: &str| {
        let mut ctx = site.context().await;
        // Without a dry run, the health check waits for a Job.
        ctx.node.dry_run = true;
        let api = WithVersion(site.api.client("test"));
        ctx.node.use_client(client::Client::new(Arc::new(api), "test"));
        // Another DNS server has other plugins.
        ctx.node.config.cluster.image_repository = "windlass.local".to_owned();
        ctx.review_corefile = review(errors);
        ctx.ignored = bootstrap::preflight::Ignored::new([ignored.to_owned()]).unwrap();
        upgrade::plan(&mut ctx).await.map(drop).map_err(|error| error.to_string())
    };
    let refused = plan(true, "").await.unwrap_err();
    assert!(refused.contains("[ERROR CoreDNSUnsupportedPlugins]"), "{refused}");
    assert!(refused.contains("Corefile line 3: unknown plugin \"etcd\""), "{refused}");
    plan(true, "corednsunsupportedplugins").await.unwrap();
    plan(false, "").await.unwrap();
    assert_eq!(corefile()["data"]["Corefile"], "former\n");

    for _ in 0..2 {
        let mut ctx = site.context().await;
        ctx.review_corefile = |text| upgrade::CorefileReview {
            migrated: text.replace("former", "new"),
            ..Default::default()
        };
        let phases = owned(&["control-plane", "addon"]);
        let all = upgrade::apply_phases();
        phase::run(&all, &phases, &[], &quiet(), &mut ctx).await.unwrap();
        // A repeated upgrade keeps the backup.
        let expected =
            json!({"Corefile": "new\n", "Corefile-backup": "former\n", "names": "of a user"});
        assert_eq!(corefile()["data"], expected);
    }
}

/// The fake API server with a user who edits the Corefile before each write of it, as long as edits are left.
struct WithEdits {
    api: FakeApi,
    edits: Mutex<Vec<&'static str>>,
}

impl WithEdits {
    const DNS: client::PatchTarget<'static> =
        client::PatchTarget { namespace: "kube-system", name: "coredns", subresource: "" };

    async fn edit(&self) {
        let next = self.edits.lock().pop();
        if let Some(text) = next {
            let data = json!({"data": {"Corefile": text}});
            self.api.merge(&Resource::CONFIG_MAPS, Self::DNS, data).await;
        }
    }
}

impl client::Transport for WithEdits {
    fn send(
        &self,
        request: http::Request<client::Body>,
    ) -> BoxFuture<'_, Result<http::Response<client::Body>, client::Error>> {
        Box::pin(async move {
            let is_corefile = request.uri().path().ends_with("/configmaps/coredns");
            if is_corefile && request.method() == http::Method::PATCH {
                self.edit().await;
            }
            self.api.client("test").request(request).await
        })
    }
}

#[tokio::test(flavor = "current_thread")]
async fn migrates_only_the_corefile_that_it_has_checked() {
    let site = Site::new("").await;
    let upgrade = async |edits: &[&'static str]| {
        let mut ctx = site.context().await;
        ctx.node.config.cluster.image_repository = "windlass.local".to_owned();
        ctx.review_corefile = |text| upgrade::CorefileReview {
            migrated: text.replace("former", "new"),
            errors: text.lines().filter(|line| line.contains("bad")).map(str::to_owned).collect(),
            ..Default::default()
        };
        let edits = Mutex::new(edits.iter().rev().copied().collect());
        let api = Arc::new(WithEdits { api: site.api.clone(), edits });
        api.edit().await;
        ctx.node.use_client(client::Client::new(api, "test"));
        let (all, phases) = (upgrade::apply_phases(), owned(&["addon"]));
        let done = phase::run(&all, &phases, &[], &quiet(), &mut ctx).await;
        done.map_err(|error| error.to_string())
    };
    let data = || site.api.get(&Resource::CONFIG_MAPS, "kube-system", "coredns").unwrap();
    site.run(&["control-plane"]).await.unwrap();

    upgrade(&["former 1\n", "former 2\n"]).await.unwrap();
    let expected = json!({"Corefile": "new 2\n", "Corefile-backup": "former 2\n"});
    assert_eq!(data()["data"], expected);

    let refused = upgrade(&["former 3\n", "former bad \u{1b}[2J\n"]).await.unwrap_err();
    assert!(refused.contains("[ERROR CoreDNSUnsupportedPlugins]"), "{refused}");
    assert!(refused.contains("former bad \\u{1b}[2J"), "{refused}");
    assert_eq!(data()["data"]["Corefile"], "former bad \u{1b}[2J\n");

    let edits =
        ["former 4\n", "former 5\n", "former 6\n", "former 7\n", "former 8\n", "former 9\n"];
    let refused = upgrade(&edits).await.unwrap_err();
    assert!(refused.contains("cannot update ConfigMap kube-system/coredns"), "{refused}");
    assert_eq!(data()["data"]["Corefile"], "former 9\n");
}

#[tokio::test(flavor = "current_thread")]
async fn rejects_machine_outside_of_a_cluster() {
    let root = tempfile::tempdir().unwrap();
    let api = FakeApi::default();
    let read = upgrade::read_machine(&api.client("test"), &Layout::under(root.path())).await;
    let error = read.err().unwrap().to_string();
    assert!(error.contains("kubelet.conf"), "{error}");
}
