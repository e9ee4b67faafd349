//! The objects that dns-controller watches, as their claims.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use client::{Client, Informer, ListOptions, Resource};
use kops_core::dns::{
    AddressOptions, Claims, NodeAddresses, Wanted, ingress_claims, node_addresses, pod_claims,
    service_claims, wanted,
};
use serde::Deserialize;
use serde_json::Value;

macro_rules! projections {
    ($($name:ident $content:ident $read:path;)*) => {$(
        /// The part of an object that is kept.
        #[derive(Deserialize)]
        #[serde(from = "Value")]
        struct $name($content);

        impl From<Value> for $name {
            fn from(object: Value) -> Self {
                Self($read(&object))
            }
        }
    )*};
}

projections! {
    Node NodeAddresses node_addresses;
    Pod Claims pod_claims;
    Service Claims service_claims;
    Ingress Claims ingress_claims;
}

/// The watched objects.
pub(super) struct Watch {
    nodes: Informer<Node>,
    pods: Informer<Pod>,
    services: Informer<Service>,
    ingresses: Option<Informer<Ingress>>,
    changed: Arc<AtomicBool>,
}

impl Watch {
    /// Starts to watch the objects of a namespace, or of all if it is empty.
    pub(super) fn start(
        client: &Client,
        namespace: &str,
        ingresses: bool,
        tasks: &rt::Tasks,
    ) -> Self {
        let changed = Arc::new(AtomicBool::new(true));
        let options = || ListOptions { namespace: namespace.to_owned(), ..ListOptions::default() };
        macro_rules! informer {
            ($resource:expr, $options:expr) => {{
                let changed = changed.clone();
                Informer::start(client, $resource, $options, tasks, move |_| {
                    changed.store(true, Ordering::Release);
                })
            }};
        }
        Self {
            nodes: informer!(Resource::NODES, ListOptions::default()),
            pods: informer!(Resource::PODS, options()),
            services: informer!(Resource::SERVICES, options()),
            ingresses: ingresses.then(|| informer!(Resource::INGRESSES, options())),
            changed,
        }
    }

    /// Waits until all objects are listed. Before that, names would lose addresses.
    pub(super) async fn synced(&self) {
        self.nodes.synced().await;
        self.pods.synced().await;
        self.services.synced().await;
        if let Some(ingresses) = &self.ingresses {
            ingresses.synced().await;
        }
    }

    /// Returns the records of all names if an object has changed since the last call.
    pub(super) fn wanted(&self, options: AddressOptions) -> Option<Wanted> {
        if !self.changed.swap(false, Ordering::AcqRel) {
            return None;
        }
        let (nodes, pods, services) = (self.nodes.list(), self.pods.list(), self.services.list());
        let ingresses = self.ingresses.as_ref().map(Informer::list).unwrap_or_default();
        let claims = (pods.iter().map(|pod| &pod.0))
            .chain(services.iter().map(|service| &service.0))
            .chain(ingresses.iter().map(|ingress| &ingress.0));
        Some(wanted(nodes.iter().map(|node| &node.0), claims, options))
    }
}
