//! Compares the OpenAPI documents with upstream's.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fs;

use api_schema::openapi::{Contents, Version2};
use serde_json::{Map, Value, json};

/// Normalizes a document: descriptions of types are removed, and a single reference is unwrapped.
fn plain(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let is_operation = members.contains_key("operationId") || members.contains_key("in");
            let text =
                |key: &str, v: &Value| key == "description" && v.is_string() && !is_operation;
            let mut out: serde_json::Map<String, Value> = members
                .iter()
                .filter(|(k, v)| !text(k, v))
                .map(|(k, v)| (k.clone(), plain(v)))
                .collect();
            // CBOR and sharded watches are not supported.
            out.retain(|key, _| !key.contains("cbor"));
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
            let keep = |v: &&Value| {
                v["name"] != "shardSelector" && v.as_str().is_none_or(|s| !s.contains("cbor"))
            };
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

/// The paths and schemas of a document.
#[derive(Default)]
struct Parts {
    paths: Map<String, Value>,
    schemas: Map<String, Value>,
}

fn parts(contents: &Contents<'_>) -> Parts {
    let mut parts = Parts::default();
    let Ok::<_, Infallible>(names) = contents.paths(|path, item| {
        parts.paths.insert(path, item);
        Ok(())
    });
    let Ok::<_, Infallible>(()) = contents.schemas(names, |name, schema| {
        parts.schemas.insert(name, schema);
        Ok(())
    });
    parts
}

/// Returns the v3 document as one tree.
fn document(contents: &Contents<'_>) -> Value {
    let Parts { paths, schemas } = parts(contents);
    let mut components = Map::new();
    if !schemas.is_empty() {
        components.insert("schemas".to_owned(), schemas.into());
    }
    if let Some(schemes) = contents.security_schemes() {
        components.insert("securitySchemes".to_owned(), schemes);
    }
    let info = contents.info("unversioned");
    json!({"openapi": "3.0.0", "info": info, "paths": paths, "components": components})
}

/// Returns the v2 document as one tree.
fn version_2(contents: &Contents<'_>) -> Value {
    let Parts { mut paths, mut schemas } = parts(contents);
    let mut version_2 = Version2::default();
    paths.values_mut().for_each(|item| version_2.convert_path(item));
    schemas.values_mut().for_each(|schema| version_2.convert_schema(schema));
    json!({
        "swagger": "2.0",
        "info": contents.info("unversioned"),
        "paths": paths,
        "definitions": schemas,
        "parameters": version_2.parameters(),
        "securityDefinitions": contents.security_schemes(),
        "security": [{"BearerToken": []}],
    })
}

#[test]
fn documents_equal_upstreams() {
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
        let ours = plain(&document(&Contents::of_version(group, version, &[])));
        differences(&name, &ours, &theirs, &mut found);
    }
    assert!(found.is_empty(), "{} differences:\n{}", found.len(), found.join("\n"));
}

#[test]
fn unversioned_documents_equal_upstreams() {
    let Some(dir) = super::reference().map(|dir| dir.join("openapi/v3")) else { return };
    let mut found = Vec::new();
    let groups = api_schema::resources().iter().filter(|r| !r.group.is_empty());
    let mut names: BTreeSet<String> = groups.map(|r| format!("apis/{}", r.group)).collect();
    names.extend(["api", "apis", "version", "openid/v1/jwks"].map(str::to_owned));
    for name in names {
        let file = dir.join(format!("{}_openapi.json", name.replace('/', "__")));
        let theirs = plain(&serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap());
        let ours = plain(&document(&Contents::unversioned(&name).unwrap()));
        differences(&name, &ours, &theirs, &mut found);
    }
    assert!(found.is_empty(), "{} differences:\n{}", found.len(), found.join("\n"));
}

/// Replaces references to shared parameters by their contents.
fn inline(value: &Value, shared: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let name = members
                .get("$ref")
                .and_then(Value::as_str)
                .and_then(|r| r.strip_prefix("#/parameters/"));
            if let Some(name) = name {
                assert!(shared.get(name).is_some(), "{name} is referred to and not there");
                return shared[name].clone();
            }
            members.iter().map(|(k, v)| (k.clone(), inline(v, shared))).collect()
        }
        Value::Array(items) => items.iter().map(|v| inline(v, shared)).collect(),
        other => other.clone(),
    }
}

#[test]
fn version_2_equals_upstreams() {
    let Some(file) = super::reference().map(|dir| dir.join("openapi/swagger.json")) else { return };
    let mut theirs: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let versions: BTreeSet<_> =
        api_schema::resources().iter().map(|r| (r.group, r.version)).collect();
    let versions: Vec<_> = versions.into_iter().collect();
    let groups = versions.iter().filter(|(group, _)| !group.is_empty());
    let mut names: BTreeSet<String> = groups.map(|(group, _)| format!("apis/{group}")).collect();
    names.extend(
        ["api", "apis", "version", "openid/v1/jwks", ".well-known/openid-configuration"]
            .map(str::to_owned),
    );
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let ours = version_2(&Contents::whole(names.clone(), versions.clone(), &[]));
    // Compare only served paths, because the recorded document includes groups that are off by default.
    let served: BTreeSet<String> = ours["paths"].as_object().unwrap().keys().cloned().collect();
    let types: BTreeSet<String> =
        ours["definitions"].as_object().unwrap().keys().cloned().collect();
    let ours = inline(&ours, &ours["parameters"]);
    let shared = theirs["parameters"].clone();
    theirs = inline(&theirs, &shared);
    let of_served = |path: &str| {
        path.starts_with("/api/")
            || versions.iter().any(|(g, v)| path.starts_with(&format!("/apis/{g}/{v}/")))
            || names.iter().any(|name| path == format!("/{name}/"))
    };
    theirs["paths"].as_object_mut().unwrap().retain(|path, _| of_served(path));
    theirs["definitions"].as_object_mut().unwrap().retain(|name, _| types.contains(name));
    let mut found = Vec::new();
    for part in ["swagger", "info", "security", "securityDefinitions", "paths", "definitions"] {
        differences(part, &plain(&ours[part]), &plain(&theirs[part]), &mut found);
    }
    assert!(!served.is_empty() && types.len() > 500);
    assert!(found.is_empty(), "{} differences:\n{}", found.len(), found.join("\n"));
}
