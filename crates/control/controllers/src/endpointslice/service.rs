//! Functions on Services that the controllers of EndpointSlices and of Endpoints share.

use std::time::Duration;

use client::WorkQueue;
use serde_json::{Value, json};

use crate::{
    indexes::Selectors,
    shared::Watched,
    views::{Labels, Pod, Service},
};

/// Requeues the Services that select or selected a changed Pod. A short delay batches changes.
pub(super) fn follow_pods(
    pods: &Watched<Pod>,
    services: &Watched<Service>,
    queue: &WorkQueue<String>,
) {
    let (queue, services) = (queue.clone(), Selectors::of(services));
    pods.on(move |change| {
        if let (Some(old), Some(new)) = (change.old, change.new)
            && old.metadata.labels == new.metadata.labels
            && old.status == new.status
            && old.metadata.deletion_timestamp == new.metadata.deletion_timestamp
            && old.spec.node_name == new.spec.node_name
        {
            return;
        }
        let relabelled = change
            .old
            .filter(|old| change.new.is_none_or(|new| new.metadata.labels != old.metadata.labels));
        for Pod { metadata, .. } in relabelled.into_iter().chain(change.new).map(|pod| &**pod) {
            for key in services.keys(&metadata.namespace, &metadata.labels) {
                queue.add_after(key, Duration::from_millis(20));
            }
        }
    });
}

/// Returns the labels of a Service's slices: the Service's labels, the headless label and `own`.
pub(super) fn labels_for(service: &Service, own: &[(&str, &str)]) -> Value {
    let mut labels: Labels = service.metadata.labels.clone();
    if service.spec.cluster_ip.as_deref() == Some("None") {
        labels.insert("service.kubernetes.io/headless".into(), String::new());
    } else {
        labels.remove("service.kubernetes.io/headless");
    }
    labels.extend(own.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
    json!(labels)
}
