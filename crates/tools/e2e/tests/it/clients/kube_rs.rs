//! kube-rs: calls, watcher and reflector, server-side apply, exec and logs.

use std::{
    fs::File, os::fd::AsFd as _, panic::resume_unwind, path::Path, pin::pin, thread, time::Duration,
};

use e2e::shared;
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::{
    Api, Client, Config, Error, ResourceExt as _,
    api::{AttachParams, DeleteParams, ListParams, LogParams, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
    runtime::{
        conditions,
        reflector::{self, ObjectRef},
        wait::await_condition,
        watcher,
    },
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// The limit of the whole test.
const LIMIT: Duration = Duration::from_secs(180);

#[test]
fn kube_rs_works() {
    let s = shared("clients-kube-rs");
    let (network, kubeconfig) = (s.cluster.namespace.path(), s.cluster.kubeconfig());
    let namespace = s.namespace.clone();
    // Use a new thread, because it enters the cluster's network namespace and never leaves it.
    let ran = thread::spawn(move || on_network(&network, &kubeconfig, &namespace)).join();
    if let Err(panic) = ran {
        resume_unwind(panic);
    }
}

fn on_network(network: &Path, kubeconfig: &Path, namespace: &str) {
    let network = File::open(network).unwrap();
    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ran =
        runtime.block_on(async { tokio::time::timeout(LIMIT, works(kubeconfig, namespace)).await });
    ran.expect("kube-rs timed out");
}

async fn works(kubeconfig: &Path, namespace: &str) {
    let config = Kubeconfig::read_from(kubeconfig).unwrap();
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(config, &options).await.unwrap();
    let client = Client::try_from(config).unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    calls(&maps).await;
    for config in [watcher::Config::default(), watcher::Config::default().streaming_lists()] {
        mirror(&maps, namespace, config).await;
    }
    apply(&maps).await;
    pods(&Api::namespaced(client, namespace)).await;
}

fn map(number: usize) -> ConfigMap {
    let map = json!({
        "metadata": {"name": format!("map-{number}"), "labels": {"of": "kube-rs"}},
        "data": {"n": number.to_string()},
    });
    serde_json::from_value(map).unwrap()
}

fn data(map: &ConfigMap) -> Value {
    json!(map.data)
}

/// Returns code, reason and message of a rejected call.
fn refusal<T>(answer: Result<T, Error>) -> (u16, String, String) {
    match answer {
        Err(Error::Api(status)) => (status.code, status.reason.clone(), status.message.clone()),
        Err(error) => panic!("the server did not answer: {error}"),
        Ok(_) => panic!("the call was not rejected"),
    }
}

async fn calls(maps: &Api<ConfigMap>) {
    for number in 0..5 {
        maps.create(&PostParams::default(), &map(number)).await.unwrap();
    }
    assert_eq!(data(&maps.get("map-3").await.unwrap()), json!({"n": "3"}));
    let missing = refusal(maps.get("map-9").await);
    assert_eq!((missing.0, missing.1.as_str()), (404, "NotFound"));

    let mut chunk = ListParams::default().labels("of=kube-rs").limit(2);
    let mut names = Vec::new();
    loop {
        let page = maps.list(&chunk).await.unwrap();
        names.extend(page.items.iter().map(ConfigMap::name_any));
        chunk.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        if chunk.continue_token.is_none() {
            break;
        }
    }
    assert_eq!(names, ["map-0", "map-1", "map-2", "map-3", "map-4"]);

    let stale = maps.get("map-2").await.unwrap();
    let newer = Patch::Merge(json!({"data": {"n": "newer"}}));
    maps.patch("map-2", &PatchParams::default(), &newer).await.unwrap();
    let conflict = refusal(maps.replace("map-2", &PostParams::default(), &stale).await);
    assert_eq!((conflict.0, conflict.1.as_str()), (409, "Conflict"));
    assert!(conflict.2.contains("the object has been modified"), "{}", conflict.2);
}

/// Asserts that a reflector's store receives existing objects, changes and deletions.
async fn mirror(maps: &Api<ConfigMap>, namespace: &str, config: watcher::Config) {
    let (copy, writer) = reflector::store();
    let changes = watcher::watcher(maps.clone(), config.labels("of=kube-rs"));
    let mut changes = pin!(reflector::reflector(writer, changes));
    let found = |name: &str| copy.get(&ObjectRef::new(name).within(namespace));
    while copy.len() < 5 {
        changes.next().await.unwrap().unwrap();
    }
    let before = found("map-0").map(|map| data(&map));
    let changed = json!({"n": if before == Some(json!({"n": "a"})) { "b" } else { "a" }});
    let patch = Patch::Merge(json!({"data": changed}));
    maps.patch("map-0", &PatchParams::default(), &patch).await.unwrap();
    while found("map-0").map(|map| data(&map)) != Some(changed.clone()) {
        changes.next().await.unwrap().unwrap();
    }
    maps.delete("map-1", &DeleteParams::default()).await.unwrap();
    while found("map-1").is_some() {
        changes.next().await.unwrap().unwrap();
    }
    maps.create(&PostParams::default(), &map(1)).await.unwrap();
}

async fn apply(maps: &Api<ConfigMap>) {
    let by = async |params: PatchParams, data: Value| {
        let applied = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied"}, "data": data});
        maps.patch("applied", &params, &Patch::Apply(&applied)).await
    };
    by(PatchParams::apply("one"), json!({"a": "1", "b": "1"})).await.unwrap();
    let (code, _, message) = refusal(by(PatchParams::apply("two"), json!({"b": "2"})).await);
    assert!(code == 409 && message.contains("conflict with \"one\""), "{code} {message}");
    by(PatchParams::apply("two").force(), json!({"b": "2"})).await.unwrap();
    let left = by(PatchParams::apply("one"), json!({})).await.unwrap();
    assert_eq!(data(&left), json!({"b": "2"}));
}

async fn pods(pods: &Api<Pod>) {
    let pod = json!({"metadata": {"name": "kube-rs"}, "spec": {"containers": [{"name": "c", "image": "box:1"}]}});
    let pod: Pod = serde_json::from_value(pod).unwrap();
    pods.create(&PostParams::default(), &pod).await.unwrap();
    await_condition(pods.clone(), "kube-rs", conditions::is_pod_running()).await.unwrap();

    let line = "read line; echo got $line; echo from within > /proc/1/fd/1; exit 7";
    let with_input = AttachParams::default().stdin(true);
    let mut talk = pods.exec("kube-rs", ["sh", "-c", line], &with_input).await.unwrap();
    let status = talk.take_status().unwrap();
    talk.stdin().unwrap().write_all(b"this\n").await.unwrap();
    let mut output = String::new();
    talk.stdout().unwrap().read_to_string(&mut output).await.unwrap();
    assert_eq!(output, "got this\n");
    let status = json!(status.await.unwrap());
    assert_eq!(status["reason"], "NonZeroExitCode");
    assert_eq!(status["details"]["causes"][0]["message"], "7");

    let last = LogParams { tail_lines: Some(1), ..LogParams::default() };
    assert_eq!(pods.logs("kube-rs", &last).await.unwrap(), "from within\n");
}
