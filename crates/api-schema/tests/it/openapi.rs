//! Our OpenAPI documents against upstream's.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

/// Makes two ways of saying the same the same: descriptions go, a lone reference stands bare.
fn plain(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let text = |key: &str, v: &Value| key == "description" && v.is_string();
            let mut out: serde_json::Map<String, Value> = members
                .iter()
                .filter(|(k, v)| !text(k, v))
                .map(|(k, v)| (k.clone(), plain(v)))
                .collect();
            // Not ours: CBOR, sharded watches, and the watch paths that were deprecated in 1.11.
            out.retain(|key, _| !key.contains("cbor") && !key.contains("/watch/"));
            for gone in ["WatchEvent", "RawExtension"] {
                out.retain(|key, _| {
                    !key.starts_with("io.k8s.apimachinery") || !key.ends_with(gone)
                });
            }
            if let Some(Value::Array(names)) = out.get_mut("required") {
                names.sort_by_key(ToString::to_string);
            }
            if let Some(Value::Array(all)) = out.get("allOf")
                && let [only] = &all[..]
                && out.len() == 1
            {
                return only.clone();
            }
            Value::Object(out)
        }
        Value::Array(items) => {
            let keep = |v: &&Value| v["name"] != "shardSelector";
            Value::Array(items.iter().filter(keep).map(plain).collect())
        }
        other => other.clone(),
    }
}

fn differences(path: &str, ours: &Value, theirs: &Value, out: &mut Vec<String>) {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys()).collect::<BTreeSet<_>>() {
                match (a.get(key), b.get(key)) {
                    (Some(a), Some(b)) => differences(&format!("{path} {key}"), a, b, out),
                    (Some(a), None) => out.push(format!("{path} {key}: only ours: {a:.120}")),
                    (None, Some(b)) => out.push(format!("{path} {key}: only upstream's: {b:.120}")),
                    (None, None) => {}
                }
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (at, (a, b)) in a.iter().zip(b).enumerate() {
                differences(&format!("{path}[{at}]"), a, b, out);
            }
        }
        _ if ours == theirs => {}
        _ => out.push(format!("{path}: {ours:.200} is not {theirs:.200}")),
    }
}

#[test]
fn documents_are_upstreams() {
    let Some(dir) = super::reference().map(|dir| dir.join("openapi/v3")) else { return };
    let versions: BTreeSet<_> =
        api_schema::resources().iter().map(|r| (r.group, r.version)).collect();
    let mut found = Vec::new();
    for (group, version) in versions {
        let name = if group.is_empty() {
            format!("api__{version}")
        } else {
            format!("apis__{group}__{version}")
        };
        let text = fs::read_to_string(dir.join(format!("{name}_openapi.json"))).unwrap();
        let theirs = plain(&serde_json::from_str(&text).unwrap());
        let ours = plain(&api_schema::openapi::document(group, version, &[], "unversioned"));
        differences(&name, &ours, &theirs, &mut found);
    }
    assert!(found.is_empty(), "{} differences:\n{}", found.len(), found.join("\n"));
}
