//! The Pods that the API server binds to this node.

use client::{Informer, ListOptions, Resource};
use k8s_openapi::api::core::v1::Pod;
use pod_core::namespaced_name;

use crate::{context::Context, mirrors, pods::Pods};

/// Starts an informer on this node's Pods. The caller must keep it alive.
pub(crate) fn start(
    client: &client::Client,
    ctx: &std::sync::Arc<Context>,
    pods: &Pods,
) -> Informer<Pod> {
    let options = ListOptions::fields(&format!("spec.nodeName={}", ctx.settings.node_name));
    let (ctx, pods) = (ctx.clone(), pods.clone());
    let tasks = ctx.tasks.clone();
    Informer::start(client, Resource::PODS, options, &tasks, move |change| {
        let mirror_of = |pod: &Pod| mirrors::hash(pod).is_some();
        match (change.old, change.new) {
            (old, Some(pod)) if mirror_of(pod) => {
                if let Some(old) =
                    old.filter(|old| old.metadata.uid != pod.metadata.uid && !mirror_of(old))
                {
                    pods.end_removed(old.metadata.uid.as_deref().unwrap_or_default());
                }
                ctx.mirrors.set(pod);
                pods.wake_named(&namespaced_name(pod));
            }
            (old, Some(pod)) => {
                // A Pod of the same name but another UID: the deletion of the old Pod was missed.
                if let Some(old) = old.filter(|old| old.metadata.uid != pod.metadata.uid) {
                    pods.end_removed(old.metadata.uid.as_deref().unwrap_or_default());
                }
                pods.run_pod(pod.clone());
            }
            (Some(old), None) if mirror_of(old) => ctx.mirrors.remove(old),
            (Some(old), None) => pods.end_removed(old.metadata.uid.as_deref().unwrap_or_default()),
            (None, None) => {}
        }
    })
}
