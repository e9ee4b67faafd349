//! Maintains the finalizers that protect volumes, claims, volume attributes classes and PodGroups while they are in
//! use.

use api_meta::{ObjectMeta, PartialObject, Tree as _};
use client::{Error, Resource, WorkQueue};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    context::{Context, synced},
    indexes::{by_claim, by_group},
    shared::Watched,
    views::Pod,
};

const CLAIM: &str = "kubernetes.io/pvc-protection";
const VOLUME: &str = "kubernetes.io/pv-protection";
const ATTRIBUTES: &str = "kubernetes.io/vac-protection";
const GROUP: &str = "scheduling.k8s.io/podgroup-protection";

const ATTRIBUTES_CLASSES: Resource = Resource::constant(
    "storage.k8s.io",
    "v1",
    "volumeattributesclasses",
    "VolumeAttributesClass",
    false,
);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Volume {
    metadata: ObjectMeta,
    status: VolumeStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct VolumeStatus {
    phase: String,
}

/// Returns the finalizers of the object if they must change.
fn plan(meta: &ObjectMeta, finalizer: &str, in_use: bool) -> Option<Vec<String>> {
    let has = meta.finalizers.iter().any(|f| f == finalizer);
    match (meta.terminating(), has) {
        (true, true) if !in_use => {
            Some(meta.finalizers.iter().filter(|f| *f != finalizer).cloned().collect())
        }
        (false, false) => Some([&meta.finalizers[..], &[finalizer.to_owned()]].concat()),
        _ => None,
    }
}

/// Reports whether a scheduled Pod that has not ended uses the claim.
fn uses(pod: &Pod, claim: &str) -> bool {
    !pod.node().is_empty() && !pod.is_finished() && pod.claims().any(|own| own == claim)
}

pub(crate) fn start_claims(context: Context) {
    let queue = WorkQueue::default();
    let claims = context.watch::<PartialObject>(Resource::PERSISTENT_VOLUME_CLAIMS);
    let pods = context.watch::<Pod>(Resource::PODS);
    claims.on_key(&queue);
    let add = queue.clone();
    pods.on(move |change| {
        let ended = change.new.is_none_or(|pod| pod.is_finished());
        if let Some(pod) = change.old.filter(|_| ended) {
            pod.claim_keys().into_iter().for_each(|key| add.add(key));
        }
    });
    let waits = vec![synced(&claims), synced(&pods)];
    let state = (context.clone(), claims, by_claim(&pods));
    context.run(&queue, 2, waits, state, |(context, claims, pods), key| async move {
        let Some(claim) = claims.get(&key) else { return Ok(()) };
        let meta = &claim.metadata;
        let used = || pods.get(&key).iter().any(|pod| uses(pod, &meta.name));
        let in_use = meta.terminating() && used();
        let resource = &Resource::PERSISTENT_VOLUME_CLAIMS;
        write(&context, resource, meta, plan(meta, CLAIM, in_use)).await
    });
}

pub(crate) fn start_volumes(context: Context) {
    let queue = WorkQueue::default();
    let volumes = context.watch::<Volume>(Resource::PERSISTENT_VOLUMES);
    volumes.on_key(&queue);
    let waits = vec![synced(&volumes)];
    let state = (context.clone(), volumes);
    context.run(&queue, 2, waits, state, |(context, volumes), key| async move {
        let Some(volume) = volumes.get(&key) else { return Ok(()) };
        let (meta, bound) = (&volume.metadata, volume.status.phase == "Bound");
        write(&context, &Resource::PERSISTENT_VOLUMES, meta, plan(meta, VOLUME, bound)).await
    });
}

/// The fields of a volume or a claim that name a volume attributes class.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ClassUser {
    spec: ClassUserSpec,
    status: ClassUserStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClassUserSpec {
    volume_attributes_class_name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClassUserStatus {
    current_volume_attributes_class_name: Option<String>,
    modify_volume_status: Option<Modification>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Modification {
    target_volume_attributes_class_name: Option<String>,
}

impl ClassUser {
    /// Returns the classes that it has, wants, or is changing to.
    fn classes(&self) -> impl Iterator<Item = &String> {
        let target = self.status.modify_volume_status.as_ref();
        self.spec
            .volume_attributes_class_name
            .iter()
            .chain(&self.status.current_volume_attributes_class_name)
            .chain(target.and_then(|to| to.target_volume_attributes_class_name.as_ref()))
    }
}

pub(crate) fn start_attributes_classes(context: Context) {
    let queue = WorkQueue::default();
    let classes = context.watch::<PartialObject>(ATTRIBUTES_CLASSES);
    let users = [Resource::PERSISTENT_VOLUMES, Resource::PERSISTENT_VOLUME_CLAIMS]
        .map(|resource| context.watch::<ClassUser>(resource));
    classes.on_key(&queue);
    for watched in &users {
        let add = queue.clone();
        watched.on(move |change| {
            let left = change.old.into_iter().flat_map(|old| old.classes());
            left.for_each(|class| add.add(class.clone()));
        });
    }
    let waits = vec![synced(&classes), synced(&users[0]), synced(&users[1])];
    let by_class = |watched: &Watched<ClassUser>| {
        watched.index("attributes class", |user| user.classes().cloned().collect())
    };
    let state = (context.clone(), classes, users.each_ref().map(by_class));
    context.run(&queue, 1, waits, state, |(context, classes, users), key| async move {
        let Some(class) = classes.get(&key) else { return Ok(()) };
        let meta = &class.metadata;
        let in_use = meta.terminating() && users.iter().any(|u| u.count(&meta.name) > 0);
        write(&context, &ATTRIBUTES_CLASSES, meta, plan(meta, ATTRIBUTES, in_use)).await
    });
}

/// Starts the protection of PodGroups while Pods that have not ended belong to them.
pub(crate) fn start_groups(context: Context) {
    let queue = WorkQueue::default();
    let groups = context.watch::<PartialObject>(Resource::POD_GROUPS);
    let pods = context.watch::<Pod>(Resource::PODS);
    groups.on_key(&queue);
    let add = queue.clone();
    pods.on(move |change| {
        let ended = change.new.is_none_or(|pod| pod.is_finished());
        if let Some(key) = change.old.filter(|_| ended).and_then(|pod| pod.group_key()) {
            add.add(key);
        }
    });
    let waits = vec![synced(&groups), synced(&pods)];
    let state = (context.clone(), groups, by_group(&pods));
    context.run(&queue, 1, waits, state, |(context, groups, pods), key| async move {
        let Some(group) = groups.get(&key) else { return Ok(()) };
        let meta = &group.metadata;
        let in_use = meta.terminating() && pods.get(&key).iter().any(|pod| !pod.is_finished());
        write(&context, &Resource::POD_GROUPS, meta, plan(meta, GROUP, in_use)).await
    });
}

async fn write(
    context: &Context,
    resource: &Resource,
    meta: &ObjectMeta,
    finalizers: Option<Vec<String>>,
) -> Result<(), Error> {
    let Some(finalizers) = finalizers else { return Ok(()) };
    let version = &meta.resource_version;
    let mut object: Value = context.client.get(resource, &meta.namespace, &meta.name).await?;
    if *object.at("metadata.resourceVersion") != version.as_str() {
        // The informer delivers the newer version.
        return Ok(());
    }
    object.put(&["metadata", "finalizers"], json!(finalizers));
    context
        .client
        .update::<_, Value>(resource, &meta.namespace, &meta.name, &object)
        .await
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_finalizer_while_in_use() {
        let mut meta = ObjectMeta::default();
        assert_eq!(plan(&meta, CLAIM, false), Some(vec![CLAIM.to_owned()]));
        meta.finalizers = vec!["other".into(), CLAIM.into()];
        assert_eq!(plan(&meta, CLAIM, true), None);
        meta.deletion_timestamp = Some(api_meta::Timestamp::from_unix(0, 0));
        assert_eq!(plan(&meta, CLAIM, true), None);
        assert_eq!(plan(&meta, CLAIM, false), Some(vec!["other".to_owned()]));
    }

    #[test]
    fn counts_current_wanted_and_target_classes() {
        let claim: ClassUser = serde_json::from_value(
            json!({"spec": {"volumeAttributesClassName": "gold"}, "status": {
            "currentVolumeAttributesClassName": "silver",
            "modifyVolumeStatus": {"targetVolumeAttributesClassName": "bronze"}}}),
        )
        .unwrap();
        assert_eq!(claim.classes().collect::<Vec<_>>(), ["gold", "silver", "bronze"]);
        assert_eq!(ClassUser::default().classes().count(), 0);
    }

    #[test]
    fn pod_uses_claims_until_it_ends() {
        let pod = |phase: &str| -> Pod {
            serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {"nodeName": "a", "volumes": [
                {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}, {"name": "e", "ephemeral": {}}]},
                "status": {"phase": phase}})).unwrap()
        };
        assert!(uses(&pod("Running"), "data") && uses(&pod("Running"), "p-e"));
        assert!(!uses(&pod("Succeeded"), "data") && !uses(&pod("Running"), "other"));
        assert_eq!(pod("Running").claim_keys(), ["n/data", "n/p-e"]);
    }
}
