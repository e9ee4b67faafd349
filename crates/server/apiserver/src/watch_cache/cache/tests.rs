use auth::authz::node::POD_MEMBERS;
use bytes::Bytes;
use proptest::prelude::{Just, Strategy, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};
use serde_json::{Value, json};
use store::KeyValue;

use super::*;
use crate::{
    registry::{object, projection::Projection},
    request::ResponseFormat,
    watch_cache::event::{Delivery, EventKind, FrameKey},
};

fn definition(group: &str, plural: &str) -> Arc<Definition> {
    let found = crate::registry::builtin::builtin().into_iter().find(|d| d.is(group, plural));
    found.unwrap()
}

fn cache() -> Cache {
    Cache::new(definition("", "configmaps"), Vec::new(), 1)
}

fn within(scope: &str) -> Interest {
    Interest { scope: format!("/registry/configmaps/{scope}"), filter: None }
}

fn everything() -> Interest {
    within("")
}

fn put(key: &str, revision: Revision, labels: Value) -> Change {
    let tree =
        json!({"metadata": {"name": key, "labels": labels}, "data": {"r": revision.to_string()}});
    let kv = KeyValue {
        key: format!("/registry/configmaps/ns/{key}").into(),
        value: api_codec::encode_stored(&tree).into(),
        create_revision: revision,
        mod_revision: revision,
        version: 1,
    };
    Change { kind: ChangeKind::Put, kv }
}

fn delete(key: &str, revision: Revision) -> Change {
    let mut change = put(key, revision, json!({}));
    change.kind = ChangeKind::Delete;
    change.kv.value = Bytes::new();
    change
}

/// Returns the revisions that a watcher has received so far.
fn drain(watcher: &mut Watcher) -> Vec<Revision> {
    let mut seen: Vec<Revision> = watcher.backlog.drain(..).map(|e| e.object.revision).collect();
    while !watcher.queue.is_empty() {
        let next = futures_util::FutureExt::now_or_never(watcher.queue.recv());
        seen.extend(next.flatten().map(|delivery| delivery.event.object.revision));
    }
    seen
}

#[derive(Clone, Debug)]
enum Step {
    Put(u8),
    Delete(u8),
    /// Watches from this many revisions ago.
    Watch(u8),
    WatchFromNow,
    Compact(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..6u8).prop_map(Step::Put),
        2 => (0..6u8).prop_map(Step::Delete),
        2 => (0..12u8).prop_map(Step::Watch),
        1 => Just(Step::WatchFromNow),
        1 => (0..8u8).prop_map(Step::Compact),
    ]
}

proptest! {
    /// A watcher receives every event after its revision once and in order, a watch of a compacted revision fails, and
    /// the objects are those that the changes produce.
    #[test]
    fn delivers_every_event_once_and_in_order(steps in prop::collection::vec(step(), 1..80)) {
        let cache = cache();
        let (mut revision, mut oldest) = (1, 1);
        let mut model = BTreeMap::new();
        let mut changes: Vec<Revision> = Vec::new();
        let mut watchers: Vec<(Revision, usize, Watcher)> = Vec::new();
        for step in steps {
            match step {
                Step::Put(key) => {
                    revision += 1;
                    cache.apply(&put(&key.to_string(), revision, json!({})));
                    model.insert(key.to_string(), revision);
                    changes.push(revision);
                }
                Step::Delete(key) => {
                    // The store only reports deletions of existing keys.
                    if model.remove(&key.to_string()).is_some() {
                        revision += 1;
                        let (event, _) = cache.apply(&delete(&key.to_string(), revision));
                        prop_assert_eq!(event.kind, EventKind::Deleted);
                        prop_assert!(event.previous.is_some() && !event.object.bytes.is_empty());
                        changes.push(revision);
                    }
                }
                Step::Watch(ago) => {
                    let from = revision.saturating_sub(u64::from(ago));
                    match cache.watch(from, everything()) {
                        Ok(watcher) => {
                            prop_assert!(from >= oldest);
                            watchers.push((from, 0, watcher));
                        }
                        Err(old) => prop_assert!(from < oldest && old.oldest == oldest),
                    }
                }
                Step::WatchFromNow => {
                    let mut watcher = cache.watch_from_now(everything());
                    let state: Vec<_> = watcher.backlog.drain(..).map(|e| (e.object.name().to_owned(), e.object.revision)).collect();
                    prop_assert_eq!(state, model.clone().into_iter().collect::<Vec<_>>());
                    watchers.push((revision, 0, watcher));
                }
                Step::Compact(ago) => {
                    let to = revision.saturating_sub(u64::from(ago));
                    cache.compact(to);
                    oldest = oldest.max(to);
                }
            }
            for (from, seen, watcher) in &mut watchers {
                let expected: Vec<_> = changes.iter().copied().filter(|r| r > from).skip(*seen).collect();
                let got = drain(watcher);
                prop_assert_eq!(&got, &expected);
                *seen += got.len();
            }
            let now: Vec<_> = cache.list("/registry/configmaps/ns/", "").iter().map(|o| (o.name().to_owned(), o.revision)).collect();
            prop_assert_eq!(now, model.clone().into_iter().collect::<Vec<_>>());
        }
    }
}

#[tokio::test]
async fn ends_slow_watch_and_releases_events() {
    let cache = cache();
    let (mut slow, mut quick) =
        (cache.watch(1, everything()).unwrap(), cache.watch(1, everything()).unwrap());
    let mut first = None;
    for revision in 2..1100 {
        let (event, _) = cache.apply(&put("a", revision, json!({})));
        first.get_or_insert_with(|| Arc::downgrade(&event));
        let got = quick.queue.recv().await.unwrap();
        assert_eq!(got.event.object.revision, revision);
    }
    assert!(slow.queue.is_empty() && slow.queue.recv().await.is_none(), "it ends, without a gap");
    // Only the history holds the event now.
    cache.compact(2000);
    assert!(first.unwrap().upgrade().is_none());
}

#[tokio::test]
async fn ends_slow_watch_by_queued_bytes() {
    let cache = cache();
    let mut slow = cache.watch(1, everything()).unwrap();
    for revision in 2..20 {
        cache.apply(&put("a", revision, json!({"x": "y".repeat(1 << 20)})));
    }
    assert!(slow.queue.recv().await.is_none());
    // A single event is always queued, regardless of its size.
    let mut fresh = cache.watch(19, everything()).unwrap();
    cache.apply(&put("a", 20, json!({"x": "y".repeat(5 << 20)})));
    assert_eq!(fresh.queue.recv().await.unwrap().event.object.revision, 20);
}

#[test]
fn keeps_only_name_of_unreadable_object() {
    let cache = cache();
    for (revision, value) in
        [(2, &b"garbage"[..]), (3, b"{\"metadata\":{\"name\":"), (4, b"k8s\0\x0a")]
    {
        let mut change = put("bad", revision, json!({}));
        change.kv.value = Bytes::copy_from_slice(value);
        cache.apply(&change);
        let object = cache.get("/registry/configmaps/ns/bad").unwrap();
        assert_eq!(object.tree().unwrap(), json!({"metadata": {"name": "bad", "namespace": "ns"}}));
    }
}

#[test]
fn limits_history_by_bytes() {
    let cache = cache();
    let large = "x".repeat(100_000);
    for revision in 2..202 {
        let mut change = put("a", revision, json!({}));
        change.kv.value = format!("{{\"metadata\":{{\"name\":\"a\"}},\"d\":\"{large}\"}}").into();
        cache.apply(&change);
    }
    let inner = cache.lock();
    assert!(inner.history_bytes <= HISTORY_BYTES);
    assert_eq!(inner.oldest, 201 - inner.history.len() as u64);
    drop(inner);
    assert!(cache.watch(2, everything()).is_err() && cache.watch(200, everything()).is_ok());
}

#[test]
fn removes_closed_watchers() {
    let cache = cache();
    for _ in 0..1000 {
        drop(cache.watch(1, everything()).unwrap());
    }
    assert!(cache.lock().watchers.len() <= 16);
    let kept: Vec<_> = (0..100).map(|_| cache.watch(1, everything()).unwrap()).collect();
    cache.apply(&put("a", 2, json!({})));
    assert_eq!((cache.lock().watchers.len(), kept.len()), (100, 100));
}

/// Counts the wake-ups of a waiting task.
#[derive(Default)]
struct Wakes(std::sync::atomic::AtomicUsize);

impl std::task::Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

#[test]
fn wakes_only_matching_watchers() {
    let cache = cache();
    let scopes = ["ns/", "ns/a", ""].into_iter().flat_map(|scope| [scope; 1000]);
    let mut watchers: Vec<Watcher> =
        scopes.map(|scope| cache.watch(1, within(scope)).unwrap()).collect();
    let mut woken_by = |changes: &[Change]| {
        watchers.iter_mut().for_each(|watcher| drop(drain(watcher)));
        let wakes = Arc::new(Wakes::default());
        let waker = wakes.clone().into();
        let mut cx = std::task::Context::from_waker(&waker);
        let mut waiting: Vec<_> = watchers.iter_mut().map(|w| Box::pin(w.queue.recv())).collect();
        waiting.iter_mut().for_each(|w| assert!(w.as_mut().poll(&mut cx).is_pending()));
        changes.iter().for_each(|change| drop(cache.apply(change)));
        wakes.0.load(std::sync::atomic::Ordering::Relaxed)
    };
    let elsewhere = |revision| {
        let mut change = put("a", revision, json!({}));
        change.kv.key = "/registry/configmaps/other/a".into();
        change
    };
    let changes: Vec<_> = (2..12).map(elsewhere).collect();
    assert_eq!(woken_by(&changes), 1000, "those who watch all namespaces");
    assert_eq!(woken_by(&[put("b", 20, json!({}))]), 2000, "and those of the namespace");
    assert_eq!(woken_by(&[put("a", 21, json!({}))]), 3000, "and those of the object");
}

#[tokio::test]
async fn encodes_each_frame_once() {
    let cache = cache();
    let (event, _) = cache.apply(&put("a", 2, json!({})));
    let delivery = Delivery::new(event);
    let key = |version: &str| FrameKey {
        kind: EventKind::Added,
        version: version.into(),
        accepted: ResponseFormat::JSON,
        first: false,
    };
    let made = std::sync::atomic::AtomicUsize::new(0);
    let frame = |version: &'static str| {
        let make = async {
            made.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            tokio::task::yield_now().await;
            Ok::<_, ()>(Bytes::from_static(version.as_bytes()))
        };
        delivery.frame(key(version), make)
    };
    // The second watcher waits for the first one.
    let (first, again) = tokio::join!(frame("v1"), frame("v1"));
    assert_eq!(first.unwrap().as_ptr(), again.unwrap().as_ptr());
    for version in ["v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v9"] {
        assert_eq!(frame(version).await.unwrap(), version);
    }
    // The ninth encoding is not shared.
    assert_eq!(made.into_inner(), 10);
}

#[test]
fn continues_pages_after_position() {
    let cache = cache();
    for (i, key) in ["a", "b", "c"].into_iter().enumerate() {
        cache.apply(&put(key, 2 + i as u64, json!({})));
    }
    let names = |prefix: &str, after: &str| -> Vec<String> {
        cache.list(prefix, after).iter().map(|o| o.name().to_owned()).collect()
    };
    let prefix = "/registry/configmaps/ns/";
    assert_eq!(names(prefix, &format!("{prefix}a")), ["b", "c"]);
    assert_eq!(names(prefix, "/registry/configmaps/aa/z"), ["a", "b", "c"]);
    assert_eq!(names(prefix, &format!("{prefix}z")), [""; 0]);
    assert_eq!(names("/registry/configmaps/n/", ""), [""; 0]);
    let page = |after: &str, most| {
        let page = cache.page(prefix, after, most, None);
        assert_eq!(page.newest, 4);
        (page.objects.iter().map(|o| o.name().to_owned()).collect::<Vec<_>>(), page.behind)
    };
    assert_eq!(page("", 2), (vec!["a".to_owned(), "b".to_owned()], 1));
    assert_eq!(page(&format!("{prefix}b"), 2), (vec!["c".to_owned()], 0));
    assert_eq!(page(&format!("{prefix}c"), 2), (Vec::new(), 0));
    assert_eq!(page("/registry/configmaps/zz/", 2), (Vec::new(), 0));
    // A given number of remaining objects is used as it is.
    assert_eq!(cache.page(prefix, &format!("{prefix}a"), 1, Some(7)).behind, 6);
}

#[test]
fn knows_number_of_remaining_objects() {
    let cache = cache();
    let mut revision = 1;
    let mut apply = |change: &dyn Fn(u64) -> Change| {
        revision += 1;
        cache.apply(&change(revision));
        for prefix in
            ["/registry/configmaps/ns/", "/registry/configmaps/other/", "/registry/configmaps/"]
        {
            for most in [0, 1, 5] {
                let all = cache.list(prefix, "").len();
                assert_eq!(cache.page(prefix, "", most, None).behind, all.saturating_sub(most));
            }
        }
    };
    for name in ["a", "b", "a", "c"] {
        apply(&|revision| put(name, revision, json!({})));
        apply(&|revision| {
            let mut change = put(name, revision, json!({}));
            change.kv.key = format!("/registry/configmaps/other/{name}").into();
            change
        });
    }
    for name in ["b", "b", "a", "c"] {
        apply(&|revision| delete(name, revision));
    }
}

/// Returns an object with a value in every member of the schema, to a certain depth.
fn filled(schema: &api_schema::Schema, node: api_schema::NodeId, depth: usize) -> Value {
    use api_schema::Shape;
    match &schema.node(node).shape {
        _ if depth == 0 => Value::Null,
        Shape::Struct(fields) => {
            let fields = fields.fields.iter();
            fields.map(|f| (f.name.to_string(), filled(schema, f.node, depth - 1))).collect()
        }
        Shape::Map { value, .. } => json!({"k": filled(schema, *value, depth - 1)}),
        Shape::List { item, .. } => json!([filled(schema, *item, depth - 1)]),
        Shape::Integer { .. } | Shape::Number => json!(7),
        Shape::Boolean => json!(true),
        _ => json!(format!("text of {}", node.0)),
    }
}

#[test]
fn projects_all_selectable_fields() {
    for definition in crate::registry::builtin::builtin() {
        let served = definition.stored();
        let whole = filled(&served.schema, served.node, 5);
        let projected = definition.projection.read(whole.to_string().as_bytes()).unwrap();
        for selectable in &definition.selectable {
            let (projected, whole) = (selectable.value(&projected), selectable.value(&whole));
            assert_eq!(projected, whole, "{} of {}", selectable.name, definition.plural);
        }
        assert_eq!(object::labels_of(&projected), object::labels_of(&whole));
    }
}

#[test]
fn projects_fields_of_node_authorizer() {
    let indexed =
        |json: &Value| Projection::of(POD_MEMBERS).read(json.to_string().as_bytes()).unwrap();
    let pods = definition("", "pods");
    let served = pods.stored();
    let whole = filled(&served.schema, served.node, 6);
    let projected = pods.projection.read(whole.to_string().as_bytes()).unwrap();
    assert!(!indexed(&whole)["spec"]["volumes"][0]["secret"].is_null());
    assert_eq!(indexed(&projected), indexed(&whole));
}
