//! Which ReplicaSet is of which template, and what the annotations record about it.

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

/// Annotations of a Deployment that its ReplicaSets do not take over.
const KEPT_BACK: &[&str] =
    &["kubectl.kubernetes.io/last-applied-configuration", REVISION, HISTORY, DESIRED, MAX];

pub(super) fn revision(set: &ReplicaSet) -> i64 {
    set.metadata.annotations.get(REVISION).and_then(|r| r.parse().ok()).unwrap_or(0)
}

/// The set of the current template; of several, the oldest.
pub(super) fn find_new<'a>(
    deployment: &Deployment,
    sets: &'a [Arc<ReplicaSet>],
) -> Option<&'a Arc<ReplicaSet>> {
    let same =
        sets.iter().filter(|set| same_template(&set.spec.template, &deployment.spec.template));
    same.min_by_key(|set| (set.metadata.creation_timestamp, set.metadata.name.clone()))
}

/// Whether two templates make the same Pods: the hash label apart.
pub(super) fn same_template(a: &Value, b: &Value) -> bool {
    plain(a) == plain(b)
}

fn plain(template: &Value) -> Value {
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
    history::short_hash(&plain(template), collisions)
}

/// The annotations that the set of the current template ought to have.
pub(super) fn new_annotations(
    deployment: &Deployment,
    set: Option<&ReplicaSet>,
    revision_now: i64,
) -> Labels {
    let own = deployment.metadata.annotations.iter();
    let own = own.filter(|(k, _)| !KEPT_BACK.contains(&k.as_str()));
    let mut out: Labels = set.map(|set| set.metadata.annotations.clone()).unwrap_or_default();
    out.extend(own.map(|(k, v)| (k.clone(), v.clone())));
    let before = set.map_or(0, revision);
    if before < revision_now {
        out.insert(REVISION.into(), revision_now.to_string());
        if before > 0 {
            // A rolled back template keeps the numbers it had.
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
    fn the_hash_is_stable_safe_and_ignores_itself() {
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
    fn rolling_back_takes_a_new_number_and_keeps_the_old() {
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
