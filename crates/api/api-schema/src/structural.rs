//! Validates that a custom resource's schema is structural, with upstream's messages.
//!
//! A structural schema specifies all types outside of `allOf`, `anyOf`, `oneOf` and `not`; these keywords contain only
//! conditions on values. Objects can therefore be pruned and defaulted unambiguously.

use std::collections::HashSet;

use api_meta::{ErrorList, FieldError, Path, Tree as _};
use serde_json::{Map, Value, json};

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];

#[derive(Clone, Copy, PartialEq)]
enum Level {
    Root,
    Field,
    Item,
}

/// Returns all errors of a schema. `path` is the schema's path, such as `spec.versions[0].schema.openAPIV3Schema`.
pub(crate) fn errors(schema: &Value, path: &Path) -> ErrorList {
    let mut check = Check { errors: ErrorList::new() };
    check.structural(schema, path, Level::Root);
    check.errors
}

struct Check {
    errors: ErrorList,
}

fn branches<'a>(schema: &'a Value, key: &str) -> impl Iterator<Item = (usize, &'a Value)> {
    schema[key].as_array().into_iter().flatten().enumerate()
}

/// Reports whether `anyOf` has exactly the two types that `x-kubernetes-int-or-string` implies.
fn is_int_or_string(schema: &Value) -> bool {
    schema["anyOf"] == json!([{"type": "integer"}, {"type": "string"}])
}

impl Check {
    fn structural(&mut self, schema: &Value, path: &Path, level: Level) {
        self.unsupported(schema, path);
        self.type_of(schema, path, level);
        self.embedded(schema, path, level);
        self.extensions(schema, path);
        self.keywords(schema, path);
        // `true` does not restrict the values.
        let values = &schema["additionalProperties"];
        if !matches!(values, Value::Null | Value::Bool(true)) && !schema["properties"].is_null() {
            let detail = "additionalProperties and properties are mutual exclusive";
            self.errors.push(FieldError::forbidden(&path.child("additionalProperties"), detail));
        }
        if schema["additionalProperties"].is_object() {
            self.structural(
                &schema["additionalProperties"],
                &path.child("additionalProperties"),
                Level::Field,
            );
        }
        for (name, property) in schema.pairs("properties") {
            self.structural(property, &path.child("properties").key(name), Level::Field);
        }
        if schema["items"].is_object() {
            self.structural(&schema["items"], &path.child("items"), Level::Item);
        }
        self.values(schema, schema, path);
    }

    /// Reports JSON schema keywords that structural schemas do not support.
    fn unsupported(&mut self, schema: &Value, path: &Path) {
        for (key, detail) in [
            ("$ref", "$ref is not supported"),
            ("definitions", "definitions is not supported"),
            ("dependencies", "dependencies is not supported"),
            ("patternProperties", "patternProperties is not supported"),
            ("additionalItems", "additionalItems is not supported"),
            ("id", "id is not supported"),
        ] {
            if !schema[key].is_null() && schema[key] != "" {
                self.errors.push(FieldError::forbidden(&path.child(key), detail));
            }
        }
        if schema["items"].is_array() {
            let detail = "items must be a schema object and not an array";
            self.errors.push(FieldError::forbidden(&path.child("items"), detail));
        }
        if schema.flag("uniqueItems") {
            let detail =
                "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
            self.errors.push(FieldError::forbidden(&path.child("uniqueItems"), detail));
        }
    }

    fn type_of(&mut self, schema: &Value, path: &Path, level: Level) {
        let at = path.child("type");
        let kind = schema.text("type");
        let free = schema.flag("x-kubernetes-int-or-string")
            || schema.flag("x-kubernetes-preserve-unknown-fields");
        match (kind, level) {
            ("", Level::Root) => {
                self.errors.push(FieldError::required(&at, "must not be empty at the root"))
            }
            ("", Level::Field) if !free => {
                self.errors.push(FieldError::required(
                    &at,
                    "must not be empty for specified object fields",
                ));
            }
            ("", Level::Item) if !free => {
                self.errors
                    .push(FieldError::required(&at, "must not be empty for specified array items"));
            }
            ("", _) => {}
            (other, _) if !TYPES.contains(&other) => {
                self.errors.push(FieldError::not_supported(&at, other, &TYPES));
            }
            (other, Level::Root) if other != "object" => {
                self.errors.push(FieldError::invalid(&at, other, "must be object at the root"));
            }
            ("array", _) if schema["items"].is_null() => {
                self.errors.push(FieldError::required(&path.child("items"), "must be specified"));
            }
            _ => {}
        }
    }

    fn embedded(&mut self, schema: &Value, path: &Path, level: Level) {
        let embedded = schema.flag("x-kubernetes-embedded-resource");
        let kind = schema.text("type");
        if embedded && kind.is_empty() {
            let detail = "must not be empty if x-kubernetes-embedded-resource is true";
            self.errors.push(FieldError::required(&path.child("type"), detail));
        } else if embedded && kind != "object" {
            let detail = "must be object if x-kubernetes-embedded-resource is true";
            self.errors.push(FieldError::invalid(&path.child("type"), kind, detail));
        }
        let empty = schema["properties"].as_object().is_none_or(Map::is_empty);
        if embedded && empty && !schema.flag("x-kubernetes-preserve-unknown-fields") {
            let detail = "must not be empty if x-kubernetes-embedded-resource is true without \
                x-kubernetes-preserve-unknown-fields";
            self.errors.push(FieldError::required(&path.child("properties"), detail));
        }
        let metadata = schema.at("properties.metadata");
        if (level == Level::Root || embedded) && metadata.is_object() {
            self.metadata(metadata, &path.child("properties").key("metadata"));
        }
    }

    /// Validates the schema of metadata, which is implied. Only the name can be restricted.
    fn metadata(&mut self, metadata: &Value, path: &Path) {
        if metadata["type"] != "object" {
            let kind = metadata.text("type");
            self.errors.push(FieldError::invalid(&path.child("type"), kind, "must be object"));
        }
        if !metadata["default"].is_null() {
            self.errors.push(FieldError::forbidden(&path.child("default"), "must not be set"));
        }
        let known = |name: &str| matches!(name, "name" | "generateName");
        if metadata.pairs("properties").any(|(name, _)| !known(name)) {
            let detail = "must not specify anything other than name and generateName, but metadata \
                is implicitly specified";
            self.errors.push(FieldError::forbidden(path, detail));
        }
    }

    fn extensions(&mut self, schema: &Value, path: &Path) {
        let kind = schema.text("type");
        if let Some(map) = schema["x-kubernetes-map-type"].as_str() {
            let at = path.child("x-kubernetes-map-type");
            if kind != "object" {
                let detail = "must be object if x-kubernetes-map-type is specified";
                self.errors.push(FieldError::invalid(&path.child("type"), kind, detail));
            }
            if !matches!(map, "atomic" | "granular") {
                self.errors.push(FieldError::not_supported(&at, map, &["atomic", "granular"]));
            }
        }
        for key in ["x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"] {
            if schema.flag("x-kubernetes-int-or-string") && schema.flag(key) {
                let detail = "must be false if x-kubernetes-int-or-string is true";
                self.errors.push(FieldError::invalid(&path.child(key), true, detail));
            }
        }
        let preserve = &schema["x-kubernetes-preserve-unknown-fields"];
        if *preserve == false {
            let detail = "must be true or undefined";
            let at = path.child("x-kubernetes-preserve-unknown-fields");
            self.errors.push(FieldError::invalid(&at, false, detail));
        }
        if let Some(list) = schema["x-kubernetes-list-type"].as_str() {
            self.list(schema, list, kind, path);
        } else if !schema["x-kubernetes-list-map-keys"].is_null() {
            let at = path.child("x-kubernetes-list-type");
            self.errors.push(FieldError::required(
                &at,
                "must be map if x-kubernetes-list-map-keys is non-empty",
            ));
        }
    }

    fn list(&mut self, schema: &Value, list: &str, kind: &str, path: &Path) {
        if kind != "array" {
            let detail = "must be array if x-kubernetes-list-type is specified";
            self.errors.push(FieldError::invalid(&path.child("type"), kind, detail));
        }
        let at = path.child("x-kubernetes-list-type");
        let keys: Vec<&str> = schema["x-kubernetes-list-map-keys"]
            .as_array()
            .map(|keys| keys.iter().filter_map(Value::as_str).collect())
            .unwrap_or_default();
        match list {
            "atomic" => {}
            "set" => self.set_items(schema, path),
            "map" => self.map_keys(schema, &keys, path),
            _ => self.errors.push(FieldError::not_supported(&at, list, &["atomic", "map", "set"])),
        }
        if list != "map" && !keys.is_empty() {
            let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
            self.errors.push(FieldError::invalid(&at, list, detail));
        }
    }

    /// Validates the items of a set, which are compared as a whole.
    fn set_items(&mut self, schema: &Value, path: &Path) {
        let items = &schema["items"];
        let at = path.child("items");
        if items.flag("nullable") {
            let detail = "cannot be nullable when x-kubernetes-list-type is set";
            self.errors.push(FieldError::forbidden(&at.child("nullable"), detail));
        }
        let (kind, key) = match items["type"].as_str() {
            Some("object") => ("map", "x-kubernetes-map-type"),
            Some("array") => ("list", "x-kubernetes-list-type"),
            _ => return,
        };
        if items[key] != "atomic" {
            let value = items[key].as_str().unwrap_or_default();
            let detail = format!(
                "must be atomic as item of a list with x-kubernetes-list-type=set of {kind}s"
            );
            self.errors.push(FieldError::invalid(&at.child(key), value, detail));
        }
    }

    fn map_keys(&mut self, schema: &Value, keys: &[&str], path: &Path) {
        let at = path.child("x-kubernetes-list-map-keys");
        let items = path.child("items");
        if keys.is_empty() {
            let detail = "must not be empty if x-kubernetes-list-type is map";
            self.errors.push(FieldError::required(&at, detail));
        }
        if schema.text("items.type") != "object" {
            let kind = schema.text("items.type");
            let detail = "must be object if parent array's x-kubernetes-list-type is map";
            self.errors.push(FieldError::invalid(&items.child("type"), kind, detail));
            return;
        }
        let required: HashSet<&str> =
            branches(&schema["items"], "required").filter_map(|(_, v)| v.as_str()).collect();
        let mut seen = HashSet::new();
        for (index, key) in keys.iter().enumerate() {
            let property = &schema["items"]["properties"][*key];
            let place = items.child("properties").key(key);
            if property.is_null() {
                let detail = "entries must all be names of item properties";
                self.errors.push(FieldError::invalid(&at.index(index), *key, detail));
            } else if matches!(property["type"].as_str(), Some("object" | "array")) {
                let detail =
                    "must be a scalar type if parent array's x-kubernetes-list-type is map";
                self.errors.push(FieldError::invalid(
                    &place.child("type"),
                    property["type"].clone(),
                    detail,
                ));
            } else if property["default"].is_null() && !required.contains(key) {
                let detail = "this property is in x-kubernetes-list-map-keys, so it must have a \
                    default or be a required property";
                self.errors.push(FieldError::required(&place.child("default"), detail));
            }
            if !seen.insert(key) {
                self.errors.push(FieldError::duplicate(&at.index(index), *key));
            }
        }
    }

    fn keywords(&mut self, schema: &Value, path: &Path) {
        if let Some(pattern) = schema["pattern"].as_str()
            && let Err(error) = api_meta::goregex::compile(pattern)
        {
            let detail = format!("must be a valid regular expression, but isn't: {error}");
            self.errors.push(FieldError::invalid(&path.child("pattern"), pattern, detail));
        }
    }

    /// Validates the conditions of a structural node, `outer`.
    fn values(&mut self, schema: &Value, outer: &Value, path: &Path) {
        self.branches(schema, outer, path, is_int_or_string(schema));
    }

    /// Validates branches. `types` is set if the branches of `anyOf` are the two types of int-or-string, which are
    /// allowed.
    fn branches(&mut self, schema: &Value, outer: &Value, path: &Path, types: bool) {
        for key in ["allOf", "anyOf", "oneOf"] {
            for (index, branch) in branches(schema, key) {
                let at = path.child(key).index(index);
                // Structural nodes, unlike conditions, may also have these types in the first branch of `allOf`.
                let first = key == "allOf" && index == 0 && std::ptr::eq(schema, outer);
                let below = first && is_int_or_string(branch);
                self.condition(branch, outer, &at, key == "anyOf" && types, below);
            }
        }
        if schema["not"].is_object() {
            self.condition(&schema["not"], outer, &path.child("not"), false, false);
        }
    }

    fn condition(
        &mut self,
        branch: &Value,
        outer: &Value,
        path: &Path,
        may_have_type: bool,
        types_below: bool,
    ) {
        for (key, word) in [
            ("description", "empty"),
            ("type", "empty"),
            ("title", "empty"),
            ("default", "undefined"),
            ("additionalProperties", "undefined"),
            ("nullable", "false"),
            ("x-kubernetes-preserve-unknown-fields", "undefined"),
            ("x-kubernetes-embedded-resource", "false"),
            ("x-kubernetes-int-or-string", "false"),
            ("x-kubernetes-list-map-keys", "empty"),
            ("x-kubernetes-list-type", "undefined"),
            ("x-kubernetes-map-type", "undefined"),
        ] {
            let value = &branch[key];
            if value.is_null() || *value == false || *value == "" || key == "type" && may_have_type
            {
                continue;
            }
            let detail = format!("must be {word} to be structural");
            self.errors.push(FieldError::forbidden(&path.child(key), detail));
        }
        self.keywords(branch, path);
        for (name, property) in branch.pairs("properties") {
            let at = path.child("properties").key(name);
            let known = match &outer["properties"][name.as_str()] {
                Value::Null => &outer["additionalProperties"],
                known => known,
            };
            self.nested(property, known, &at, "properties", name, outer);
        }
        if branch["items"].is_object() {
            self.nested(
                &branch["items"],
                &outer["items"],
                &path.child("items"),
                "items",
                "",
                outer,
            );
        }
        self.branches(branch, outer, path, types_below);
    }

    /// Validates a condition on a member, which must be declared in the structural schema.
    fn nested(
        &mut self,
        schema: &Value,
        known: &Value,
        path: &Path,
        key: &str,
        name: &str,
        outer: &Value,
    ) {
        if known.is_object() {
            self.condition(schema, known, path, false, false);
        } else if !outer.flag("x-kubernetes-preserve-unknown-fields")
            || outer["properties"].is_object()
        {
            let place =
                if key == "items" { Path::new("items") } else { Path::new("properties").key(name) };
            self.errors
                .push(FieldError::required(&place, format!("because it is defined in {path}")));
        }
    }
}
