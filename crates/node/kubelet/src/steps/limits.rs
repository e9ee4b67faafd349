//! The kernel's limits of containers.

use cri::v1;
use k8s_openapi::api::core::v1::{Container, Pod};
use kubelet_config::Settings;
use pod_core::{
    huge_pages,
    memory_limits::MemoryPolicy,
    resources::{self, whole},
};
use sys::cgroup::Version;

use crate::{context::Context, node::capacity};

/// Returns the period of CPU quotas in microseconds.
pub(super) fn cpu_period(settings: &Settings) -> i64 {
    i64::try_from(settings.kernel.cpu_period.as_micros()).unwrap_or(i64::MAX)
}

/// Returns the node's policy for memory beyond limits. Cgroup v1 has none.
pub(super) fn memory_policy(ctx: &Context) -> MemoryPolicy {
    if ctx.cgroups.version() == Version::V1 {
        return MemoryPolicy::default();
    }
    let kernel = &ctx.settings.kernel;
    let bytes = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let has_swap = ctx.machine.swap > 0 && ctx.cgroups.limits_swap(&ctx.settings.cgroups.pods());
    let allocatable = kernel.memory_qos.map_or(0, |_| {
        capacity::allocatable(&ctx.machine, &ctx.settings).get("memory").map_or(0, whole)
    });
    MemoryPolicy {
        capacity: bytes(ctx.machine.memory),
        allocatable,
        swap: has_swap.then(|| bytes(ctx.machine.swap)),
        limited_swap: kernel.limited_swap,
        throttling_factor: kernel.memory_qos.map(|qos| qos.throttling_factor),
        reserve: kernel.memory_qos.is_some_and(|qos| qos.reserve),
    }
}

/// Returns the limits of a container.
pub(super) fn of_container(
    ctx: &Context,
    pod: &Pod,
    container: &Container,
) -> v1::LinuxContainerResources {
    let shared = resources::pod_level(pod);
    let amounts = resources::container_amounts(shared, container.resources.as_ref());
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let period = cpu_period(&ctx.settings);
    let quota =
        if ctx.settings.cpu_quota { resources::cpu_quota(amounts.cpu_limit, period) } else { 0 };
    // A container with exclusive CPUs is not throttled.
    let own = quota > 0 && !ctx.placement.exclusive(uid, &container.name).is_empty();
    let memory = i64::try_from(ctx.machine.memory).unwrap_or(i64::MAX);
    let mut unified = memory_policy(ctx).of_container(pod, &amounts);
    // An out-of-memory kill ends all processes of a container, unless that is turned off.
    let single = ctx.settings.kernel.single_process_oom_kill.unwrap_or(false);
    if ctx.cgroups.version() == Version::V2 && !single {
        unified.insert("memory.oom.group".to_owned(), "1".to_owned());
    }
    v1::LinuxContainerResources {
        cpu_shares: resources::cpu_shares(amounts.cpu_request),
        cpu_quota: if own { -1 } else { quota },
        cpu_period: if quota > 0 { period } else { 0 },
        memory_limit_in_bytes: amounts.memory_limit,
        oom_score_adj: resources::oom_score_adj(pod, amounts.memory_request, memory),
        unified: unified.into_iter().collect(),
        cpuset_cpus: ctx
            .placement
            .cpus(uid, &container.name)
            .map(|cpus| cpus.to_string())
            .unwrap_or_default(),
        cpuset_mems: ctx.placement.memory_nodes(uid, &container.name),
        hugepage_limits: huge_page_limits(ctx, pod, container),
        ..Default::default()
    }
}

fn huge_page_limits(ctx: &Context, pod: &Pod, container: &Container) -> Vec<v1::HugepageLimit> {
    let limits = ctx.machine.huge_page_limits(&huge_pages::of_container(pod, container));
    let limit = |(size, limit)| v1::HugepageLimit { page_size: sys::huge_page_unit(size), limit };
    limits.into_iter().map(limit).collect()
}
