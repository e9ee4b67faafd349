//! Resizes containers and Pods in place.

use k8s_openapi::api::core::v1::Pod;
use pod_core::{
    Member, Observed,
    resize::{actual, loosest},
    resources::{Amounts, pod_cgroup},
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
    let amounts = container.resources.as_ref().map(Amounts::of).unwrap_or_default();
    let running = observed.containers.iter().find(|c| c.id == id);
    let has = running.and_then(|c| c.resources.as_ref()).map(Amounts::of).unwrap_or_default();
    let less = amounts.memory_limit > 0
        && (has.memory_limit == 0 || amounts.memory_limit < has.memory_limit);
    if less {
        // The kernel would kill the container's processes, or reject the limit.
        let used = memory_used(ctx, id).await?;
        if used > amounts.memory_limit.unsigned_abs() {
            return Err(ResizeError::InUse { limit: amounts.memory_limit, used });
        }
    }
    // While a container changes, the Pod's limits must allow the old and the new values.
    let before = actual(pod, observed);
    sandbox::limit_pod(ctx, pod, loosest(&before, pod))?;
    let limits = limits::of_container(ctx, pod, container);
    ctx.cri.update_container_resources(id, limits).await?;
    let mut now = observed.clone();
    now.containers
        .iter_mut()
        .filter(|c| c.id == id)
        .for_each(|c| c.resources.clone_from(&container.resources));
    Ok(follow_resources(ctx, pod, &now)?)
}

/// Sets a Pod's limits to the resources that its containers have. A container that is about to restart counts with its
/// new resources.
pub(crate) fn follow_resources(
    ctx: &Context,
    pod: &Pod,
    observed: &Observed,
) -> Result<(), sys::Error> {
    sandbox::limit_pod(ctx, pod, pod_cgroup(&actual(pod, observed)))
}

async fn memory_used(ctx: &Context, id: &str) -> Result<u64, cri::Error> {
    let stats = ctx.cri.list_container_stats().await?;
    let own = stats.into_iter().find(|s| s.attributes.as_ref().is_some_and(|a| a.id == id));
    let used = own.and_then(|s| s.memory?.working_set_bytes);
    Ok(used.map_or(0, |bytes| bytes.value))
}
