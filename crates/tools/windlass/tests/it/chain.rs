//! Tests kubeadm's chain: etcd, API server, controller manager and scheduler as processes with kubeadm's flags.

use std::{cell::RefCell, time::Duration};

use client::{Client, Resource};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use store::KeyValue;

use crate::processes::{ControlPlane, is_etcd_there};

/// Retries until `ask` returns a value.
pub(crate) async fn until<T>(
    plane: &ControlPlane,
    what: &str,
    ask: impl AsyncFn() -> Option<T>,
) -> T {
    let asking = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    match tokio::time::timeout(Duration::from_secs(60), asking).await {
        Ok(answer) => answer,
        Err(_) => panic!("{what} did not happen\n{}", plane.logs()),
    }
}

async fn list(client: &Client, resource: &Resource) -> Vec<Value> {
    let list = client.list::<Value>(resource, "default", &Default::default()).await;
    list.map(|list| list.items).unwrap_or_default()
}

async fn get_path(client: &Client, path: &str) -> Option<(u16, String)> {
    let request = http::Request::get(path).body(client::empty()).unwrap();
    let response = client.request(request).await.ok()?;
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.ok()?.to_bytes();
    Some((status, String::from_utf8_lossy(&body).into_owned()))
}

/// Reports whether `admin` has the rules of `edit`, and `edit` those of `view`.
async fn are_aggregated(client: &Client) -> Option<()> {
    let mut few: Vec<Value> = Vec::new();
    for name in ["view", "edit", "admin"] {
        let role: Value = client.get(&Resource::CLUSTER_ROLES, "", name).await.ok()?;
        let many = role["rules"].as_array()?.clone();
        (!many.is_empty() && few.iter().all(|rule| many.contains(rule))).then_some(())?;
        few = many;
    }
    Some(())
}

fn deployment() -> Value {
    json!({
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "web", "image": "registry.example/web:1"}]},
            },
        },
    })
}

fn identities(objects: &[Value]) -> Vec<(String, String)> {
    let text = |object: &Value, field: &str| object["metadata"][field].as_str().unwrap().to_owned();
    let mut all: Vec<_> = objects.iter().map(|o| (text(o, "name"), text(o, "uid"))).collect();
    all.sort();
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_deployment_across_restart_of_api_server() {
    if !is_etcd_there() {
        return;
    }
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let plane = ControlPlane::prepare();
    plane.point_at_loopback();
    let apiserver = plane.start_apiserver();
    let _manager = plane.start_manager();
    let _scheduler = plane.start_scheduler();
    let admin = plane.client("super-admin.conf", plane.api_port);
    let is_ready =
        async || get_path(&admin, "/readyz").await.filter(|(status, _)| *status == 200).map(drop);
    until(&plane, "a ready API server", &is_ready).await;

    // The controllers create the default service account, without which Pods are rejected.
    let created = async || {
        let made = admin.create::<_, Value>(&Resource::DEPLOYMENTS, "default", &deployment()).await;
        made.ok()
    };
    until(&plane, "the Deployment", created).await;
    let three_pods = async || {
        let pods = list(&admin, &Resource::PODS).await;
        (pods.len() == 3).then_some(pods)
    };
    let pods = until(&plane, "three Pods", &three_pods).await;
    assert_eq!(list(&admin, &Resource::REPLICA_SETS).await.len(), 1);
    let unschedulable = async || {
        let pods = list(&admin, &Resource::PODS).await;
        pods.iter()
            .all(|pod| {
                pod["status"]["phase"] == "Pending"
                    && pod["status"]["conditions"][0]["reason"] == "Unschedulable"
            })
            .then_some(())
    };
    until(&plane, "the scheduler's report that there are no nodes", unschedulable).await;

    for port in [plane.manager_port, plane.scheduler_port] {
        let client = plane.client("super-admin.conf", port);
        assert_eq!(get_path(&client, "/healthz").await, Some((200, "ok".to_owned())));
        let (status, metrics) = get_path(&client, "/metrics").await.unwrap();
        assert!(status == 200 && metrics.contains("process_resident_memory_bytes"), "{metrics}");
        // The API server denies metrics to this identity.
        let client = plane.client("scheduler.conf", port);
        assert_eq!(get_path(&client, "/metrics").await.unwrap().0, 403);
    }

    until(&plane, "all rules of the aggregated roles", async || are_aggregated(&admin).await).await;
    let objects = plane.stored(&plane.etcd_url, "/registry/").await;
    assert!(objects.iter().any(|kv| kv.key.starts_with("/registry/deployments/default/web")));
    for kv in &objects {
        let is_json = ["apiextensions.k8s.io", "apiregistration.k8s.io"]
            .iter()
            .any(|group| kv.key.contains(group));
        let wanted: &[u8] = if is_json { b"{" } else { b"k8s\0" };
        assert!(kv.value.starts_with(wanted), "{}", kv.key);
    }

    drop(apiserver);
    let _apiserver = plane.start_apiserver();
    until(&plane, "a ready API server again", &is_ready).await;
    let after = until(&plane, "the same three Pods", &three_pods).await;
    assert_eq!(identities(&after), identities(&pods));
    let roles = |all: &[KeyValue]| -> Vec<(String, u64)> {
        let roles = all.iter().filter(|kv| kv.key.starts_with("/registry/clusterroles/"));
        roles.map(|kv| (kv.key.to_string(), kv.mod_revision)).collect()
    };
    let again = plane.stored(&plane.etcd_url, "/registry/").await;
    assert_eq!(roles(&again), roles(&objects), "unchanged roles are not written again");
    // Reads kept up with every write, also with writes of keys that are not objects.
    assert!(!plane.logs().contains("Too large resource version"), "{}", plane.logs());
}

/// The supervisor restarts the process because of its exit code, as upstream's: systemd may restart only failed
/// services.
#[tokio::test(flavor = "multi_thread")]
async fn exits_with_failure_after_losing_lease() {
    if !is_etcd_there() {
        return;
    }
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let plane = ControlPlane::prepare();
    plane.point_at_loopback();
    let _apiserver = plane.start_apiserver();
    let admin = plane.client("super-admin.conf", plane.api_port);
    for (name, process) in [
        ("kube-controller-manager", plane.start_manager()),
        ("kube-scheduler", plane.start_scheduler()),
    ] {
        let process = RefCell::new(process);
        let another_takes_it = async || {
            let leases = (&Resource::LEASES, "kube-system");
            let mut lease = admin.get::<Value>(leases.0, leases.1, name).await.ok()?;
            lease["spec"]["holderIdentity"].as_str().filter(|holder| !holder.is_empty())?;
            lease["spec"]["holderIdentity"] = json!("another");
            admin.update::<_, Value>(leases.0, leases.1, name, &lease).await.ok()
        };
        until(&plane, &format!("a lease of {name}"), another_takes_it).await;
        let ended = async || process.borrow_mut().0.try_wait().unwrap();
        let status = until(&plane, &format!("the end of {name}"), ended).await;
        assert_eq!(status.code(), Some(1), "{name}");
    }
}
