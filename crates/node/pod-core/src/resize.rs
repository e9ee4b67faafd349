//! Resizes running containers in place.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, Pod, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};

use crate::{
    observed::Observed,
    resources::{Amounts, CgroupLimits, milli, pod_amounts, pod_cgroup, whole},
    spec::is_static,
};

/// The resources of a Pod's containers by name.
pub type ContainerResources = BTreeMap<String, ResourceRequirements>;

/// Returns the resources in a Pod's spec.
pub fn container_resources(pod: &Pod) -> ContainerResources {
    let one = |c: &Container| (c.name.clone(), c.resources.clone().unwrap_or_default());
    pod.spec.iter().flat_map(containers).map(one).collect()
}

fn containers(spec: &k8s_openapi::api::core::v1::PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers.iter().flatten().chain(&spec.containers)
}

/// Returns a copy of the Pod with these resources in its spec.
pub fn with_resources(pod: &Pod, resources: &ContainerResources) -> Pod {
    let mut pod = pod.clone();
    if let Some(spec) = &mut pod.spec {
        let all = spec.init_containers.iter_mut().flatten().chain(&mut spec.containers);
        for container in all {
            if let Some(own) = resources.get(&container.name) {
                container.resources = Some(own.clone());
            }
        }
    }
    pod
}

/// Reports whether the containers of two Pods have different amounts of a resource (`cpu` or `memory`).
pub fn differs(pod: &Pod, other: &Pod, name: &str) -> bool {
    let amounts = |pod: &Pod| -> Vec<(i64, i64)> {
        let of = |container: &Container| {
            let amounts = container.resources.as_ref().map(Amounts::of).unwrap_or_default();
            match name {
                "cpu" => (amounts.cpu_request, amounts.cpu_limit),
                _ => (amounts.memory_request, amounts.memory_limit),
            }
        };
        pod.spec.iter().flat_map(containers).map(of).collect()
    };
    amounts(pod) != amounts(other)
}

/// Returns the resources that an earlier kubelet had allocated: those of the spec, unless the status reports others.
pub fn recover_resources(pod: &Pod) -> ContainerResources {
    let mut all = container_resources(pod);
    let statuses = pod.status.iter().flat_map(|s| {
        s.container_statuses.iter().flatten().chain(s.init_container_statuses.iter().flatten())
    });
    for status in statuses {
        let (Some(resources), Some(allocated), Some(actual)) =
            (all.get_mut(&status.name), &status.allocated_resources, &status.resources)
        else {
            continue;
        };
        if resources.requests.as_ref().is_some_and(|requests| requests != allocated) {
            *resources = actual.clone();
        }
    }
    all
}

/// The reason why a resize is pending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// `Deferred` or `Infeasible`.
    pub reason: &'static str,
    /// The explanation for the condition.
    pub message: String,
}

/// Checks whether a running Pod can be resized beside the `others` on the node.
pub fn consider<'a>(
    pod: &Pod,
    allocatable: &BTreeMap<String, Quantity>,
    others: impl Iterator<Item = &'a Pod> + Clone,
) -> Result<(), Pending> {
    let infeasible = |message: String| Pending { reason: "Infeasible", message };
    if is_static(pod) {
        return Err(infeasible("In-place resize of static-pods is not supported".to_owned()));
    }
    let amount = |pod: &Pod, name: &str| {
        let amounts = pod_amounts(pod);
        if name == "cpu" { amounts.cpu_request } else { amounts.memory_request }
    };
    let capacity = |name: &str| {
        let read = if name == "cpu" { milli } else { whole };
        allocatable.get(name).map_or(i64::MAX, read)
    };
    for name in ["cpu", "memory"] {
        let (requested, capacity) = (amount(pod, name), capacity(name));
        if requested > capacity {
            return Err(infeasible(format!(
                "Node didn't have enough capacity: {name}, requested: {requested}, capacity: {capacity}"
            )));
        }
    }
    for name in ["cpu", "memory"] {
        let (requested, capacity) = (amount(pod, name), capacity(name));
        let used: i64 = others.clone().map(|other| amount(other, name)).sum();
        if requested > capacity.saturating_sub(used) {
            return Err(Pending {
                reason: "Deferred",
                message: format!(
                    "Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: \
                     {capacity}"
                ),
            });
        }
    }
    Ok(())
}

/// The action for a running container whose resources differ from the allocated ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    InPlace,
    Restart,
}

pub(crate) fn change(has: &ResourceRequirements, container: &Container) -> Option<Change> {
    let allocated = container.resources.as_ref().map(Amounts::of).unwrap_or_default();
    let has = Amounts::of(has);
    let changed = [
        ("cpu", (has.cpu_request, has.cpu_limit) != (allocated.cpu_request, allocated.cpu_limit)),
        (
            "memory",
            (has.memory_request, has.memory_limit)
                != (allocated.memory_request, allocated.memory_limit),
        ),
    ];
    let policies = || container.resize_policy.iter().flatten();
    let restarts = |name: &str| {
        policies().any(|p| p.resource_name == name && p.restart_policy == "RestartContainer")
    };
    let mut changed = changed.into_iter().filter(|(_, changed)| *changed).peekable();
    changed.peek()?;
    Some(if changed.any(|(name, _)| restarts(name)) { Change::Restart } else { Change::InPlace })
}

/// Reports whether a running container does not have its allocated resources yet.
pub(crate) fn in_progress(pod: &Pod, observed: &Observed) -> bool {
    pod.spec.iter().flat_map(containers).any(|container| {
        let newest = observed.newest(&container.name).filter(|c| c.is_running());
        let has = newest.and_then(|c| c.resources.as_ref());
        has.is_some_and(|has| change(has, container).is_some())
    })
}

/// Returns a copy of the Pod with the resources that its running containers have.
pub fn actual(pod: &Pod, observed: &Observed) -> Pod {
    let mut all = container_resources(pod);
    for (name, resources) in &mut all {
        let newest = observed.newest(name).filter(|c| c.is_running());
        if let Some(has) = newest.and_then(|c| c.resources.as_ref()) {
            resources.clone_from(has);
        }
    }
    with_resources(pod, &all)
}

/// Returns cgroup limits that allow both the old and the new resources.
pub fn loosest(before: &Pod, after: &Pod) -> CgroupLimits {
    let (a, b) = (pod_cgroup(before), pod_cgroup(after));
    let limit = |a: i64, b: i64| if a == 0 || b == 0 { 0 } else { a.max(b) };
    CgroupLimits {
        cpu_shares: a.cpu_shares.max(b.cpu_shares),
        cpu: limit(a.cpu, b.cpu),
        memory: limit(a.memory, b.memory),
    }
}
