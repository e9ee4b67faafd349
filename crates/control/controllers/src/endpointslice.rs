//! Maintains the EndpointSlices of each Service with as few changes as possible.

mod endpoints;
mod mirror;
mod plan;
mod service;
mod slice;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api_meta::ObjectMeta;
use client::{DeleteOptions, Error, Index, NotFoundExt as _, Preconditions, Resource, WorkQueue};
use events::ObjectRef;

use crate::{
    context::{Context, synced},
    indexes::LabelIndex,
    shared::Watched,
    views::{Node, Pod, Service},
};
pub(crate) use endpoints::start as start_endpoints;
pub(crate) use mirror::start as start_mirroring;
use plan::MANAGER;
use service::follow_pods;
pub(crate) use slice::Slice;
use slice::by_service;

struct Reconciler {
    context: Context,
    services: Watched<Service>,
    slices: Index<Slice>,
    pods: LabelIndex<Pod>,
    nodes: Watched<Node>,
    /// Slices that were written and are not visible in the informer yet, by Service: name to resource version. Until
    /// then the informer's slices are stale.
    written: std::sync::Mutex<BTreeMap<String, BTreeMap<String, u64>>>,
}

pub(crate) fn start(context: Context) {
    let queue = WorkQueue::default();
    let services = context.watch::<Service>(Resource::SERVICES);
    let slices = context.watch::<Slice>(Resource::ENDPOINT_SLICES);
    let pods = context.watch::<Pod>(Resource::PODS);
    let nodes = context.watch::<Node>(Resource::NODES);
    services.on_key(&queue);
    follow_slices(&slices, &queue);
    follow_pods(&pods, &services, &queue);
    let waits = vec![synced(&services), synced(&slices), synced(&pods), synced(&nodes)];
    let own = Reconciler {
        context: context.clone(),
        services,
        slices: by_service(&slices),
        pods: LabelIndex::of(&pods),
        nodes,
        written: Default::default(),
    };
    let (own, retries) = (Arc::new(own), queue.clone());
    context.run(&queue, 5, waits, move |key| {
        let (own, retries) = (own.clone(), retries.clone());
        async move { own.reconcile(&key, &retries).await }
    });
}

/// Requeues a Service when one of its managed slices changes.
fn follow_slices(slices: &Watched<Slice>, queue: &WorkQueue<String>) {
    let queue = queue.clone();
    slices.on(move |change| {
        if let Some(slice) = change.new.or(change.old)
            && let Some(service) = slice.service()
            && slice.managed_by(MANAGER)
        {
            queue.add(format!("{}/{service}", slice.metadata.namespace));
        }
    });
}

impl Reconciler {
    async fn reconcile(&self, key: &str, queue: &WorkQueue<String>) -> Result<(), Error> {
        let mut slices = self.slices.get(key);
        slices.retain(|slice| slice.managed_by(MANAGER));
        let Some(service) =
            self.services.get(key).filter(|service| !service.metadata.terminating())
        else {
            // The garbage collector deletes the slices of a deleted Service.
            self.lock().remove(key);
            return Ok(());
        };
        // Another client manages the slices of a Service without a selector; ExternalName has none.
        if service.spec.selector.is_empty() || service.spec.r#type == "ExternalName" {
            return Ok(());
        }
        if !self.caught_up(key, &slices) {
            queue.add_after(key.to_owned(), Duration::from_millis(100));
            return Ok(());
        }
        let pods = self.pods.selected(&service.metadata.namespace, &service.selector());
        let zone = |node: &str| {
            self.nodes.get(node)?.metadata.labels.get("topology.kubernetes.io/zone").cloned()
        };
        let plan = plan::plan(&service, &pods, &slices, &zone);
        self.carry_out(key, &service, plan).await
    }

    async fn carry_out(&self, key: &str, service: &Service, plan: plan::Plan) -> Result<(), Error> {
        let namespace = &service.metadata.namespace;
        let resource = &Resource::ENDPOINT_SLICES;
        let client = &self.context.client;
        for slice in plan.create {
            match client.create::<_, WrittenSlice>(resource, namespace, &slice).await {
                Ok(written) => self.record_written(key, written),
                Err(error) if crate::api_error::namespace_is_terminating(&error) => return Ok(()),
                Err(error) => {
                    let message = format!(
                        "Failed to create endpoint slice: {}",
                        crate::api_error::server_message(&error)
                    );
                    self.context.events.warning(
                        object(&service.metadata),
                        "FailedToCreateEndpointSlice",
                        message,
                    );
                    return Err(error);
                }
            }
        }
        for (name, slice) in plan.update {
            let written =
                client.update::<_, WrittenSlice>(resource, namespace, &name, &slice).await?;
            self.record_written(key, written);
        }
        for meta in plan.delete {
            let preconditions =
                Preconditions { uid: Some(meta.uid.clone()), resource_version: None };
            let options =
                DeleteOptions { preconditions: Some(preconditions), ..DeleteOptions::default() };
            client.delete(resource, namespace, &meta.name, &options).await.or_none()?;
            self.lock().entry(key.to_owned()).or_default().remove(&meta.name);
        }
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, BTreeMap<String, u64>>> {
        self.written.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn record_written(&self, key: &str, written: WrittenSlice) {
        let version = written.metadata.resource_version.parse().unwrap_or(0);
        self.lock().entry(key.to_owned()).or_default().insert(written.metadata.name, version);
    }

    /// Reports whether the informer shows all slices written for the Service. A missing slice is not visible yet.
    fn caught_up(&self, key: &str, slices: &[Arc<Slice>]) -> bool {
        let mut all = self.lock();
        let Some(written) = all.get_mut(key) else { return true };
        let seen = |name: &String| {
            let slice = slices.iter().find(|slice| slice.metadata.name == *name)?;
            slice.metadata.resource_version.parse::<u64>().ok()
        };
        written.retain(|name, version| seen(name).is_none_or(|seen| seen < *version));
        if written.is_empty() {
            all.remove(key);
            return true;
        }
        false
    }
}

#[derive(serde::Deserialize)]
struct WrittenSlice {
    metadata: ObjectMeta,
}

fn object(service: &ObjectMeta) -> ObjectRef {
    ObjectRef {
        api_version: "v1".into(),
        kind: "Service".into(),
        namespace: service.namespace.clone(),
        name: service.name.clone(),
        uid: service.uid.clone(),
        ..ObjectRef::default()
    }
}
