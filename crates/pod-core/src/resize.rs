//! Changing what a running Pod's containers may use, without starting them again.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, Pod, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};

use crate::{
    Observed, is_static,
    resources::{Amounts, CgroupLimits, milli, pod_amounts, pod_cgroup, whole},
};

/// What a Pod's containers have been given, by name.
pub type Given = BTreeMap<String, ResourceRequirements>;

/// What the spec asks for.
pub fn asked(pod: &Pod) -> Given {
    let one = |c: &Container| (c.name.clone(), c.resources.clone().unwrap_or_default());
    pod.spec.iter().flat_map(containers).map(one).collect()
}

fn containers(spec: &k8s_openapi::api::core::v1::PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers.iter().flatten().chain(&spec.containers)
}

/// The Pod as it would be had it asked for what it was given.
pub fn with(pod: &Pod, given: &Given) -> Pod {
    let mut pod = pod.clone();
    if let Some(spec) = &mut pod.spec {
        let all = spec.init_containers.iter_mut().flatten().chain(&mut spec.containers);
        for container in all {
            if let Some(resources) = given.get(&container.name) {
                container.resources = Some(resources.clone());
            }
        }
    }
    pod
}

/// Whether a container asks for another amount of a resource (`cpu` or `memory`) than it was given.
pub fn differs(pod: &Pod, given: &Pod, name: &str) -> bool {
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
    amounts(pod) != amounts(given)
}

/// What a kubelet before this one had given, by its report: all that is asked for, unless that says otherwise.
pub fn recovered(pod: &Pod) -> Given {
    let mut given = asked(pod);
    let statuses = pod.status.iter().flat_map(|s| {
        s.container_statuses.iter().flatten().chain(s.init_container_statuses.iter().flatten())
    });
    for status in statuses {
        let (Some(wanted), Some(allocated), Some(actual)) =
            (given.get_mut(&status.name), &status.allocated_resources, &status.resources)
        else {
            continue;
        };
        if wanted.requests.as_ref().is_some_and(|requests| requests != allocated) {
            *wanted = actual.clone();
        }
    }
    given
}

/// Why a Pod has not been given what it asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// `Deferred` or `Infeasible`.
    pub reason: &'static str,
    pub message: String,
}

/// Whether the node can give a Pod that runs what it now asks for, beside the `others`.
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
                    "Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}"
                ),
            });
        }
    }
    Ok(())
}

/// What is to be done about a running container that has other resources than it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    InPlace,
    Restart,
}

pub(crate) fn change(has: &ResourceRequirements, container: &Container) -> Option<Change> {
    let wanted = container.resources.as_ref().map(Amounts::of).unwrap_or_default();
    let has = Amounts::of(has);
    let changed = [
        ("cpu", (has.cpu_request, has.cpu_limit) != (wanted.cpu_request, wanted.cpu_limit)),
        (
            "memory",
            (has.memory_request, has.memory_limit) != (wanted.memory_request, wanted.memory_limit),
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

/// Whether what runs has yet to get what it was given.
pub(crate) fn in_progress(pod: &Pod, observed: &Observed) -> bool {
    pod.spec.iter().flat_map(containers).any(|container| {
        let newest = observed.newest(&container.name).filter(|c| c.is_running());
        let has = newest.and_then(|c| c.resources.as_ref());
        has.is_some_and(|has| change(has, container).is_some())
    })
}

/// What the running containers' resources amount to.
pub fn actual(pod: &Pod, observed: &Observed) -> Pod {
    let mut given = asked(pod);
    for (name, resources) in &mut given {
        let newest = observed.newest(name).filter(|c| c.is_running());
        if let Some(has) = newest.and_then(|c| c.resources.as_ref()) {
            resources.clone_from(has);
        }
    }
    with(pod, &given)
}

/// Limits that let a Pod be what it is as well as what it is to become.
pub fn loosest(before: &Pod, after: &Pod) -> CgroupLimits {
    let (a, b) = (pod_cgroup(before), pod_cgroup(after));
    let limit = |a: i64, b: i64| if a == 0 || b == 0 { 0 } else { a.max(b) };
    CgroupLimits {
        cpu_shares: a.cpu_shares.max(b.cpu_shares),
        cpu_quota: limit(a.cpu_quota, b.cpu_quota),
        memory: limit(a.memory, b.memory),
    }
}
