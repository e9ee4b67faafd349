//! Watches: order, resumption, selectors, bookmarks, initial events and termination.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Request;
use http_body_util::BodyExt as _;
use pki::Subject;
use serde_json::{Value, json};
use serve::Body;

use crate::harness::{Api, Identity, admin, config_map, start, validity};

/// The event stream of a watch.
pub(crate) struct Events {
    body: Body,
    buffer: BytesMut,
}

impl Events {
    pub(crate) async fn open(api: &Api, path: &str) -> Self {
        let request = Request::get(path).body(client::full("")).unwrap();
        let response = api.0.request(request).await.unwrap();
        assert_eq!(response.status(), 200, "{path}");
        Self::of(response.into_body())
    }

    pub(crate) fn of(body: Body) -> Self {
        Self { body, buffer: BytesMut::new() }
    }

    /// Returns the next event, or `None` at the end of the watch.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
                return serde_json::from_slice(&self.buffer.split_to(end + 1)).ok();
            }
            let frame = tokio::time::timeout(Duration::from_secs(20), self.body.frame());
            let frame = frame.await.expect("an event within 20 s")?;
            let data: Bytes = frame.unwrap().into_data().unwrap();
            self.buffer.extend_from_slice(&data);
        }
    }

    /// Returns the next event as `TYPE name`.
    pub(crate) async fn short(&mut self) -> String {
        let event = self.next().await.expect("an event");
        let name = event["object"]["metadata"]["name"].as_str().unwrap_or_default();
        format!("{} {name}", event["type"].as_str().unwrap()).trim_end().to_owned()
    }
}

pub(crate) fn version(object: &Value) -> String {
    object["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}

async fn maps(api: &Api) -> String {
    format!("/api/v1/namespaces/{}/configmaps", api.namespace().await)
}

#[tokio::test(flavor = "multi_thread")]
async fn delivers_changes_in_order_and_resumes() {
    let api = admin();
    let maps = maps(&api).await;
    let start = version(&api.get(&maps).await.ok());
    let made = api.post(&maps, &config_map("a", json!({}))).await.ok();
    let mut events =
        Events::open(&api, &format!("{maps}?watch=true&resourceVersion={start}")).await;
    assert_eq!(events.short().await, "ADDED a");
    let patched = api.patch(&format!("{maps}/a"), "merge", &json!({"data": {"k": "v"}})).await.ok();
    let event = events.next().await.unwrap();
    assert_eq!((&event["type"], &event["object"]), (&json!("MODIFIED"), &patched));
    api.delete(&format!("{maps}/a"), &json!({})).await.ok();
    let deleted = events.next().await.unwrap();
    assert_eq!(deleted["type"], "DELETED");
    assert_eq!(deleted["object"]["data"]["k"], "v");
    let last: u64 = version(&deleted["object"]).parse().unwrap();
    assert!(last > version(&patched).parse().unwrap(), "the deletion's own revision");
    // Another watch resumes in the middle.
    let path = format!("{maps}?watch=true&resourceVersion={}", version(&made));
    let mut resumed = Events::open(&api, &path).await;
    assert_eq!(
        (resumed.short().await, resumed.short().await),
        ("MODIFIED a".into(), "DELETED a".into())
    );
    // A watch without a resourceVersion starts with the current objects.
    api.post(&maps, &config_map("b", json!({}))).await.ok();
    let mut fresh = Events::open(&api, &format!("{maps}?watch=true")).await;
    assert_eq!(fresh.short().await, "ADDED b");
}

#[tokio::test(flavor = "multi_thread")]
async fn prefixes_protobuf_frames_with_length() {
    let api = admin();
    let maps = maps(&api).await;
    for name in ["a", "b"] {
        api.post(&maps, &config_map(name, json!({}))).await.ok();
    }
    let accept = "application/vnd.kubernetes.protobuf;stream=watch";
    let path = format!("{maps}?watch=true&timeoutSeconds=1");
    let body = api.send("GET", &path, &[("accept", accept)], "").await.body;
    let mut rest = &body[..];
    let mut names = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let (frame, after) = after.split_at(u32::from_be_bytes(*length) as usize);
        rest = after;
        // A WatchEvent: its type, then a RawExtension with the enveloped object.
        assert_eq!(&frame[..7], b"\x0a\x05ADDED");
        let envelope = frame.windows(4).position(|four| four == b"k8s\0").unwrap();
        let object =
            api_codec::protobuf::from_protobuf(api_schema::Schema::builtin(), &frame[envelope..]);
        names.push(object.unwrap()["metadata"]["name"].clone());
    }
    assert_eq!(names, ["a", "b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_objects_entering_and_leaving_selection() {
    let api = admin();
    let maps = maps(&api).await;
    let from = version(&api.get(&maps).await.ok());
    let path = format!("{maps}?watch=true&resourceVersion={from}&labelSelector=on%3Dyes");
    let mut events = Events::open(&api, &path).await;
    api.post(&maps, &config_map("a", json!({}))).await.ok();
    let one = format!("{maps}/a");
    let label = |on: Value| json!({"metadata": {"labels": {"on": on}}});
    api.patch(&one, "merge", &label(json!("yes"))).await.ok();
    api.patch(&one, "merge", &json!({"data": {"k": "v"}})).await.ok();
    api.patch(&one, "merge", &label(Value::Null)).await.ok();
    api.patch(&one, "merge", &label(json!("yes"))).await.ok();
    api.delete(&one, &json!({})).await.ok();
    for expected in ["ADDED a", "MODIFIED a", "DELETED a", "ADDED a", "DELETED a"] {
        assert_eq!(events.short().await, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shows_previous_object_when_leaving_selection() {
    let api = admin();
    let maps = maps(&api).await;
    let shown = |tenant: &str, secret: &str| json!({"metadata": {"labels": {"tenant": tenant}}, "data": {"k": secret}});
    let mut map = config_map("a", json!({"k": "a's"}));
    map["metadata"]["labels"] = json!({"tenant": "a"});
    let made = api.post(&maps, &map).await.ok();
    let from = version(&made);
    let path = format!("{maps}?watch=true&resourceVersion={from}&labelSelector=tenant%3Da");
    let mut events = Events::open(&api, &path).await;
    let moved = api.patch(&format!("{maps}/a"), "merge", &shown("b", "b's")).await.ok();
    let left = events.next().await.unwrap();
    assert_eq!(left["type"], "DELETED");
    assert_eq!(left["object"]["data"]["k"], "a's");
    assert_eq!(left["object"]["metadata"]["labels"]["tenant"], "a");
    // The watch sees a deletion at the revision of the change.
    assert_eq!(version(&left["object"]), version(&moved));
    // A resumed watch sees the same event.
    let mut again = Events::open(&api, &path).await;
    assert_eq!(again.next().await.unwrap(), left);
}

#[tokio::test(flavor = "multi_thread")]
async fn ends_streamed_list_with_bookmark() {
    let api = admin();
    let maps = maps(&api).await;
    api.post(&maps, &config_map("a", json!({}))).await.ok();
    api.post(&maps, &config_map("b", json!({}))).await.ok();
    let options = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    let path = format!("{maps}?{options}&allowWatchBookmarks=true");
    let mut events = Events::open(&api, &path).await;
    assert_eq!((events.short().await, events.short().await), ("ADDED a".into(), "ADDED b".into()));
    let end = events.next().await.unwrap();
    assert_eq!(end["type"], "BOOKMARK");
    assert_eq!(end["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    assert_eq!(end["object"]["kind"], "ConfigMap");
    // A watch can resume from the bookmark's revision.
    let path = format!("{maps}?watch=true&resourceVersion={}", version(&end["object"]));
    let mut resumed = Events::open(&api, &path).await;
    api.post(&maps, &config_map("c", json!({}))).await.ok();
    assert_eq!((events.short().await, resumed.short().await), ("ADDED c".into(), "ADDED c".into()));
    for bad in ["sendInitialEvents=true", "resourceVersionMatch=NotOlderThan"] {
        api.get(&format!("{maps}?watch=true&{bad}")).await.refused(422, "Invalid");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ends_watch_after_requested_timeout() {
    let api = admin();
    let maps = maps(&api).await;
    let mut events = Events::open(&api, &format!("{maps}?watch=true&timeoutSeconds=1")).await;
    assert_eq!(events.next().await, None);
    // The largest timeout, which a clock cannot add.
    let path = format!("{maps}?watch=true&timeoutSeconds={}", i64::MAX);
    let mut events = Events::open(&api, &path).await;
    api.post(&maps, &config_map("a", json!({}))).await.ok();
    assert_eq!(events.next().await.map(|event| event["type"].clone()), Some(json!("ADDED")));
}

#[tokio::test(flavor = "multi_thread")]
async fn rejects_watch_of_compacted_revision() {
    let server = start(|config| config.compaction_interval = Duration::from_secs(1)).await;
    let api = server.admin();
    let maps = maps(&api).await;
    api.post(&maps, &config_map("a", json!({}))).await.ok();
    let path = format!("{maps}?watch=true&resourceVersion=2&timeoutSeconds=1");
    for _ in 0..100 {
        let answer = api.get(&path).await;
        if answer.code == 410 {
            let message = answer.refused(410, "Expired");
            assert!(message.starts_with("too old resource version: 2 ("), "{message}");
            server.tasks.shutdown().stop();
            return;
        }
    }
    panic!("the history was never compacted");
}

#[tokio::test(flavor = "multi_thread")]
async fn expires_continue_token_of_unchanged_collection() {
    let server = start(|config| config.compaction_interval = Duration::from_secs(1)).await;
    let api = server.admin();
    let maps = maps(&api).await;
    for name in ["a", "b"] {
        api.post(&maps, &config_map(name, json!({}))).await.ok();
    }
    let first = api.get(&format!("{maps}?limit=1")).await.ok();
    let token = first["metadata"]["continue"].as_str().unwrap();
    for _ in 0..100 {
        let answer = api.get(&format!("{maps}?limit=1&continue={token}")).await;
        if answer.code == 410 {
            answer.refused(410, "Expired");
            server.tasks.shutdown().stop();
            return;
        }
        answer.ok();
        // Let the time of a watch pass.
        api.get(&format!("{maps}?watch=true&timeoutSeconds=1")).await;
    }
    panic!("the token never expired");
}

#[tokio::test(flavor = "multi_thread")]
async fn ends_only_slow_watch() {
    let server = start(|_| {}).await;
    let api = server.admin();
    let maps = maps(&api).await;
    api.post(&maps, &config_map("a", json!({}))).await.ok();
    let from = version(&api.get(&maps).await.ok());
    let path = format!("{maps}?watch=true&resourceVersion={from}");
    let mut slow = Events::open(&api, &path).await;
    let mut quick = Events::open(&api, &path).await;
    let writes = 1100;
    let reader = async {
        for i in 1..=writes {
            let event = quick.next().await.expect("the quick watcher is served");
            assert_eq!(event["object"]["data"]["i"], i.to_string());
        }
    };
    let writer = async {
        for i in 1..=writes {
            let patch = json!({"data": {"i": i.to_string()}});
            api.patch(&format!("{maps}/a"), "merge", &patch).await.ok();
        }
    };
    futures_util::future::join(reader, writer).await;
    // The slow watch was ended. The events received before have no gap.
    let mut seen = 0;
    while let Some(event) = slow.next().await {
        seen += 1;
        assert_eq!(event["object"]["data"]["i"], seen.to_string());
    }
    assert!(seen < writes, "{seen}");
    server.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn sends_column_definitions_once() {
    let api = admin();
    let maps = maps(&api).await;
    api.post(&maps, &config_map("a", json!({}))).await.ok();
    api.post(&maps, &config_map("b", json!({}))).await.ok();
    let request = Request::get(format!("{maps}?watch=true"))
        .header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
        .body(client::full(""))
        .unwrap();
    let body = api.0.request(request).await.unwrap().into_body();
    let mut events = Events::of(body);
    let (first, second) = (events.next().await.unwrap(), events.next().await.unwrap());
    assert_eq!(first["object"]["kind"], "Table");
    assert_eq!(first["object"]["columnDefinitions"].as_array().unwrap().len(), 3);
    assert_eq!(second["object"].get("columnDefinitions"), Some(&json!(null)));
    assert_eq!(second["object"]["rows"][0]["cells"][0], "b");
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_by_deprecated_paths() {
    let api = admin();
    let namespace = api.namespace().await;
    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    let from = version(&api.get(&maps).await.ok());
    let all = format!("/api/v1/watch/namespaces/{namespace}/configmaps?resourceVersion={from}");
    let one = format!("/api/v1/watch/namespaces/{namespace}/configmaps/b?resourceVersion={from}");
    let (mut all, mut one) = (Events::open(&api, &all).await, Events::open(&api, &one).await);
    api.post(&maps, &config_map("a", json!({}))).await.ok();
    api.post(&maps, &config_map("b", json!({}))).await.ok();
    assert_eq!((all.short().await, all.short().await), ("ADDED a".into(), "ADDED b".into()));
    assert_eq!(one.short().await, "ADDED b");
    // A get by name returns the object, regardless of `watch`.
    assert_eq!(api.get(&format!("{maps}/a?watch=true")).await.ok()["kind"], "ConfigMap");
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_for_future_revision_of_store() {
    let api = admin();
    let maps = maps(&api).await;
    let now: u64 = version(&api.get(&maps).await.ok()).parse().unwrap();
    let ahead = format!(
        "{maps}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion={}",
        now + 1_000_000
    );
    let refused = api.get(&ahead).await;
    assert_eq!(refused.code, 504, "{:?}", refused.body);
    assert_eq!(refused.header("retry-after"), "1");
    // Waiting for a revision that a restored backup has lost would take until it is reached again.
    let lost = now + 1_000_000;
    let path = format!("{maps}?watch=true&resourceVersion={lost}&timeoutSeconds=9");
    let message = api.get(&path).await.refused(410, "Expired");
    assert!(message.starts_with(&format!("too old resource version: {lost} (")), "{message}");
    let strange = api.get(&format!("{maps}?watch=true&resourceVersion=x")).await;
    strange.refused(400, "BadRequest");
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_ends_watches_and_their_connections() {
    let server = start(|_| {}).await;
    let subject = Subject::new("somebody").in_group("system:masters");
    let api = server.tls(Identity::issued(&server.authority, subject, validity()));
    let path = "/api/v1/namespaces?watch=true&resourceVersion=0";
    let mut events = Events::open(&api, path).await;
    assert_eq!(events.next().await.unwrap()["type"], "ADDED");
    let end = async { while events.next().await.is_some() {} };
    let (drained, ()) = tokio::join!(server.tasks.drain(Duration::from_secs(10)), end);
    assert!(drained.unfinished.is_empty(), "{:?}", drained.unfinished);
}
