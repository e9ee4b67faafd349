//! Linearizability: concurrent clients of two servers on one store observe a single order of changes.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use http::Request;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use serve::Body;
use store::{
    Change, ChangeKind, KeyValue, Revision,
    tests::history::{self, Answer, Call, Clock, Entry, Subject},
};

use crate::harness::{self, Api, config_map};

/// The ConfigMaps of a namespace, as a key-value store.
struct Maps {
    api: Api,
    path: String,
}

fn key(object: &Value) -> String {
    format!("/registry/{}", object["metadata"]["name"].as_str().unwrap())
}

fn revision(object: &Value) -> Revision {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

fn value(object: &Value) -> Bytes {
    object["data"]["v"].as_str().unwrap_or_default().to_owned().into()
}

fn found(object: &Value) -> Entry {
    (key(object), revision(object), value(object))
}

impl Maps {
    fn one(&self, key: &str) -> String {
        format!("{}/{}", self.path, key.trim_start_matches("/registry/"))
    }
}

impl Subject for Maps {
    async fn get(&self, key: &str) -> Answer {
        let answer = self.api.get(&self.one(key)).await;
        match answer.code {
            200 => Answer::Read(vec![found(&answer.json())], None),
            404 => Answer::Read(Vec::new(), None),
            _ => Answer::Unknown,
        }
    }

    async fn list(&self) -> Answer {
        let list = self.api.get(&self.path).await.ok();
        let items = list["items"].as_array().unwrap().iter().map(found).collect();
        Answer::Read(items, Some(revision(&list)))
    }

    async fn write(&self, key: &str, expected: Revision, value: Option<String>) -> Answer {
        let mut map = config_map(key.trim_start_matches("/registry/"), json!({"v": value}));
        let answer = match (value, expected) {
            (Some(_), 0) => self.api.post(&self.path, &map).await,
            (Some(_), expected) => {
                map["metadata"]["resourceVersion"] = json!(expected.to_string());
                self.api.put(&self.one(key), &map).await
            }
            (None, expected) => {
                let only = json!({"preconditions": {"resourceVersion": expected.to_string()}});
                self.api.delete(&self.one(key), &only).await
            }
        };
        match answer.code {
            200 | 201 if answer.json()["kind"] == "ConfigMap" => {
                Answer::Done(Some(revision(&answer.json())))
            }
            200 => Answer::Done(None),
            404 | 409 => Answer::Conflict,
            _ => Answer::Unknown,
        }
    }
}

/// Returns the changes that a watch observes from `from` until `until`.
async fn watched(maps: &Maps, from: Revision, until: Revision) -> Vec<Change> {
    let path = format!("{}?watch=true&resourceVersion={from}", maps.path);
    let request = Request::get(path).body(client::full("")).unwrap();
    let mut body: Body = maps.api.0.request(request).await.unwrap().into_body();
    let (mut buffer, mut seen) = (BytesMut::new(), Vec::new());
    loop {
        while let Some(end) = buffer.iter().position(|b| *b == b'\n') {
            let event: Value = serde_json::from_slice(&buffer.split_to(end + 1)).unwrap();
            let object = &event["object"];
            let kind = match event["type"].as_str() {
                Some("DELETED") => ChangeKind::Delete,
                Some("ADDED" | "MODIFIED") => ChangeKind::Put,
                other => panic!("{other:?}: {event}"),
            };
            let value = if kind == ChangeKind::Delete { Bytes::new() } else { value(object) };
            let kv = KeyValue {
                key: key(object).into(),
                value,
                create_revision: 0,
                mod_revision: revision(object),
                version: 0,
            };
            seen.push(Change { kind, kv });
        }
        if seen.last().is_some_and(|c: &Change| c.kv.mod_revision >= until) {
            return seen;
        }
        let frame = tokio::time::timeout(Duration::from_secs(20), body.frame()).await;
        let data = frame.expect("an event within 20 s").expect("the watch goes on").unwrap();
        buffer.extend_from_slice(&data.into_data().unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn observes_single_order_with_two_servers() {
    let first = harness::start(|_| {}).await;
    let second = first.beside().await;
    let namespace = first.admin().namespace().await;
    let path = format!("/api/v1/namespaces/{namespace}/configmaps");
    let maps: Vec<Arc<Maps>> = [first.admin(), second.admin()]
        .map(|api| Arc::new(Maps { api, path: path.clone() }))
        .into();
    let clock = Arc::new(Clock::default());
    let began = revision(&first.admin().get(&path).await.ok());
    let clients: Vec<_> = (0..6_u64)
        .map(|n| {
            let (maps, clock) = (maps[n as usize % 2].clone(), clock.clone());
            tokio::spawn(
                async move { history::client(&*maps, &clock, &format!("c{n}"), n, 120).await },
            )
        })
        .collect();
    let mut history: Vec<Call> = Vec::new();
    for client in clients {
        history.extend(client.await.unwrap());
    }
    // A final change marks the end for the watches.
    let last = first.admin().post(&path, &config_map("last", json!({"v": "last"}))).await.ok();
    let log = watched(&maps[0], began, revision(&last)).await;
    assert!(log.len() > 100, "{}", log.len());
    history::check(&history, &log, began).unwrap();
    // Watches of the other server see the same changes, from any start.
    for from in [began, log[log.len() / 3].kv.mod_revision, log[log.len() / 2].kv.mod_revision] {
        let seen = watched(&maps[1], from, revision(&last)).await;
        history::check_watch(&seen, &log, from).unwrap();
        let after = log.iter().filter(|c| c.kv.mod_revision > from).count();
        assert_eq!(seen.len(), after, "nothing lost, nothing doubled");
    }
    first.tasks.shutdown().stop();
    second.tasks.shutdown().stop();
}
