//! Builds the paths of a group version, with parameters and responses.

use api_meta::Tree as _;
use serde_json::{Map, Value, json};

use super::parameters::{self, DELETE, DELETE_COLLECTION, LIST, PATCH, ParameterContext, WRITE};
use super::reference::reference;

/// Returns the path of a document below `/openapi/v3/`, such as `api/v1` or `apis/apps/v1`.
pub fn document_path(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
const WATCH_EVENT: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent";

/// The operations on a resource.
pub(super) struct Operations {
    pub(super) plural: String,
    pub(super) kind: String,
    pub(super) namespaced: bool,
    pub(super) verbs: Vec<String>,
    pub(super) type_name: Option<String>,
    pub(super) list_name: Option<String>,
    /// `true` for a custom resource, which has no protobuf and no strategic merge patch. Its paths have fewer details
    /// than those of built-in kinds.
    pub(super) custom: bool,
    /// `true` if a deletion returns the object.
    pub(super) returns_deleted: bool,
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

/// The representation of a verb in HTTP and in the documents.
struct Action {
    verb: &'static str,
    method: &'static str,
    /// The prefix of the operation ID.
    name: &'static str,
    action: &'static str,
    parameters: &'static [&'static str],
    codes: &'static [&'static str],
}

impl Action {
    /// Creates an action from its verb, method, name and action, in this order.
    const fn new(
        [verb, method, name, action]: [&'static str; 4],
        parameters: &'static [&'static str],
        codes: &'static [&'static str],
    ) -> Self {
        Action { verb, method, name, action, parameters, codes }
    }

    /// Returns the description in upstream's words.
    fn description(&self, resource: &Operations, sub: Option<&str>) -> String {
        const DEPRECATED: &str =
            "deprecated: use the 'watch' parameter with a list operation instead";
        let kind = &resource.kind;
        let sub = sub.map(|sub| format!("{sub} of ")).unwrap_or_default();
        match (self.verb, self.action) {
            ("list", _) if !resource.custom && resource.verbs.iter().any(|v| v == "watch") => {
                format!("list or watch objects of kind {kind}")
            }
            ("list", _) => format!("list objects of kind {kind}"),
            ("watch", "watchlist") => {
                format!("watch individual changes to a list of {kind}. {DEPRECATED}.")
            }
            ("watch", _) => format!(
                "watch changes to an object of kind {kind}. {DEPRECATED}, filtered to a single \
                item with the 'fieldSelector' parameter."
            ),
            ("create" | "delete", _) => format!("{} {sub}{}{kind}", self.name, article(kind)),
            ("deletecollection", _) => format!("delete collection of {kind}"),
            ("patch", _) => format!("partially update {sub}the specified {kind}"),
            _ => format!("{} {sub}the specified {kind}", self.name),
        }
    }
}

/// Returns `a `, `an `, or an empty string before a plural.
fn article(noun: &str) -> &'static str {
    if noun.ends_with('s') && !noun.ends_with("ss") {
        ""
    } else if noun.starts_with(['A', 'E', 'I', 'O', 'U', 'a', 'e', 'i', 'o', 'u']) {
        "an "
    } else {
        "a "
    }
}

const ON_COLLECTION: [Action; 3] = [
    Action::new(["list", "get", "list", "list"], LIST, &["200"]),
    Action::new(["create", "post", "create", "post"], WRITE, &["200", "201", "202"]),
    Action::new(
        ["deletecollection", "delete", "delete", "deletecollection"],
        DELETE_COLLECTION,
        &["200"],
    ),
];
const ON_OBJECT: [Action; 4] = [
    Action::new(["get", "get", "read", "get"], &[], &["200"]),
    Action::new(["update", "put", "replace", "put"], WRITE, &["200", "201"]),
    Action::new(["patch", "patch", "patch", "patch"], PATCH, &["200", "201"]),
    Action::new(["delete", "delete", "delete", "delete"], DELETE, &["200", "202"]),
];
const CREATE: &Action = &ON_COLLECTION[1];
/// The operations on custom resources, which upstream describes differently.
const ON_CUSTOM_COLLECTION: [Action; 3] = [
    Action::new(["list", "get", "list", "list"], LIST, &["200"]),
    Action::new(["create", "post", "create", "post"], WRITE, &["200", "201", "202"]),
    Action::new(["deletecollection", "delete", "delete", "deletecollection"], LIST, &["200"]),
];
const ON_CUSTOM_OBJECT: [Action; 4] = [
    Action::new(["get", "get", "read", "get"], &["resourceVersion"], &["200"]),
    Action::new(["update", "put", "replace", "put"], WRITE, &["200", "201"]),
    Action::new(["patch", "patch", "patch", "patch"], PATCH, &["200"]),
    Action::new(["delete", "delete", "delete", "delete"], DELETE, &["200", "202"]),
];
/// The deprecated paths under `/watch/`.
const WATCH_COLLECTION: [Action; 1] =
    [Action::new(["watch", "get", "watch", "watchlist"], LIST, &["200"])];
const WATCH_OBJECT: [Action; 1] = [Action::new(["watch", "get", "watch", "watch"], LIST, &["200"])];
/// The verbs of a connection subresource and their HTTP methods.
const CONNECT: [(&str, &str); 7] = [
    ("get", "get"),
    ("get", "head"),
    ("get", "options"),
    ("create", "post"),
    ("update", "put"),
    ("patch", "patch"),
    ("delete", "delete"),
];

pub(super) const TYPES: [&str; 3] =
    ["application/json", "application/vnd.kubernetes.protobuf", "application/yaml"];
const WATCH_TYPES: [&str; 2] =
    ["application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch"];
const PATCH_TYPES: [&str; 4] = [
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
];

fn content(schema: &Value, types: &[&str]) -> Value {
    types.iter().map(|t| ((*t).to_owned(), json!({"schema": schema}))).collect::<Map<_, _>>().into()
}

pub(super) fn responses(schema: &Value, types: &[&str], codes: &[&str]) -> Value {
    let describe = |code: &str| match code {
        "201" => "Created",
        "202" => "Accepted",
        _ => "OK",
    };
    let mut out: Map<String, Value> = codes
        .iter()
        .map(|code| {
            let response =
                json!({"description": describe(code), "content": content(schema, types)});
            ((*code).to_owned(), response)
        })
        .collect();
    out.insert("401".to_owned(), json!({"description": "Unauthorized"}));
    out.into()
}

fn capital(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map(|c| c.to_ascii_uppercase().to_string() + chars.as_str()).unwrap_or_default()
}

/// A path and its operations, before common parameters are moved to the path.
struct Item {
    path: String,
    /// The kind of the path's objects.
    kind: String,
    /// The parameters of all operations.
    common: Vec<&'static str>,
    operations: Vec<(&'static str, &'static [&'static str], Value)>,
}

impl Item {
    /// Moves parameters of all operations to the path, and adds the path.
    fn finish(mut self, paths: &mut Map<String, Value>) {
        let Some((_, first, _)) = self.operations.first() else { return };
        let everywhere = |name: &&&'static str| {
            self.operations.iter().all(|(_, parameter_names, _)| parameter_names.contains(name))
        };
        self.common.extend(first.iter().filter(everywhere));
        self.common.sort_unstable_by_key(|name| name.trim_start_matches('?'));
        let mut out = Map::new();
        for (method, parameter_names, mut body) in self.operations {
            let own = parameter_names.iter().filter(|name| !self.common.contains(name));
            let about = ParameterContext { kind: &self.kind, method };
            let own: Vec<Value> = own.map(|name| parameters::parameter(name, about)).collect();
            if !own.is_empty() {
                body.put(&["parameters"], own);
            }
            out.insert(method.to_owned(), body);
        }
        let about = ParameterContext { kind: &self.kind, method: "" };
        let common = self.common.into_iter().map(|name| parameters::parameter(name, about));
        let common = common.collect();
        out.insert("parameters".to_owned(), common);
        paths.insert(self.path, out.into());
    }
}

/// Returns a group's tag and its prefix in operation IDs, such as `rbacAuthorization` and `RbacAuthorization`.
pub(super) fn names(group: &str) -> (String, String) {
    let short = group.strip_suffix(".k8s.io").unwrap_or(group);
    let words: Vec<&str> =
        if short.is_empty() { vec!["core"] } else { short.split(['.', '-']).collect() };
    let title: String = words.iter().map(|word| capital(word)).collect();
    (format!("{}{}", words[0], &title[words[0].len()..]), title)
}

struct Writer {
    gvk: [String; 2],
    /// The path prefix, such as `/apis/apps/v1/`.
    base: String,
    /// The tag, such as `apps_v1`.
    tag: String,
    /// The prefix in operation IDs, such as `AppsV1`.
    title: String,
    paths: Map<String, Value>,
}

/// Returns the paths of a group version, one resource at a time. `discovers` adds the discovery path: upstream does not
/// document it for custom resources.
pub(super) fn paths(
    group: &str,
    version: &str,
    discovers: bool,
    operations: impl Iterator<Item = Operations>,
) -> impl Iterator<Item = (String, Value)> {
    let (tag, title) = names(group);
    let mut writer = Writer {
        gvk: [group.to_owned(), version.to_owned()],
        base: format!("/{}/", document_path(group, version)),
        tag: format!("{tag}_{version}"),
        title: title + &capital(version),
        paths: Map::new(),
    };
    if discovers {
        writer.add_discovery();
    }
    let discovery = std::mem::take(&mut writer.paths);
    let resources = operations.flat_map(move |resource| {
        writer.resource(&resource);
        std::mem::take(&mut writer.paths)
    });
    discovery.into_iter().chain(resources)
}

impl Writer {
    fn add_discovery(&mut self) {
        let list = reference(&format!("{META}.APIResourceList"));
        let get = json!({
            "operationId": format!("get{}APIResources", self.title),
            "description": "get available resources",
            "responses": responses(&list, &TYPES, &["200"]),
            "tags": [self.tag],
        });
        self.paths.insert(self.base.clone(), json!({"get": get}));
    }

    fn resource(&mut self, resource: &Operations) {
        let (common, scope, noun) = if resource.namespaced {
            (&["namespace", "pretty"][..], "namespaces/{namespace}/", "Namespaced")
        } else {
            (&["pretty"][..], "", "")
        };
        let noun = format!("{noun}{}", resource.kind);
        let collection = format!("{}{scope}{}", self.base, resource.plural);
        let object_common = [&["name"], common].concat();
        let (on_collection, on_object) = if resource.custom {
            (&ON_CUSTOM_COLLECTION, &ON_CUSTOM_OBJECT)
        } else {
            (&ON_COLLECTION, &ON_OBJECT)
        };
        self.actions(resource, on_collection, collection.clone(), common.to_vec(), &noun);
        self.actions(
            resource,
            on_object,
            format!("{collection}/{{name}}"),
            object_common.clone(),
            &noun,
        );
        if resource.namespaced {
            let everywhere = format!("{}{}", self.base, resource.plural);
            let noun = format!("{}ForAllNamespaces", resource.kind);
            self.actions(resource, &on_collection[..1], everywhere, vec!["pretty"], &noun);
        }
        // Custom resources have no `/watch/` paths.
        if !resource.custom {
            self.add_watches(resource, scope, common, &object_common, &noun);
        }
        for sub in &resource.subresources {
            let path = format!("{collection}/{{name}}/{}", sub.name);
            let noun = format!("{noun}{}", capital(&sub.name));
            if matches!(sub.name.as_str(), "attach" | "exec" | "portforward" | "proxy") {
                self.add_connection(resource, sub, &sub.name, path.clone(), &object_common, &noun);
            } else {
                self.add_subresource(resource, sub, path.clone(), object_common.clone(), &noun);
            }
            if sub.name == "proxy" {
                let (path, noun) = (format!("{path}/{{path}}"), format!("{noun}WithPath"));
                self.add_connection(resource, sub, "proxy/{path}", path, &object_common, &noun);
            }
        }
    }

    fn add_watches(
        &mut self,
        resource: &Operations,
        scope: &str,
        common: &[&'static str],
        object_common: &[&'static str],
        noun: &str,
    ) {
        let collection = format!("{}watch/{scope}{}", self.base, resource.plural);
        let list = format!("{noun}List");
        self.actions(resource, &WATCH_COLLECTION, collection.clone(), common.to_vec(), &list);
        self.actions(
            resource,
            &WATCH_OBJECT,
            format!("{collection}/{{name}}"),
            object_common.to_vec(),
            noun,
        );
        if resource.namespaced {
            let everywhere = format!("{}watch/{}", self.base, resource.plural);
            let noun = format!("{}ListForAllNamespaces", resource.kind);
            self.actions(resource, &WATCH_COLLECTION, everywhere, vec!["pretty"], &noun);
        }
    }

    fn actions(
        &mut self,
        resource: &Operations,
        actions: &[Action],
        path: String,
        common: Vec<&'static str>,
        noun: &str,
    ) {
        let kind = json!({"group": self.gvk[0], "version": self.gvk[1], "kind": resource.kind});
        let mut item = Item { path, kind: resource.kind.clone(), common, operations: Vec::new() };
        for action in actions.iter().filter(|a| resource.verbs.iter().any(|v| v == a.verb)) {
            let response_type = match action.verb {
                "list" => resource.list_name.as_deref(),
                "watch" => Some(WATCH_EVENT),
                "delete" if resource.returns_deleted => resource.type_name.as_deref(),
                "delete" | "deletecollection" => None,
                _ => resource.type_name.as_deref(),
            };
            let body = self.operation(resource, action, response_type, &kind, noun, None);
            item.operations.push((action.method, action.parameters, body));
        }
        item.finish(&mut self.paths);
    }

    /// Builds an operation. `answer` is the type of the response and, for a write, of the body. Without it, the
    /// response is a Status.
    fn operation(
        &self,
        resource: &Operations,
        action: &Action,
        response_type: Option<&str>,
        kind: &Value,
        noun: &str,
        sub: Option<&str>,
    ) -> Value {
        let schema = response_type.map_or_else(|| reference(&format!("{META}.Status")), reference);
        let mut types = TYPES.to_vec();
        if resource.custom {
            types.retain(|t| !t.contains("protobuf"));
        } else if matches!(action.verb, "list" | "watch") {
            types.extend(WATCH_TYPES);
        }
        let body_types = if resource.custom { &types[..] } else { &["*/*"] };
        let collection = if action.verb == "deletecollection" { "Collection" } else { "" };
        let mut body = json!({
            "operationId": format!("{}{}{collection}{noun}", action.name, self.title),
            "description": action.description(resource, sub),
            "responses": responses(&schema, &types, action.codes),
            "tags": [self.tag],
            "x-kubernetes-action": action.action,
            "x-kubernetes-group-version-kind": kind,
        });
        match action.method {
            "post" | "put" => {
                let content = content(&schema, body_types);
                body.put(&["requestBody"], json!({"content": content, "required": true}));
            }
            "patch" => {
                let types = if resource.custom { &PATCH_TYPES[..3] } else { &PATCH_TYPES };
                let patch = content(&reference(&format!("{META}.Patch")), types);
                body.put(&["requestBody"], json!({"content": patch, "required": true}));
            }
            "delete" if !(resource.custom && action.verb == "deletecollection") => {
                let options = reference(&format!("{META}.DeleteOptions"));
                body.put(&["requestBody"], json!({"content": content(&options, body_types)}));
            }
            _ => {}
        }
        body
    }

    fn add_subresource(
        &mut self,
        resource: &Operations,
        sub: &Sub,
        path: String,
        common: Vec<&'static str>,
        noun: &str,
    ) {
        let kind = json!({"group": sub.group, "version": sub.version, "kind": sub.kind});
        let mut item = Item { path, kind: sub.kind.clone(), common, operations: Vec::new() };
        item.common.extend(parameters::of_subresource(&sub.name));
        let on_object = if resource.custom { &ON_CUSTOM_OBJECT } else { &ON_OBJECT };
        for action in
            on_object.iter().chain([CREATE]).filter(|a| sub.verbs.iter().any(|v| v == a.verb))
        {
            let (response_type, name) = (sub.type_name.as_deref(), Some(sub.name.as_str()));
            let mut body = self.operation(resource, action, response_type, &kind, noun, name);
            if sub.name == "log" {
                let types = [&TYPES[..], &["text/plain"]].concat();
                body.put(
                    &["responses"],
                    responses(&json!({"type": "string"}), &types, action.codes),
                );
            }
            item.operations.push((action.method, action.parameters, body));
        }
        item.finish(&mut self.paths);
    }

    fn add_connection(
        &mut self,
        resource: &Operations,
        sub: &Sub,
        name: &str,
        path: String,
        object_common: &[&'static str],
        noun: &str,
    ) {
        let kind = json!({"group": sub.group, "version": sub.version, "kind": sub.kind});
        let common = object_common.iter().copied().filter(|name| *name != "pretty");
        let common = common.chain(parameters::of_subresource(name).iter().copied()).collect();
        let mut item = Item { path, kind: sub.kind.clone(), common, operations: Vec::new() };
        for (verb, method) in CONNECT {
            // Only a proxy forwards all methods.
            if !sub.verbs.iter().any(|v| v == verb)
                || verb != method && matches!(method, "head" | "options") && sub.name != "proxy"
            {
                continue;
            }
            let body = json!({
                "operationId": format!("connect{}{}{noun}", self.title, capital(method)),
                "description": format!(
                    "connect {} requests to {} of {}", method.to_uppercase(), sub.name, resource.kind,
                ),
                "responses": responses(&json!({"type": "string"}), &["*/*"], &["200"]),
                "tags": [self.tag],
                "x-kubernetes-action": "connect",
                "x-kubernetes-group-version-kind": kind,
            });
            item.operations.push((method, &[], body));
        }
        item.finish(&mut self.paths);
    }
}
