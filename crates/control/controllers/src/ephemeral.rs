//! Creates the claims of Pods' generic ephemeral volumes. The Pod owns them.

use api_meta::PartialObject;
use client::{Error, Resource, WorkQueue};
use serde_json::{Value, json};

use crate::{
    context::{Context, synced},
    pods::OwnerOf,
    shared::Watched,
    views::{Pod, Volume},
};

const CLAIMS: Resource = Resource::PERSISTENT_VOLUME_CLAIMS;

/// Builds the claim for one of the Pod's volumes.
fn claim_for(owner: &OwnerOf, pod: &Pod, volume: &Volume) -> Option<Value> {
    let template = volume.ephemeral.as_ref()?.get("volumeClaimTemplate")?;
    let meta = &template["metadata"];
    Some(json!({
        "metadata": {
            "name": pod.ephemeral_claim(volume),
            "namespace": pod.metadata.namespace,
            "labels": meta["labels"],
            "annotations": meta["annotations"],
            "ownerReferences": [owner.reference()],
        },
        "spec": template["spec"],
    }))
}

pub(crate) fn start(context: Context) {
    let queue = WorkQueue::default();
    let pods = context.watch::<Pod>(Resource::PODS);
    let claims = context.watch::<PartialObject>(CLAIMS);
    pods.on_key_if(&queue, |change| {
        let mut volumes = change.new.into_iter().flat_map(|pod| &pod.spec.volumes);
        volumes.any(|volume| volume.ephemeral.is_some())
    });
    let add = queue.clone();
    claims.on(move |change| {
        // Recreate a deleted claim while its Pod exists.
        let gone = change.old.filter(|_| change.new.is_none());
        let owner = gone.and_then(|claim| claim.metadata.controller());
        if let (Some(claim), Some(pod)) = (gone, owner.filter(|owner| owner.kind == "Pod")) {
            add.add(format!("{}/{}", claim.metadata.namespace, pod.name));
        }
    });
    let waits = vec![synced(&pods), synced(&claims)];
    let state = (context.clone(), pods, claims);
    context.run(&queue, 2, waits, state, |(context, pods, claims), key| async move {
        let is_ending = |pod: &Pod| pod.metadata.terminating() || pod.is_finished();
        let Some(pod) = pods.get(&key).filter(|pod| !is_ending(pod)) else { return Ok(()) };
        reconcile(&context, &claims, &pod).await
    });
}

async fn reconcile(
    context: &Context,
    claims: &Watched<PartialObject>,
    pod: &Pod,
) -> Result<(), Error> {
    let owner = OwnerOf::new(Resource::PODS, &pod.metadata);
    let namespace = &pod.metadata.namespace;
    for volume in &pod.spec.volumes {
        let Some(claim) = claim_for(&owner, pod, volume) else { continue };
        let name = pod.ephemeral_claim(volume);
        if let Some(existing) = claims.get(&format!("{namespace}/{name}")) {
            // An existing claim of another owner must not be used: the Pod has no right to its data.
            if !existing.metadata.controlled_by(&pod.metadata.uid) {
                let message = format!(
                    "ephemeral volume {}: PVC {namespace}/{name} was not created for pod {namespace}/{} \
                     (pod is not owner)",
                    volume.name, pod.metadata.name
                );
                context.events.warning(owner.object(), "FailedBinding", message);
            }
            continue;
        }
        match context.client.create::<_, Value>(&CLAIMS, namespace, &claim).await {
            Err(error) if !error.is_already_exists() => {
                let message = format!("ephemeral volume {}: {error}", volume.name);
                context.events.warning(owner.object(), "FailedBinding", message);
                return Err(error);
            }
            _ => {}
        }
    }
    Ok(())
}
