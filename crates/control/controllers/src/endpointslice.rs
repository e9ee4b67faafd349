//! Maintains the EndpointSlices of each Service with as few changes as possible.

mod balance;
mod endpoints;
mod hints;
mod mirror;
mod plan;
mod service;
mod slice;
mod writes;

use std::{sync::Arc, time::Duration};

use api_meta::ObjectMeta;
use client::{DeleteOptions, Error, Index, NotFoundExt as _, Preconditions, Resource, WorkQueue};
use events::ObjectRef;

use crate::{
    context::{Context, synced},
    indexes::LabelIndex,
    shared::Watched,
    views::{Node, Pod, Service},
};
use balance::Balance;
pub(crate) use endpoints::start as start_endpoints;
pub(crate) use mirror::start as start_mirroring;
use plan::{MANAGER, Topology};
use service::follow_pods;
pub(crate) use slice::Slice;
pub(crate) use slice::by_service;
use writes::Writes;

struct Reconciler {
    context: Context,
    services: Watched<Service>,
    slices: Index<Slice>,
    pods: LabelIndex<Pod>,
    nodes: Watched<Node>,
    writes: Arc<Writes>,
    balance: Arc<Balance>,
}

pub(crate) fn start(context: Context) {
    let queue = WorkQueue::default();
    let services = context.watch::<Service>(Resource::SERVICES);
    let slices = context.watch::<Slice>(Resource::ENDPOINT_SLICES);
    let pods = context.watch::<Pod>(Resource::PODS);
    let nodes = context.watch::<Node>(Resource::NODES);
    services.on_key(&queue);
    let writes = Arc::new(Writes::default());
    follow_slices(&slices, &queue, &writes);
    follow_pods(&pods, &services, &queue);
    let balance = Arc::new(Balance::default());
    balance.follow(&nodes, &services, &queue);
    let waits = vec![synced(&services), synced(&slices), synced(&pods), synced(&nodes)];
    let own = Reconciler {
        context: context.clone(),
        services,
        slices: by_service(&slices),
        pods: LabelIndex::of(&pods),
        nodes,
        writes,
        balance,
    };
    let state = (Arc::new(own), queue.clone());
    context.run(&queue, 5, waits, state, |(own, queue), key| async move {
        own.reconcile(&key, &queue).await
    });
}

/// Requeues a Service when one of its managed slices changes.
fn follow_slices(slices: &Watched<Slice>, queue: &WorkQueue<String>, writes: &Arc<Writes>) {
    let (queue, writes) = (queue.clone(), writes.clone());
    slices.on(move |change| {
        if let Some(slice) = change.new.or(change.old)
            && let Some(service) = slice.service()
            && slice.managed_by(MANAGER)
        {
            let key = format!("{}/{service}", slice.metadata.namespace);
            if change.new.is_none() {
                writes.forget(&key, &slice.metadata.name);
            }
            queue.add(key);
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
            self.writes.forget_service(key);
            self.balance.forget(key);
            return Ok(());
        };
        // Another client manages the slices of a Service without a selector; ExternalName has none.
        if service.spec.selector.is_empty() || service.spec.r#type == "ExternalName" {
            return Ok(());
        }
        if !self.writes.are_visible(key, &slices) {
            queue.add_after(key.to_owned(), Duration::from_millis(100));
            return Ok(());
        }
        let pods = self.pods.selected(&service.metadata.namespace, &service.selector());
        let zone = |node: &str| self.nodes.get(node)?.metadata.labels.get(hints::ZONE).cloned();
        let topology = Topology { zone: &zone, zones: &self.balance.zones(&self.nodes) };
        let size = self.context.config.max_endpoints_per_slice;
        let mut plan = plan::plan(&service, &pods, &slices, &topology, size);
        let outcomes = std::mem::take(&mut plan.balance);
        self.carry_out(key, &service, plan).await?;
        for notice in self.balance.record(key, outcomes) {
            let (events, object) = (&self.context.events, object(&service.metadata));
            if notice.is_warning {
                events.warning(object, notice.reason, notice.message);
            } else {
                events.normal(object, notice.reason, notice.message);
            }
        }
        Ok(())
    }

    async fn carry_out(&self, key: &str, service: &Service, plan: plan::Plan) -> Result<(), Error> {
        let namespace = &service.metadata.namespace;
        let resource = &Resource::ENDPOINT_SLICES;
        let client = &self.context.client;
        for slice in plan.create {
            match client.create::<_, WrittenSlice>(resource, namespace, &slice).await {
                Ok(written) => self.writes.record(key, &written.metadata),
                Err(error) if crate::api_error::namespace_is_terminating(&error) => return Ok(()),
                Err(error) => {
                    let message =
                        format!("Failed to create endpoint slice: {}", error.server_message());
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
            self.writes.record(key, &written.metadata);
        }
        for meta in plan.delete {
            let preconditions =
                Preconditions { uid: Some(meta.uid.clone()), resource_version: None };
            let options =
                DeleteOptions { preconditions: Some(preconditions), ..DeleteOptions::default() };
            client.delete(resource, namespace, &meta.name, &options).await.or_none()?;
            self.writes.forget(key, &meta.name);
        }
        Ok(())
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
