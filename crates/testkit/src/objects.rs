use std::collections::BTreeMap;

use api_meta::{FieldSelector, Selector, Tree as _};
use serde_json::{Map, Value, json};

/// A resource that the fake serves.
#[derive(Clone, Debug)]
pub struct Served {
    pub group: &'static str,
    pub version: &'static str,
    pub plural: &'static str,
    pub kind: &'static str,
    pub namespaced: bool,
}

/// What went wrong, as a Status would say it.
#[derive(Debug)]
pub struct Refused {
    pub code: u16,
    pub reason: &'static str,
    pub message: String,
}

pub(crate) fn refused(code: u16, reason: &'static str, message: impl Into<String>) -> Refused {
    Refused { code, reason, message: message.into() }
}

pub(crate) type Done<T> = Result<T, Refused>;

/// (group, plural, namespace, name)
pub(crate) type Key = (String, String, String, String);

/// The objects, and every change of them since the start.
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

    /// The object, or 404.
    pub fn get(&self, key: &Key) -> Done<Value> {
        let missing = || refused(404, "NotFound", format!("{} \"{}\" not found", key.1, key.3));
        self.objects.get(key).cloned().ok_or_else(missing)
    }

    /// The objects of a resource in a namespace, or in all with an empty one.
    pub fn list(&self, group: &str, plural: &str, namespace: &str) -> Vec<Value> {
        let of =
            |k: &&Key| k.0 == group && k.1 == plural && (namespace.is_empty() || k.2 == namespace);
        self.objects.iter().filter(|(k, _)| of(k)).map(|(_, v)| v.clone()).collect()
    }

    /// Stores an object as the API server would: with a UID, a name if it has none, and a first revision.
    pub fn create(&mut self, served: &Served, namespace: &str, mut object: Value) -> Done<Value> {
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
            return Err(refused(409, "AlreadyExists", message));
        }
        self.stamp(&key, &mut object, "ADDED");
        self.objects.insert(key, object.clone());
        Ok(object)
    }

    /// Replaces the object, or only its status; refuses a stale resource version.
    pub fn update(&mut self, key: &Key, subresource: &str, mut object: Value) -> Done<Value> {
        let old = self.get(key)?;
        let expected = object.text("metadata.resourceVersion");
        if !expected.is_empty() && old["metadata"]["resourceVersion"] != expected {
            let message = format!("{} \"{}\": the object has been modified", key.1, key.3);
            return Err(refused(409, "Conflict", message));
        }
        match subresource {
            "status" => {
                let status = object["status"].take();
                object = old.clone();
                object["status"] = status;
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

    /// Stores the object, or drops it when it was deleted and nothing holds it any more.
    fn store(&mut self, key: &Key, mut object: Value) -> Done<Value> {
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

    /// Deletes an object, or marks it where finalizers hold it. Preconditions and propagation count.
    pub fn delete(&mut self, key: &Key, options: &Value) -> Done<Value> {
        let mut object = self.get(key)?;
        let wanted = &options["preconditions"];
        for field in ["uid", "resourceVersion"] {
            if !wanted[field].is_null() && wanted[field] != object["metadata"][field] {
                return Err(refused(
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

    /// Gives a Pod its node, once.
    pub fn bind(&mut self, key: &Key, binding: &Value) -> Done<Value> {
        let mut pod = self.get(key)?;
        if pod["spec"]["nodeName"].as_str().is_some_and(|n| !n.is_empty()) {
            return Err(refused(
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
        _ => unreachable!("it was made an object above"),
    }
}

/// Whether an object is among those that the selectors ask for.
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
