//! Custom kinds as OpenAPI schemas: what their definition says, with the members that every object has.

use serde_json::{Map, Value, json};

use super::paths::{Operations, Sub};
use super::reference;

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// One version of a custom kind, as its definition has it.
#[derive(Clone, Copy, Debug)]
pub struct CustomKind<'a> {
    pub group: &'a str,
    pub version: &'a str,
    pub plural: &'a str,
    pub kind: &'a str,
    pub list_kind: &'a str,
    pub namespaced: bool,
    /// `openAPIV3Schema`; `null` where the version has none.
    pub open_api_v3: &'a Value,
    /// Whether `status` is a subresource; likewise `scale`.
    pub status: bool,
    pub scale: bool,
}

impl CustomKind<'_> {
    /// `com.example.v1.Widget`: the group's labels in reverse, then version and kind.
    fn component_name(&self, kind: &str) -> String {
        let labels: Vec<&str> = self.group.rsplit('.').collect();
        format!("{}.{}.{kind}", labels.join("."), self.version)
    }

    pub(super) fn operations(&self) -> Operations {
        let verbs = |verbs: &[&str]| verbs.iter().map(|v| (*v).to_owned()).collect::<Vec<_>>();
        let sub = |name: &str, group: &str, version: &str, kind: &str, type_name: String| Sub {
            name: name.to_owned(),
            group: group.to_owned(),
            version: version.to_owned(),
            kind: kind.to_owned(),
            verbs: verbs(&["get", "patch", "update"]),
            type_name: Some(type_name),
        };
        let mut subresources = Vec::new();
        if self.status {
            subresources.push(sub(
                "status",
                self.group,
                self.version,
                self.kind,
                self.component_name(self.kind),
            ));
        }
        if self.scale {
            subresources.push(sub(
                "scale",
                "autoscaling",
                "v1",
                "Scale",
                "io.k8s.api.autoscaling.v1.Scale".to_owned(),
            ));
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

    /// The kind and its list.
    pub(super) fn components(&self) -> [(String, Value); 2] {
        let name = self.component_name(self.kind);
        let mut object = match self.open_api_v3 {
            Value::Object(members) => members.clone(),
            _ => Map::from_iter([("x-kubernetes-preserve-unknown-fields".to_owned(), true.into())]),
        };
        object.insert("type".to_owned(), "object".into());
        object.insert("x-kubernetes-group-version-kind".to_owned(), self.kind_list(self.kind));
        let properties = object.entry("properties").or_insert_with(|| json!({}));
        if let Value::Object(properties) = properties {
            // Restrictions of the name stay with the server.
            properties.extend(object_members("ObjectMeta"));
        }
        let mut list = Map::from_iter([
            ("type".to_owned(), "object".into()),
            ("required".to_owned(), json!(["items"])),
            (
                "description".to_owned(),
                format!("{} is a list of {}", self.list_kind, self.kind).into(),
            ),
            ("x-kubernetes-group-version-kind".to_owned(), self.kind_list(self.list_kind)),
        ]);
        let mut properties = object_members("ListMeta");
        let description = format!(
            "List of {}. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md",
            self.plural
        );
        properties.insert(
            "items".to_owned(),
            json!({"type": "array", "items": reference(&name), "description": description}),
        );
        list.insert("properties".to_owned(), properties.into());
        [(name, object.into()), (self.component_name(self.list_kind), list.into())]
    }

    fn kind_list(&self, kind: &str) -> Value {
        json!([{"group": self.group, "version": self.version, "kind": kind}])
    }
}

fn object_members(meta: &str) -> Map<String, Value> {
    const CONVENTIONS: &str =
        "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md";
    let text = |what: &str, anchor: &str| json!({"type": "string", "description": format!("{what} More info: {CONVENTIONS}#{anchor}")});
    Map::from_iter([
        ("apiVersion".to_owned(), text("The version of this object's schema.", "resources")),
        ("kind".to_owned(), text("The kind of this object.", "types-kinds")),
        (
            "metadata".to_owned(),
            json!({"allOf": [reference(&format!("{META}.{meta}"))], "description": format!("Standard metadata. More info: {CONVENTIONS}#metadata")}),
        ),
    ])
}
