//! Extracts types and their fields from OpenAPI v3 and the protobuf field numbers.
//!
//! A type is a line `@ NAME TAB group/version/Kind… TAB attributes`, followed by a line for each field:
//! `json name TAB type TAB protobuf path TAB attributes`. See `api_schema::builtin` for the reader.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

use super::proto::Messages;
use crate::{error::Result, file};

pub(super) fn facts(import: &Path) -> Result<String> {
    let messages = Messages::parse(&file::read(&import.join("proto-fields.tsv"))?)?;
    let kinds = kinds(&file::read_json(&import.join("openapi/swagger.json"))?);
    let mut out = String::from("# Written by `cargo xtask codegen --import`.\n");
    let mut unplaced = Vec::new();
    for (name, schema) in &schemas(import)? {
        let kinds = kinds.get(name).map_or(&[][..], Vec::as_slice).join(" ");
        let _ = write!(out, "@ {name}\t{kinds}\t{}", header_attributes(schema));
        trim_end(&mut out);
        let required: Vec<&str> = strings(&schema["required"]);
        for (json, property) in schema["properties"].as_object().into_iter().flatten() {
            let location = messages.locate(&message(name), json);
            if location.is_none() && json != "kind" && json != "apiVersion" {
                unplaced.push(format!("{name}.{json}"));
            }
            let wrapped = location.as_ref().is_some_and(|p| wraps(property, &p.kind));
            let path = location.map_or(String::from("-"), |p| {
                p.path.iter().map(u32::to_string).collect::<Vec<_>>().join(".")
            });
            let kind = type_text(package(name), property, wrapped);
            let attributes = attributes(property, required.contains(&json.as_str()));
            let _ = write!(out, "{json}\t{kind}\t{path}\t{attributes}");
            trim_end(&mut out);
        }
    }
    for field in unplaced {
        eprintln!("no protobuf field: {field}");
    }
    Ok(out)
}

fn trim_end(out: &mut String) {
    out.truncate(out.trim_end_matches(['\t', ' ']).len());
    out.push('\n');
}

/// Returns all schemas of all documents. A type that several groups use is the same in each.
fn schemas(import: &Path) -> Result<BTreeMap<String, Value>> {
    let mut all = BTreeMap::new();
    for path in file::list(&import.join("openapi/v3"))? {
        let mut document = file::read_json(&path)?;
        if let Some(Value::Object(schemas)) =
            document.pointer_mut("/components/schemas").map(Value::take)
        {
            all.extend(schemas);
        }
    }
    Ok(all)
}

/// Returns the kinds whose root is a type, as `group/version/Kind`.
fn kinds(swagger: &Value) -> BTreeMap<String, Vec<String>> {
    let mut kinds = BTreeMap::new();
    for (name, schema) in swagger["definitions"].as_object().into_iter().flatten() {
        let text = |v: &Value, key: &str| v[key].as_str().unwrap_or_default().to_owned();
        let list: Vec<String> = schema["x-kubernetes-group-version-kind"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|k| format!("{}/{}/{}", text(k, "group"), text(k, "version"), text(k, "kind")))
            .collect();
        kinds.insert(name.clone(), list);
    }
    kinds
}

fn header_attributes(schema: &Value) -> String {
    let mut out = Vec::new();
    if let Some(map) = schema["x-kubernetes-map-type"].as_str() {
        out.push(format!("map={map}"));
    }
    if !schema["x-kubernetes-unions"].is_null() {
        out.push(format!("unions={}", schema["x-kubernetes-unions"]));
    }
    out.join(" ")
}

fn attributes(property: &Value, required: bool) -> String {
    let mut out = Vec::new();
    if required {
        out.push("req".to_owned());
    }
    for (attribute, key) in [
        ("list", "x-kubernetes-list-type"),
        ("map", "x-kubernetes-map-type"),
        ("patch", "x-kubernetes-patch-strategy"),
        ("key", "x-kubernetes-patch-merge-key"),
    ] {
        if let Some(value) = property[key].as_str() {
            out.push(format!("{attribute}={value}"));
        }
    }
    let keys = strings(&property["x-kubernetes-list-map-keys"]);
    if !keys.is_empty() {
        out.push(format!("keys={}", keys.join(",")));
    }
    if inner(property).is_some_and(|i| is_zero(&i["default"])) {
        out.push("item0".to_owned());
    }
    match &property["default"] {
        Value::Null => {}
        zero if is_zero(zero) => out.push("zero".to_owned()),
        // The default comes last, because its text may contain spaces.
        default => out.push(format!("default={default}")),
    }
    out.join(" ")
}

fn inner(property: &Value) -> Option<&Value> {
    property.get("items").or_else(|| property.get("additionalProperties"))
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(b) => !b,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(s) => s.is_empty(),
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.is_empty(),
    }
}

/// Returns `true` if protobuf wraps a list of strings in a message (`ExtraValue`).
fn wraps(property: &Value, kind: &str) -> bool {
    let kind = kind.strip_prefix("map<string,").map_or(kind, |k| k.trim_end_matches('>'));
    let list = property.get("additionalProperties").unwrap_or(property);
    list["type"] == "array" && list["items"]["type"] == "string" && kind != "string"
}

/// Returns a type in Go's notation, relative to the package of the type that contains it.
fn type_text(package: &str, property: &Value, wrapped: bool) -> String {
    let reference = property["$ref"].as_str().or_else(|| property["allOf"][0]["$ref"].as_str());
    if let Some(reference) = reference {
        let name = reference.rsplit('/').next().unwrap_or_default();
        return match name.strip_prefix(package).and_then(|n| n.strip_prefix('.')) {
            Some(bare) if !bare.contains('.') => bare.to_owned(),
            _ => name.to_owned(),
        };
    }
    match (property["type"].as_str(), property["format"].as_str()) {
        (Some("array"), _) if wrapped => "wrapped[]string".to_owned(),
        (Some("array"), _) => format!("[]{}", type_text(package, &property["items"], false)),
        (Some("object"), _) => match property.get("additionalProperties") {
            Some(values) => format!("map[]{}", type_text(package, values, wrapped)),
            None => "object".to_owned(),
        },
        (Some("string"), Some("byte")) => "bytes".to_owned(),
        (Some("integer"), format) => format.unwrap_or("int64").to_owned(),
        (Some("number"), _) => "double".to_owned(),
        (Some("boolean"), _) => "bool".to_owned(),
        (Some(other), _) => other.to_owned(),
        (None, _) => "any".to_owned(),
    }
}

fn package(name: &str) -> &str {
    name.rsplit_once('.').map_or("", |(package, _)| package)
}

/// Returns the protobuf message of an OpenAPI type.
fn message(name: &str) -> String {
    name.strip_prefix("io.").unwrap_or(name).replacen("k8s.", "k8s.io.", 1).replace('-', "_")
}

fn strings(value: &Value) -> Vec<&str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}
