//! OpenAPI schemas of custom resources: the definition's schema and the members of every object.

use api_meta::Tree as _;
use serde_json::{Map, Value, json};

use super::components::list_description;
use super::paths::{Operations, Sub};
use super::reference::reference;

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// The parts of a version of a custom resource that are copied from its definition.
#[derive(Clone, Debug, Default)]
pub struct CustomSource {
    /// The `openAPIV3Schema`; null if the version has none.
    pub open_api_v3: Value,
    /// The `selectableFields`; null if the version has none.
    pub selectable_fields: Value,
}

/// A version of a custom resource, from its definition.
#[derive(Clone, Copy)]
pub struct CustomKind<'a> {
    /// The API group.
    pub group: &'a str,
    /// The version.
    pub version: &'a str,
    /// The plural name.
    pub plural: &'a str,
    /// The kind.
    pub kind: &'a str,
    /// The kind of lists.
    pub list_kind: &'a str,
    /// `true` if the resource is namespaced.
    pub namespaced: bool,
    /// Returns the parts of the definition. It is called once for a document, so that at most one definition is in
    /// memory as a tree.
    pub read: &'a dyn Fn() -> CustomSource,
    /// `true` if the version has the status subresource.
    pub status: bool,
    /// `true` if the version has the scale subresource.
    pub scale: bool,
}

impl CustomKind<'_> {
    /// Returns the component's name, such as `com.example.v1.Widget`: the reversed group, the version and the kind.
    fn component_name(&self, kind: &str) -> String {
        let labels: Vec<&str> = self.group.rsplit('.').collect();
        format!("{}.{}.{kind}", labels.join("."), self.version)
    }

    pub(super) fn operations(&self) -> Operations {
        let verbs = |verbs: &[&str]| verbs.iter().map(|v| (*v).to_owned()).collect::<Vec<_>>();
        let sub = |name: &str, type_name: String| Sub {
            name: name.to_owned(),
            // Upstream documents a custom resource's scale as an operation on its kind.
            group: self.group.to_owned(),
            version: self.version.to_owned(),
            kind: self.kind.to_owned(),
            verbs: verbs(&["get", "patch", "update"]),
            type_name: Some(type_name),
        };
        let mut subresources = Vec::new();
        if self.status {
            subresources.push(sub("status", self.component_name(self.kind)));
        }
        if self.scale {
            subresources.push(sub("scale", "io.k8s.api.autoscaling.v1.Scale".to_owned()));
        }
        Operations {
            plural: self.plural.to_owned(),
            kind: self.kind.to_owned(),
            namespaced: self.namespaced,
            verbs: verbs(&[
                "delete",
                "deletecollection",
                "get",
                "list",
                "patch",
                "create",
                "update",
                "watch",
            ]),
            type_name: Some(self.component_name(self.kind)),
            list_name: Some(self.component_name(self.list_kind)),
            custom: true,
            returns_deleted: false,
            subresources,
        }
    }

    /// Returns the schemas of the kind and its list, for OpenAPI v3 or as far as v2 can express them.
    pub(super) fn components(&self, for_version_2: bool) -> [(String, Value); 2] {
        let name = self.component_name(self.kind);
        let mut list = json!({
            "type": "object",
            "description": list_description(self.list_kind, self.kind),
            "required": ["items"],
            "properties": object_members("ListMeta"),
        });
        let description = format!(
            "List of {}. More info: \
            https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md",
            self.plural
        );
        let items = json!({"type": "array", "items": reference(&name), "description": description});
        list.put(&["properties", "items"], items);
        let CustomSource { open_api_v3, selectable_fields } = (self.read)();
        let object = self.mark(object(open_api_v3, for_version_2), self.kind, &selectable_fields);
        let list = self.mark(list, self.list_kind, &selectable_fields);
        [(name, object), (self.component_name(self.list_kind), list)]
    }

    /// Adds the group, version, kind and selectable fields to a schema.
    fn mark(&self, mut schema: Value, kind: &str, selectable_fields: &Value) -> Value {
        let kind = json!([{"group": self.group, "version": self.version, "kind": kind}]);
        schema.put(&["x-kubernetes-group-version-kind"], kind);
        let paths = selectable_fields.as_array().into_iter().flatten();
        let fields: Vec<Value> = paths
            .map(|field| json!({"fieldPath": field.text("jsonPath").trim_start_matches('.')}))
            .collect();
        if !fields.is_empty() {
            schema.put(&["x-kubernetes-selectable-fields"], fields);
        }
        schema
    }
}

/// Returns the published schema of objects.
fn object(mut open_api_v3: Value, for_version_2: bool) -> Value {
    let is_open = open_api_v3["x-kubernetes-preserve-unknown-fields"] == true;
    // kubectl would reject members that the v2 schema does not declare.
    if !open_api_v3.is_object() || (for_version_2 && is_open) {
        return json!({"type": "object"});
    }
    convert_to_published_form(&mut open_api_v3, for_version_2);
    open_api_v3.put(&["type"], "object");
    for (member, schema) in object_members("ObjectMeta") {
        // The server alone enforces restrictions of the name.
        open_api_v3.put(&["properties", &member], schema);
    }
    open_api_v3
}

/// Converts a definition's schema to the published form: implied keywords are added, and keywords that kubectl cannot
/// read in v2 are removed.
fn convert_to_published_form(schema: &mut Value, for_version_2: bool) {
    let Value::Object(body) = schema else { return };
    if let Some(Value::Object(properties)) = body.get_mut("properties") {
        properties.values_mut().for_each(|below| convert_to_published_form(below, for_version_2));
    }
    for below in ["items", "additionalProperties"] {
        if let Some(below) = body.get_mut(below) {
            convert_to_published_form(below, for_version_2);
        }
    }
    let is = |body: &Map<String, Value>, mark: &str| body.get(mark) == Some(&Value::Bool(true));
    if is(body, "x-kubernetes-int-or-string") {
        write_out_alternatives(body);
    }
    if for_version_2 {
        leave_nullable_optional(body);
    }
    let is_open = is(body, "x-kubernetes-preserve-unknown-fields");
    if for_version_2 && is_open {
        body.remove("items");
        body.remove("properties");
    }
    let kind = body.get("type").and_then(Value::as_str).unwrap_or_default();
    let is_unreadable =
        kind == "array" && !body.contains_key("items") || kind == "object" && is_open;
    if for_version_2 && is_unreadable {
        body.remove("type");
    }
    if is(body, "x-kubernetes-embedded-resource") && !(for_version_2 && is_open) {
        embed(schema);
    }
}

/// Adds the alternatives integer and string, unless the author wrote them in one of the two known forms.
fn write_out_alternatives(body: &mut Map<String, Value>) {
    let either = json!([{"type": "integer"}, {"type": "string"}]);
    let first = body.get("allOf").and_then(|all| all.get(0)).and_then(|first| first.get("anyOf"));
    if body.get("anyOf") == Some(&either) || first == Some(&either) {
        return;
    }
    if !body.contains_key("anyOf") {
        body.insert("anyOf".to_owned(), either);
        return;
    }
    let all = body.entry("allOf").or_insert_with(|| json!([]));
    if let Value::Array(all) = all {
        all.insert(0, json!({"anyOf": either}));
    }
}

/// Makes nullable members optional. The v2 schema of a nullable value accepts everything, but kubectl treats null as
/// missing.
fn leave_nullable_optional(body: &mut Map<String, Value>) {
    let may_be_null = |schema: &Value| schema["nullable"] == true;
    if body.get("additionalProperties").is_some_and(may_be_null) {
        body.remove("required");
    }
    let nullable: Vec<String> = body
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter(|(_, schema)| may_be_null(schema))
        .map(|(name, _)| name.clone())
        .collect();
    if let Some(Value::Array(required)) = body.get_mut("required") {
        required.retain(|name| name.as_str().is_none_or(|n| !nullable.iter().any(|o| o == n)));
        if required.is_empty() {
            body.remove("required");
        }
    }
}

/// Adds the members of every object to an embedded schema.
fn embed(schema: &mut Value) {
    const CONVENTIONS: &str =
        "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md";
    let what = [
        (
            "apiVersion",
            "apiVersion defines the versioned schema of this representation of an object.",
            "resources",
        ),
        (
            "kind",
            "kind is a string value representing the type of this object. In CamelCase.",
            "types-kinds",
        ),
        ("metadata", "Standard object's metadata.", "metadata"),
    ];
    let mut members = object_members("ObjectMeta");
    for (member, text, anchor) in what {
        let mut below = members.remove(member).unwrap_or_default();
        if member == "metadata" {
            below = json!({"allOf": [below]});
        }
        below.put(&["description"], format!("{text} More info: {CONVENTIONS}#{anchor}"));
        schema.put(&["properties", member], below);
    }
    let mut required = schema["required"].as_array().cloned().unwrap_or_default();
    for name in ["kind", "apiVersion"] {
        if !required.iter().any(|known| known == name) {
            required.push(name.into());
        }
    }
    schema.put(&["required"], required);
}

/// Returns the members of every object or list. Descriptions are added later, as for built-in kinds.
fn object_members(meta: &str) -> Map<String, Value> {
    Map::from_iter([
        ("apiVersion".to_owned(), json!({"type": "string"})),
        ("kind".to_owned(), json!({"type": "string"})),
        ("metadata".to_owned(), reference(&format!("{META}.{meta}"))),
    ])
}
