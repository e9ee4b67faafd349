//! Stores of single resources (`--etcd-servers-overrides`): the place of objects, revisions, and a store that is down.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use api_meta::GroupResource;
use apiserver::{StoreOverride, Stores};
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use store::{
    Error, Expected, KeyRange, Op, Outcome, Reply, Result, Revision, Store, WatchMessage,
    WatchStream, Write,
    embedded::{Embedded, Options},
};
use tokio::sync::watch;

use crate::{
    harness::{Answer, Api, MAPS, TestServer, config_map, pod, start},
    watches::{Events, version},
};

const EVENTS: &str = "/api/v1/namespaces/default/events";

/// A store that can be taken down: writes, watches and queries of the revision fail then, and open watches end.
struct Breakable {
    inner: Embedded,
    down: watch::Sender<bool>,
    /// The number of writes that reached the store, failed ones included.
    writes: AtomicU32,
    _directory: tempfile::TempDir,
}

impl Breakable {
    fn create() -> Arc<Self> {
        let directory = tempfile::tempdir().unwrap();
        let inner = Embedded::open(directory.path(), Options::default()).unwrap();
        let (down, writes) = (watch::Sender::new(false), AtomicU32::new(0));
        Arc::new(Self { inner, down, writes, _directory: directory })
    }

    fn check(&self, operation: &'static str) -> Result<()> {
        let detail = "connection refused".to_owned();
        if *self.down.borrow() { Err(Error::Unavailable { operation, detail }) } else { Ok(()) }
    }
}

impl Store for Breakable {
    fn below(&self) -> &dyn Store {
        &self.inner
    }

    fn write(&self, write: Write) -> Reply<'_, Outcome> {
        Box::pin(async move {
            self.writes.fetch_add(1, Ordering::Relaxed);
            self.check("write")?;
            self.inner.write(write).await
        })
    }

    fn watch(&self, range: KeyRange, after: Revision) -> Reply<'_, Box<dyn WatchStream>> {
        Box::pin(async move {
            self.check("watch")?;
            let inner = self.inner.watch(range, after).await?;
            let down = self.down.subscribe();
            Ok(Box::new(BreakableWatch { inner, down }) as Box<dyn WatchStream>)
        })
    }

    fn revision(&self) -> Reply<'_, Revision> {
        Box::pin(async move {
            self.check("query the revision")?;
            self.inner.revision().await
        })
    }
}

struct BreakableWatch {
    inner: Box<dyn WatchStream>,
    down: watch::Receiver<bool>,
}

impl WatchStream for BreakableWatch {
    fn next(&mut self) -> BoxFuture<'_, Option<WatchMessage>> {
        Box::pin(async move {
            tokio::select! {
                _ = self.down.wait_for(|down| *down) => None,
                message = self.inner.next() => message,
            }
        })
    }
}

/// Starts a server whose Events are in a store of their own, beside one that keeps them in the main store.
async fn with_events_apart(first: &TestServer, events: &Arc<Breakable>) -> TestServer {
    let resources = vec![GroupResource::new("", "events")];
    let overrides = vec![StoreOverride { resources, store: events.clone() }];
    first.beside_on_stores(Stores { main: first.store.clone(), overrides }, |_| {}).await
}

fn event(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default"},
        "involvedObject": {"kind": "Pod", "name": "web", "namespace": "default"},
        "reason": "Tested", "message": "m", "type": "Normal",
    })
}

async fn keys(store: &dyn Store, prefix: &str) -> Vec<String> {
    let found = store.range(KeyRange::prefix(prefix), 0, 0).await.unwrap();
    found.items.iter().map(|kv| kv.key.rsplit('/').next().unwrap().to_owned()).collect()
}

fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().unwrap().iter();
    items.map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

async fn until(what: &str, ask: impl AsyncFn() -> bool) {
    let (patience, pause) = (Duration::from_secs(20), Duration::from_millis(20));
    let asked = || async { if ask().await { Ok(()) } else { Err(what) } };
    rt::retry(patience, pause, |_| true, asked).await.unwrap();
}

async fn write(store: &dyn Store, key: &str, object: &Value) {
    let op = Op::Put { value: api_codec::encode_stored(object).into(), ttl_seconds: None };
    store.write(Write { key: key.into(), expected: Expected::Any, op }).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn keeps_resource_in_its_own_store() {
    let (first, events) = (start(|_| {}).await, Breakable::create());
    // Objects from before the override, and objects of other resources in the store of Events, are not served.
    write(&*first.store, "/registry/events/default/before", &event("before")).await;
    let map = json!({"metadata": {"name": "stray", "namespace": "default"}});
    write(&*events, "/registry/configmaps/default/stray", &map).await;
    let server = with_events_apart(&first, &events).await;
    let api = server.admin();
    let (listed, maps) = (api.get(EVENTS).await.ok(), api.get(MAPS).await.ok());
    assert!(names(&listed).is_empty() && !names(&maps).contains(&"stray".to_owned()), "{listed}");
    let watch =
        |path: &str, list: &Value| format!("{path}?watch=true&resourceVersion={}", version(list));
    let mut seen = Events::open(&api, &watch(EVENTS, &listed)).await;
    let mut seen_maps = Events::open(&api, &watch(MAPS, &maps)).await;
    let made = api.post(EVENTS, &event("one")).await.ok();
    api.post(MAPS, &config_map("one", json!({}))).await.ok();
    assert_eq!(
        (seen.short().await, seen_maps.short().await),
        ("ADDED one".into(), "ADDED one".into())
    );
    assert_eq!(keys(&*events, "/registry/events/").await, ["one"]);
    assert_eq!(keys(&*first.store, "/registry/events/").await, ["before"]);
    assert!(keys(&*first.store, MAPS_KEY).await.contains(&"one".to_owned()));
    assert_eq!(keys(&*events, MAPS_KEY).await, ["stray"]);
    // The revisions are those of the store: the main one is far ahead.
    let revision = |object: &Value| version(object).parse::<u64>().unwrap();
    let stored = events.get("/registry/events/default/one").await.unwrap().0.unwrap();
    assert_eq!(revision(&made), stored.mod_revision);
    assert!(revision(&maps) > revision(&made) + 20, "{maps}");
    // The other group, updates with preconditions, and the deletion.
    let path = format!("{EVENTS}/one");
    let other = api.get("/apis/events.k8s.io/v1/namespaces/default/events").await.ok();
    assert_eq!(names(&other), ["one"]);
    assert!(revision(&other) < revision(&maps), "{other}");
    let changed = api.patch(&path, "merge", &json!({"message": "n"})).await.ok();
    assert!(revision(&changed) > revision(&made) && revision(&changed) < revision(&maps));
    api.put(&path, &made).await.refused(409, "Conflict");
    api.delete(&path, &json!({})).await.ok();
    assert_eq!(
        (seen.short().await, seen.short().await),
        ("MODIFIED one".into(), "DELETED one".into())
    );
    // RBAC decides as always.
    let nobody = server.user("nobody", &[]);
    nobody.get(EVENTS).await.refused(403, "Forbidden");
    nobody.post(EVENTS, &event("two")).await.refused(403, "Forbidden");
    server.tasks.shutdown().stop();
    first.tasks.shutdown().stop();
}

const MAPS_KEY: &str = "/registry/configmaps/default/";

#[tokio::test(flavor = "multi_thread")]
async fn pages_and_expires_by_revisions_of_the_store() {
    let (first, events) = (start(|_| {}).await, Breakable::create());
    let server = with_events_apart(&first, &events).await;
    let api = server.admin();
    for number in 0..300 {
        api.post(EVENTS, &event(&format!("e{number:03}"))).await.ok();
    }
    let page = api.get(&format!("{EVENTS}?limit=200")).await.ok();
    // A write between the pages: the second page is read from the store's history.
    api.delete(&format!("{EVENTS}/e299"), &json!({})).await.ok();
    let token = page["metadata"]["continue"].as_str().unwrap();
    let next = async || api.get(&format!("{EVENTS}?limit=200&continue={token}")).await;
    let rest = next().await.ok();
    assert_eq!((names(&rest).len(), version(&rest)), (100, version(&page)));
    let now = events.revision().await.unwrap();
    events.compact(now).await.unwrap();
    next().await.refused(410, "Expired");
    let exact = format!("{EVENTS}?resourceVersionMatch=Exact&resourceVersion={}", version(&page));
    api.get(&exact).await.refused(410, "Expired");
    // A revision of the main store is one that this store does not have.
    let far = version(&api.post(MAPS, &config_map("far", json!({}))).await.ok());
    let far = far.parse::<u64>().unwrap() + 10_000;
    let message = api.get(&format!("{EVENTS}?watch=true&resourceVersion={far}")).await;
    let message = message.refused(410, "Expired");
    assert!(message.contains(&format!("too old resource version: {far} ({now})")), "{message}");
    // Another server on the same stores has the same objects.
    let second = with_events_apart(&first, &events).await;
    assert_eq!(names(&second.admin().get(EVENTS).await.ok()).len(), 299);
    for server in [first, server, second] {
        server.tasks.shutdown().stop();
    }
}

async fn text(answer: Answer) -> String {
    String::from_utf8(answer.body.to_vec()).unwrap()
}

/// Asserts that requests for other resources work: reads, writes, and a Pod with its admission.
async fn works_without_events(api: &Api, name: &str) {
    api.post(MAPS, &config_map(name, json!({}))).await.ok();
    let account = json!({"metadata": {"name": "default"}});
    api.post("/api/v1/namespaces/default/serviceaccounts", &account).await;
    api.post("/api/v1/namespaces/default/pods", &pod(name)).await.ok();
    api.get(&format!("/api/v1/namespaces/default/pods/{name}")).await.ok();
    let deleted = api.delete(&format!("{MAPS}/{name}"), &json!({})).await;
    deleted.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn serves_other_resources_while_a_store_is_down() {
    let (first, events) = (start(|_| {}).await, Breakable::create());
    let server = with_events_apart(&first, &events).await;
    let api = server.admin();
    until("readiness", async || api.get("/readyz").await.code == 200).await;
    let made = api.post(EVENTS, &event("one")).await.ok();
    let path = format!("{EVENTS}?watch=true&resourceVersion={}", version(&made));
    let mut seen = Events::open(&api, &path).await;
    events.down.send_replace(true);
    until("the loss", async || api.get("/readyz/etcd-override-0").await.code == 500).await;
    let attempts = || events.writes.load(Ordering::Relaxed);
    let refused = async || api.post(EVENTS, &event("two")).await.refused(504, "Timeout");
    until("a known loss", async || refused().await.contains("the etcd of events does not answer"))
        .await;
    let before = attempts();
    let message = refused().await;
    assert!(message.contains("connection refused"), "{message}");
    assert_eq!(attempts(), before, "requests for a store that is down do not wait for it");
    api.get(EVENTS).await.refused(504, "Timeout");
    // As upstream, a list from the cache is an old one.
    assert_eq!(names(&api.get(&format!("{EVENTS}?resourceVersion=0")).await.ok()), ["one"]);
    works_without_events(&api, "meanwhile").await;
    let failing = text(api.get("/readyz").await).await;
    assert!(failing.contains("[+]etcd ok\n[-]etcd-override-0 failed"), "{failing}");
    // A liveness probe that leaves out etcd leaves out all of them.
    let alive = api.get("/livez?exclude=etcd&verbose").await;
    assert_eq!(alive.code, 200);
    assert!(text(alive).await.contains("[+]etcd-override-0 excluded with etcd: ok\n"));
    let statuses = api.get("/api/v1/componentstatuses").await.ok();
    assert_eq!(names(&statuses), ["controller-manager", "etcd-0", "etcd-1", "scheduler"]);
    let healthy = |index: usize| statuses["items"][index]["conditions"][0]["status"].clone();
    assert_eq!((healthy(1), healthy(2)), (json!("True"), json!("False")));
    api.get("/api/v1/componentstatuses/etcd-2").await.refused(404, "NotFound");
    // When the store is back, the open watch continues without a gap.
    events.down.send_replace(false);
    until("the recovery", async || api.post(EVENTS, &event("three")).await.code == 201).await;
    assert_eq!(seen.short().await, "ADDED three");
    until("readiness", async || api.get("/readyz").await.code == 200).await;
    let metrics = text(api.get("/metrics").await).await;
    for store in ["etcd-0", "etcd-1"] {
        let line = format!("apiserver_storage_size_bytes{{storage_cluster_id=\"{store}\"}}");
        assert!(metrics.contains(&line), "{store}");
    }
    server.tasks.shutdown().stop();
    first.tasks.shutdown().stop();
}
