//! Deletes objects whose owners are gone, and completes foreground deletion and orphaning.

mod graph;

use api_meta::{OwnerReference, PartialObject, Tree as _};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use client::{
    Change, Client, DeleteOptions, Error, Informer, ListOptions, NotFoundExt as _, PatchKind,
    PatchTarget, Preconditions, Resource, WorkQueue,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::{
    context::{Context, synced},
    discovery,
    shared::Watched,
};
use graph::{Graph, ORPHAN, OwnerState, Plan, TrackedObject, Uid};

/// The interval between two discoveries of served resources; a new CustomResourceDefinition triggers one at once.
const REFRESH: Duration = Duration::from_secs(30);

/// The retry delay for an object whose owner is of a kind that is not served.
const UNKNOWN_KIND: Duration = Duration::from_secs(5);

/// The time that collecting waits for all kinds to be listed. A kind that cannot be listed must not block the others:
/// owners missing in the graph are read from the API one by one.
const INITIAL_SYNC: Duration = Duration::from_secs(30);

struct Collector {
    context: Context,
    graph: Mutex<Graph>,
    queue: WorkQueue<String>,
    /// The watched resources, each with the handle that ends its watch.
    watched: Mutex<HashMap<Resource, Watching>>,
    refresh: Notify,
    /// `true` once every kind has been listed, or the wait for that has timed out.
    graph_is_complete: rt::Level<bool>,
}

struct Watching {
    informer: Informer<TrackedObject>,
    shutdown: rt::Shutdown,
}

pub(crate) fn start(context: Context) {
    let collector = Arc::new(Collector {
        context: context.clone(),
        graph: Mutex::default(),
        queue: WorkQueue::default(),
        watched: Mutex::default(),
        refresh: Notify::new(),
        graph_is_complete: rt::Level::default(),
    });
    let definitions = context.watch::<PartialObject>(Resource::CUSTOM_RESOURCE_DEFINITIONS);
    let refresher = collector.clone();
    definitions.on(move |_| refresher.refresh.notify_one());
    let (listed_definitions, refreshing) = (definitions.clone(), collector.clone());
    context.tasks.keep("garbage collector's resources", move || {
        refreshing.clone().follow_resources(listed_definitions.clone())
    });
    let graph_is_complete = collector.graph_is_complete.clone();
    // Until every kind is listed, an owner missing in the graph is probably just not listed yet.
    let all = Box::pin(async move { graph_is_complete.reached(true).await });
    let working = collector.clone();
    context.run(&collector.queue, 20, vec![all], working, |working, uid| async move {
        working.collect(&uid).await
    });
}

impl Collector {
    async fn follow_resources(self: Arc<Self>, definitions: Watched<PartialObject>) {
        synced(&definitions).await;
        self.discover().await;
        if tokio::time::timeout(INITIAL_SYNC, self.all_synced()).await.is_err() {
            let missing = self.unlisted_kinds().join(", ");
            tracing::warn!(missing, "collecting garbage although some kinds could not be listed");
        }
        self.graph_is_complete.raise(true);
        loop {
            let _ = tokio::time::timeout(REFRESH, self.refresh.notified()).await;
            // The API serves a new CustomResourceDefinition a moment after it is stored.
            tokio::time::sleep(Duration::from_millis(500)).await;
            self.discover().await;
        }
    }

    /// Starts watches for the served resources and ends others, except in groups whose discovery failed.
    async fn discover(self: &Arc<Self>) {
        let discovery = discovery::all(&self.context.client, &["list", "watch", "delete"]).await;
        // Events own nothing and are numerous.
        let resources = discovery.resources.into_iter().filter(|r| r.plural != "events");
        let resources: Vec<Resource> = resources.collect();
        let mut watched = self.watched.lock();
        if discovery.failures.is_empty() {
            watched.retain(|resource, watching| {
                let served = resources.contains(resource);
                if !served {
                    watching.shutdown.stop();
                    for object in watching.informer.list() {
                        self.enqueue(self.graph.lock().remove(&object.uid));
                    }
                }
                served
            });
        } else {
            tracing::warn!(failures = ?discovery.failures, "discovery failed for some API groups; their watches stay");
        }
        for resource in resources {
            watched.entry(resource.clone()).or_insert_with(|| self.watch(resource));
        }
    }

    fn watch(self: &Arc<Self>, resource: Resource) -> Watching {
        let shutdown = self.context.tasks.shutdown().child();
        let (collector, shared) = (self.clone(), Arc::new(resource.clone()));
        let on_change = move |change: Change<'_, TrackedObject>| {
            let mut graph = collector.graph.lock();
            let replaced = change.old.filter(|old| change.new.is_none_or(|new| new.uid != old.uid));
            let mut uids = replaced.map(|old| graph.remove(&old.uid)).unwrap_or_default();
            if let Some(new) = change.new {
                uids.extend(graph.observe(&shared, new));
            }
            drop(graph);
            collector.enqueue(uids);
        };
        // Separate tasks, so that the watch can end before the collector does.
        let tasks = rt::Tasks::new(shutdown.clone());
        let options = ListOptions::default();
        let informer = Informer::start(&self.context.client, resource, options, &tasks, on_change);
        Watching { informer, shutdown }
    }

    async fn all_synced(&self) {
        let informers: Vec<_> = self.watched.lock().values().map(|w| w.informer.clone()).collect();
        for informer in informers {
            informer.synced().await;
        }
    }

    /// Returns the names of the resources whose first list is missing.
    fn unlisted_kinds(&self) -> Vec<String> {
        let watched = self.watched.lock();
        let unseen = watched.iter().filter(|(_, watching)| !watching.informer.is_synced());
        unseen.map(|(resource, _)| discovery::name(resource)).collect()
    }

    fn enqueue(&self, uids: Vec<Uid>) {
        uids.into_iter().for_each(|uid| self.queue.add(uid.to_string()));
    }

    async fn collect(&self, uid: &str) -> Result<(), Error> {
        let Some((resource, object)) = self.graph.lock().get(uid) else { return Ok(()) };
        let mut states = Vec::new();
        if !object.deleting {
            for owner in &object.owners {
                states.push(self.owner_state(&resource, &object, owner).await?);
            }
        }
        let plan = graph::plan(&self.graph.lock(), &object, &states);
        if plan != Plan::Nothing {
            let (namespace, name) = (&object.namespace, &object.name);
            tracing::debug!(kind = %resource.kind, %namespace, %name, ?plan, "collecting");
        }
        match plan {
            Plan::Nothing => Ok(()),
            Plan::Dependents(uids) => {
                self.enqueue(uids);
                Ok(())
            }
            Plan::Delete { policy } => self.delete(&resource, &object, policy).await,
            Plan::DropOwners(gone) => self.drop_owners(&resource, &object, &gone).await,
            Plan::StopBlocking => self.stop_blocking(&resource, &object).await,
            Plan::RemoveFinalizer(finalizer) => {
                self.remove_finalizer(&resource, &object, finalizer).await
            }
            Plan::Orphan(dependents) => self.orphan(&resource, &object, &dependents).await,
        }
    }

    /// Returns the state of an owner. The API is read if the graph does not have the owner.
    async fn owner_state(
        &self,
        child: &Resource,
        object: &TrackedObject,
        owner: &OwnerReference,
    ) -> Result<OwnerState, Error> {
        let state = self.graph.lock().owner_state(object, owner);
        if state != OwnerState::Unknown {
            return Ok(state);
        }
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        let resource = {
            let watched = self.watched.lock();
            watched.keys().find(|r| r.group == group && r.kind == owner.kind).cloned()
        };
        let Some(resource) = resource else {
            // The kind is not served (yet), so the state of its objects is unknown.
            self.queue.add_after(object.uid.to_string(), UNKNOWN_KIND);
            return Ok(OwnerState::Solid);
        };
        if resource.namespaced && !child.namespaced {
            tracing::warn!(name = %object.name, owner = owner.name, "a cluster-scoped object has a namespaced owner");
            return Ok(OwnerState::Solid);
        }
        let namespace: &str = if resource.namespaced { &object.namespace } else { "" };
        let owner_object =
            self.context.client.get::<TrackedObject>(&resource, namespace, &owner.name).await;
        match owner_object {
            Ok(owner_object) if *owner_object.uid == *owner.uid => {
                Ok(if owner_object.waits_for_dependents() {
                    OwnerState::Waiting
                } else {
                    OwnerState::Solid
                })
            }
            Err(error) if !error.is_not_found() => Err(error),
            _ => {
                self.graph.lock().note_absent(&owner.uid.as_str().into(), &object.namespace);
                Ok(OwnerState::Absent)
            }
        }
    }

    async fn delete(
        &self,
        resource: &Resource,
        object: &TrackedObject,
        policy: &'static str,
    ) -> Result<(), Error> {
        let options = DeleteOptions {
            propagation_policy: Some(policy),
            // The object may have been adopted in the meantime.
            preconditions: Some(Preconditions {
                uid: Some(object.uid.to_string()),
                resource_version: Some(object.version.to_string()),
            }),
            ..DeleteOptions::default()
        };
        let client = &self.context.client;
        let deleted = client.delete(resource, &object.namespace, &object.name, &options).await;
        deleted.or_none().map(drop)
    }

    async fn drop_owners(
        &self,
        resource: &Resource,
        object: &TrackedObject,
        gone: &[OwnerReference],
    ) -> Result<(), Error> {
        let gone: HashSet<_> = gone.iter().collect();
        let left: Vec<_> = object.owners.iter().filter(|o| !gone.contains(o)).collect();
        self.patch_meta(resource, object, json!({"ownerReferences": left})).await
    }

    async fn stop_blocking(
        &self,
        resource: &Resource,
        object: &TrackedObject,
    ) -> Result<(), Error> {
        let mut owners = object.owners.clone();
        owners.iter_mut().for_each(|owner| owner.block_owner_deletion = Some(false));
        self.patch_meta(resource, object, json!({"ownerReferences": owners})).await
    }

    async fn remove_finalizer(
        &self,
        resource: &Resource,
        object: &TrackedObject,
        finalizer: &str,
    ) -> Result<(), Error> {
        let left: Vec<_> = object.finalizers.iter().filter(|f| *f != finalizer).collect();
        self.patch_meta(resource, object, json!({"finalizers": left})).await
    }

    async fn orphan(
        &self,
        resource: &Resource,
        object: &TrackedObject,
        dependents: &[Uid],
    ) -> Result<(), Error> {
        for uid in dependents {
            let Some((of, dependent)) = self.graph.lock().get(uid) else { continue };
            let us: Vec<_> =
                dependent.owners.iter().filter(|o| *o.uid == *object.uid).cloned().collect();
            self.drop_owners(&of, &dependent, &us).await?;
        }
        self.remove_finalizer(resource, object, ORPHAN).await
    }

    /// Patches metadata of exactly this version of the object; lists are replaced as a whole.
    async fn patch_meta(
        &self,
        resource: &Resource,
        object: &TrackedObject,
        mut meta: Value,
    ) -> Result<(), Error> {
        meta.put(&["uid"], json!(object.uid));
        meta.put(&["resourceVersion"], json!(object.version));
        let at = PatchTarget { namespace: &object.namespace, name: &object.name, subresource: "" };
        let client: &Client = &self.context.client;
        let patched =
            client.patch::<Value>(resource, at, PatchKind::Merge, &json!({"metadata": meta})).await;
        patched.or_none().map(drop)
    }
}
