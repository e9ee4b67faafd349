//! Tests that a write is parsed once, regardless of the number of observers.

use std::{sync::Arc, time::Duration};

use api_meta::{GroupResource, Observer as Index, Tree as _};
use auth::{authz::node::NodeAuthorizer, rbac::Rbac};
use serde_json::{Value, json};
use store::{Expected, Op, Store, Write, embedded};
use telemetry::metrics::Metrics;

use crate::{
    handlers::webhooks::Webhooks,
    outbound::backends::Backends,
    reconcilers::{custom_kinds, flow_schemas, service_repair},
    registry::{builtin, parse_count},
    watch_cache::{Observer, Snapshot, WatchCache, following},
};

fn webhooks() -> Webhooks {
    Webhooks::new(
        Backends::new(Arc::new(Snapshot::default()), None, crate::Egress::default()),
        [None, None],
        &Metrics::default(),
    )
}

fn observers() -> Vec<Observer> {
    vec![
        following(Arc::new(Rbac::new())),
        following(Arc::new(NodeAuthorizer::new())),
        following(flow::Gate::new(10, Duration::from_secs(1))),
        following(Arc::new(webhooks())),
        custom_kinds::observer().0,
        service_repair::observer().0,
        flow_schemas::observer().0,
    ]
}

/// Objects of kinds that several observers follow, and one that no observer follows.
fn objects() -> Vec<(&'static str, Value)> {
    let meta = json!({"name": "a", "namespace": "ns"});
    vec![
        (
            "pods/ns/a",
            json!({"metadata": meta, "spec": {"nodeName": "n", "serviceAccountName": "s"}}),
        ),
        ("services/specs/ns/a", json!({"metadata": meta, "spec": {"clusterIPs": ["10.0.0.1"]}})),
        (
            "ipaddresses/10.0.0.1",
            json!({"metadata": {"name": "10.0.0.1"}, "spec": {"parentRef":
            {"resource": "services", "namespace": "ns", "name": "a"}}}),
        ),
        (
            "persistentvolumes/a",
            json!({"metadata": {"name": "a"},
            "spec": {"claimRef": {"namespace": "ns", "name": "c"}}}),
        ),
        ("clusterroles/a", json!({"metadata": {"name": "a"}, "rules": []})),
        ("rolebindings/ns/a", json!({"metadata": meta, "roleRef": {"kind": "Role", "name": "a"}})),
        ("configmaps/ns/a", json!({"metadata": meta, "data": {"a": "b"}})),
    ]
}

async fn write(store: &dyn Store, key: &str, op: Op) {
    let write = Write { key: format!("/registry/{key}").into(), expected: Expected::Any, op };
    store.write(write).await.unwrap();
}

fn put(object: &Value) -> Op {
    Op::Put { value: api_codec::encode_stored(object).into(), ttl_seconds: None }
}

#[tokio::test]
async fn parses_each_change_once_for_all_observers() {
    let directory = tempfile::tempdir().unwrap();
    let options = embedded::Options::default();
    let store: Arc<dyn Store> =
        Arc::new(embedded::Embedded::open(directory.path(), options).unwrap());
    let tasks = rt::Tasks::new(rt::Shutdown::new());
    let start = || WatchCache::start(store.clone(), builtin::builtin(), observers(), &tasks);
    let cache = start().await.unwrap();
    let (all, mut written) = (objects(), 0);
    parse_count::taken();
    for turn in 0..5 {
        for (key, object) in &all {
            let mut object = object.clone();
            object.put(&["metadata", "labels"], json!({"turn": turn.to_string()}));
            write(&*store, key, put(&object)).await;
            written += 1;
        }
    }
    cache.main().consistent().await.unwrap();
    assert_eq!(parse_count::taken(), written);
    let _second = start().await.unwrap();
    assert_eq!(parse_count::taken(), u32::try_from(all.len()).unwrap(), "what is loaded, likewise");
    for (key, _) in &all {
        write(&*store, key, Op::Delete).await;
    }
    cache.main().consistent().await.unwrap();
    assert_eq!(parse_count::taken(), 0, "what is gone is not looked at");
    assert!(tasks.drain(Duration::from_secs(5)).await.unfinished.is_empty());
}

#[test]
fn gives_indexes_whole_objects() {
    let gate = flow::Gate::new(10, Duration::from_secs(1));
    let (rbac, webhooks) = (Rbac::new(), webhooks());
    let indexes: [&dyn Index; 3] = [&rbac, &*gate, &webhooks];
    let nodes = NodeAuthorizer::new();
    // For Pods, the Node authorizer declares the fields that it reads.
    let of_nodes = nodes.resources().iter().filter(|resource| **resource != GroupResource::PODS);
    for resource in indexes.iter().flat_map(|index| index.resources()).chain(of_nodes) {
        let all = builtin::builtin();
        let found = all.iter().find(|d| d.is(&resource.group, &resource.resource)).unwrap();
        assert!(found.projection.is_whole(), "{resource:?}");
    }
}
