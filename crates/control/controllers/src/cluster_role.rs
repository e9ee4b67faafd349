//! Aggregates the rules of ClusterRoles that a label selector chooses into other ClusterRoles.

use std::sync::Arc;

use api_meta::{LabelSelector, ObjectMeta, null_default};
use client::{Error, Resource, WorkQueue};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    context::{Context, synced},
    shared::Watched,
    views::selector,
};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClusterRole {
    metadata: ObjectMeta,
    aggregation_rule: Option<AggregationRule>,
    #[serde(deserialize_with = "null_default")]
    rules: Vec<Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AggregationRule {
    #[serde(deserialize_with = "null_default")]
    cluster_role_selectors: Vec<LabelSelector>,
}

/// Returns the aggregated rules if the role aggregates and its rules differ from them.
fn plan(role: &ClusterRole, all: &[Arc<ClusterRole>]) -> Option<Vec<Value>> {
    let rule = role.aggregation_rule.as_ref()?;
    let mut rules: Vec<Value> = Vec::new();
    for chosen in &rule.cluster_role_selectors {
        let chosen = selector(Some(chosen));
        // `all` is sorted by name, so the result is stable.
        for other in all.iter().filter(|other| other.metadata.name != role.metadata.name) {
            if chosen.matches(&other.metadata.labels) {
                rules.extend(
                    other.rules.iter().filter(|r| !rules.contains(r)).cloned().collect::<Vec<_>>(),
                );
            }
        }
    }
    (rules != role.rules).then_some(rules)
}

pub(crate) fn start(context: Context) {
    let queue = WorkQueue::default();
    let roles = context.watch::<ClusterRole>(Resource::CLUSTER_ROLES);
    let (add, all) = (queue.clone(), roles.clone());
    roles.on(move |_| {
        let collecting = all.list().into_iter().filter(|role| role.aggregation_rule.is_some());
        collecting.for_each(|role| add.add(role.metadata.name.clone()));
    });
    let waits = vec![synced(&roles)];
    let state = (context.clone(), roles);
    context.run(&queue, 1, waits, state, |(context, roles), key| async move {
        reconcile(&context, &roles, &key).await
    });
}

async fn reconcile(
    context: &Context,
    roles: &Watched<ClusterRole>,
    name: &str,
) -> Result<(), Error> {
    let Some(role) = roles.get(name) else { return Ok(()) };
    let Some(rules) = plan(&role, &roles.list()) else { return Ok(()) };
    let version = &role.metadata.resource_version;
    let patch = json!({"metadata": {"resourceVersion": version}, "rules": rules});
    context.merge(&Resource::CLUSTER_ROLES, &role.metadata, patch).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aggregates_rules_once_in_order() {
        let role =
            |value: Value| -> Arc<ClusterRole> { Arc::new(serde_json::from_value(value).unwrap()) };
        let labelled = |name: &str, rules: Value| {
            role(json!({"metadata": {"name": name, "labels": {"to": "admin"}}, "rules": rules}))
        };
        let admin = json!({"metadata": {"name": "admin", "labels": {"to": "admin"}},
            "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"to": "admin"}}]},
            "rules": [{"verbs": ["old"]}]});
        let all = [
            labelled("a", json!([{"verbs": ["get"]}, {"verbs": ["list"]}])),
            role(admin.clone()),
            labelled("b", json!([{"verbs": ["get"]}, {"verbs": ["watch"]}])),
            role(json!({"metadata": {"name": "c"}, "rules": [{"verbs": ["none"]}]})),
        ];
        let rules = plan(&all[1], &all).unwrap();
        assert_eq!(
            json!(rules),
            json!([{"verbs": ["get"]}, {"verbs": ["list"]}, {"verbs": ["watch"]}])
        );
        let mut done = (*all[1]).clone();
        done.rules = rules;
        assert_eq!(plan(&done, &all), None);
        assert_eq!(plan(&all[0], &all), None);
    }
}
