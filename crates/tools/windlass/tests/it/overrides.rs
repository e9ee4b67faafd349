//! Tests `--etcd-servers-overrides` with two etcd processes: Events are in the second one.

use client::{Client, Resource};
use serde_json::{Value, json};
use testkit::free_port;

use crate::{
    chain::until,
    processes::{ControlPlane, Process, is_etcd_there},
    turns::send,
};

fn event(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default"},
        "involvedObject": {"kind": "Pod", "name": "web", "namespace": "default"},
        "reason": "Tested", "message": "m", "type": "Normal",
    })
}

async fn create_event(client: &Client, name: &str) -> Option<Value> {
    client.create::<_, Value>(&Resource::EVENTS, "default", &event(name)).await.ok()
}

async fn create_map(client: &Client, name: &str) -> Option<Value> {
    let map = json!({"metadata": {"name": name}});
    client.create::<_, Value>(&Resource::CONFIG_MAPS, "default", &map).await.ok()
}

async fn names(client: &Client, resource: &Resource) -> Vec<String> {
    let list = client.list::<Value>(resource, "default", &Default::default()).await.unwrap();
    let name = |item: &Value| item["metadata"]["name"].as_str().unwrap().to_owned();
    list.items.iter().map(name).collect()
}

async fn start(plane: &ControlPlane, flags: &[String]) -> Process {
    let server = plane.start_apiserver_with(flags);
    let client = plane.client("super-admin.conf", plane.api_port);
    let ready = async || match send(&client, "GET", "/readyz", &Value::Null).await {
        Some((200, _)) => Some(()),
        _ => None,
    };
    until(plane, "a ready API server", ready).await;
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn keeps_events_in_an_etcd_of_their_own() {
    if !is_etcd_there() {
        return;
    }
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let plane = ControlPlane::prepare();
    plane.point_at_loopback();
    let url = format!("https://127.0.0.1:{}", free_port());
    let second = plane.start_second_etcd(&url);
    let flags = [format!("--etcd-servers-overrides=/events#{url}")];
    let server = start(&plane, &flags).await;
    let admin = plane.client("super-admin.conf", plane.api_port);
    let made = create_event(&admin, "one").await.unwrap();
    create_map(&admin, "one").await.unwrap();
    // Each object is in its etcd only, in upstream's format, at a revision of its etcd.
    let events = plane.stored(&url, "/registry/").await;
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(&*events[0].key, "/registry/events/default/one");
    assert!(events[0].value.starts_with(b"k8s\0"));
    assert_eq!(made["metadata"]["resourceVersion"], json!(events[0].mod_revision.to_string()));
    let main = plane.stored(&plane.etcd_url, "/registry/").await;
    assert!(main.iter().any(|kv| &*kv.key == "/registry/configmaps/default/one"));
    assert!(!main.iter().any(|kv| kv.key.starts_with("/registry/events/")));

    drop(server);
    let _server = start(&plane, &flags).await;
    assert_eq!(names(&admin, &Resource::EVENTS).await, ["one"]);
    assert!(names(&admin, &Resource::CONFIG_MAPS).await.contains(&"one".to_owned()));

    drop(second);
    let path = "/api/v1/namespaces/default/events";
    let refused = async || match send(&admin, "POST", path, &event("two")).await {
        Some((504, status)) => status["message"].as_str().map(str::to_owned),
        _ => None,
    };
    let refusal = until(&plane, "a refused Event", refused).await;
    assert!(refusal.contains(&url), "{refusal}");
    create_map(&admin, "two").await.unwrap();
    assert!(names(&admin, &Resource::CONFIG_MAPS).await.contains(&"two".to_owned()));

    let _second = plane.start_second_etcd(&url);
    until(&plane, "a new Event", async || create_event(&admin, "three").await).await;
    assert_eq!(names(&admin, &Resource::EVENTS).await, ["one", "three"]);
}
