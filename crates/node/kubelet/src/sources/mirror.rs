//! Mirror Pods: API objects that show static Pods.

use api_meta::{PartialObject, Tree as _};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use client::{Client, DeleteOptions, Preconditions, Resource};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use pod_core::namespaced_name;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};

use super::adopt::HASH;
use crate::context::Context;

const MIRROR: &str = "kubernetes.io/config.mirror";
/// The delay before a mirror Pod is created again after a failure.
const AGAIN: Duration = Duration::from_secs(5);

/// Returns the hash of the static Pod that this Pod mirrors, or `None` for any other Pod.
pub(crate) fn hash(pod: &Pod) -> Option<&String> {
    pod.metadata.annotations.as_ref()?.get(MIRROR)
}

/// The mirror Pods at the API server, by namespace and name.
#[derive(Default)]
pub(crate) struct Mirrors {
    known: Mutex<HashMap<String, Mirror>>,
    changed: Notify,
}

#[derive(Clone)]
struct Mirror {
    uid: String,
    hash: String,
    deleting: bool,
    version: Option<String>,
    status: Option<PodStatus>,
}

impl Mirrors {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Mirror>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, pod: &Pod) {
        let mirror = Mirror {
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            hash: hash(pod).cloned().unwrap_or_default(),
            deleting: pod.metadata.deletion_timestamp.is_some(),
            version: pod.metadata.resource_version.clone(),
            status: pod.status.clone(),
        };
        self.lock().insert(namespaced_name(pod), mirror);
        self.changed.notify_one();
    }

    pub(crate) fn remove(&self, pod: &Pod) {
        self.lock().remove(&namespaced_name(pod));
        self.changed.notify_one();
    }

    /// Returns the UID of a static Pod's mirror, if the mirror shows the present version of the Pod.
    pub(crate) fn uid(&self, pod: &Pod) -> Option<String> {
        let hash = pod.metadata.annotations.as_ref()?.get(HASH)?;
        self.lock().get(&namespaced_name(pod)).filter(|m| m.hash == *hash).map(|m| m.uid.clone())
    }

    /// Returns a Pod's status at the API server: its own, or that of its mirror if the Pod is static.
    pub(crate) fn api_status(&self, pod: &Pod) -> Option<PodStatus> {
        self.api_version_and_status(pod).1
    }

    /// Returns the resourceVersion and the status of the Pod or its mirror.
    pub(crate) fn api_version_and_status(&self, pod: &Pod) -> (Option<String>, Option<PodStatus>) {
        if !pod_core::is_static(pod) {
            return (pod.metadata.resource_version.clone(), pod.status.clone());
        }
        let hash = pod.metadata.annotations.as_ref().and_then(|a| a.get(HASH));
        let known = self.lock();
        let mirror = known.get(&namespaced_name(pod)).filter(|m| Some(&m.hash) == hash);
        mirror.map(|m| (m.version.clone(), m.status.clone())).unwrap_or_default()
    }
}

/// Keeps mirror Pods in sync with the static Pods.
pub(crate) async fn run(
    ctx: Arc<Context>,
    client: Client,
    mut current: watch::Receiver<Vec<Arc<Pod>>>,
) {
    loop {
        let wanted = current.borrow_and_update().clone();
        let complete = reconcile(&ctx, &client, &wanted).await;
        let wait = async {
            if complete {
                ctx.mirrors.changed.notified().await;
            } else {
                tokio::time::sleep(AGAIN).await;
            }
        };
        tokio::select! {
            () = wait => {}
            _ = current.changed() => {}
        }
    }
}

/// Deletes outdated mirrors and creates missing ones. Returns `false` if any of that failed.
async fn reconcile(ctx: &Context, client: &Client, wanted: &[Arc<Pod>]) -> bool {
    let known = ctx.mirrors.lock().clone();
    let mut complete = true;
    for (name, mirror) in &known {
        let fits = wanted
            .iter()
            .any(|pod| namespaced_name(pod) == *name && ctx.mirrors.uid(pod).is_some());
        if !fits || mirror.deleting {
            complete &= delete(client, name, mirror).await;
        }
    }
    for pod in wanted.iter().filter(|pod| !known.contains_key(&namespaced_name(pod))) {
        if let Err(error) = create(ctx, client, pod).await {
            tracing::warn!(pod = %namespaced_name(pod), %error, "create a mirror Pod; trying again");
            complete = false;
        }
    }
    complete
}

async fn delete(client: &Client, name: &str, mirror: &Mirror) -> bool {
    let (namespace, name) = name.split_once('/').unwrap_or_default();
    let options = DeleteOptions {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions {
            uid: Some(mirror.uid.clone()),
            resource_version: None,
        }),
        ..DeleteOptions::default()
    };
    match client.delete(&Resource::PODS, namespace, name, &options).await {
        Ok(()) => true,
        Err(error) => {
            tracing::debug!(namespace, name, %error, "delete a mirror Pod");
            error.is_not_found() || error.is_conflict()
        }
    }
}

async fn create(ctx: &Context, client: &Client, pod: &Pod) -> Result<(), client::Error> {
    let node: PartialObject = client.get(&Resource::NODES, "", &ctx.settings.node_name).await?;
    let mut mirror = pod.clone();
    let hash =
        pod.metadata.annotations.as_ref().and_then(|a| a.get(HASH)).cloned().unwrap_or_default();
    mirror.metadata.uid = None;
    mirror.metadata.annotations.get_or_insert_default().insert(MIRROR.to_owned(), hash);
    let mut object = serde_json::to_value(&mirror).unwrap_or_default();
    object.put(
        &["metadata", "ownerReferences"],
        json!([{
            "apiVersion": "v1",
            "kind": "Node",
            "name": ctx.settings.node_name,
            "uid": node.metadata.uid,
            "controller": true,
        }]),
    );
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    match client.create::<_, Value>(&Resource::PODS, namespace, &object).await {
        Ok(_) => Ok(()),
        Err(error) if error.is_already_exists() => Ok(()),
        Err(error) => Err(error),
    }
}
