use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use api_meta::UserInfo;
use apiserver::ApiServer;
use client::{Client, PatchKind, Patched, Resource};
use pki::{Authority, KeyAlgorithm, LeafSpec, Subject, Usage, Validity};
use serde_json::{Value, json};

/// An API server with controllers, in memory and a temporary directory.
pub(crate) struct Cluster {
    pub(crate) user: Client,
    tasks: rt::Tasks,
    _directory: tempfile::TempDir,
}

impl Cluster {
    pub(crate) async fn start(config: controllers::Config) -> Self {
        let _ = tracing_subscriber::fmt()
            .with_env_filter("warn,controllers=debug")
            .with_test_writer()
            .try_init();
        let directory = tempfile::tempdir().unwrap();
        write_pki(directory.path());
        let store_path = directory.path().join("store");
        std::fs::create_dir_all(&store_path).unwrap();
        let store =
            store::embedded::Embedded::open(&store_path, store::embedded::Options::default())
                .unwrap();
        let tasks = rt::Tasks::new(rt::Shutdown::new());
        let api =
            apiserver::start(api_config(directory.path()), Arc::new(store), &tasks).await.unwrap();
        let user =
            api.client(UserInfo::new("admin", &["system:masters", "system:authenticated"]), "test");
        start_controllers(&api, config, &tasks);
        let kubelet = api
            .client(UserInfo::new("admin", &["system:masters", "system:authenticated"]), "kubelet");
        tasks.spawn_until_shutdown("kubelet", ready_pods(kubelet));
        Self { user, tasks, _directory: directory }
    }

    pub(crate) async fn stop(self) {
        let left = self.tasks.drain(Duration::from_secs(5)).await;
        assert!(left.unfinished.is_empty(), "{left:?}");
    }

    pub(crate) async fn create(&self, resource: &Resource, object: Value) -> Value {
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
        self.user.create(resource, &namespace, &object).await.unwrap()
    }

    pub(crate) async fn merge(&self, resource: &Resource, name: &str, patch: Value) -> Value {
        let namespace = if resource.namespaced { "default" } else { "" };
        let at = Patched { namespace, name, subresource: "" };
        self.user.patch(resource, at, PatchKind::Merge, &patch).await.unwrap()
    }

    pub(crate) async fn get(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Option<Value> {
        self.user.get(resource, namespace, name).await.ok()
    }

    pub(crate) async fn list(&self, resource: &Resource, namespace: &str) -> Vec<Value> {
        self.user.list(resource, namespace, &Default::default()).await.unwrap().items
    }

    /// Waits until the condition holds.
    pub(crate) async fn until<F: Future<Output = bool>>(
        &self,
        what: &str,
        condition: impl Fn() -> F,
    ) {
        let waiting = async {
            while !condition().await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        assert!(
            tokio::time::timeout(Duration::from_secs(15), waiting).await.is_ok(),
            "waited in vain: {what}"
        );
    }
}

fn start_controllers(api: &ApiServer, config: controllers::Config, tasks: &rt::Tasks) {
    let (api, running) = (api.clone(), tasks.clone());
    let clients = move |name: &str| {
        let user = match name {
            controllers::SHARED_IDENTITY => UserInfo::new(name, &["system:authenticated"]),
            account => UserInfo::service_account("kube-system", account),
        };
        api.client(user, name)
    };
    tasks.spawn("controllers", async move { controllers::run(config, clients, &running).await });
}

/// Makes Pods run, and takes away those that are to end.
async fn ready_pods(client: Client) {
    loop {
        let pods = client.list::<Value>(&Resource::PODS, "", &Default::default()).await;
        for pod in pods.map(|list| list.items).unwrap_or_default() {
            let meta = &pod["metadata"];
            let (namespace, name) =
                (meta["namespace"].as_str().unwrap(), meta["name"].as_str().unwrap());
            if !meta["deletionTimestamp"].is_null() {
                let options =
                    client::DeleteOptions { grace_period_seconds: Some(0), ..Default::default() };
                let _ = client.delete(&Resource::PODS, namespace, name, &options).await;
            } else if pod["status"]["phase"] != "Running" {
                let at = Patched { namespace, name, subresource: "status" };
                let patch = json!({"status": {"phase": "Running", "podIP": "10.1.0.1", "podIPs": [{"ip": "10.1.0.1"}],
                    "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
                let _ = client.patch::<Value>(&Resource::PODS, at, PatchKind::Merge, &patch).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn write_pki(directory: &std::path::Path) {
    let validity = Validity::starting(SystemTime::now(), Duration::from_secs(3600));
    let ca = Authority::create("kubernetes", KeyAlgorithm::EcdsaP256, validity).unwrap();
    pki::write_cert(&directory.join("ca.crt"), ca.cert()).unwrap();
    for name in ["apiserver", "sa"] {
        let spec =
            LeafSpec { subject: Subject::new(name), alt_names: vec![], usage: Usage::Server };
        let (cert, key) = ca.issue_new(&spec, KeyAlgorithm::EcdsaP256, validity).unwrap();
        pki::write_cert(&directory.join(format!("{name}.crt")), &cert).unwrap();
        pki::write_key(&directory.join(format!("{name}.key")), &key).unwrap();
        pki::write_public_key(&directory.join(format!("{name}.pub")), &key).unwrap();
    }
}

fn api_config(directory: &std::path::Path) -> apiserver::Config {
    let file = |name: &str| directory.join(name);
    apiserver::Config {
        bind: free_address(),
        advertise: "192.0.2.1".parse().unwrap(),
        service_cidrs: vec!["10.96.0.0/12".parse().unwrap()],
        node_ports: (30_000, 32_767),
        event_ttl: Duration::from_secs(3600),
        compaction_interval: Duration::from_secs(300),
        tls_certificate: file("apiserver.crt"),
        tls_key: file("apiserver.key"),
        client_ca: file("ca.crt"),
        service_account_keys: vec![file("sa.pub")],
        service_account_signing_key: file("sa.key"),
        service_account_issuer: "https://kubernetes.default.svc".into(),
        api_audiences: vec![],
        kubelet_client_certificate: file("apiserver.crt"),
        kubelet_client_key: file("apiserver.key"),
        kubelet_ca: None,
        front_proxy: None,
        anonymous: true,
        bootstrap_tokens: false,
        enable_admission: vec![],
        disable_admission: vec![],
    }
}

/// The API server publishes its port, so it has to be known beforehand.
fn free_address() -> std::net::SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}
