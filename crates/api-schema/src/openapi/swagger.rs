//! OpenAPI v2: the whole API in one document, made from the parts that version 3 has.
//!
//! Version 2 cannot say all that version 3 can. What it cannot say is left out, so that a client never refuses an
//! object that the server would take.

use api_meta::Tree as _;
use serde_json::{Map, Value, json};

/// A document of version 3 as one of version 2.
pub fn to_v2(mut document: Value) -> Value {
    let mut schemas = document.take_at(&["components", "schemas"]);
    for schema in members(&mut schemas) {
        downgrade(schema);
    }
    let mut paths = document.take_at(&["paths"]);
    let mut shared = Map::new();
    for path in members(&mut paths) {
        path_item(path, &mut shared);
    }
    json!({
        "swagger": "2.0",
        "info": document.take_at(&["info"]),
        "paths": paths,
        "definitions": schemas,
        "parameters": shared,
        "securityDefinitions": document.take_at(&["components", "securitySchemes"]),
        "security": [{"BearerToken": []}],
    })
}

fn members(value: &mut Value) -> impl Iterator<Item = &mut Value> {
    value.as_object_mut().into_iter().flat_map(|m| m.values_mut())
}

/// Takes out of a schema what version 2 does not have.
fn downgrade(schema: &mut Value) {
    let Value::Object(body) = schema else { return };
    // Either a number or a text: version 2 has one type only.
    if body.contains_key("oneOf") && !body.contains_key("type") && !body.contains_key("properties")
    {
        let alternatives = body["oneOf"].as_array().into_iter().flatten();
        if alternatives.clone().any(|a| a["type"] == "string") && alternatives.count() == 2 {
            body.insert("type".to_owned(), "string".into());
        }
    }
    // Version 3 wraps a reference that has something beside it; version 2 does not.
    if let Some(Value::Array(all)) = body.get_mut("allOf")
        && let [only] = &mut all[..]
        && let Some(target) = only.get_mut("$ref").map(Value::take)
    {
        body.insert("$ref".to_owned(), target);
    }
    for keyword in ["allOf", "anyOf", "oneOf", "not", "default"] {
        body.remove(keyword);
    }
    if let Some(target) = body.get_mut("$ref") {
        refer(target);
    }
    // A value that may be null can be described as anything only.
    if body.remove("nullable") == Some(Value::Bool(true)) {
        for keyword in ["type", "items", "properties"] {
            body.remove(keyword);
        }
    }
    if let Some(properties) = body.get_mut("properties") {
        members(properties).for_each(downgrade);
    }
    for below in ["items", "additionalProperties"] {
        if let Some(below) = body.get_mut(below) {
            downgrade(below);
        }
    }
}

fn refer(target: &mut Value) {
    if let Some(name) = target.as_str().and_then(|t| t.rsplit('/').next()) {
        *target = format!("#/definitions/{name}").into();
    }
}

fn path_item(path: &mut Value, shared: &mut Map<String, Value>) {
    let Value::Object(path) = path else { return };
    for (key, value) in path {
        match key.as_str() {
            "parameters" => {
                for parameter in value.as_array_mut().into_iter().flatten() {
                    share(parameter, shared);
                }
            }
            _ => operation(value, shared),
        }
    }
}

/// The order in which upstream lists content types, of which version 3 has only the names.
const ORDER: [&str; 10] = [
    "text/plain",
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
    "application/json;stream=watch",
    "application/vnd.kubernetes.protobuf;stream=watch",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];

fn content_types(content: &Value) -> Vec<String> {
    let mut types: Vec<String> =
        content.as_object().into_iter().flat_map(|c| c.keys().cloned()).collect();
    types.sort_by_key(|t| ORDER.iter().position(|known| known == t).unwrap_or(ORDER.len()));
    types
}

/// The schema of whatever content comes first: it is the same for all.
fn schema_of(content: &mut Value) -> Option<Value> {
    let mut schema = members(content).next()?.get_mut("schema")?.take();
    downgrade(&mut schema);
    Some(schema)
}

fn operation(operation: &mut Value, shared: &mut Map<String, Value>) {
    let Value::Object(body) = operation else { return };
    let mut produced = Vec::new();
    for response in body.get_mut("responses").into_iter().flat_map(members) {
        let Value::Object(response) = response else { continue };
        let Some(mut content) = response.remove("content") else { continue };
        produced = content_types(&content);
        if let Some(schema) = schema_of(&mut content) {
            response.insert("schema".to_owned(), schema);
        }
    }
    let mut consumed = vec!["*/*".to_owned()];
    let mut parameters = match body.remove("parameters") {
        Some(Value::Array(parameters)) => parameters,
        _ => Vec::new(),
    };
    if let Some(mut request) = body.remove("requestBody") {
        let mut content = request.take_at(&["content"]);
        consumed = content_types(&content);
        let mut parameter =
            json!({"in": "body", "name": "body", "schema": schema_of(&mut content)});
        if request["required"] == true {
            parameter.put(&["required"], true);
        }
        let after = |p: &Value| p["name"].as_str() > Some("body");
        let at = parameters.iter().position(after).unwrap_or(parameters.len());
        parameters.insert(at, parameter);
    }
    // What is about no kind takes what it gives, and so do custom kinds, which have no protobuf; the issuer's documents
    // do not say.
    let is_custom = produced == ["application/json", "application/yaml"];
    if !body.contains_key("x-kubernetes-action") || (is_custom && consumed == ["*/*"]) {
        consumed.clone_from(&produced);
        if body["operationId"].as_str().is_some_and(|id| id.starts_with("getServiceAccountIssuer"))
        {
            consumed.clear();
        }
    }
    parameters.iter_mut().for_each(|parameter| share(parameter, shared));
    for (key, list) in [("consumes", consumed), ("produces", produced)] {
        if !list.is_empty() {
            body.insert(key.to_owned(), list.into());
        }
    }
    if !parameters.is_empty() {
        body.insert("parameters".to_owned(), parameters.into());
    }
    body.insert("schemes".to_owned(), json!(["https"]));
}

/// Brings a parameter into version 2's form, and leaves a reference to it, unless it belongs to one kind.
fn share(parameter: &mut Value, shared: &mut Map<String, Value>) {
    if let Value::Object(body) = &mut *parameter
        && body.get("in").is_some_and(|i| i != "body")
        && let Some(Value::Object(schema)) = body.remove("schema")
    {
        body.extend(schema);
    }
    // It says which kind's name it is.
    if parameter["name"] == "name" && parameter["in"] == "path" {
        return;
    }
    let common = ["DeleteOptions", "Patch"];
    let schema = parameter["schema"]["$ref"].as_str().unwrap_or_default();
    if parameter["in"] == "body"
        && !common.iter().any(|c| schema.ends_with(&format!("meta.v1.{c}")))
    {
        return;
    }
    // Two parameters of one name may differ by where they stand and what they may be.
    let base = parameter.text("name").to_owned();
    let name = (0_u32..)
        .map(|n| if n == 0 { base.clone() } else { format!("{base}-{n}") })
        .find(|name| shared.get(name).is_none_or(|known| known == parameter))
        .unwrap_or(base);
    let reference = json!({"$ref": format!("#/parameters/{name}")});
    shared.insert(name, std::mem::replace(parameter, reference));
}
