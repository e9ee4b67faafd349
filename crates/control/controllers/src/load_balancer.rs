//! Gives addresses to Services of type LoadBalancer (service-lb-controller): those of nodes, as k3s's ServiceLB does,
//! or of ranges.
//!
//! The service proxy of each node serves the addresses in the Service's status, so no Pods are needed. Services with a
//! `loadBalancerClass` belong to other controllers.

mod model;
mod nodes;
mod plan;
mod ranges;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use api_meta::Tree as _;
use client::{Error, Index, NotFoundExt as _, PatchKind, PatchTarget, Resource, WorkQueue};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{
    context::{Context, synced},
    endpointslice::{Slice, by_service},
    pods::OwnerOf,
    shared::Watched,
    views::{Node, Service, is_true},
};
use model::{Decision, FINALIZER, Snapshot, concerns, is_local};

/// The only key of the queue. All Services are planned together, because each port and address has one owner.
const ALL: &str = "services";

struct Balancer {
    context: Context,
    services: Watched<Service>,
    nodes: Watched<Node>,
    slices: Index<Slice>,
    memory: Mutex<Memory>,
}

/// The results of earlier rounds.
#[derive(Default)]
struct Memory {
    /// The assigned addresses by the Services' UIDs.
    assigned: BTreeMap<String, Vec<IpAddr>>,
    /// The reported shortages by the Services' UIDs.
    reported: BTreeMap<String, String>,
}

pub(crate) fn start(context: Context) {
    let queue = WorkQueue::default();
    let services = context.watch::<Service>(Resource::SERVICES);
    let nodes = context.watch::<Node>(Resource::NODES);
    let slices = context.watch::<Slice>(Resource::ENDPOINT_SLICES);
    let add = queue.clone();
    services.on(move |change| {
        if change.old.into_iter().chain(change.new).any(|service| concerns(service)) {
            add.add(ALL.to_owned());
        }
    });
    let add = queue.clone();
    nodes.on(move |change| {
        if change.old.map(|node| NodeFacts::of(node)) != change.new.map(|node| NodeFacts::of(node))
        {
            add.add(ALL.to_owned());
        }
    });
    let (add, balanced) = (queue.clone(), services.clone());
    slices.on(move |change| {
        let of_local = |slice: &Slice| {
            let service = slice.service().unwrap_or_default();
            let is_api = slice.metadata.namespace == "default" && service == "kubernetes";
            let service = balanced.get(&format!("{}/{service}", slice.metadata.namespace));
            is_api || service.is_some_and(|own| concerns(&own) && is_local(&own))
        };
        if change.old.into_iter().chain(change.new).any(|slice| of_local(slice)) {
            add.add(ALL.to_owned());
        }
    });
    let waits = vec![synced(&services), synced(&nodes), synced(&slices)];
    let balancer = Arc::new(Balancer {
        context: context.clone(),
        services,
        nodes,
        slices: by_service(&slices),
        memory: Mutex::default(),
    });
    // One worker, so that each round knows the assignments of the one before.
    context.run(
        &queue,
        1,
        waits,
        balancer,
        |balancer, _| async move { balancer.reconcile().await },
    );
}

/// The part of a Node that plans depend on. Heartbeats do not change it.
#[derive(PartialEq)]
struct NodeFacts<'a> {
    ready: bool,
    terminating: bool,
    labels: &'a BTreeMap<String, String>,
    addresses: Vec<IpAddr>,
    kubelet_port: u16,
}

impl<'a> NodeFacts<'a> {
    fn of(node: &'a Node) -> Self {
        Self {
            ready: is_true(&node.status.conditions, "Ready"),
            terminating: node.metadata.terminating(),
            labels: &node.metadata.labels,
            addresses: node.status.internal_ips().collect(),
            kubelet_port: node.status.daemon_endpoints.kubelet_endpoint.port,
        }
    }
}

impl Balancer {
    async fn reconcile(&self) -> Result<(), Error> {
        let services: Vec<_> =
            self.services.list().into_iter().filter(|service| concerns(service)).collect();
        let nodes = self.nodes.list();
        let local = services
            .iter()
            .filter(|service| is_local(service))
            .map(|service| (service.metadata.key(), self.nodes_with_endpoint(service)))
            .collect();
        let assigned = self.memory(|memory| memory.assigned.clone());
        let api_servers = self.api_servers();
        let decisions = plan::plan(&Snapshot {
            source: &self.context.config.load_balancer,
            services: services.iter().map(AsRef::as_ref).collect(),
            nodes: nodes.iter().map(AsRef::as_ref).collect(),
            assigned: &assigned,
            local: &local,
            api_servers: &api_servers,
        });
        self.memory(|memory| {
            let exists: BTreeSet<&String> =
                decisions.iter().map(|(service, _)| &service.metadata.uid).collect();
            memory.assigned.retain(|uid, _| exists.contains(uid));
            memory.reported.retain(|uid, _| exists.contains(uid));
        });
        let mut result = Ok(());
        for (service, decision) in decisions {
            // The failure of one Service does not keep the others from their addresses.
            let written = self.carry_out(service, decision).await;
            result = result.and(written);
        }
        result
    }

    fn memory<T>(&self, change: impl FnOnce(&mut Memory) -> T) -> T {
        change(&mut self.memory.lock())
    }

    async fn carry_out(&self, service: &Service, decision: Decision) -> Result<(), Error> {
        let uid = service.metadata.uid.clone();
        let object = OwnerOf::new(Resource::SERVICES, &service.metadata).object();
        let events = &self.context.events;
        match decision {
            Decision::Assign { addresses, shortage } => {
                let ingress: Vec<Value> =
                    addresses.iter().map(|ip| json!({"ip": ip, "ipMode": "VIP"})).collect();
                let status = &service.status.load_balancer.ingress;
                let current: Vec<Value> = status
                    .iter()
                    .map(|ingress| json!({"ip": ingress.ip, "ipMode": ingress.ip_mode}))
                    .collect();
                let has_finalizer = service.metadata.finalizers.iter().any(|f| f == FINALIZER);
                // Recorded first: a write whose answer gets lost may have succeeded.
                self.memory(|memory| memory.assigned.insert(uid.clone(), addresses.clone()));
                if current != ingress || !(has_finalizer || addresses.is_empty()) {
                    let is_kept = has_finalizer || !addresses.is_empty();
                    self.write(service, json!(ingress), is_kept).await?;
                    if !addresses.is_empty() {
                        events.normal(
                            object.clone(),
                            "EnsuredLoadBalancer",
                            "Ensured load balancer",
                        );
                    }
                }
                self.report(&uid, shortage.map(|shortage| shortage.to_string()), |message| {
                    let message = format!("Error syncing load balancer: {message}");
                    events.warning(object, "SyncLoadBalancerFailed", message);
                });
            }
            Decision::Release => {
                self.write(service, Value::Null, false).await.or_none()?;
                self.memory(|memory| memory.assigned.remove(&uid));
                events.normal(object, "DeletedLoadBalancer", "Deleted load balancer");
            }
        }
        Ok(())
    }

    /// Reports a shortage once, and again after it has changed.
    fn report(&self, uid: &str, shortage: Option<String>, emit: impl FnOnce(&str)) {
        let is_new = self.memory(|memory| match &shortage {
            Some(message) => {
                memory.reported.insert(uid.to_owned(), message.clone()).as_ref() != Some(message)
            }
            None => {
                memory.reported.remove(uid);
                false
            }
        });
        if let Some(message) = shortage.filter(|_| is_new) {
            emit(&message);
        }
    }

    /// Writes addresses and finalizer together. Upstream's role lets the controller patch the status only, and a patch
    /// of the status may change the metadata. The `resourceVersion` keeps other finalizers.
    async fn write(&self, service: &Service, ingress: Value, keep: bool) -> Result<(), Error> {
        let meta = &service.metadata;
        let mut finalizers = meta.finalizers.clone();
        finalizers.retain(|finalizer| finalizer != FINALIZER);
        if keep {
            finalizers.push(FINALIZER.to_owned());
        }
        let mut patch = json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version,
            "finalizers": finalizers}});
        patch.put(&["status", "loadBalancer", "ingress"], ingress);
        let at =
            PatchTarget { namespace: &meta.namespace, name: &meta.name, subresource: "status" };
        let client = &self.context.client;
        client.patch::<Value>(&Resource::SERVICES, at, PatchKind::Merge, &patch).await.map(drop)
    }

    /// Returns the names of the nodes that have a ready endpoint of the Service.
    fn nodes_with_endpoint(&self, service: &Service) -> BTreeSet<String> {
        let slices = self.slices.get(&service.metadata.key());
        let endpoints = slices.iter().flat_map(|slice| &slice.endpoints);
        let ready = endpoints.filter(|endpoint| endpoint.conditions.ready);
        ready.filter_map(|endpoint| endpoint.node_name.clone()).collect()
    }

    /// Returns the endpoints of the API servers.
    fn api_servers(&self) -> BTreeSet<SocketAddr> {
        let mut servers = BTreeSet::new();
        for slice in self.slices.get("default/kubernetes") {
            let ports = slice.ports.iter().filter_map(|port| u16::try_from(port.port?).ok());
            let ports: Vec<u16> = ports.collect();
            let addresses = slice.endpoints.iter().flat_map(|endpoint| &endpoint.addresses);
            for ip in addresses.filter_map(|ip| ip.parse::<IpAddr>().ok()) {
                servers.extend(ports.iter().map(|port| SocketAddr::new(ip, *port)));
            }
        }
        servers
    }
}
