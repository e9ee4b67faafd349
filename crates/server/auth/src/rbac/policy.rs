//! The bootstrap policy: its roles and bindings, and the writes that put them in place.

use std::sync::{Arc, LazyLock};

use api_config::FeatureGates;
use api_meta::{GroupResource, Objects, Tree as _};
use serde_json::{Map, Value, json};

use super::rules::PolicyRule;

const FACTS: &str = include_str!("policy.facts");
const GATED: &str = include_str!("gated.facts");
const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

/// A write that puts an object of the bootstrap policy in place.
#[derive(Clone, Debug, PartialEq)]
pub enum Ensure {
    /// Creates the object.
    Create(Value),
    /// Updates the object.
    Update(Value),
    /// Replaces a binding. Its role is immutable, so the old binding is deleted first.
    Replace(Value),
}

/// Returns the objects of the bootstrap policy with all gates at their defaults, roles before bindings.
pub fn bootstrap_objects() -> &'static [(GroupResource, Value)] {
    static OBJECTS: LazyLock<Vec<(GroupResource, Value)>> = LazyLock::new(|| parse(FACTS));
    &OBJECTS
}

/// Returns the objects of the features that are on. An object with the name of another one adds to its rules.
fn gated(features: &FeatureGates) -> Vec<(GroupResource, Value)> {
    let parts = GATED.split("\ngate ").skip(1);
    let parts = parts.map(|part| part.split_once('\n').unwrap_or((part, "")));
    parts
        .filter(|(gate, _)| features.is_enabled(gate))
        .flat_map(|(_, facts)| parse(facts))
        .collect()
}

/// Returns the objects of the bootstrap policy with those of the features that are on.
fn policy(features: &FeatureGates) -> Vec<(GroupResource, Value)> {
    let mut objects = bootstrap_objects().to_vec();
    for (resource, object) in gated(features) {
        let same = |(kind, other): &&mut (GroupResource, Value)| {
            *kind == resource && other.name() == object.name()
        };
        match objects.iter_mut().find(same) {
            None => objects.push((resource, object)),
            Some((_, existing)) => {
                let mut rules = existing.items("rules").to_vec();
                rules.extend_from_slice(object.items("rules"));
                existing.put(&["rules"], rules);
            }
        }
    }
    objects
}

/// Returns the rules of the ClusterRole `system:node`, which the Node authorizer falls back to.
pub fn node_rules(features: &FeatureGates) -> Vec<PolicyRule> {
    let gated = gated(features);
    let objects = bootstrap_objects().iter().chain(&gated).map(|(_, object)| object);
    let rules = objects.filter(|object| object.name() == "system:node");
    let rules = rules.flat_map(|object| object.items("rules"));
    rules.filter_map(|rule| serde_json::from_value(rule.clone()).ok()).collect()
}

/// Compares the cluster with the bootstrap policy and returns the necessary writes. Objects with the annotation
/// `rbac.authorization.kubernetes.io/autoupdate: "false"` are skipped. Permissions and subjects that an administrator
/// added are kept.
pub fn ensure_bootstrap(
    existing: &dyn Objects,
    features: &FeatureGates,
) -> Vec<(GroupResource, Ensure)> {
    policy(features)
        .iter()
        .filter_map(|(resource, wanted)| {
            let meta = &wanted["metadata"];
            let action = match existing.get(resource, meta.text("namespace"), meta.text("name")) {
                None => Some(Ensure::Create(wanted.clone())),
                Some(found) => reconcile(&found, wanted),
            };
            Some((resource.clone(), action?))
        })
        .collect()
}

fn reconcile(found: &Arc<Value>, wanted: &Value) -> Option<Ensure> {
    if found["metadata"]["annotations"][AUTOUPDATE] == "false" {
        return None;
    }
    if wanted.get("roleRef").is_some_and(|role| !same_role(&found["roleRef"], role)) {
        return Some(Ensure::Replace(wanted.clone()));
    }
    let mut merged = (**found).clone();
    for field in ["labels", "annotations"] {
        for (key, value) in wanted["metadata"][field].as_object().into_iter().flatten() {
            merged.put(&["metadata", field, key], value.clone());
        }
    }
    let selectors = wanted.at("aggregationRule.clusterRoleSelectors");
    if !selectors.is_null() {
        if let Some(all) =
            with_missing(&found["aggregationRule"]["clusterRoleSelectors"], selectors)
        {
            merged.put(&["aggregationRule"], json!({"clusterRoleSelectors": all}));
        }
    } else if let Some(rules) = wanted.get("rules")
        && let Some(all) = with_missing_rules(&found["rules"], rules)
    {
        merged.put(&["rules"], all);
    }
    if let Some(all) = with_missing(&found["subjects"], &wanted["subjects"]) {
        merged.put(&["subjects"], all);
    }
    (merged != **found).then_some(Ensure::Update(merged))
}

fn same_role(a: &Value, b: &Value) -> bool {
    a["kind"] == b["kind"] && a["name"] == b["name"]
}

/// Returns the list with the missing entries of `wanted`, or `None` if none is missing.
fn with_missing(list: &Value, wanted: &Value) -> Option<Value> {
    let mut all = list.as_array().cloned().unwrap_or_default();
    let before = all.len();
    for entry in wanted.as_array().into_iter().flatten() {
        if !all.contains(entry) {
            all.push(entry.clone());
        }
    }
    (all.len() > before).then_some(Value::Array(all))
}

/// Returns the rules with the missing permissions of `wanted`, or `None` if none is missing.
fn with_missing_rules(rules: &Value, wanted: &Value) -> Option<Value> {
    let read = |value: &Value| -> Vec<PolicyRule> {
        serde_json::from_value(value.clone()).unwrap_or_default()
    };
    let missing = super::rules::uncovered(&read(rules), &read(wanted));
    let mut all = rules.as_array().cloned().unwrap_or_default();
    all.extend(missing.iter().map(|rule| json!(rule)));
    (!missing.is_empty()).then_some(Value::Array(all))
}

/// Parses the table, whose format is documented in its header. A test against the recorded policy detects invalid
/// lines.
fn parse(facts: &str) -> Vec<(GroupResource, Value)> {
    let mut objects: Vec<(GroupResource, Value)> = Vec::new();
    for line in facts.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if !line.starts_with(' ') {
            objects.extend(head(&words));
        } else if let Some((_, object)) = objects.last_mut() {
            let (field, entry) = if object.get("roleRef").is_some() {
                ("subjects", subject(&words))
            } else {
                ("rules", rule(&words))
            };
            match object.at_mut(&[field]).and_then(Value::as_array_mut) {
                Some(list) => list.push(entry),
                None => object.put(&[field], json!([entry])),
            }
        }
    }
    objects
}

fn head(words: &[&str]) -> Option<(GroupResource, Value)> {
    let (resource, kind, namespace, rest) = match words {
        ["clusterrole", rest @ ..] => (GroupResource::CLUSTER_ROLES, "ClusterRole", "", rest),
        ["role", namespace, rest @ ..] => (GroupResource::ROLES, "Role", *namespace, rest),
        ["clusterbinding", rest @ ..] => {
            (GroupResource::CLUSTER_ROLE_BINDINGS, "ClusterRoleBinding", "", rest)
        }
        ["binding", namespace, rest @ ..] => {
            (GroupResource::ROLE_BINDINGS, "RoleBinding", *namespace, rest)
        }
        _ => return None,
    };
    let (name, rest) = rest.split_first()?;
    let mut object = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": {
            "name": name,
            "annotations": {AUTOUPDATE: "true"},
            "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}
        }
    });
    if !namespace.is_empty() {
        object.put(&["metadata", "namespace"], namespace);
    }
    let tail = match rest {
        [role_kind, role, tail @ ..] if kind.ends_with("Binding") => {
            object.put(
                &["roleRef"],
                json!({"apiGroup": "rbac.authorization.k8s.io", "kind": role_kind, "name": role}),
            );
            tail
        }
        tail => {
            object.put(&["rules"], json!([]));
            tail
        }
    };
    for word in tail {
        if let Some(label) = word.strip_prefix("aggregate:") {
            object.put(
                &["aggregationRule"],
                json!({"clusterRoleSelectors": [{"matchLabels": {label: "true"}}]}),
            );
        } else if let Some((key, value)) = word.split_once('=') {
            object.put(&["metadata", "labels", key], value);
        }
    }
    Some((resource, object))
}

fn list(words: &str) -> Value {
    words.split(',').map(|w| if w == "core" { "" } else { w }).collect()
}

fn rule(words: &[&str]) -> Value {
    let mut rule = Map::new();
    rule.insert("verbs".into(), list(words.first().unwrap_or(&"")));
    match words.get(1..).unwrap_or_default() {
        ["url:*"] => drop(rule.insert("nonResourceURLs".into(), json!(["*"]))),
        [urls] => drop(rule.insert("nonResourceURLs".into(), list(urls))),
        [groups, resources, names @ ..] => {
            rule.insert("apiGroups".into(), list(groups));
            rule.insert("resources".into(), list(resources));
            if let [names] = names {
                rule.insert("resourceNames".into(), list(names));
            }
        }
        [] => {}
    }
    Value::Object(rule)
}

fn subject(words: &[&str]) -> Value {
    match words {
        ["ServiceAccount", account] => {
            let (namespace, name) = account.split_once('/').unwrap_or(("", account));
            json!({"kind": "ServiceAccount", "name": name, "namespace": namespace})
        }
        [kind, name] => {
            json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name})
        }
        _ => Value::Null,
    }
}
