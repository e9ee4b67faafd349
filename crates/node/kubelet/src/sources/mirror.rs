//! Mirror Pods: API objects that show static Pods.

use api_meta::{PartialObject, Tree as _};
use std::{sync::Arc, time::Duration};

use client::{Client, DeleteOptions, Preconditions, Resource};
use k8s_openapi::api::core::v1::Pod;
use pod_core::namespaced_name;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::manifest::StaticPods;
use crate::{
    annotations::{HASH, MIRROR},
    context::Context,
    mirrors::Mirror,
};

/// The delay before a mirror Pod is created again after a failure.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// Keeps mirror Pods in sync with the static Pods.
pub(crate) async fn run(
    ctx: Arc<Context>,
    client: Client,
    mut current: watch::Receiver<StaticPods>,
) {
    loop {
        let static_pods: Vec<Arc<Pod>> =
            current.borrow_and_update().values().flatten().cloned().collect();
        let complete = reconcile(&ctx, &client, &static_pods).await;
        let wait = async {
            if complete {
                ctx.mirrors.changed().await;
            } else {
                tokio::time::sleep(RETRY_DELAY).await;
            }
        };
        tokio::select! {
            () = wait => {}
            _ = current.changed() => {}
        }
    }
}

/// Deletes outdated mirrors and creates missing ones. Returns `false` if any of that failed.
async fn reconcile(ctx: &Context, client: &Client, static_pods: &[Arc<Pod>]) -> bool {
    let mirrors = ctx.mirrors.all();
    let mut complete = true;
    for (name, mirror) in &mirrors {
        let fits = static_pods
            .iter()
            .any(|pod| namespaced_name(pod) == *name && ctx.mirrors.uid(pod).is_some());
        if !fits || mirror.deleting {
            complete &= delete(client, name, mirror).await;
        }
    }
    for pod in static_pods.iter().filter(|pod| !mirrors.contains_key(&namespaced_name(pod))) {
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
