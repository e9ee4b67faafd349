//! Rolls a Deployment's Pods from one template to the next through its ReplicaSets.

mod plan;
mod revision;
mod status;

use api_meta::{PartialObject, Tree as _};
use std::{sync::Arc, time::Duration};

use client::{DeleteOptions, Error, NotFoundExt as _, Preconditions, Resource, WorkQueue};
use serde_json::{Value, json};

use crate::{
    api_error::namespace_is_terminating,
    context::{Context, synced},
    indexes::{OwnerIndex, Selectors},
    pods::OwnerOf,
    shared::Watched,
    views::{Deployment, Pod, ReplicaSet},
};
use plan::{Action, Snapshot};

struct Reconciler {
    context: Context,
    deployments: Watched<Deployment>,
    sets: OwnerIndex<ReplicaSet>,
    pods: OwnerIndex<Pod>,
    queue: WorkQueue<String>,
}

pub(crate) fn start(context: Context) {
    let queue = WorkQueue::default();
    let deployments = context.watch::<Deployment>(Resource::DEPLOYMENTS);
    let sets = context.watch::<ReplicaSet>(Resource::REPLICA_SETS);
    let pods = context.watch::<Pod>(Resource::PODS);
    deployments.on_key(&queue);
    follow_sets(&sets, &deployments, &queue);
    follow_pods(&pods, &sets, &deployments, &queue);
    let waits = vec![synced(&deployments), synced(&sets), synced(&pods)];
    let own = Arc::new(Reconciler {
        context: context.clone(),
        deployments,
        sets: OwnerIndex::of(&sets),
        pods: OwnerIndex::of(&pods),
        queue: queue.clone(),
    });
    context.run(&queue, 5, waits, own, |own, key| async move { own.reconcile(&key).await });
}

fn follow_sets(
    sets: &Watched<ReplicaSet>,
    deployments: &Watched<Deployment>,
    queue: &WorkQueue<String>,
) {
    let (queue, adopters) = (queue.clone(), Selectors::of(deployments));
    sets.on(move |change| {
        for set in [change.old, change.new].into_iter().flatten() {
            let meta = &set.metadata;
            match meta.controller() {
                Some(owner) if owner.kind == "Deployment" => {
                    queue.add(format!("{}/{}", meta.namespace, owner.name))
                }
                Some(_) => {}
                None => {
                    let adopters = adopters.keys(&meta.namespace, &meta.labels);
                    adopters.into_iter().for_each(|key| queue.add(key));
                }
            }
        }
    });
}

/// Requeues a Recreate Deployment when its last old Pod is gone.
fn follow_pods(
    pods: &Watched<Pod>,
    sets: &Watched<ReplicaSet>,
    deployments: &Watched<Deployment>,
    queue: &WorkQueue<String>,
) {
    let (queue, sets, deployments) = (queue.clone(), sets.clone(), deployments.clone());
    pods.on(move |change| {
        let Some(pod) = change.old.filter(|_| change.new.is_none_or(|new| new.is_finished()))
        else {
            return;
        };
        let namespace = &pod.metadata.namespace;
        let set = pod.metadata.controller().filter(|owner| owner.kind == "ReplicaSet");
        let set = set.and_then(|owner| sets.get(&format!("{namespace}/{}", owner.name)));
        let Some(key) =
            set.and_then(|set| Some(format!("{namespace}/{}", set.metadata.controller()?.name)))
        else {
            return;
        };
        if deployments.get(&key).is_some_and(|d| d.spec.strategy.r#type == "Recreate") {
            queue.add(key);
        }
    });
}

impl Reconciler {
    async fn reconcile(&self, key: &str) -> Result<(), Error> {
        let Some(deployment) = self.deployments.get(key) else { return Ok(()) };
        let owner = OwnerOf::new(Resource::DEPLOYMENTS, &deployment.metadata);
        let selector = deployment.selector();
        let all = self.sets.claimable(&deployment.metadata);
        let sets = self.context.claim(&owner, &selector, &Resource::REPLICA_SETS, all).await?;
        let snapshot = Snapshot {
            deployment: &deployment,
            old_pods_run: self.old_pods_run(&deployment, &sets),
            sets: &sets,
            now: self.context.now(),
        };
        let plan = plan::plan(&snapshot);
        let mut collisions = deployment.status.int("collisionCount");
        let mut failure = None;
        for action in plan.actions {
            match self.act(&owner, &deployment, action).await {
                Ok(Outcome::Done) => {}
                Ok(Outcome::Collided) => collisions += 1,
                Err((error, message)) if error.is_conflict() || message.is_none() => {
                    return Err(error);
                }
                Err((error, message)) => {
                    failure = message.map(|message| (error, message));
                    break;
                }
            }
        }
        let failure_message = failure.as_ref().map(|(_, message)| message.as_str());
        let (status, next_check) =
            status::status(&snapshot, plan.progress, collisions, failure_message);
        let resource = &Resource::DEPLOYMENTS;
        self.context
            .merge_status(resource, &deployment.metadata, &deployment.status, status)
            .await?;
        if let Some(seconds) = next_check {
            self.queue.add_after(key.to_owned(), Duration::from_secs(seconds));
        }
        failure.map_or(Ok(()), |(error, _)| Err(error))
    }

    /// Reports whether Pods of old templates still run, which matters only for the Recreate strategy.
    fn old_pods_run(&self, deployment: &Deployment, sets: &[Arc<ReplicaSet>]) -> bool {
        if deployment.spec.strategy.r#type != "Recreate" {
            return false;
        }
        let new = revision::find_new(deployment, sets).map(|set| set.metadata.uid.clone());
        let old = sets.iter().filter(|set| Some(&set.metadata.uid) != new.as_ref());
        old.flat_map(|set| self.pods.by(&set.metadata.uid)).any(|pod| !pod.is_finished())
    }

    async fn act(
        &self,
        owner: &OwnerOf,
        deployment: &Deployment,
        action: Action,
    ) -> Result<Outcome, (Error, Option<String>)> {
        let plain = |error| (error, None);
        match action {
            Action::Create(set) => return self.create(owner, deployment, set).await,
            Action::Change { set, replicas, annotations, min_ready_seconds } => {
                let mut spec = json!({"replicas": replicas});
                if let Some(seconds) = min_ready_seconds {
                    spec.put(&["minReadySeconds"], json!(seconds));
                }
                let version = &set.metadata.resource_version;
                let meta = json!({"resourceVersion": version, "annotations": annotations});
                let patch = json!({"metadata": meta, "spec": spec});
                self.context
                    .merge(&Resource::REPLICA_SETS, &set.metadata, patch)
                    .await
                    .map_err(plain)?;
                self.scaled(owner, &set.metadata.name, set.replicas(), replicas);
            }
            Action::Delete(set) => {
                let preconditions = Preconditions {
                    uid: Some(set.metadata.uid.clone()),
                    resource_version: Some(set.metadata.resource_version.clone()),
                };
                let options = DeleteOptions {
                    preconditions: Some(preconditions),
                    ..DeleteOptions::default()
                };
                let (client, meta) = (&self.context.client, &set.metadata);
                let deleted = client
                    .delete(&Resource::REPLICA_SETS, &meta.namespace, &meta.name, &options)
                    .await;
                deleted.or_none().map_err(plain)?;
            }
            Action::Annotate(annotations) => {
                let patch = json!({"metadata": {"annotations": annotations}});
                let meta = &deployment.metadata;
                // Through the status, because the generation would count a change through the main endpoint.
                self.context
                    .merge_by_update(&Resource::DEPLOYMENTS, meta, "status", &patch)
                    .await
                    .map_err(plain)?;
            }
        }
        Ok(Outcome::Done)
    }

    async fn create(
        &self,
        owner: &OwnerOf,
        deployment: &Deployment,
        mut set: Value,
    ) -> Result<Outcome, (Error, Option<String>)> {
        set.put(&["metadata", "ownerReferences"], json!([owner.reference()]));
        let namespace = &deployment.metadata.namespace;
        let name = set.name().to_owned();
        let (resource, client) = (&Resource::REPLICA_SETS, &self.context.client);
        let replicas = set.int("spec.replicas");
        let error = match client.create::<_, PartialObject>(resource, namespace, &set).await {
            Ok(_) => {
                self.scaled(owner, &name, 0, replicas);
                return Ok(Outcome::Done);
            }
            Err(error) => error,
        };
        if error.is_already_exists() {
            // Either the set is ours and not in the informer yet, or another template has the same hash and the next
            // attempt uses a different one.
            let existing: ReplicaSet =
                client.get(resource, namespace, &name).await.map_err(|e| (e, None))?;
            let ours = existing.metadata.controlled_by(&deployment.metadata.uid);
            let same = revision::same_template(&existing.spec.template, &deployment.spec.template);
            return Ok(if ours && same { Outcome::Done } else { Outcome::Collided });
        }
        if namespace_is_terminating(&error) {
            return Err((error, None));
        }
        let message =
            format!("Failed to create new replica set \"{name}\": {}", error.server_message());
        self.context.events.warning(owner.object(), "ReplicaSetCreateError", message.clone());
        Err((error, Some(message)))
    }

    fn scaled(&self, owner: &OwnerOf, set: &str, from: i64, to: i64) {
        if from != to {
            let direction = if to > from { "up" } else { "down" };
            let message = format!("Scaled {direction} replica set {set} from {from} to {to}");
            self.context.events.normal(owner.object(), "ScalingReplicaSet", message);
        }
    }
}

enum Outcome {
    Done,
    Collided,
}
