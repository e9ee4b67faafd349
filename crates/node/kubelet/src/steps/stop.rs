//! Stops containers.

use std::{collections::BTreeSet, time::Duration};

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use pod_core::{Member, Observed, members, stop_stages};
use tokio::time::Instant;

use super::hooks;
use crate::context::Context;

/// The least time between SIGTERM and SIGKILL, however long the hook took. It does not apply to forced deletion.
const LEAST_GRACE: Duration = Duration::from_secs(2);

/// Stops one container: runs its hook, sends SIGTERM, and sends SIGKILL when the grace period has passed.
pub(crate) async fn kill(
    ctx: &Context,
    pod: &Pod,
    member: &Member<'_>,
    id: &str,
    message: &str,
    grace: Duration,
    with_hook: bool,
) {
    let container = member.container.as_ref();
    let started = Instant::now();
    let text = if message.is_empty() {
        format!("Stopping container {}", container.name)
    } else {
        message.to_owned()
    };
    ctx.events.of_container(pod, &container.name, "Normal", "Killing", text);
    let hook = container
        .lifecycle
        .as_ref()
        .and_then(|l| l.pre_stop.as_ref())
        .filter(|_| with_hook && !grace.is_zero());
    if let Some(hook) = hook {
        let ip = pod.status.as_ref().and_then(|s| s.pod_ip.clone()).unwrap_or_default();
        let ran = tokio::time::timeout(grace, hooks::run(ctx, pod, &ip, container, id, hook)).await;
        let failure = match ran {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => {
                Some(format!("it did not finish within the grace period of {}s", grace.as_secs()))
            }
        };
        if let Some(failure) = failure {
            tracing::warn!(pod = %pod_core::namespaced_name(pod), container = %container.name, failure, "run a \
                 container's preStop hook");
            let text = "PreStopHook failed".to_owned();
            ctx.events.of_container(pod, &container.name, "Warning", "FailedPreStopHook", text);
        }
    }
    let left = if grace.is_zero() {
        grace
    } else {
        grace.saturating_sub(started.elapsed()).max(LEAST_GRACE)
    };
    match ctx.cri.stop_container(id, left).await {
        Err(error) if !error.is_not_found() => {
            tracing::warn!(
                pod = %pod_core::namespaced_name(pod),
                container = %container.name,
                %error,
                "stop a container"
            );
        }
        _ => {}
    }
}

/// Stops all containers of a Pod in order. The future may be dropped and the function called again: `hooked` has the
/// containers whose hook has run, so each hook runs once.
pub(crate) async fn stop_all(
    ctx: &Context,
    pod: &Pod,
    observed: &Observed,
    grace: Duration,
    hooked: &Mutex<BTreeSet<String>>,
) {
    let started = Instant::now();
    let members = members(pod);
    for stage in stop_stages(pod, observed) {
        let left = grace.saturating_sub(started.elapsed());
        let left = if grace.is_zero() { grace } else { left.max(LEAST_GRACE) };
        let kills = stage.into_iter().map(|container| {
            let member = members.iter().find(|m| m.container.name == container.name);
            async move {
                match member {
                    Some(member) => {
                        let first = hooked.lock().insert(container.id.clone());
                        kill(ctx, pod, member, &container.id, "", left, first).await;
                    }
                    None => drop(ctx.cri.stop_container(&container.id, left).await),
                }
            }
        });
        join_all(kills).await;
    }
}
