//! Runs Pods with stable names, an order, and claims of their own.

mod plan;
mod retention;

use std::{sync::Arc, time::Duration};

use api_meta::{PartialObject, Tree as _};
use client::{DeleteOptions, Error, Preconditions, Resource, WorkQueue};
use serde_json::Value;

use crate::{
    api_error::namespace_is_terminating,
    context::{Context, synced},
    expectations::Expectations,
    history::{CurrentRevision, HASH_LABEL},
    indexes::{OwnerIndex, Selectors},
    pods::{OwnerOf, follow_pods},
    shared::Watched,
    views::{ControllerRevision, Pod, Set},
};
use plan::{Plan, Step};

/// The delay before the next attempt when a claim is still being deleted.
const CLAIM_GOES: Duration = Duration::from_secs(1);

struct Reconciler {
    context: Context,
    sets: Watched<Set>,
    pods: OwnerIndex<Pod>,
    claims: Watched<PartialObject>,
    revisions: OwnerIndex<ControllerRevision>,
    queue: WorkQueue<String>,
}

pub(crate) fn start(context: Context) {
    let queue = WorkQueue::default();
    let sets = context.watch::<Set>(Resource::STATEFUL_SETS);
    let pods = context.watch::<Pod>(Resource::PODS);
    let claims = context.watch::<PartialObject>(Resource::PERSISTENT_VOLUME_CLAIMS);
    let revisions = context.watch::<ControllerRevision>(Resource::CONTROLLER_REVISIONS);
    sets.on_key(&queue);
    // Pod names are fixed, so nothing is created twice and the expectations are not needed.
    let expectations = Arc::new(Expectations::default());
    follow_pods(&pods, "StatefulSet", &queue, &expectations, Selectors::of(&sets));
    let waits = vec![synced(&sets), synced(&pods), synced(&claims), synced(&revisions)];
    let own = Arc::new(Reconciler {
        context: context.clone(),
        sets,
        pods: OwnerIndex::of(&pods),
        claims,
        revisions: OwnerIndex::of(&revisions),
        queue: queue.clone(),
    });
    context.run(&queue, 5, waits, own, |own, key| async move { own.reconcile(&key).await });
}

impl Reconciler {
    async fn reconcile(&self, key: &str) -> Result<(), Error> {
        let Some(set) = self.sets.get(key).filter(|set| !set.metadata.terminating()) else {
            return Ok(());
        };
        let owner = OwnerOf::new(Resource::STATEFUL_SETS, &set.metadata);
        let all = self.revisions.claimable(&set.metadata);
        let revisions = self
            .context
            .claim(&owner, &set.selector(), &Resource::CONTROLLER_REVISIONS, all)
            .await?;
        let update = self.context.current_revision(&owner, &set, &revisions).await?;
        let all = self.pods.claimable(&set.metadata).into_iter();
        let named =
            all.filter(|pod| plan::ordinal(&set.metadata.name, &pod.metadata.name).is_some());
        let pods =
            self.context.claim(&owner, &set.selector(), &Resource::PODS, named.collect()).await?;
        let current = set.status["currentRevision"].as_str().unwrap_or(&update.name).to_owned();
        let Plan { steps, retry_after } =
            plan::plan(&set, &pods, &current, &update.name, self.context.now());
        // Set the owner references of a Pod's claims before the Pod is scaled away.
        let mut result = self.keep_claims(&owner, &set, &pods).await;
        for step in steps {
            if result.is_err() {
                break;
            }
            result = self.take(&owner, &set, step, &revisions, &update).await;
        }
        let status = plan::status(&set, &pods, &current, &update, self.context.now());
        self.context
            .merge_status(&Resource::STATEFUL_SETS, &set.metadata, &set.status, status)
            .await?;
        if let Some(seconds) = retry_after {
            self.queue.add_after(key.to_owned(), Duration::from_secs(seconds));
        }
        let mut live: Vec<_> =
            pods.iter().filter_map(|p| p.metadata.labels.get(HASH_LABEL).cloned()).collect();
        live.extend([current, update.name]);
        self.context.trim_history(&set, &revisions, &live).await?;
        result
    }

    /// Updates the owner references of the Pods' claims by the set's retention policy.
    async fn keep_claims(
        &self,
        owner: &OwnerOf,
        set: &Set,
        pods: &[Arc<Pod>],
    ) -> Result<(), Error> {
        let resource = &Resource::PERSISTENT_VOLUME_CLAIMS;
        for pod in pods {
            let of_pod = OwnerOf::new(Resource::PODS, &pod.metadata).reference();
            for name in plan::claim_names(set, &pod.metadata.name) {
                let key = format!("{}/{name}", set.metadata.namespace);
                let Some(claim) = self.claims.get(&key) else { continue };
                let condemned = plan::is_surplus(set, pod);
                let own = retention::ClaimOwners { set: owner.reference(), pod: of_pod.clone() };
                let change = retention::references(set, own, condemned, &claim.metadata);
                if let Some(change) = change {
                    self.context.merge_by_update(resource, &claim.metadata, "", &change).await?;
                }
            }
        }
        Ok(())
    }

    async fn take(
        &self,
        owner: &OwnerOf,
        set: &Set,
        step: Step,
        revisions: &[Arc<ControllerRevision>],
        update: &CurrentRevision,
    ) -> Result<(), Error> {
        match step {
            Step::Create { ordinal, revision } => {
                let former = revisions
                    .iter()
                    .find(|r| r.metadata.name == revision && revision != update.name);
                let template = former.map_or(&set.spec.template, |r| r.data.at("spec.template"));
                self.create(owner, set, ordinal, &revision, template).await
            }
            Step::Delete(pod) => self.delete(owner, set, &pod).await,
            Step::Recreate(pod) => {
                let key = &set.metadata.key();
                let message =
                    format!("StatefulSet {key} is recreating failed Pod {}", pod.metadata.name);
                self.context.events.warning(owner.object(), "RecreatingFailedPod", message);
                self.delete(owner, set, &pod).await
            }
        }
    }

    async fn create(
        &self,
        owner: &OwnerOf,
        set: &Set,
        ordinal: i64,
        revision: &str,
        template: &Value,
    ) -> Result<(), Error> {
        let (namespace, name) = (&set.metadata.namespace, &set.metadata.name);
        let pod = plan::pod_for(owner, set, ordinal, revision, template);
        let pod_name = pod.name().to_owned();
        for claim in plan::claims_for(set, &pod_name) {
            let claim_name = claim.name();
            if let Some(existing) = self.claims.get(&format!("{namespace}/{claim_name}")) {
                if retention::is_deleted_with_pod(&existing.metadata) {
                    self.queue.add_after(set.metadata.key(), CLAIM_GOES);
                    return Ok(());
                }
                continue;
            }
            let resource = &Resource::PERSISTENT_VOLUME_CLAIMS;
            match self.context.client.create::<_, Value>(resource, namespace, &claim).await {
                Ok(_) => {
                    let message = format!(
                        "create Claim {claim_name} Pod {pod_name} in StatefulSet {name} success"
                    );
                    self.context.events.normal(owner.object(), "SuccessfulCreate", message);
                }
                Err(error) if error.is_already_exists() => {}
                Err(error) => return Err(error),
            }
        }
        match self.context.client.create::<_, Value>(&Resource::PODS, namespace, &pod).await {
            Ok(_) => {
                let message = format!("create Pod {pod_name} in StatefulSet {name} successful");
                self.context.events.normal(owner.object(), "SuccessfulCreate", message);
                Ok(())
            }
            Err(error) if error.is_already_exists() || namespace_is_terminating(&error) => Ok(()),
            Err(error) => {
                let message = format!(
                    "create Pod {pod_name} in StatefulSet {name} failed error: {}",
                    error.server_message()
                );
                self.context.events.warning(owner.object(), "FailedCreate", message);
                Err(error)
            }
        }
    }

    /// Deletes exactly this Pod, because its successor has the same name.
    async fn delete(&self, owner: &OwnerOf, set: &Set, pod: &Pod) -> Result<(), Error> {
        let meta = &pod.metadata;
        let preconditions = Preconditions { uid: Some(meta.uid.clone()), resource_version: None };
        let options =
            DeleteOptions { preconditions: Some(preconditions), ..DeleteOptions::default() };
        match self
            .context
            .client
            .delete(&Resource::PODS, &meta.namespace, &meta.name, &options)
            .await
        {
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            Err(error) => Err(error),
            Ok(()) => {
                let (pod, set) = (&meta.name, &set.metadata.name);
                let message = format!("delete Pod {pod} in StatefulSet {set} successful");
                self.context.events.normal(owner.object(), "SuccessfulDelete", message);
                Ok(())
            }
        }
    }
}
