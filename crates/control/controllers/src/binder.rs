//! Binds claims to volumes and releases volumes (persistentvolume-binder-controller).

mod matching;
mod plan;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use api_meta::ObjectMeta;
use client::{Error, Index, NotFoundExt as _, Resource, WorkQueue};
use serde_json::{Value, json};

use crate::{
    context::{Context, merged, synced},
    indexes::by_claim,
    pods::OwnerOf,
    shared::Watched,
    views::{ClaimRef, PersistentVolume, Pod, StorageClass, VolumeClaim},
};
use plan::{Plan, PlannedEvent, Surroundings, Target, Write, plan_claim, plan_volume};

const CLAIMS: Resource = Resource::PERSISTENT_VOLUME_CLAIMS;
const VOLUMES: Resource = Resource::PERSISTENT_VOLUMES;

/// The number of writes after which a worker stops handling a claim; binding takes four.
const MOST_WRITES: usize = 8;

struct Binder {
    context: Context,
    claims: Watched<VolumeClaim>,
    volumes: Watched<PersistentVolume>,
    /// Claims by the volume or the class that they wait for.
    waiting_claims: Index<VolumeClaim>,
    /// Volumes by their claim, or by their class if they are free.
    volumes_for: Index<PersistentVolume>,
    classes: Watched<StorageClass>,
    /// Indexed by the keys of their claims.
    pods: Index<Pod>,
    queue: WorkQueue<String>,
}

/// Reports whether a key names a claim: a claim's key has a namespace, a volume's has none.
fn is_claim(key: &str) -> bool {
    key.contains('/')
}

pub(crate) fn start(context: Context) {
    let queue = WorkQueue::default();
    let claims = context.watch::<VolumeClaim>(CLAIMS);
    let volumes = context.watch::<PersistentVolume>(VOLUMES);
    let pods = context.watch::<Pod>(Resource::PODS);
    let binder = Arc::new(Binder {
        waiting_claims: claims.index("waits for", waits_for),
        volumes_for: volumes.index("for", |volume| vec![is_for(volume)]),
        claims,
        volumes,
        classes: context.watch(Resource::STORAGE_CLASSES),
        pods: by_claim(&pods),
        queue: queue.clone(),
        context: context.clone(),
    });
    binder.follow();
    let waits = vec![
        synced(&binder.claims),
        synced(&binder.volumes),
        synced(&binder.classes),
        synced(&pods),
    ];
    // One worker: two claims that are handled at the same time could choose the same volume.
    context.run(
        &queue,
        1,
        waits,
        binder,
        |binder, key| async move { binder.reconcile(&key).await },
    );
}

/// The index keys whose changes requeue a claim: its volume's name or, for an unbound claim, its class and any class.
fn waits_for(claim: &VolumeClaim) -> Vec<String> {
    match claim.spec.volume_name.as_str() {
        "" => vec![of_class(claim.class().unwrap_or("")), ANY_CLASS.to_owned()],
        name => vec![of_name(name)],
    }
}

const ANY_CLASS: &str = "class";

fn of_class(class: &str) -> String {
    format!("class/{class}")
}

fn of_name(volume: &str) -> String {
    format!("volume/{volume}")
}

fn of_claim(claim: &str) -> String {
    format!("claim/{claim}")
}

fn is_for(volume: &PersistentVolume) -> String {
    let class = || of_class(volume.class());
    volume.spec.claim_ref.as_ref().map(ClaimRef::key).map_or_else(class, |key| of_claim(&key))
}

impl Binder {
    fn follow(&self) {
        let add = self.queue.clone();
        self.claims.on(move |change| {
            add.add(change.key.to_owned());
            let named = change.old.into_iter().chain(change.new).map(|c| &c.spec.volume_name);
            named.filter(|name| !name.is_empty()).for_each(|name| add.add(name.clone()));
        });
        let (add, claims) = (self.queue.clone(), self.waiting_claims.clone());
        self.volumes.on(move |change| {
            add.add(change.key.to_owned());
            let volumes_of_change = || change.old.into_iter().chain(change.new);
            let referred = volumes_of_change().filter_map(|volume| volume.spec.claim_ref.as_ref());
            referred.for_each(|claim| add.add(claim.key()));
            // A bound claim may have lost this volume, and a waiting claim may get it.
            let classes = volumes_of_change().map(|volume| of_class(volume.class()));
            let concerned = classes.chain([of_name(change.key)]).flat_map(|what| claims.get(&what));
            concerned.for_each(|claim| add.add(claim.metadata.key()));
        });
        let (add, claims) = (self.queue.clone(), self.waiting_claims.clone());
        self.classes.on(move |_| {
            claims.get(ANY_CLASS).iter().for_each(|claim| add.add(claim.metadata.key()));
        });
    }

    async fn reconcile(&self, key: &str) -> Result<(), Error> {
        if is_claim(key) {
            return self.reconcile_claim(key).await;
        }
        let Some(volume) = self.volumes.get(key) else { return Ok(()) };
        let claim = self.claim_of(&volume).await?;
        let plan = plan_volume(&volume, claim.as_deref());
        if let (true, Some(claim)) = (plan.wakes_claim, &claim) {
            self.queue.add(claim.metadata.key());
        }
        let about = |target: &Target| match (target, &claim) {
            (Target::Claim, Some(claim)) => OwnerOf::new(CLAIMS, &claim.metadata),
            _ => OwnerOf::new(VOLUMES, &volume.metadata),
        };
        self.record(plan.event.as_ref(), about);
        match plan.write {
            Some(write) => self.write(&VOLUMES, &volume.metadata, &write).await.map(drop),
            None => Ok(()),
        }
    }

    /// Returns the claim that a volume refers to. If the informer does not have the claim, the API is read: the claim
    /// may be new, and releasing its volume would lose data.
    async fn claim_of(&self, volume: &PersistentVolume) -> Result<Option<Arc<VolumeClaim>>, Error> {
        let Some(reference) = &volume.spec.claim_ref else { return Ok(None) };
        let claim = self.claims.get(&reference.key());
        if claim.as_ref().is_some_and(|claim| reference.names(&claim.metadata)) {
            return Ok(claim);
        }
        let (namespace, name) = (&reference.namespace, &reference.name);
        self.context.client.get(&CLAIMS, namespace, name).await.or_none().map(|c| c.map(Arc::new))
    }

    async fn reconcile_claim(&self, key: &str) -> Result<(), Error> {
        let Some(claim) = self.claims.get(key) else { return Ok(()) };
        let mut claim = (*claim).clone();
        let mut volumes = self.volumes_of(&claim).await?;
        let classes = self.classes.list();
        let waiting = self.waiting(&claim.metadata);
        for _ in 0..MOST_WRITES {
            let provisions = self.context.config.dynamic_provisioning;
            let around = Surroundings {
                volumes: &volumes,
                classes: &classes,
                waiting: &waiting,
                provisions,
            };
            let Plan { write, event, .. } = plan_claim(&claim, &around);
            self.record(event.as_ref(), |_| OwnerOf::new(CLAIMS, &claim.metadata));
            let Some(write) = write else { return Ok(()) };
            match &write.target {
                Target::Claim => {
                    let written = self.write(&CLAIMS, &claim.metadata, &write).await?;
                    let Ok(new) = serde_json::from_value::<VolumeClaim>(written) else {
                        return Ok(());
                    };
                    if new.class() != claim.class() {
                        // The class changed, so other volumes match; the informer requeues the claim.
                        return Ok(());
                    }
                    claim = new;
                }
                Target::Volume(name) => {
                    let at = volumes.iter().position(|volume| volume.metadata.name == *name);
                    let Some(volume) = at.and_then(|at| volumes.get_mut(at)) else { return Ok(()) };
                    let written = self.write(&VOLUMES, &volume.metadata, &write).await?;
                    let Ok(new) = serde_json::from_value(written) else { return Ok(()) };
                    *volume = Arc::new(new);
                }
            }
            if event.is_some() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Returns the volume that a claim names, the volumes reserved for it, and the free ones of its class.
    async fn volumes_of(&self, claim: &VolumeClaim) -> Result<Vec<Arc<PersistentVolume>>, Error> {
        let mut volumes = self.volumes_for.get(&of_claim(&claim.metadata.key()));
        volumes.extend(self.volumes_for.get(&of_class(claim.class().unwrap_or(""))));
        let named = claim.spec.volume_name.as_str();
        if !named.is_empty() && volumes.iter().all(|volume| volume.metadata.name != named) {
            // Read the API before the volume counts as lost: the informer of volumes may lag behind that of claims.
            let named_volume = match self.volumes.get(named) {
                Some(volume) => Some(volume),
                None => {
                    let response = self.context.client.get(&VOLUMES, "", named).await;
                    response.or_none()?.map(Arc::new)
                }
            };
            volumes.extend(named_volume);
        }
        Ok(volumes)
    }

    /// Names of the unscheduled Pods that use a claim.
    fn waiting(&self, claim: &ObjectMeta) -> Vec<String> {
        let pods = self.pods.get(&claim.key());
        let waits = |pod: &&Arc<Pod>| pod.node().is_empty() && !pod.is_finished();
        pods.iter().filter(waits).map(|pod| pod.metadata.name.clone()).collect()
    }

    fn record(&self, event: Option<&PlannedEvent>, about: impl Fn(&Target) -> OwnerOf) {
        let Some(event) = event else { return };
        let object = about(&event.about).object();
        if event.warning {
            self.context.events.warning(object, event.reason, &*event.message);
        } else {
            self.context.events.normal(object, event.reason, &*event.message);
        }
    }

    /// Writes to the version that was planned on. A different version is a conflict, because the volume may be bound to
    /// another claim by now; then the plan is computed again.
    async fn write(
        &self,
        resource: &Resource,
        meta: &ObjectMeta,
        write: &Write,
    ) -> Result<Value, Error> {
        let (namespace, name) = (meta.namespace.as_str(), meta.name.as_str());
        let current: Value = self.context.client.get(resource, namespace, name).await?;
        let mut desired = merged(&current, &write.change);
        let version = json!(meta.resource_version);
        api_meta::Tree::put(&mut desired, &["metadata", "resourceVersion"], version);
        let client = &self.context.client;
        client.update_subresource(resource, namespace, name, write.subresource, &desired).await
    }
}
