use std::collections::BTreeMap;

use api_meta::{FieldSelector, Selector, Tree as _};
use serde_json::{Map, Value, json};

/// A resource that the fake serves.
#[derive(Clone, Debug)]
pub struct ServedResource {
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// The version.
    pub version: &'static str,
    /// The plural name in paths.
    pub plural: &'static str,
    /// The kind.
    pub kind: &'static str,
    /// `true` if objects belong to a namespace.
    pub namespaced: bool,
}

/// An error, with the fields of a `Status`.
#[derive(Debug)]
pub struct ApiError {
    /// The HTTP status code.
    pub code: u16,
    /// The machine-readable reason.
    pub reason: &'static str,
    /// The message.
    pub message: String,
}

pub(crate) fn api_error(code: u16, reason: &'static str, message: impl Into<String>) -> ApiError {
    ApiError { code, reason, message: message.into() }
}

pub(crate) type ApiResult<T> = Result<T, ApiError>;

/// The key of an object: group, plural, namespace and name.
pub(crate) type Key = (String, String, String, String);

/// The objects, and all their changes since the start.
#[derive(Default)]
pub struct Objects {
    pub(crate) revision: u64,
    objects: BTreeMap<Key, Value>,
    pub(crate) log: Vec<(u64, Key, &'static str, Value)>,
    clock: i64,
}

impl Objects {
    fn stamp(&mut self, key: &Key, object: &mut Value, change: &'static str) {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        self.log.push((self.revision, key.clone(), change, object.clone()));
    }

    fn now(&mut self) -> String {
        self.clock += 1;
        api_meta::Timestamp::from_unix(1_780_000_000 + self.clock, 0).to_string()
    }

    /// Returns the object, or 404.
    pub fn get(&self, key: &Key) -> ApiResult<Value> {
        let missing = || api_error(404, "NotFound", format!("{} \"{}\" not found", key.1, key.3));
        self.objects.get(key).cloned().ok_or_else(missing)
    }

    /// Returns the objects of a resource in a namespace, or in all namespaces if `namespace` is empty.
    pub fn list(&self, group: &str, plural: &str, namespace: &str) -> Vec<Value> {
        let of =
            |k: &&Key| k.0 == group && k.1 == plural && (namespace.is_empty() || k.2 == namespace);
        self.objects.iter().filter(|(k, _)| of(k)).map(|(_, v)| v.clone()).collect()
    }

    /// Stores an object like the API server: with a UID, a generated name if it has none, and a first resourceVersion.
    pub fn create(
        &mut self,
        served: &ServedResource,
        namespace: &str,
        mut object: Value,
    ) -> ApiResult<Value> {
        let now = self.now();
        let next = self.revision + 1;
        let meta = meta(&mut object);
        if !meta.contains_key("name") {
            let prefix = meta.get("generateName").and_then(Value::as_str).unwrap_or("generated-");
            meta.insert("name".into(), json!(format!("{prefix}{next:05}")));
        }
        meta.insert("uid".into(), json!(format!("uid-{next}")));
        meta.insert("creationTimestamp".into(), json!(now));
        meta.insert("generation".into(), json!(1));
        if served.namespaced {
            meta.insert("namespace".into(), json!(namespace));
        }
        let name = meta["name"].as_str().unwrap_or_default().to_owned();
        let version =
            if served.group.is_empty() { String::new() } else { format!("{}/", served.group) };
        object["apiVersion"] = json!(format!("{version}{}", served.version));
        object["kind"] = json!(served.kind);
        if served.kind == "Namespace" {
            object["spec"]["finalizers"] = json!(["kubernetes"]);
            object["status"]["phase"] = json!("Active");
        }
        let key = (served.group.into(), served.plural.into(), namespace.into(), name);
        if self.objects.contains_key(&key) {
            let message = format!("{} \"{}\" already exists", key.1, key.3);
            return Err(api_error(409, "AlreadyExists", message));
        }
        self.stamp(&key, &mut object, "ADDED");
        self.objects.insert(key, object.clone());
        Ok(object)
    }

    /// Replaces the object, or only its status. Rejects a stale resourceVersion.
    pub fn update(&mut self, key: &Key, subresource: &str, mut object: Value) -> ApiResult<Value> {
        let old = self.get(key)?;
        let expected = object.text("metadata.resourceVersion");
        if !expected.is_empty() && old["metadata"]["resourceVersion"] != expected {
            let message = format!("{} \"{}\": the object has been modified", key.1, key.3);
            return Err(api_error(409, "Conflict", message));
        }
        match subresource {
            "status" => {
                let status = object["status"].take();
                let annotations = object["metadata"]["annotations"].take();
                object = old.clone();
                object["status"] = status;
                if !annotations.is_null() {
                    object["metadata"]["annotations"] = annotations;
                }
            }
            "finalize" => {
                let finalizers = object["spec"]["finalizers"].take();
                object = old.clone();
                object["spec"]["finalizers"] = finalizers;
            }
            "approval" => {}
            _ => {
                if !old["status"].is_null() {
                    object["status"] = old["status"].clone();
                }
                for field in ["uid", "creationTimestamp", "generation", "deletionTimestamp"] {
                    if !old["metadata"][field].is_null() {
                        object["metadata"][field] = old["metadata"][field].clone();
                    }
                }
                if old["spec"] != object["spec"] {
                    let generation = old.int("metadata.generation");
                    object["metadata"]["generation"] = json!(generation + 1);
                }
            }
        }
        for field in ["apiVersion", "kind"] {
            object[field] = old[field].clone();
        }
        object["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"].clone();
        if object == old {
            return Ok(old);
        }
        self.store(key, object)
    }

    /// Stores the object, or removes it if it is deleted and has no finalizers left.
    fn store(&mut self, key: &Key, mut object: Value) -> ApiResult<Value> {
        let held = |v: &Value| v.as_array().is_some_and(|a| !a.is_empty());
        let holds = held(&object["metadata"]["finalizers"])
            || (object["kind"] == "Namespace" && held(&object["spec"]["finalizers"]));
        if !object["metadata"]["deletionTimestamp"].is_null() && !holds {
            self.objects.remove(key);
            self.stamp(key, &mut object, "DELETED");
        } else {
            self.stamp(key, &mut object, "MODIFIED");
            self.objects.insert(key.clone(), object.clone());
        }
        Ok(object)
    }

    /// Deletes an object, or marks it for deletion if it has finalizers. Preconditions and the propagation policy are
    /// respected.
    pub fn delete(&mut self, key: &Key, options: &Value) -> ApiResult<Value> {
        let mut object = self.get(key)?;
        let preconditions = &options["preconditions"];
        for field in ["uid", "resourceVersion"] {
            if !preconditions[field].is_null() && preconditions[field] != object["metadata"][field]
            {
                return Err(api_error(
                    409,
                    "Conflict",
                    format!("Precondition failed: {field} in precondition"),
                ));
            }
        }
        let finalizer = match options["propagationPolicy"].as_str() {
            Some("Foreground") => Some("foregroundDeletion"),
            Some("Orphan") => Some("orphan"),
            _ => None,
        };
        if let Some(finalizer) = finalizer {
            let mut all = object.items("metadata.finalizers").to_vec();
            if !all.contains(&json!(finalizer)) {
                all.push(json!(finalizer));
            }
            object["metadata"]["finalizers"] = json!(all);
        }
        if object["metadata"]["deletionTimestamp"].is_null() {
            let now = self.now();
            object["metadata"]["deletionTimestamp"] = json!(now);
        }
        if object["kind"] == "Namespace" {
            object["status"]["phase"] = json!("Terminating");
        }
        self.store(key, object)
    }

    /// Assigns a Pod to a node. This works only once.
    pub fn bind(&mut self, key: &Key, binding: &Value) -> ApiResult<Value> {
        let mut pod = self.get(key)?;
        if pod["spec"]["nodeName"].as_str().is_some_and(|n| !n.is_empty()) {
            return Err(api_error(
                409,
                "Conflict",
                format!("pod {} is already assigned to a node", key.3),
            ));
        }
        pod["spec"]["nodeName"] = binding["target"]["name"].clone();
        self.store(key, pod)
    }
}

fn meta(object: &mut Value) -> &mut Map<String, Value> {
    if !object["metadata"].is_object() {
        object["metadata"] = json!({});
    }
    match &mut object["metadata"] {
        Value::Object(meta) => meta,
        _ => unreachable!("the metadata was set to an object above"),
    }
}

/// Reports whether an object matches the selectors.
pub(crate) fn selected(object: &Value, labels: &str, fields: &str) -> bool {
    let by_label = labels.parse::<Selector>().is_ok_and(|selector| {
        selector.matches_with(|key| object["metadata"]["labels"][key].as_str())
    });
    let by_field = fields.parse::<FieldSelector>().is_ok_and(|selector| {
        let field = |path: &str| path.split('.').fold(object, |at, part| &at[part]).as_str();
        selector.matches(field)
    });
    (labels.is_empty() || by_label) && (fields.is_empty() || by_field)
}
