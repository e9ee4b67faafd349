//! Counts the usage of resource quotas.

use std::{
    collections::{BTreeMap, HashMap, btree_map::Entry},
    sync::Arc,
    time::Duration,
};

use api_meta::{GroupResource, ObjectMeta, PartialObject, Quantity, null_default};
use api_rules::{
    amounts::Amounts,
    quota::{DEVICES, in_scope, usage},
};
use client::{Error, ListOptions, Resource, WorkQueue};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    context::{Context, synced},
    discovery,
    shared::Watched,
    views::Pod,
};

/// The interval between two counts of kinds that are not watched.
const RECOUNT: Duration = Duration::from_secs(10);
/// The delay that batches changes.
const SETTLE: Duration = Duration::from_millis(500);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Quota {
    metadata: ObjectMeta,
    spec: QuotaSpec,
    status: Value,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct QuotaSpec {
    #[serde(deserialize_with = "null_default")]
    hard: Amounts,
    scopes: Value,
    scope_selector: Value,
}

/// Returns the resource that a limit counts, by plural and group.
fn counted(limit: &str) -> Option<GroupResource> {
    if let Some(named) = limit.strip_prefix("count/") {
        let (plural, group) = named.split_once('.').unwrap_or((named, ""));
        return Some(GroupResource::new(group.to_owned(), plural.to_owned()));
    }
    let core = |plural: &str| Some(GroupResource::new("", plural.to_owned()));
    match limit {
        "configmaps"
        | "secrets"
        | "services"
        | "replicationcontrollers"
        | "resourcequotas"
        | "persistentvolumeclaims"
        | "pods" => core(limit),
        "services.nodeports" | "services.loadbalancers" => core("services"),
        "requests.storage" => core("persistentvolumeclaims"),
        other if other.contains(".storageclass.storage.k8s.io/") => core("persistentvolumeclaims"),
        other if other.ends_with(DEVICES) => {
            Some(GroupResource::new("resource.k8s.io", "resourceclaims"))
        }
        other => {
            let plain = ["cpu", "memory", "ephemeral-storage"].contains(&other);
            let of_pods = plain
                || ["requests.", "limits.", "hugepages-"].iter().any(|p| other.starts_with(p));
            of_pods.then_some(GroupResource::PODS)
        }
    }
}

/// Computes the status: the limits and their usage.
fn plan(quota: &Quota, objects: &BTreeMap<GroupResource, Vec<Value>>) -> Value {
    let spec = &quota.spec;
    let scopes = json!({"spec": {"scopes": spec.scopes, "scopeSelector": spec.scope_selector}});
    let counted = spec.hard.keys().filter(|limit| counted(limit).is_some());
    let mut used: Amounts = counted.map(|limit| (limit.clone(), Quantity::ZERO)).collect();
    for (resource, objects) in objects {
        for object in objects.iter().filter(|object| in_scope(&scopes, resource, object)) {
            for (limit, amount) in usage(resource, object) {
                if let Some(sum) = used.get_mut(&limit) {
                    *sum += amount;
                }
            }
        }
    }
    json!({"hard": spec.hard, "used": used})
}

pub(crate) fn start(context: Context) {
    let queue = WorkQueue::default();
    let quotas = context.watch::<Quota>(Resource::RESOURCE_QUOTAS);
    // Admission charges the status before the objects can be counted: such a change needs no count.
    quotas.on_key_if(&queue, |change| {
        change.old.zip(change.new).is_none_or(|(old, new)| old.spec.hard != new.spec.hard)
    });
    let (add, all_quotas) = (queue.clone(), quotas.clone());
    context.watch::<Pod>(Resource::PODS).on(move |change| {
        let ended = change.new.is_none_or(|pod| pod.is_finished());
        if let Some(pod) = change.old.filter(|_| ended) {
            let quotas_of_pod = all_quotas.in_namespace(&pod.metadata.namespace);
            quotas_of_pod.iter().for_each(|quota| add.add_after(quota.metadata.key(), SETTLE));
        }
    });
    let waits = vec![synced(&quotas)];
    let state = (context.clone(), quotas, Arc::new(PendingDecreases::default()), queue.clone());
    context.run(&queue, 2, waits, state, |(context, quotas, suspected, queue), key| async move {
        reconcile(&context, &quotas, &suspected, &queue, &key).await
    });
}

/// Quotas with less counted than recorded usage, with the version at which that was first seen. Admission charges a
/// quota before the object exists. So the lower count is only written if no charge happens for a while; writing it at
/// once would exceed the quota.
#[derive(Default)]
struct PendingDecreases(Mutex<HashMap<String, String>>);

impl PendingDecreases {
    /// Reports whether the same version was suspected before.
    fn confirm(&self, key: &str, version: &str) -> bool {
        let mut versions = self.0.lock();
        if versions.get(key).is_some_and(|before| before == version) {
            versions.remove(key);
            return true;
        }
        versions.insert(key.to_owned(), version.to_owned());
        false
    }

    fn forget(&self, key: &str) {
        self.0.lock().remove(key);
    }
}

/// Reports whether the count of any limit is lower than the status records.
fn frees(recorded: &Value, counted: &Value) -> bool {
    let amounts = |status: &Value| -> Amounts {
        serde_json::from_value(status["used"].clone()).unwrap_or_default()
    };
    let counted = amounts(counted);
    amounts(recorded).iter().any(|(name, before)| counted.get(name).is_some_and(|now| now < before))
}

async fn reconcile(
    context: &Context,
    quotas: &Watched<Quota>,
    suspected: &PendingDecreases,
    queue: &WorkQueue<String>,
    key: &str,
) -> Result<(), Error> {
    let Some(quota): Option<Arc<Quota>> = quotas.get(key) else {
        suspected.forget(key);
        return Ok(());
    };
    let mut objects = BTreeMap::new();
    for limit in quota.spec.hard.keys() {
        if let Some(resource) = counted(limit)
            && let Entry::Vacant(open) = objects.entry(resource)
        {
            let counted_objects = list(context, &quota.metadata.namespace, open.key()).await?;
            open.insert(counted_objects);
        }
    }
    let status = plan(&quota, &objects);
    // A removed limit is removed from the status too.
    let same = quota.status["hard"] == status["hard"] && quota.status["used"] == status["used"];
    if !same {
        if frees(&quota.status, &status)
            && !suspected.confirm(key, &quota.metadata.resource_version)
        {
            queue.add_after(key.to_owned(), SETTLE);
            return Ok(());
        }
        // The role only allows lists, so use the informer's version, and repeat all fields that the update would clear.
        let (meta, resource) = (&quota.metadata, &Resource::RESOURCE_QUOTAS);
        let object = json!({
            "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid,
                "resourceVersion": meta.resource_version, "labels": meta.labels, "annotations": meta.annotations,
                "ownerReferences": meta.owner_references, "finalizers": meta.finalizers},
            "spec": {"hard": quota.spec.hard},
            "status": status,
        });
        context
            .client
            .update_status::<_, Value>(resource, &meta.namespace, &meta.name, &object)
            .await?;
    }
    queue.add_after(key.to_owned(), RECOUNT);
    Ok(())
}

async fn list(
    context: &Context,
    namespace: &str,
    requested: &GroupResource,
) -> Result<Vec<Value>, Error> {
    let common = [
        Resource::PODS,
        Resource::SERVICES,
        Resource::CONFIG_MAPS,
        Resource::SECRETS,
        Resource::PERSISTENT_VOLUME_CLAIMS,
        Resource::REPLICATION_CONTROLLERS,
        Resource::RESOURCE_QUOTAS,
        Resource::DEPLOYMENTS,
        Resource::REPLICA_SETS,
        Resource::STATEFUL_SETS,
        Resource::JOBS,
        Resource::CRON_JOBS,
    ];
    let is = |resource: &Resource| {
        resource.plural == requested.resource && resource.group == requested.group
    };
    let resource = match common.into_iter().find(is) {
        Some(resource) => Some(resource),
        None => discovery::namespaced(&context.client).await.resources.into_iter().find(is),
    };
    let Some(resource) = resource else { return Ok(vec![]) };
    let whole: &[&str] = match &*requested.group {
        "" => &["pods", "services", "persistentvolumeclaims"],
        "resource.k8s.io" => &["resourceclaims"],
        _ => &[],
    };
    let whole = whole.contains(&&*requested.resource);
    if whole {
        return Ok(context.client.list(&resource, namespace, &ListOptions::default()).await?.items);
    }
    // Only the number of the other kinds matters.
    let all =
        context.client.list::<PartialObject>(&resource, namespace, &ListOptions::default()).await?;
    Ok(vec![Value::Null; all.items.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frees_quota_only_after_second_count() {
        let status = |pods: &str| json!({"used": {"pods": pods, "cpu": "500m"}});
        assert!(frees(&status("2"), &status("1")) && !frees(&status("1"), &status("2")));
        let suspected = PendingDecreases::default();
        assert!(!suspected.confirm("n/q", "1") && !suspected.confirm("n/q", "2"));
        assert!(suspected.confirm("n/q", "2"));
        assert!(!suspected.confirm("n/q", "2"), "a confirmation counts once");
    }

    #[test]
    fn counts_each_limit() {
        let pod = |cpu: &str, phase: &str| {
            json!({"spec": {"containers": [{"resources": {"requests": {"cpu": cpu, "example.com/gpu": "1"}, "limits": {"memory": "1Gi"}}}]},
                "status": {"phase": phase}})
        };
        let objects = BTreeMap::from([
            (
                GroupResource::PODS,
                vec![pod("500m", "Running"), pod("1", "Pending"), pod("9", "Succeeded")],
            ),
            (
                GroupResource::SERVICES,
                vec![
                    json!({"spec": {"type": "NodePort", "ports": [{}, {}]}}),
                    json!({"spec": {"type": "LoadBalancer", "ports": [{}]}}),
                ],
            ),
            (GroupResource::new("apps", "deployments"), vec![Value::Null; 2]),
            (
                GroupResource::new("resource.k8s.io", "resourceclaims"),
                vec![json!({"spec": {"devices": {"requests": [
                        {"exactly": {"deviceClassName": "gold", "allocationMode": "ExactCount", "count": 2}},
                        {"firstAvailable": [
                            {"deviceClassName": "gold", "allocationMode": "ExactCount", "count": 3},
                            {"deviceClassName": "gold", "allocationMode": "ExactCount", "count": 1},
                            {"deviceClassName": "iron", "allocationMode": "All"}]}]}}})],
            ),
            (
                GroupResource::PERSISTENT_VOLUME_CLAIMS,
                vec![
                    json!({"spec": {"storageClassName": "fast", "resources": {"requests": {"storage": "5Gi"}}}}),
                ],
            ),
        ]);
        let hard = [
            "pods",
            "requests.cpu",
            "limits.memory",
            "services.nodeports",
            "services.loadbalancers",
            "count/deployments.apps",
            "requests.example.com/gpu",
            "fast.storageclass.storage.k8s.io/requests.storage",
            "slow.storageclass.storage.k8s.io/persistentvolumeclaims",
            "count/pods",
            "gold.deviceclass.resource.k8s.io/devices",
            "iron.deviceclass.resource.k8s.io/devices",
            "count/resourceclaims.resource.k8s.io",
        ];
        let hard: serde_json::Map<_, _> =
            hard.iter().map(|name| ((*name).to_owned(), json!("10"))).collect();
        let quota: Quota = serde_json::from_value(json!({"spec": {"hard": hard}})).unwrap();
        assert_eq!(
            plan(&quota, &objects)["used"],
            json!({"pods": "2", "requests.cpu": "1500m", "limits.memory": "2Gi", "services.nodeports": "3",
                "services.loadbalancers": "1", "count/deployments.apps": "2", "requests.example.com/gpu": "2",
                "fast.storageclass.storage.k8s.io/requests.storage": "5Gi",
                "slow.storageclass.storage.k8s.io/persistentvolumeclaims": "0", "count/pods": "3",
                "gold.deviceclass.resource.k8s.io/devices": "5", "iron.deviceclass.resource.k8s.io/devices": "32",
                "count/resourceclaims.resource.k8s.io": "1"})
        );
    }

    #[test]
    fn scopes_select_pods() {
        let quota = |scope: &str| -> Quota {
            serde_json::from_value(json!({"spec": {"hard": {"pods": "5"}, "scopes": [scope]}}))
                .unwrap()
        };
        let pods = vec![
            json!({"spec": {"activeDeadlineSeconds": 5, "containers": [{}]}}),
            json!({"spec": {"containers": [{"resources": {"limits": {"cpu": "1"}}}]}}),
        ];
        let objects = BTreeMap::from([(GroupResource::PODS, pods)]);
        for (scope, used) in [
            ("Terminating", "1"),
            ("NotTerminating", "1"),
            ("BestEffort", "1"),
            ("NotBestEffort", "1"),
        ] {
            assert_eq!(plan(&quota(scope), &objects)["used"]["pods"], used, "{scope}");
        }
        let class = json!({"spec": {"hard": {"pods": "5"}, "scopeSelector": {"matchExpressions": [
            {"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]}}});
        assert_eq!(plan(&serde_json::from_value(class).unwrap(), &objects)["used"]["pods"], "0");
    }

    #[test]
    fn scope_selects_claims_by_their_current_and_wanted_class() {
        let claims = vec![
            json!({"spec": {"volumeAttributesClassName": "silver"},
                "status": {"currentVolumeAttributesClassName": "gold"}}),
            json!({"status": {"modifyVolumeStatus": {"targetVolumeAttributesClassName": "gold"}}}),
            json!({"spec": {}}),
        ];
        let objects = BTreeMap::from([(GroupResource::PERSISTENT_VOLUME_CLAIMS, claims)]);
        let used = |operator: &str, values: Value| {
            let term = json!({"scopeName": "VolumeAttributesClass", "operator": operator, "values": values});
            let spec = json!({"hard": {"persistentvolumeclaims": "5"},
                "scopeSelector": {"matchExpressions": [term]}});
            let quota = serde_json::from_value(json!({"spec": spec})).unwrap();
            plan(&quota, &objects)["used"]["persistentvolumeclaims"].clone()
        };
        assert_eq!(used("In", json!(["gold"])), "2");
        assert_eq!(used("In", json!(["silver", "iron"])), "1");
        assert_eq!(used("NotIn", json!(["gold"])), "2");
        assert_eq!(used("Exists", json!([])), "2");
        assert_eq!(used("DoesNotExist", json!([])), "1");
    }
}
