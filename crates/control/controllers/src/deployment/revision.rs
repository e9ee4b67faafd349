//! Finds the ReplicaSet of a template, and maintains the revision annotations.

use api_meta::Tree as _;
use std::sync::Arc;

use serde_json::Value;

use crate::{
    history,
    views::{Deployment, Labels, ReplicaSet},
};

pub(super) const REVISION: &str = "deployment.kubernetes.io/revision";
pub(super) const HISTORY: &str = "deployment.kubernetes.io/revision-history";
pub(super) const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
pub(super) const MAX: &str = "deployment.kubernetes.io/max-replicas";
pub(super) const HASH_LABEL: &str = "pod-template-hash";

/// Annotations of a Deployment that are not copied to its ReplicaSets.
const NOT_COPIED: &[&str] =
    &["kubectl.kubernetes.io/last-applied-configuration", REVISION, HISTORY, DESIRED, MAX];

pub(super) fn revision(set: &ReplicaSet) -> i64 {
    set.metadata.annotations.get(REVISION).and_then(|r| r.parse().ok()).unwrap_or(0)
}

/// Returns the set of the current template; the oldest if there are several.
pub(super) fn find_new<'a>(
    deployment: &Deployment,
    sets: &'a [Arc<ReplicaSet>],
) -> Option<&'a Arc<ReplicaSet>> {
    let same =
        sets.iter().filter(|set| same_template(&set.spec.template, &deployment.spec.template));
    same.min_by_key(|set| (set.metadata.creation_timestamp, set.metadata.name.clone()))
}

/// Compares two templates without the hash label.
pub(super) fn same_template(a: &Value, b: &Value) -> bool {
    without_hash_label(a) == without_hash_label(b)
}

fn without_hash_label(template: &Value) -> Value {
    let mut out = without_nulls(template.clone());
    if let Some(labels) = out.at_mut(&["metadata", "labels"]).and_then(Value::as_object_mut) {
        labels.remove(HASH_LABEL);
    }
    out
}

fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(map) => map
            .into_iter()
            .filter(|(_, v)| !v.is_null())
            .map(|(k, v)| (k, without_nulls(v)))
            .collect(),
        Value::Array(items) => items.into_iter().map(without_nulls).collect(),
        other => other,
    }
}

pub(super) fn template_hash(template: &Value, collisions: i64) -> String {
    history::short_hash(&without_hash_label(template), collisions)
}

/// Returns the annotations for the set of the current template.
pub(super) fn new_annotations(
    deployment: &Deployment,
    set: Option<&ReplicaSet>,
    revision_now: i64,
) -> Labels {
    let own = deployment.metadata.annotations.iter();
    let own = own.filter(|(k, _)| !NOT_COPIED.contains(&k.as_str()));
    let mut out: Labels = set.map(|set| set.metadata.annotations.clone()).unwrap_or_default();
    out.extend(own.map(|(k, v)| (k.clone(), v.clone())));
    let before = set.map_or(0, revision);
    if before < revision_now {
        out.insert(REVISION.into(), revision_now.to_string());
        if before > 0 {
            // A template that is rolled back to keeps its former revisions as history.
            let history = out.get(HISTORY).filter(|h| !h.is_empty());
            let history = history.map_or(before.to_string(), |h| format!("{h},{before}"));
            out.insert(HISTORY.into(), history);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn template_hash_is_stable_and_ignores_hash_label() {
        let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"x": 1, "y": null}});
        let labelled =
            json!({"metadata": {"labels": {"a": "b", HASH_LABEL: "x"}}, "spec": {"x": 1}});
        let hash = template_hash(&template, 0);
        assert_eq!(hash, template_hash(&labelled, 0));
        assert_ne!(hash, template_hash(&template, 1));
        assert!(
            hash.len() <= 10 && hash.bytes().all(|b| b"bcdfghjklmnpqrstvwxz2456789".contains(&b))
        );
        assert!(same_template(&template, &labelled));
    }

    #[test]
    fn rollback_sets_new_revision_and_keeps_history() {
        let set: ReplicaSet =
            serde_json::from_value(json!({"metadata": {"annotations": {REVISION: "1"}}})).unwrap();
        let deployment: Deployment = serde_json::from_value(
            json!({"metadata": {"annotations": {"why": "undo", REVISION: "3"}}}),
        )
        .unwrap();
        let annotations = new_annotations(&deployment, Some(&set), 4);
        assert_eq!((annotations[REVISION].as_str(), annotations[HISTORY].as_str()), ("4", "1"));
        assert_eq!(annotations["why"], "undo");
    }
}
