//! The paths of a group and version, and what each takes and gives.

use serde_json::{Map, Value, json};

use super::reference;

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// What can be done with a resource.
pub(super) struct Operations {
    pub(super) plural: String,
    pub(super) kind: String,
    pub(super) namespaced: bool,
    pub(super) verbs: Vec<String>,
    pub(super) type_name: Option<String>,
    pub(super) list_name: Option<String>,
    pub(super) custom: bool,
    pub(super) subresources: Vec<Sub>,
}

pub(super) struct Sub {
    pub(super) name: String,
    pub(super) group: String,
    pub(super) version: String,
    pub(super) kind: String,
    pub(super) verbs: Vec<String>,
    pub(super) type_name: Option<String>,
}

/// Query parameters, by name.
const LIST: &[&str] = &[
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "labelSelector",
    "limit",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "timeoutSeconds",
    "watch",
];
const DELETE_COLLECTION: &[&str] = &[
    "continue",
    "dryRun",
    "fieldSelector",
    "gracePeriodSeconds",
    "ignoreStoreReadErrorWithClusterBreakingPotential",
    "labelSelector",
    "limit",
    "orphanDependents",
    "propagationPolicy",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "timeoutSeconds",
];
const DELETE: &[&str] = &[
    "dryRun",
    "gracePeriodSeconds",
    "ignoreStoreReadErrorWithClusterBreakingPotential",
    "orphanDependents",
    "propagationPolicy",
];
const WRITE: &[&str] = &["dryRun", "fieldManager", "fieldValidation"];
const PATCH: &[&str] = &["dryRun", "fieldManager", "fieldValidation", "force"];

fn parameter(name: &str) -> Value {
    let kind = match name {
        "gracePeriodSeconds" | "limit" | "timeoutSeconds" => "integer",
        "allowWatchBookmarks"
        | "force"
        | "ignoreStoreReadErrorWithClusterBreakingPotential"
        | "orphanDependents"
        | "sendInitialEvents"
        | "watch" => "boolean",
        _ => "string",
    };
    let schema = json!({"type": kind, "uniqueItems": true});
    match name {
        "name" | "namespace" | "path" => {
            json!({"name": name, "in": "path", "required": true, "schema": schema})
        }
        _ => json!({"name": name, "in": "query", "schema": schema}),
    }
}

/// One path and its operations, before what they share is lifted out of them.
struct Item<'a> {
    tag: &'a str,
    path_parameters: Vec<&'static str>,
    operations: Vec<(&'static str, Vec<&'static str>, Map<String, Value>)>,
}

impl Item<'_> {
    fn add(
        &mut self,
        method: &'static str,
        action: &str,
        parameters: &[&'static str],
        kind: &Value,
        mut body: Map<String, Value>,
    ) {
        body.insert("tags".to_owned(), json!([self.tag]));
        body.insert("x-kubernetes-action".to_owned(), action.into());
        body.insert("x-kubernetes-group-version-kind".to_owned(), kind.clone());
        self.operations.push((method, parameters.to_vec(), body));
    }

    /// Parameters that all operations take are the path's.
    fn finish(self) -> Value {
        let shared = |name: &&'static str| {
            self.operations.iter().all(|(_, parameters, _)| parameters.contains(name))
        };
        let mut common: Vec<&str> = self.path_parameters.clone();
        common.push("pretty");
        if let Some((_, parameters, _)) = self.operations.first() {
            common.extend(parameters.iter().filter(|name| shared(name)));
        }
        common.sort_unstable();
        let mut out = Map::new();
        for (method, parameters, body) in &self.operations {
            let own: Vec<Value> =
                parameters.iter().filter(|n| !common.contains(n)).map(|n| parameter(n)).collect();
            let mut body = body.clone();
            if !own.is_empty() {
                body.insert("parameters".to_owned(), own.into());
            }
            out.insert((*method).to_owned(), body.into());
        }
        out.insert("parameters".to_owned(), common.into_iter().map(parameter).collect());
        out.into()
    }
}

struct Writer<'a> {
    group: &'a str,
    version: &'a str,
    base: String,
    tag: String,
    /// `AppsV1`, as operations are named.
    title: String,
    paths: Map<String, Value>,
}

/// All paths of a group and version.
pub(super) fn paths(group: &str, version: &str, resources: &[Operations]) -> Map<String, Value> {
    let short = group.strip_suffix(".k8s.io").unwrap_or(group);
    let words: Vec<&str> =
        if short.is_empty() { vec!["core"] } else { short.split(['.', '-']).collect() };
    let title: String = words.iter().map(|word| capital(word)).collect();
    let mut writer = Writer {
        group,
        version,
        base: format!("/{}/", super::document_path(group, version)),
        tag: format!("{}_{version}", words[0].to_owned() + &title[words[0].len()..]),
        title: title + &capital(version),
        paths: Map::new(),
    };
    writer.discovery();
    for resource in resources {
        writer.resource(resource);
    }
    writer.paths
}

fn capital(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map(|c| c.to_ascii_uppercase().to_string() + chars.as_str()).unwrap_or_default()
}

fn content(schema: &Value, types: &[&str]) -> Value {
    Value::Object(types.iter().map(|t| ((*t).to_owned(), json!({"schema": schema}))).collect())
}

fn responses(schema: &Value, types: &[&str], codes: &[&str]) -> Value {
    let describe = |code: &str| match code {
        "201" => "Created",
        "202" => "Accepted",
        _ => "OK",
    };
    let mut out: Map<String, Value> = codes
        .iter()
        .map(|code| {
            (
                (*code).to_owned(),
                json!({"description": describe(code), "content": content(schema, types)}),
            )
        })
        .collect();
    out.insert("401".to_owned(), json!({"description": "Unauthorized"}));
    out.into()
}

const TYPES: &[&str] =
    &["application/json", "application/vnd.kubernetes.protobuf", "application/yaml"];
const LIST_TYPES: &[&str] = &[
    "application/json",
    "application/json;stream=watch",
    "application/vnd.kubernetes.protobuf",
    "application/vnd.kubernetes.protobuf;stream=watch",
    "application/yaml",
];
const CUSTOM_TYPES: &[&str] = &["application/json", "application/yaml"];
const PATCHES: &[&str] = &[
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
];

impl Writer<'_> {
    fn kind(&self, group: &str, version: &str, kind: &str) -> Value {
        json!({"group": group, "version": version, "kind": kind})
    }

    fn item(&self, path_parameters: &[&'static str]) -> Item<'_> {
        Item { tag: &self.tag, path_parameters: path_parameters.to_vec(), operations: Vec::new() }
    }

    fn put(&mut self, path: String, item: Value) {
        self.paths.insert(path, item);
    }

    fn discovery(&mut self) {
        let list = reference(&format!("{META}.APIResourceList"));
        let get = json!({
            "operationId": format!("get{}APIResources", self.title),
            "description": "get available resources",
            "responses": responses(&list, TYPES, &["200"]),
            "tags": [self.tag],
        });
        let path = self.base.clone();
        self.put(path, json!({"get": get}));
    }

    fn resource(&mut self, resource: &Operations) {
        let plural = &resource.plural;
        let scope = if resource.namespaced { "namespaces/{namespace}/" } else { "" };
        let space: &[&'static str] = if resource.namespaced { &["namespace"] } else { &[] };
        let one: Vec<&'static str> = [&["name"], space].concat();
        let (base, has) =
            (self.base.clone(), |verb: &str| resource.verbs.iter().any(|v| v == verb));
        self.collection(resource, format!("{base}{scope}{plural}"), space);
        self.object(resource, format!("{base}{scope}{plural}/{{name}}"), &one);
        if resource.namespaced && has("list") {
            self.list_all(resource, format!("{base}{plural}"));
        }
        for sub in &resource.subresources {
            self.subresource(
                resource,
                sub,
                format!("{base}{scope}{plural}/{{name}}/{}", sub.name),
                &one,
            );
        }
    }

    fn operation(&self, verb: &str, resource: &Operations, tail: &str) -> Map<String, Value> {
        let scope = if resource.namespaced { "Namespaced" } else { "" };
        let name = format!("{verb}{}{scope}{}{tail}", self.title, resource.kind);
        Map::from_iter([("operationId".to_owned(), name.into())])
    }

    fn reading(
        mut operation: Map<String, Value>,
        schema: &Value,
        types: &[&str],
        codes: &[&str],
    ) -> Map<String, Value> {
        operation.insert("responses".to_owned(), responses(schema, types, codes));
        operation
    }

    fn writing(
        operation: Map<String, Value>,
        schema: &Value,
        types: &[&str],
        codes: &[&str],
    ) -> Map<String, Value> {
        let mut operation = Self::reading(operation, schema, types, codes);
        operation.insert(
            "requestBody".to_owned(),
            json!({"content": content(schema, &["*/*"]), "required": true}),
        );
        operation
    }

    fn patching(
        &self,
        operation: Map<String, Value>,
        schema: &Value,
        custom: bool,
    ) -> Map<String, Value> {
        let types = if custom { CUSTOM_TYPES } else { TYPES };
        let mut operation = Self::reading(operation, schema, types, &["200", "201"]);
        let patches = if custom { &PATCHES[..3] } else { PATCHES };
        let patch = reference(&format!("{META}.Patch"));
        operation.insert(
            "requestBody".to_owned(),
            json!({"content": content(&patch, patches), "required": true}),
        );
        operation
    }

    fn deleting(
        &self,
        operation: Map<String, Value>,
        custom: bool,
        codes: &[&str],
    ) -> Map<String, Value> {
        let types = if custom { CUSTOM_TYPES } else { TYPES };
        let mut operation =
            Self::reading(operation, &reference(&format!("{META}.Status")), types, codes);
        let options = reference(&format!("{META}.DeleteOptions"));
        operation.insert("requestBody".to_owned(), json!({"content": content(&options, &["*/*"])}));
        operation
    }

    fn schemas(resource: &Operations) -> (Value, Value) {
        let schema = |name: &Option<String>| name.as_deref().map_or(json!({}), reference);
        (schema(&resource.type_name), schema(&resource.list_name))
    }

    fn types(resource: &Operations) -> (&'static [&'static str], &'static [&'static str]) {
        if resource.custom { (CUSTOM_TYPES, CUSTOM_TYPES) } else { (TYPES, LIST_TYPES) }
    }

    fn collection(&mut self, resource: &Operations, path: String, parameters: &[&'static str]) {
        let kind = self.kind(self.group, self.version, &resource.kind);
        let (object, list) = Self::schemas(resource);
        let (types, list_types) = Self::types(resource);
        let mut item = self.item(parameters);
        for verb in &resource.verbs {
            match verb.as_str() {
                "list" => {
                    let body = Self::reading(
                        self.operation("list", resource, ""),
                        &list,
                        list_types,
                        &["200"],
                    );
                    item.add("get", "list", LIST, &kind, body);
                }
                "create" => {
                    let body = Self::writing(
                        self.operation("create", resource, ""),
                        &object,
                        types,
                        &["200", "201", "202"],
                    );
                    item.add("post", "post", WRITE, &kind, body);
                }
                "deletecollection" => {
                    let mut body = self.operation("delete", resource, "");
                    let name = body["operationId"].as_str().unwrap_or_default().replacen(
                        &self.title,
                        &format!("{}Collection", self.title),
                        1,
                    );
                    body.insert("operationId".to_owned(), name.into());
                    let body = self.deleting(body, resource.custom, &["200"]);
                    item.add("delete", "deletecollection", DELETE_COLLECTION, &kind, body);
                }
                _ => {}
            }
        }
        if !item.operations.is_empty() {
            let item = item.finish();
            self.put(path, item);
        }
    }

    fn list_all(&mut self, resource: &Operations, path: String) {
        let kind = self.kind(self.group, self.version, &resource.kind);
        let (_, list) = Self::schemas(resource);
        let name = format!("list{}{}ForAllNamespaces", self.title, resource.kind);
        let body = Map::from_iter([("operationId".to_owned(), name.into())]);
        let mut item = self.item(&[]);
        item.add(
            "get",
            "list",
            LIST,
            &kind,
            Self::reading(body, &list, Self::types(resource).1, &["200"]),
        );
        let item = item.finish();
        self.put(path, item);
    }

    fn object(&mut self, resource: &Operations, path: String, parameters: &[&'static str]) {
        let kind = self.kind(self.group, self.version, &resource.kind);
        let (object, _) = Self::schemas(resource);
        let (types, _) = Self::types(resource);
        let mut item = self.item(parameters);
        for verb in &resource.verbs {
            match verb.as_str() {
                "get" => {
                    let body = Self::reading(
                        self.operation("read", resource, ""),
                        &object,
                        types,
                        &["200"],
                    );
                    item.add("get", "get", &[], &kind, body);
                }
                "update" => {
                    let body = Self::writing(
                        self.operation("replace", resource, ""),
                        &object,
                        types,
                        &["200", "201"],
                    );
                    item.add("put", "put", WRITE, &kind, body);
                }
                "patch" => {
                    let body = self.patching(
                        self.operation("patch", resource, ""),
                        &object,
                        resource.custom,
                    );
                    item.add("patch", "patch", PATCH, &kind, body);
                }
                "delete" => {
                    let body = self.deleting(
                        self.operation("delete", resource, ""),
                        resource.custom,
                        &["200", "202"],
                    );
                    item.add("delete", "delete", DELETE, &kind, body);
                }
                _ => {}
            }
        }
        if !item.operations.is_empty() {
            let item = item.finish();
            self.put(path, item);
        }
    }

    fn subresource(
        &mut self,
        resource: &Operations,
        sub: &Sub,
        path: String,
        parameters: &[&'static str],
    ) {
        let kind = self.kind(&sub.group, &sub.version, &sub.kind);
        let connects = matches!(sub.name.as_str(), "attach" | "exec" | "portforward" | "proxy");
        let (types, _) = Self::types(resource);
        let object = match (&sub.type_name, sub.name.as_str()) {
            (Some(name), name_of_sub) if name_of_sub != "log" => reference(name),
            _ => json!({"type": "string"}),
        };
        let tail = capital(&sub.name);
        let mut item = self.item(parameters);
        for verb in &sub.verbs {
            match verb.as_str() {
                "get" | "create" | "update" | "patch" | "delete" if connects => {
                    let method = method_of(verb);
                    let body =
                        self.operation(&format!("connect{}", capital(method)), resource, &tail);
                    item.add(
                        method,
                        "connect",
                        &[],
                        &kind,
                        Self::reading(body, &object, &["*/*"], &["200"]),
                    );
                }
                "get" => {
                    let body = Self::reading(
                        self.operation("read", resource, &tail),
                        &object,
                        types,
                        &["200"],
                    );
                    item.add("get", "get", &[], &kind, body);
                }
                "create" => {
                    let body = Self::writing(
                        self.operation("create", resource, &tail),
                        &object,
                        types,
                        &["200", "201", "202"],
                    );
                    item.add("post", "post", WRITE, &kind, body);
                }
                "update" => {
                    let body = Self::writing(
                        self.operation("replace", resource, &tail),
                        &object,
                        types,
                        &["200", "201"],
                    );
                    item.add("put", "put", WRITE, &kind, body);
                }
                "patch" => {
                    let body = self.patching(
                        self.operation("patch", resource, &tail),
                        &object,
                        resource.custom,
                    );
                    item.add("patch", "patch", PATCH, &kind, body);
                }
                _ => {}
            }
        }
        if !item.operations.is_empty() {
            let item = item.finish();
            self.put(path, item);
        }
    }
}

fn method_of(verb: &str) -> &'static str {
    match verb {
        "create" => "post",
        "update" => "put",
        "patch" => "patch",
        "delete" => "delete",
        _ => "get",
    }
}
