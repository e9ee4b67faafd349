//! The objects that dns-controller watches, as their claims.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use client::{Change, Client, Informer, ListOptions, Resource};
use kops_core::dns::{
    AddressOptions, Claims, DesiredRecords, NodeAddresses, ingress_claims, node_addresses,
    pod_claims, service_claims, wanted,
};
use serde::Deserialize;
use serde_json::Value;

macro_rules! projections {
    ($($name:ident $content:ident $read:path;)*) => {$(
        /// The part of an object that is kept.
        #[derive(Deserialize, PartialEq)]
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
        let all = ListOptions::default;
        let own = || ListOptions { namespace: namespace.to_owned(), ..all() };
        Self {
            nodes: Informer::start(client, Resource::NODES, all(), tasks, mark(&changed)),
            pods: Informer::start(client, Resource::PODS, own(), tasks, mark(&changed)),
            services: Informer::start(client, Resource::SERVICES, own(), tasks, mark(&changed)),
            ingresses: ingresses.then(|| {
                Informer::start(client, Resource::INGRESSES, own(), tasks, mark(&changed))
            }),
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

    /// Returns the records of all names if addresses or claims have changed since the last call.
    pub(super) fn wanted(&self, options: AddressOptions) -> Option<DesiredRecords> {
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

/// Returns an informer's handler that notes changes of addresses and claims. Most updates of Nodes and Pods are changes
/// of other fields.
fn mark<P: PartialEq>(changed: &Arc<AtomicBool>) -> impl Fn(Change<'_, P>) + Send + Sync + 'static {
    let changed = changed.clone();
    move |change| {
        if change.old != change.new {
            changed.store(true, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;
    use testkit::FakeApi;

    use super::*;
    use crate::dns_controller::tests::{api_server_pod, node};

    #[tokio::test]
    async fn ignores_changes_of_other_fields() {
        let api = FakeApi::default();
        api.create(&Resource::NODES, node("cp-1", "10.0.0.1")).await;
        api.create(&Resource::PODS, api_server_pod("cp-1", "10.0.0.1")).await;
        let tasks = rt::Tasks::new(rt::Shutdown::new());
        let watch = Watch::start(&api.client("test"), "", true, &tasks);
        watch.synced().await;
        let options = AddressOptions::default();
        assert!(watch.wanted(options).is_some());
        let pod = client::PatchTarget {
            namespace: "kube-system",
            name: "kube-apiserver-cp-1",
            subresource: "status",
        };
        for (status, is_relevant) in [
            (json!({"phase": "Running"}), false),
            (json!({"conditions": [{"type": "Ready", "status": "True"}]}), false),
            (json!({"phase": "Failed"}), true),
        ] {
            let before = watch.pods.list();
            api.merge(&Resource::PODS, pod, json!({"status": status})).await;
            // The informer calls the handler before another task sees the changed cache.
            let is_cached = || !Arc::ptr_eq(&before[0], &watch.pods.list()[0]);
            let (patience, pause) = (Duration::from_secs(20), Duration::from_millis(1));
            assert!(rt::wait_until(patience, pause, is_cached).await, "{status}");
            assert_eq!(watch.wanted(options).is_some(), is_relevant, "{status}");
        }
        tasks.shutdown().stop();
        tasks.drain(Duration::from_secs(5)).await;
    }
}
