use std::time::Duration;

use api_meta::UserInfo;
use apiserver::ApiServer;
use client::{Client, PatchKind, PatchTarget, Resource};
use serde_json::{Value, json};
use testkit::RealApi;

/// The API server with controllers, and a kubelet that runs every Pod.
pub(crate) struct Cluster {
    pub(crate) user: Client,
    api: RealApi,
}

impl Cluster {
    pub(crate) async fn start(config: controllers::Config) -> Self {
        let _ = tracing_subscriber::fmt()
            .with_env_filter("warn,controllers=debug")
            .with_test_writer()
            .try_init();
        let api = RealApi::start().await.unwrap();
        let tasks = api.tasks();
        start_controllers(&api.server(), config, &tasks);
        tasks.spawn_until_shutdown("kubelet", ready_pods(api.admin()));
        Self { user: api.admin(), api }
    }

    pub(crate) async fn stop(self) {
        let left = self.api.stop().await;
        assert!(left.unfinished.is_empty(), "{left:?}");
    }

    pub(crate) async fn create(&self, resource: &Resource, object: Value) -> Value {
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
        self.user.create(resource, &namespace, &object).await.unwrap()
    }

    pub(crate) async fn merge(&self, resource: &Resource, name: &str, patch: Value) -> Value {
        let namespace = if resource.namespaced { "default" } else { "" };
        let at = PatchTarget { namespace, name, subresource: "" };
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
}

pub(crate) fn start_controllers(api: &ApiServer, config: controllers::Config, tasks: &rt::Tasks) {
    let (api, running) = (api.clone(), tasks.clone());
    let clients = move |name: &str| {
        let user = match name {
            controllers::SHARED_IDENTITY => UserInfo::new(name, &["system:authenticated"]),
            account => UserInfo::service_account("kube-system", account),
        };
        api.client(user, name)
    };
    tasks.spawn("controllers", async move {
        controllers::run(config, clients, &running).await.unwrap()
    });
}

/// Sets Pods to running, and completes the deletion of terminating ones.
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
                let at = PatchTarget { namespace, name, subresource: "status" };
                let patch = json!({"status": {"phase": "Running", "podIP": "10.1.0.1", "podIPs": [{"ip": "10.1.0.1"}],
                    "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
                let _ = client.patch::<Value>(&Resource::PODS, at, PatchKind::Merge, &patch).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
