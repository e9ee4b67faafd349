//! Pods that the API binds to this node.

use client::{Informer, ListOptions, Resource};
use k8s_openapi::api::core::v1::Pod;
use pod_core::namespaced_name;

use super::mirror;
use crate::{context::Context, pods::Pods};

/// Follows the API's Pods of this node; the informer is to be kept alive.
pub(crate) fn start(
    client: &client::Client,
    ctx: &std::sync::Arc<Context>,
    pods: &Pods,
) -> Informer<Pod> {
    let options = ListOptions::fields(&format!("spec.nodeName={}", ctx.settings.node_name));
    let (ctx, pods) = (ctx.clone(), pods.clone());
    let tasks = ctx.tasks.clone();
    Informer::start(client, Resource::PODS, options, &tasks, move |change| {
        let mirror_of = |pod: &Pod| mirror::hash(pod).is_some();
        match (change.old, change.new) {
            (old, Some(pod)) if mirror_of(pod) => {
                if let Some(old) =
                    old.filter(|old| old.metadata.uid != pod.metadata.uid && !mirror_of(old))
                {
                    pods.gone(old.metadata.uid.as_deref().unwrap_or_default());
                }
                ctx.mirrors.set(pod);
                pods.wake_named(&namespaced_name(pod));
            }
            (old, Some(pod)) => {
                // One name, another Pod: the old one was deleted while nobody watched.
                if let Some(old) = old.filter(|old| old.metadata.uid != pod.metadata.uid) {
                    pods.gone(old.metadata.uid.as_deref().unwrap_or_default());
                }
                pods.want(pod.clone());
            }
            (Some(old), None) if mirror_of(old) => ctx.mirrors.remove(old),
            (Some(old), None) => pods.gone(old.metadata.uid.as_deref().unwrap_or_default()),
            (None, None) => {}
        }
    })
}
