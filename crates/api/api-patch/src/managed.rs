//! The entries of `metadata.managedFields`, which record the owners of fields.

use serde_json::{Map, Value, json};

use crate::fieldset::FieldSet;

/// The manager of all fields that were written before the first apply.
pub(crate) const BEFORE_FIRST_APPLY: &str = "before-first-apply";
/// The manager that the oldest updates are merged into.
const ANCIENT_CHANGES: &str = "ancient-changes";
/// The maximum number of update managers of an object.
const MAX_UPDATE_MANAGERS: usize = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Operation {
    Apply,
    Update,
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) manager: String,
    pub(crate) operation: Operation,
    pub(crate) api_version: String,
    pub(crate) subresource: String,
    pub(crate) time: Option<String>,
    pub(crate) fields: FieldSet,
}

impl Entry {
    /// Reports whether two entries belong to one manager. An applier is the same across API versions, an updater is
    /// not.
    pub(crate) fn is(&self, other: &Entry) -> bool {
        self.manager == other.manager
            && self.operation == other.operation
            && self.subresource == other.subresource
            && (self.operation == Operation::Apply || self.api_version == other.api_version)
    }

    /// Returns the manager's description for conflicts.
    pub(crate) fn describe(&self) -> String {
        let mut text = format!("{:?}", self.manager);
        if !self.subresource.is_empty() {
            text += &format!(" with subresource {:?}", self.subresource);
        }
        if self.operation == Operation::Update {
            text += &format!(" using {}", self.api_version);
        }
        text
    }

    fn decode(value: &mut Value, trusted: bool) -> Option<Self> {
        let text = |name: &str| match value.get(name) {
            None => Some(String::new()),
            Some(value) => value.as_str().map(str::to_owned),
        };
        let operation = match text("operation")?.as_str() {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return None,
        };
        if !matches!(text("fieldsType")?.as_str(), "" | "FieldsV1") {
            return None;
        }
        let (manager, api_version) = (text("manager")?, text("apiVersion")?);
        let subresource = text("subresource")?;
        let time = value.get("time").and_then(Value::as_str).map(str::to_owned);
        let fields = value.get_mut("fieldsV1").map(Value::take).unwrap_or_default();
        let fields =
            if trusted { FieldSet::trusted(fields) } else { FieldSet::from_value(fields).ok()? };
        Some(Self { manager, operation, api_version, subresource, time, fields })
    }

    fn encode(self) -> Value {
        let mut entry = Map::new();
        let mut put = |name: &str, value: Value| entry.insert(name.to_owned(), value);
        put("manager", self.manager.into());
        put("operation", format!("{:?}", self.operation).into());
        put("apiVersion", self.api_version.into());
        if let Some(time) = self.time {
            put("time", time.into());
        }
        put("fieldsType", "FieldsV1".into());
        put("fieldsV1", self.fields.into_value());
        if !self.subresource.is_empty() {
            put("subresource", self.subresource.into());
        }
        Value::Object(entry)
    }
}

/// Decodes `managedFields`. Returns `None` if an entry is invalid.
pub(crate) fn decode(value: Value, trusted: bool) -> Option<Vec<Entry>> {
    match value {
        Value::Null => Some(Vec::new()),
        Value::Array(mut items) => {
            items.iter_mut().map(|item| Entry::decode(item, trusted)).collect()
        }
        _ => None,
    }
}

/// Stores entries in the object.
pub(crate) fn store(object: &mut Value, entries: Vec<Entry>) {
    put(object, encode(entries));
}

/// Encodes entries in upstream's order: appliers first, then by time.
pub(crate) fn encode(mut entries: Vec<Entry>) -> Value {
    entries.retain(|entry| !entry.fields.is_empty());
    entries.sort_by(|a, b| {
        let key = |e: &Entry| (e.operation, e.time.clone().unwrap_or_default());
        key(a).cmp(&key(b)).then_with(|| {
            let rest =
                |e: &Entry| [e.manager.clone(), e.api_version.clone(), e.subresource.clone()];
            rest(a).cmp(&rest(b))
        })
    });
    entries.into_iter().map(Entry::encode).collect()
}

/// Sets `metadata.managedFields`, or removes it if the list is empty.
pub(crate) fn put(object: &mut Value, list: Value) {
    let Value::Object(object) = object else { return };
    let metadata = object.entry("metadata").or_insert_with(|| json!({}));
    let Value::Object(metadata) = metadata else { return };
    if list.as_array().is_some_and(|list| !list.is_empty()) {
        metadata.insert("managedFields".to_owned(), list);
    } else {
        metadata.remove("managedFields");
    }
}

/// Removes and returns `metadata.managedFields`.
pub(crate) fn take(object: &mut Value) -> Value {
    let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
    metadata.and_then(|m| m.remove("managedFields")).unwrap_or_default()
}

/// Reports whether two objects differ at most in `metadata.managedFields`.
pub(crate) fn equal_beside_owners(one: &Value, other: &Value) -> bool {
    let within = |a: &Map<String, Value>, b: &Map<String, Value>, except: &str| {
        a.iter().all(|(name, value)| name == except || b.get(name) == Some(value))
    };
    let equal = |a: &Value, b: &Value, except: &str| match (a.as_object(), b.as_object()) {
        (Some(a), Some(b)) => within(a, b, except) && within(b, a, except),
        _ => a == b,
    };
    equal(one, other, "metadata") && equal(&one["metadata"], &other["metadata"], "managedFields")
}

/// Returns `metadata.managedFields`.
pub(crate) fn of(object: &Value) -> &Value {
    let metadata = object.get("metadata");
    metadata.and_then(|m| m.get("managedFields")).unwrap_or(&Value::Null)
}

/// Limits the number of update managers: the oldest are merged into one per API version.
pub(crate) fn cap(entries: &mut Vec<Entry>) {
    let updates = |e: &Entry| e.operation == Operation::Update;
    let mut count = entries.iter().filter(|e| updates(e)).count();
    if count <= MAX_UPDATE_MANAGERS {
        return;
    }
    let (mut old, mut others): (Vec<Entry>, Vec<Entry>) = entries.drain(..).partition(updates);
    old.sort_by(|a, b| a.time.cmp(&b.time).then_with(|| a.manager.cmp(&b.manager)));
    let mut buckets: Vec<Entry> = Vec::new();
    for entry in old {
        let bucket = buckets.iter_mut().find(|b| b.api_version == entry.api_version);
        match bucket {
            Some(bucket) if count > MAX_UPDATE_MANAGERS => {
                // The first entry of a version keeps its manager until a second one is merged into it.
                bucket.manager = ANCIENT_CHANGES.to_owned();
                bucket.subresource.clear();
                bucket.fields.union(&entry.fields);
                bucket.time = entry.time;
                count -= 1;
            }
            None if count > MAX_UPDATE_MANAGERS => buckets.push(entry),
            _ => others.push(entry),
        }
    }
    others.extend(buckets);
    *entries = others;
}
