//! Compares the API server's validation with upstream's, on objects with one wrong field each, with upstream's binaries
//! from `WINDLASS_PEER`. Every field of some sixty objects is removed, emptied, and given values of other types and
//! forms: thirty thousand objects in all. Each is created with `dryRun`.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::{
    processes::ControlPlane,
    turns::{ServerRun, peer, send},
};

const OBJECTS: &str = include_str!("differential/objects.yaml");

/// The accepted differences and their reasons: fields by kind, with `*` for every index.
const ACCEPTED_DIFFERENCES: &[(&str, &str)] = &[
    ("binaryData", "Go reads an empty list as no bytes"),
    ("data", "Go reads an empty list as no bytes"),
    ("CertificateSigningRequest spec/request", "Go reads an empty list as no bytes"),
    (
        "CertificateSigningRequest spec/signerName",
        "the labels of a signer's domain are not validated",
    ),
    ("CronJob spec/timeZone", "validation has no table of time zones"),
    ("CustomResourceDefinition", "another parser validates default values and types in a schema"),
    ("DeviceClass spec/selectors", "CEL is not compiled"),
    ("HorizontalPodAutoscaler spec/behavior", "an empty list of policies is read as none"),
    ("HorizontalPodAutoscaler spec/metrics", "the versions of references are not validated"),
    ("Job spec/completions", "upstream's server fails with an internal error"),
    ("LimitRange metadata", "upstream generates a name"),
    ("Node spec/podCIDR", "one of the two fields is upstream's, the other is filled in"),
    ("ResourceClaim spec/devices/constraints", "names of attributes are not validated"),
    ("ResourceQuota spec/hard/services.nodeports", "upstream's quota of node ports has no scope"),
    ("RuntimeClass scheduling/tolerations", "tolerations may be repeated"),
    ("Service spec/ports/*/nodePort", "upstream does not check the range in a dry run"),
    ("StatefulSet spec/updateStrategy/rollingUpdate/maxUnavailable", "upstream drops the field"),
    ("StatefulSet spec/volumeClaimTemplates", "upstream validates the resulting volumes"),
];

/// The values that replace a field; `None` removes it.
fn values() -> Vec<Option<Value>> {
    let words = ["", "x", "INVALID!_x", "1.2.3.4", "10.0.0.0/33", "a/b/c", "../x", "::1", "1.5"];
    let mut all = vec![None, Some(Value::Null), Some(json!("a".repeat(300)))];
    all.extend(words.into_iter().map(|word| Some(json!(word))));
    all.extend([-1_i64, 0, 1, 70_000, 1 << 40].into_iter().map(|number| Some(json!(number))));
    all.extend([json!(true), json!([]), json!({})].map(Some));
    all
}

/// Collects the path of every field below a value.
fn fields(value: &Value, here: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    let steps: Vec<(String, &Value)> = match value {
        Value::Object(map) => map.iter().map(|(name, value)| (name.clone(), value)).collect(),
        Value::Array(list) => list.iter().enumerate().map(|(i, v)| (i.to_string(), v)).collect(),
        _ => return,
    };
    for (step, value) in steps {
        here.push(step);
        found.push(here.clone());
        fields(value, here, found);
        here.pop();
    }
}

fn place<'a>(object: &'a mut Value, path: &[String]) -> &'a mut Value {
    path.iter().fold(object, |here, step| match here {
        Value::Array(list) => &mut list[step.parse::<usize>().unwrap()],
        other => &mut other[step],
    })
}

fn with(object: &Value, path: &[String], value: Option<Value>) -> Value {
    let mut changed = object.clone();
    let (last, parents) = path.split_last().unwrap();
    match (place(&mut changed, parents), value) {
        (parent, Some(value)) => *place(parent, std::slice::from_ref(last)) = value,
        (Value::Object(map), None) => drop(map.remove(last)),
        (Value::Array(list), None) => drop(list.remove(last.parse().unwrap())),
        _ => unreachable!("a field is in a map or a list"),
    }
    changed
}

/// Returns an object and all its variants that differ in one field, each with a description of the change.
fn variants(object: &Value) -> Vec<(String, Value)> {
    let mut paths = Vec::new();
    fields(object, &mut Vec::new(), &mut paths);
    let mut all = vec![("as it is".to_owned(), object.clone())];
    for path in paths.iter().filter(|path| !matches!(path[0].as_str(), "apiVersion" | "kind")) {
        let (name, was) = (path.join("/"), place(&mut object.clone(), path).clone());
        for value in values().into_iter().filter(|value| value.as_ref() != Some(&was)) {
            let shown = value.as_ref().map_or("nothing".to_owned(), ToString::to_string);
            let shown: String = shown.chars().take(30).collect();
            all.push((format!("{name} = {shown}"), with(object, path, value)));
        }
        match was {
            Value::Array(mut list) if !list.is_empty() => {
                list.push(list[0].clone());
                all.push((format!("{name} + first again"), with(object, path, Some(list.into()))));
            }
            Value::Object(map) => {
                for key in ["Bad Key!", "unknownField"] {
                    let mut map: Map<String, Value> = map.clone();
                    map.insert(key.to_owned(), json!("x"));
                    all.push((format!("{name} + {key}"), with(object, path, Some(map.into()))));
                }
            }
            _ => {}
        }
    }
    all
}

/// A server's response: its code, reason and message.
type Verdict = (u16, String, String);

/// Returns a server's responses to all variants of all objects.
async fn verdicts(turn: &ServerRun, objects: &[Value]) -> BTreeMap<String, Verdict> {
    let mut all = BTreeMap::new();
    for object in objects {
        let text = |field: &str| object[field].as_str().unwrap().to_owned();
        let (version, kind) = (text("apiVersion"), text("kind"));
        let prefix = if version.contains('/') { "/apis" } else { "/api" };
        let group = format!("{prefix}/{version}");
        let (_, list) = send(&turn.client, "GET", &group, &Value::Null).await.unwrap();
        let resources = list["resources"].as_array().unwrap_or_else(|| panic!("{group}: {list}"));
        let resource = resources
            .iter()
            .find(|r| r["kind"] == kind && !r["name"].as_str().unwrap().contains('/'))
            .unwrap_or_else(|| panic!("{group} has no {kind}"));
        let within = if resource["namespaced"] == true { "/namespaces/default" } else { "" };
        let plural = resource["name"].as_str().unwrap();
        let path = format!("{group}{within}/{plural}?dryRun=All&fieldValidation=Strict");
        for (change, variant) in variants(object) {
            // For some of these objects, upstream's server drops the connection.
            let answer = send(&turn.client, "POST", &path, &variant).await;
            let (code, body) = answer.unwrap_or((0, Value::Null));
            let text = |field: &str| body[field].as_str().unwrap_or_default().to_owned();
            let name = object["metadata"]["name"].as_str().unwrap();
            let verdict = match code {
                201 => (code, String::new(), String::new()),
                _ => (code, text("reason"), text("message")),
            };
            all.insert(format!("{kind} {name} {change}"), verdict);
        }
    }
    all
}

/// Returns `true` if servers are known to differ for this change.
fn is_known(change: &str) -> bool {
    let mut words = change.splitn(3, ' ');
    let (kind, _, field) = (words.next().unwrap(), words.next(), words.next().unwrap());
    let general: Vec<&str> =
        field.split('/').map(|step| if step.parse::<u8>().is_ok() { "*" } else { step }).collect();
    let general = general.join("/");
    ACCEPTED_DIFFERENCES.iter().any(|(known, _)| {
        general.starts_with(known) || format!("{kind} {general}").starts_with(known)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn rejects_same_objects_as_upstream() {
    let Some(peer) = peer() else { return };
    let plane = ControlPlane::prepare_with(&peer.join("etcd"));
    let objects: Vec<Value> = OBJECTS
        .split("\n---\n")
        .map(|text| api_codec::from_yaml(text.as_bytes()).unwrap())
        .collect();
    let account = json!({"metadata": {"name": "default"}});

    let turn =
        ServerRun::begin(&plane, plane.start_apiserver_of(&peer.join("kube-apiserver"))).await;
    send(&turn.client, "POST", "/api/v1/namespaces/default/serviceaccounts", &account).await;
    let upstream = verdicts(&turn, &objects).await;
    drop(turn);
    let turn = ServerRun::begin(&plane, plane.start_apiserver()).await;
    let ours = verdicts(&turn, &objects).await;

    let (mut words, mut known, mut wrong) = (0, 0, Vec::new());
    for (change, theirs) in &upstream {
        let own = &ours[change];
        if (own.0, &own.1) == (theirs.0, &theirs.1) {
            words += usize::from(own.2 != theirs.2);
        } else if is_known(change) {
            known += 1;
        } else {
            wrong.push(format!("{change}\n  ours:     {own:?}\n  upstream: {theirs:?}"));
        }
    }
    println!(
        "{} objects: {words} rejected with another message, {known} known to differ, {} others differ",
        upstream.len(),
        wrong.len()
    );
    wrong.truncate(50);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
