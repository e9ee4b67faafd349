//! Comparisons with recordings of upstream. The recordings are not part of the repository; without them the tests are
//! skipped.

use std::{collections::BTreeMap, path::PathBuf};

use serde_json::Value;

use crate::harness::{Api, admin, start};

fn golden(path: &str) -> Option<PathBuf> {
    let beside = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/reference");
    let root = std::env::var_os("WINDLASS_REFERENCE").map_or(beside, PathBuf::from);
    let path = root.join("golden").join(path);
    path.exists().then_some(path)
}

fn read_json(path: &PathBuf) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn matches_upstreams_discovery() {
    let Some(directory) = golden("apiserver") else { return };
    let api = admin();
    let mut compared = 0;
    for entry in std::fs::read_dir(&directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let Some(url) =
            name.strip_prefix("resources_").map(|n| format!("/{}", n.replace('_', "/")))
        else {
            continue;
        };
        let mut wanted = read_json(&path);
        let mut served = api.get(&url).await.ok();
        for list in [&mut wanted, &mut served] {
            list["resources"].as_array_mut().unwrap().sort_by_key(|r| r["name"].to_string());
        }
        for (wanted, served) in wanted["resources"]
            .as_array()
            .unwrap()
            .iter()
            .zip(served["resources"].as_array().unwrap())
        {
            assert_eq!(served, wanted, "{url}");
        }
        assert_eq!(served, wanted, "{url}");
        compared += 1;
    }
    assert!(compared > 20, "{compared}");
    let apis = api.get("/apis").await.ok();
    // Other tests define kinds on the same server concurrently.
    let is_custom = |group: &str| group.starts_with("test.") || group.ends_with("example.com");
    let without_custom = |list: &Value| -> Vec<Value> {
        let groups = list["groups"].as_array().unwrap().iter();
        groups.filter(|g| !is_custom(g["name"].as_str().unwrap())).cloned().collect()
    };
    let wanted = read_json(&directory.join("apis.json"));
    let (apis, wanted) = (without_custom(&apis), without_custom(&wanted));
    let names =
        |list: &[Value]| -> Vec<String> { list.iter().map(|g| g["name"].to_string()).collect() };
    assert_eq!(names(&apis), names(&wanted));
    assert_eq!(apis, wanted);
}

#[tokio::test(flavor = "multi_thread")]
async fn matches_upstreams_table_columns() {
    let Some(directory) = golden("apiserver/tables") else { return };
    let api = admin();
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let mut differing = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let parts: Vec<&str> = name.split('_').collect();
        let url = match parts.as_slice() {
            [version, plural] => format!("/api/{version}/{plural}"),
            [group, version, plural] => format!("/apis/{group}/{version}/{plural}"),
            _ => panic!("{name}"),
        };
        let answer = api.send("GET", &url, &[("accept", accept)], "").await.ok();
        let mut columns = answer["columnDefinitions"].clone();
        for column in columns.as_array_mut().unwrap() {
            column.as_object_mut().unwrap().remove("description");
        }
        if columns != read_json(&path)["columnDefinitions"] {
            differing.push(format!("{url}: {columns}"));
        }
    }
    assert!(differing.is_empty(), "{differing:#?}");
}

/// Splits a YAML stream into documents.
fn documents(path: PathBuf) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    let parts = text.split("\n---\n").map(|d| d.trim_start_matches("---\n"));
    parts
        .filter(|d| !d.trim().is_empty())
        .map(|d| api_codec::from_yaml(d.as_bytes()).unwrap())
        .collect()
}

async fn collection(api: &Api, object: &Value, namespace: &str) -> String {
    let (version, kind) =
        (object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
    let base = if version == "v1" { "/api/v1".to_owned() } else { format!("/apis/{version}") };
    let resources = api.get(&base).await.ok();
    let resources = resources["resources"].as_array().unwrap().clone();
    let found =
        resources.iter().find(|r| r["kind"] == kind && !r["name"].as_str().unwrap().contains('/'));
    let found = found.unwrap_or_else(|| panic!("{kind} is not served"));
    let plural = found["name"].as_str().unwrap();
    if found["namespaced"] == true {
        format!("{base}/namespaces/{namespace}/{plural}")
    } else {
        format!("{base}/{plural}")
    }
}

/// Removes fields that differ between clusters.
fn comparable(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(meta) = object["metadata"].as_object_mut() {
        for field in ["uid", "creationTimestamp", "resourceVersion", "managedFields", "namespace"] {
            meta.remove(field);
        }
        if meta.get("annotations").is_some_and(|a| a.as_object().is_some_and(|a| a.is_empty())) {
            meta.remove("annotations");
        }
    }
    object
}

fn differences(path: &str, ours: &Value, theirs: &Value, out: &mut Vec<String>) {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            let names: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
            for name in names {
                let (a, b) =
                    (a.get(name).unwrap_or(&Value::Null), b.get(name).unwrap_or(&Value::Null));
                differences(&format!("{path}.{name}"), a, b, out);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (i, (a, b)) in a.iter().zip(b).enumerate() {
                differences(&format!("{path}[{i}]"), a, b, out);
            }
        }
        (a, b) if a == b => {}
        (a, b) => out.push(format!("{path}: {a} instead of {b}")),
    }
}

/// Fields with random values, or values that depend on time or caller.
const CHOSEN: [&str; 9] = [
    ".spec.clusterIP",
    "odePort",
    "kube-api-access",
    "controller-uid",
    ".lastPhaseTransitionTime",
    ".spec.username",
    ".spec.groups",
    ".spec.extra",
    // A bare n, which the recording parsed as in YAML 1.1.
    "properties.spec.properties.",
];

#[tokio::test(flavor = "multi_thread")]
async fn matches_upstreams_defaults() {
    let (Some(minimal), Some(defaulted)) =
        (golden("defaulting/minimal.yaml"), golden("defaulting/defaulted.yaml"))
    else {
        return;
    };
    // The created objects include webhooks without a server.
    let server = start(|_| {}).await;
    let api = server.admin();
    let namespace = api.namespace().await;
    let key = |o: &Value| {
        format!("{} {}", o["kind"].as_str().unwrap(), o["metadata"]["name"].as_str().unwrap())
    };
    let expected: BTreeMap<String, Value> =
        documents(defaulted).iter().map(|o| (key(o), comparable(o))).collect();
    let mut wrong = Vec::new();
    for object in documents(minimal) {
        let path = collection(&api, &object, &namespace).await;
        let answer = api.post(&path, &object).await;
        if answer.code >= 300 {
            wrong.push(format!("{}: {}", key(&object), answer.json()["message"]));
            continue;
        }
        let (ours, theirs) = (comparable(&answer.ok()), &expected[&key(&object)]);
        let mut found = Vec::new();
        differences("", &ours, theirs, &mut found);
        found.retain(|line| !CHOSEN.iter().any(|chosen| line.contains(chosen)));
        wrong.extend(found.into_iter().map(|line| format!("{}{line}", key(&object))));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(expected.len(), 30);
    server.tasks.shutdown().stop();
}
