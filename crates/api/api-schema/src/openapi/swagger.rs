//! OpenAPI v2: the whole API in one document, derived from v3.
//!
//! Constraints that v2 cannot express are omitted, so that a client never rejects an object that the server accepts.

use api_meta::Tree as _;
use serde_json::{Map, Value, json};

/// Converts the parts of a v3 document to v2.
#[derive(Default)]
pub struct Version2 {
    parameters: Map<String, Value>,
}

impl Version2 {
    /// Converts a path. Its common parameters become references to [`Version2::parameters`].
    pub fn convert_path(&mut self, item: &mut Value) {
        path_item(item, &mut self.parameters);
    }

    /// Converts a schema: removes the keywords that v2 lacks.
    pub fn convert_schema(&self, schema: &mut Value) {
        downgrade(schema);
    }

    /// Returns the parameters that the converted paths refer to.
    pub fn parameters(self) -> Map<String, Value> {
        self.parameters
    }
}

fn members(value: &mut Value) -> impl Iterator<Item = &mut Value> {
    value.as_object_mut().into_iter().flat_map(|m| m.values_mut())
}

/// Removes the keywords of a schema that v2 lacks.
fn downgrade(schema: &mut Value) {
    let Value::Object(body) = schema else { return };
    // A number or string becomes a string, because v2 allows only one type.
    if body.contains_key("oneOf") && !body.contains_key("type") && !body.contains_key("properties")
    {
        let alternatives = body["oneOf"].as_array().into_iter().flatten();
        if alternatives.clone().any(|a| a["type"] == "string") && alternatives.count() == 2 {
            body.insert("type".to_owned(), "string".into());
        }
    }
    // v3 wraps a reference with siblings in `allOf`; v2 does not.
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
    // A nullable value can only be described as any value.
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

/// Upstream's order of content types. The v3 document has only their names.
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

/// Returns the schema of the first content type. All content types have the same schema.
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
    // As upstream: operations without a kind, and custom resources, which have no protobuf, consume the types that they
    // produce. The issuer's documents list no consumed types.
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

/// Converts a parameter to v2 and replaces it by a reference, unless it is specific to one kind.
fn share(parameter: &mut Value, shared: &mut Map<String, Value>) {
    if let Value::Object(body) = &mut *parameter
        && body.get("in").is_some_and(|i| i != "body")
        && let Some(Value::Object(schema)) = body.remove("schema")
    {
        body.extend(schema);
    }
    // Its description contains the kind.
    if parameter["name"] == "name" && parameter["in"] == "path" {
        return;
    }
    let common = ["DeleteOptions", "Patch"];
    let schema = parameter.text("schema.$ref");
    if parameter["in"] == "body"
        && !common.iter().any(|c| schema.ends_with(&format!("meta.v1.{c}")))
    {
        return;
    }
    // Parameters with the same name may differ in location or type.
    let base = parameter.text("name").to_owned();
    let name = (0_u32..)
        .map(|n| if n == 0 { base.clone() } else { format!("{base}-{n}") })
        .find(|name| shared.get(name).is_none_or(|known| known == parameter))
        .unwrap_or(base);
    let reference = json!({"$ref": format!("#/parameters/{name}")});
    shared.insert(name, std::mem::replace(parameter, reference));
}
