//! Resizes containers and Pods in place.

use k8s_openapi::api::core::v1::Pod;
use pod_core::{
    Member, Observed,
    resize::{actual, current_limits, loosest},
    resources::{container_amounts, pod_cgroup, pod_level},
};

use super::{limits, sandbox};
use crate::context::Context;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ResizeError {
    #[error("set the limits of the Pod's cgroup: {0}")]
    Group(#[from] sys::Error),
    #[error(transparent)]
    Runtime(#[from] cri::Error),
    #[error("attempting to set pod memory limit ({limit}) below current usage ({used})")]
    InUse { limit: i64, used: u64 },
}

/// Applies the resources of the Pod's spec to a running container.
pub(crate) async fn resize(
    ctx: &Context,
    pod: &Pod,
    member: &Member<'_>,
    id: &str,
    observed: &Observed,
) -> Result<(), ResizeError> {
    let container = member.container.as_ref();
    let amounts = container_amounts(pod_level(pod), container.resources.as_ref());
    let running = observed.containers.iter().find(|c| c.id == id);
    let has = running
        .map(|has| container_amounts(has.shared.as_ref(), has.resources.as_ref()))
        .unwrap_or_default();
    if is_less(amounts.memory_limit, has.memory_limit) {
        // The kernel would kill the container's processes, or reject the limit.
        check_use(amounts.memory_limit, memory_used(ctx, id).await?)?;
    }
    // While a container changes, the Pod's limits must allow the old and the new values.
    allow_both(ctx, pod, observed)?;
    let limits = limits::of_container(ctx, pod, container);
    ctx.cri.update_container_resources(id, limits).await?;
    let mut now = observed.clone();
    now.containers.iter_mut().filter(|c| c.id == id).for_each(|c| {
        c.resources.clone_from(&container.resources);
        c.shared = pod_level(pod).cloned();
    });
    Ok(follow_resources(ctx, pod, &now)?)
}

/// Sets the Pod's cgroup to limits that allow the resources of its containers before and after a resize.
pub(crate) fn allow_both(ctx: &Context, pod: &Pod, observed: &Observed) -> Result<(), sys::Error> {
    sandbox::limit_pod(ctx, pod, loosest(&actual(pod, observed), pod))
}

/// Applies the resources that the Pod's containers share. Call it after the containers were resized.
pub(crate) fn resize_pod(ctx: &Context, pod: &Pod, observed: &Observed) -> Result<(), ResizeError> {
    let after = Observed { shared: pod_level(pod).cloned(), ..observed.clone() };
    let limits = pod_cgroup(&actual(pod, &after));
    if is_less(limits.memory, pod_cgroup(&actual(pod, observed)).memory) {
        let usage = ctx.cgroups.usage(&sandbox::pod_group(ctx, pod))?;
        check_use(limits.memory, usage.memory.working_set())?;
    }
    Ok(sandbox::limit_pod(ctx, pod, limits)?)
}

/// Reports whether a limit is lower than the current one. Zero is no limit.
fn is_less(limit: i64, current: i64) -> bool {
    limit > 0 && (current == 0 || limit < current)
}

fn check_use(limit: i64, used: u64) -> Result<(), ResizeError> {
    if used > limit.unsigned_abs() { Err(ResizeError::InUse { limit, used }) } else { Ok(()) }
}

/// Sets a Pod's limits to the resources that its containers have. A container that is about to restart counts with its
/// new resources.
pub(crate) fn follow_resources(
    ctx: &Context,
    pod: &Pod,
    observed: &Observed,
) -> Result<(), sys::Error> {
    sandbox::limit_pod(ctx, pod, current_limits(pod, observed))
}

async fn memory_used(ctx: &Context, id: &str) -> Result<u64, cri::Error> {
    let stats = ctx.cri.list_container_stats().await?;
    let own = stats.into_iter().find(|s| s.attributes.as_ref().is_some_and(|a| a.id == id));
    let used = own.and_then(|s| s.memory?.working_set_bytes);
    Ok(used.map_or(0, |bytes| bytes.value))
}
