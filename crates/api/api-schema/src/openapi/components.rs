//! OpenAPI schemas of built-in types, built from the lines of the facts.

use api_meta::Tree as _;
use std::collections::HashMap;
use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use super::reference::reference;
use crate::builtin::{attribute, type_lines};

/// The scope of a document.
#[derive(Clone, Copy)]
pub(super) enum DocumentScope<'a> {
    /// A group version with built-in kinds.
    Version(&'a str, &'a str),
    /// A group version with only custom resources.
    CustomVersion,
    /// Everything, for OpenAPI v2.
    Everything,
}

/// A type's header and its members' lines.
struct Lines {
    header: &'static str,
    members: Vec<&'static str>,
}

fn types() -> &'static HashMap<&'static str, Lines> {
    static TYPES: LazyLock<HashMap<&'static str, Lines>> = LazyLock::new(|| {
        let mut types: HashMap<&'static str, Lines> = HashMap::new();
        let mut current = "";
        for line in type_lines() {
            match line.strip_prefix("@ ") {
                Some(header) => {
                    current = header.split('\t').next().unwrap_or_default();
                    types.insert(current, Lines { header, members: Vec::new() });
                }
                None => {
                    if let Some(lines) = types.get_mut(current) {
                        lines.members.push(line);
                    }
                }
            }
        }
        types
    });
    &TYPES
}

/// Builds the OpenAPI schema of a built-in type.
pub(super) fn component(of: DocumentScope<'_>, name: &str) -> Option<Value> {
    let (name, lines) = types().get_key_value(name)?;
    if let Some(special) = special(name) {
        return Some(special);
    }
    let mut cells = lines.header.split('\t').skip(1);
    let (kinds, attributes) = (cells.next().unwrap_or_default(), cells.next().unwrap_or_default());
    let mut out = Map::new();
    out.insert("type".to_owned(), "object".into());
    let package = name.rsplit_once('.').map_or("", |(package, _)| package);
    let mut required = Vec::new();
    let mut properties = Map::new();
    for line in &lines.members {
        let mut cells = line.splitn(4, '\t');
        let mut cell = || cells.next().unwrap_or_default();
        let (json, text, _proto, attributes) = (cell(), cell(), cell(), cell());
        if attribute(attributes, "req").is_some() {
            required.push(Value::from(json));
        }
        properties.insert(json.to_owned(), property(package, text, attributes));
    }
    if !properties.is_empty() {
        out.insert("properties".to_owned(), properties.into());
    }
    if !required.is_empty() {
        out.insert("required".to_owned(), required.into());
    }
    describe_list(kinds, &mut out);
    if !kinds.is_empty() {
        // Options types belong to every group. A document lists only its own group version and the core one.
        let own = |kind: &&str| {
            let DocumentScope::Version(group, version) = of else { return true };
            let here =
                kind.strip_prefix(group).and_then(|k| k.strip_prefix('/')?.strip_prefix(version));
            !kinds.contains(' ')
                || kind.starts_with("/v1/")
                || here.is_some_and(|k| k.starts_with('/'))
        };
        let kinds = kinds.split(' ').filter(own).map(kind).collect();
        out.insert("x-kubernetes-group-version-kind".to_owned(), kinds);
    }
    if let Some(map) = attribute(attributes, "map") {
        out.insert("x-kubernetes-map-type".to_owned(), map.into());
    }
    if let Some(unions) =
        attribute(attributes, "unions").and_then(|text| serde_json::from_str(text).ok())
    {
        out.insert("x-kubernetes-unions".to_owned(), unions);
    }
    Some(out.into())
}

fn kind(text: &str) -> Value {
    let [group, version, kind] = kind_parts(text);
    json!({"group": group, "version": version, "kind": kind})
}

/// Splits `GROUP/VERSION/KIND`.
fn kind_parts(text: &str) -> [&str; 3] {
    let mut parts = text.split('/');
    [(); 3].map(|()| parts.next().unwrap_or_default())
}

/// Describes the list type of a resource, because the crate `api-docs` has no texts of lists. `kinds` are those of the
/// type.
fn describe_list(kinds: &str, schema: &mut Map<String, Value>) {
    let [group, version, list_kind] = kind_parts(kinds);
    let Some(kind) = list_kind.strip_suffix("List") else { return };
    let mut resources = crate::resources().iter();
    let listed = resources.find(|r| (r.group, r.version, r.kind) == (group, version, kind));
    let items = schema.get_mut("properties").and_then(|p| p.get_mut("items"));
    if let (Some(resource), Some(items)) = (listed, items) {
        items.put(&["description"], format!("List of {}.", resource.name));
        schema.insert("description".to_owned(), list_description(list_kind, kind).into());
    }
}

/// Returns the description of a list type, built-in or custom.
pub(super) fn list_description(list_kind: &str, kind: &str) -> String {
    format!("{list_kind} is a list of {kind}")
}

fn property(package: &str, text: &str, attributes: &'static str) -> Value {
    let zero_items = attribute(attributes, "item0").is_some();
    let mut out = schema_of(package, text, zero_items);
    if attribute(attributes, "zero").is_some() {
        let zero = zero_of(&out);
        with_default(&mut out, zero);
    }
    let default = attribute(attributes, "default").and_then(|text| serde_json::from_str(text).ok());
    if let Some(default) = default {
        with_default(&mut out, default);
    }
    for (attribute_name, key) in [
        ("list", "x-kubernetes-list-type"),
        ("map", "x-kubernetes-map-type"),
        ("patch", "x-kubernetes-patch-strategy"),
        ("key", "x-kubernetes-patch-merge-key"),
    ] {
        if let Some(value) = attribute(attributes, attribute_name) {
            wrap(&mut out);
            out.put(&[key], value);
        }
    }
    if let Some(keys) = attribute(attributes, "keys") {
        out.put(&["x-kubernetes-list-map-keys"], keys.split(',').collect::<Value>());
    }
    out
}

/// Wraps a reference in an `allOf`, because `$ref` allows no siblings.
fn wrap(schema: &mut Value) {
    if schema.get("$ref").is_some() {
        *schema = json!({"allOf": [schema.take()]});
    }
}

fn with_default(schema: &mut Value, default: Value) {
    wrap(schema);
    schema.put(&["default"], default);
}

fn zero_of(schema: &Value) -> Value {
    match schema["type"].as_str() {
        Some("string") => "".into(),
        Some("integer" | "number") => 0.into(),
        Some("boolean") => false.into(),
        _ => json!({}),
    }
}

fn schema_of(package: &str, text: &str, zero_items: bool) -> Value {
    let below = |text: &str| {
        let mut below = schema_of(package, text, zero_items);
        if zero_items && below["type"] != "array" {
            let zero = zero_of(&below);
            with_default(&mut below, zero);
        }
        below
    };
    if let Some(item) = text.strip_prefix("wrapped[]") {
        return json!({"type": "array", "items": schema_of(package, item, false)});
    }
    if let Some(item) = text.strip_prefix("[]") {
        return json!({"type": "array", "items": below(item)});
    }
    if let Some(value) = text.strip_prefix("map[]") {
        return json!({"type": "object", "additionalProperties": below(value)});
    }
    match text {
        "string" => json!({"type": "string"}),
        "bytes" => json!({"type": "string", "format": "byte"}),
        "bool" => json!({"type": "boolean"}),
        "double" => json!({"type": "number", "format": "double"}),
        "int32" | "int64" => json!({"type": "integer", "format": text}),
        "object" => json!({"type": "object"}),
        "any" => json!({}),
        named if named.contains('.') => reference(named),
        named => reference(&format!("{package}.{named}")),
    }
}

/// Returns the schema of a type with its own JSON encoding.
fn special(name: &str) -> Option<Value> {
    Some(match name.strip_prefix("io.k8s.")? {
        "apimachinery.pkg.api.resource.Quantity" => {
            json!({"oneOf": [{"type": "string"}, {"type": "number"}]})
        }
        "apimachinery.pkg.util.intstr.IntOrString" => {
            json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]})
        }
        "apimachinery.pkg.apis.meta.v1.Time" | "apimachinery.pkg.apis.meta.v1.MicroTime" => {
            json!({"type": "string", "format": "date-time"})
        }
        bare if bare.contains(".apiextensions.v1.JSON") && !bare.ends_with(".JSONSchemaProps") => {
            json!({})
        }
        _ => return None,
    })
}
