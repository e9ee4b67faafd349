//! Compares the OpenAPI documents of custom kinds with upstream's, with upstream's binaries from `WINDLASS_PEER`.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use api_meta::Tree as _;
use serde_json::Value;

use crate::{
    processes::ControlPlane,
    turns::{ServerRun, peer, send},
};

const DEFINITIONS: &str = include_str!("published/definitions.yaml");
const GROUP: &str = "shapes.example.com";

/// Returns the documents of version 3, and the parts of version 2 about the test's group.
async fn published(turn: &ServerRun) -> BTreeMap<String, Value> {
    for text in DEFINITIONS.split("\n---\n") {
        let definition = api_codec::from_yaml(text.as_bytes()).unwrap();
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let (code, body) = send(&turn.client, "POST", path, &definition).await.unwrap();
        assert!(matches!(code, 201 | 409), "{code} {body}");
    }
    let mut all = BTreeMap::new();
    for (version, kinds) in [("v1", 3), ("v1alpha1", 1)] {
        let path = format!("/openapi/v3/apis/{GROUP}/{version}");
        let document = with_kinds(turn, &path, &["components", "schemas"], kinds).await;
        all.insert(path, document);
    }
    let whole = with_kinds(turn, "/openapi/v2", &["definitions"], 4).await;
    let (_, index) = send(&turn.client, "GET", "/openapi/v3", &Value::Null).await.unwrap();
    let names = index["paths"].as_object().unwrap().keys();
    all.insert(
        "/openapi/v3".to_owned(),
        names.filter(|name| name.contains(GROUP)).cloned().collect(),
    );
    for part in ["definitions", "paths"] {
        let own = whole[part].as_object().unwrap().iter();
        let own = own.filter(|(name, _)| name.contains("shapes"));
        let own = own.map(|(name, value)| (name.clone(), inline(value, &whole["parameters"])));
        all.insert(format!("/openapi/v2 {part}"), own.collect());
    }
    all
}

/// Waits until a document contains `kinds` of the test's kinds, each with its list.
async fn with_kinds(turn: &ServerRun, path: &str, schemas: &[&str], kinds: usize) -> Value {
    let (patience, pause) = (Duration::from_secs(60), Duration::from_millis(200));
    let document = rt::retry(
        patience,
        pause,
        |_| true,
        || async {
            let (_, document) =
                send(&turn.client, "GET", path, &Value::Null).await.ok_or("nothing")?;
            let names = document.at(schemas).as_object().ok_or("no schemas")?.keys();
            let own = names.filter(|name| name.starts_with("com.example.shapes.")).count();
            if own == 2 * kinds { Ok(document) } else { Err("not all kinds") }
        },
    );
    document.await.unwrap_or_else(|missing| panic!("{path}: {missing}"))
}

/// Replaces references to shared parameters by the parameters.
fn inline(value: &Value, shared: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let target = members.get("$ref").and_then(Value::as_str);
            match target.and_then(|target| target.strip_prefix("#/parameters/")) {
                Some(name) => shared[name].clone(),
                None => members.iter().map(|(k, v)| (k.clone(), inline(v, shared))).collect(),
            }
        }
        Value::Array(items) => items.iter().map(|v| inline(v, shared)).collect(),
        other => other.clone(),
    }
}

/// Collects every value below another, by its path.
fn leaves(value: &Value, here: &str, found: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            map.iter().for_each(|(name, value)| leaves(value, &format!("{here} {name}"), found));
        }
        Value::Array(list) if list.iter().any(Value::is_object) => {
            for (i, value) in list.iter().enumerate() {
                // The order of parameters does not matter. Ours have no descriptions and no sharded watches.
                let name = value["name"].as_str().map_or_else(|| i.to_string(), str::to_owned);
                let mut value = value.clone();
                if value["in"].is_string() {
                    value.remove(&["description"]);
                }
                if name != "shardSelector" {
                    leaves(&value, &format!("{here} {name}"), found);
                }
            }
        }
        _ => drop(found.insert(here.to_owned(), value.to_string())),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn publishes_custom_kinds_like_upstream() {
    let Some(peer) = peer() else { return };
    let plane = ControlPlane::prepare_with(&peer.join("etcd"));
    let turn =
        ServerRun::begin(&plane, plane.start_apiserver_of(&peer.join("kube-apiserver"))).await;
    let theirs = published(&turn).await;
    drop(turn);
    let turn = ServerRun::begin(&plane, plane.start_apiserver()).await;
    let ours = published(&turn).await;

    let mut wrong = Vec::new();
    for (document, theirs) in &theirs {
        let (mut own, mut wanted) = (BTreeMap::new(), BTreeMap::new());
        leaves(&ours[document], "", &mut own);
        leaves(theirs, "", &mut wanted);
        let places: BTreeSet<&String> = own.keys().chain(wanted.keys()).collect();
        // The options of a deletion belong to every group, and upstream's list lacks some of its own groups.
        let is_list = |place: &str| place.contains("DeleteOptions x-kubernetes-group-version-kind");
        let differ = |place: &&String| own.get(*place) != wanted.get(*place) && !is_list(place);
        for place in places.into_iter().filter(differ) {
            let of = |all: &BTreeMap<String, String>| all.get(place).cloned().unwrap_or_default();
            wrong.push(format!(
                "{document}{place}\n  ours:     {}\n  upstream: {}",
                of(&own),
                of(&wanted)
            ));
        }
    }
    println!("{} differences", wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
