//! Resizes running containers in place.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, Pod, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};

use crate::{
    observed::{Container as Running, Observed},
    qos::{QosClass, qos_class},
    resources::{
        Amounts, CgroupLimits, container_amounts, milli, pod_amounts, pod_cgroup, pod_level, whole,
    },
    spec::is_static,
};

/// The resources of a Pod's spec.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodResources {
    /// The resources that all containers share.
    pub shared: Option<ResourceRequirements>,
    /// The resources of the containers, by name.
    pub containers: BTreeMap<String, ResourceRequirements>,
}

impl PodResources {
    /// Returns the resources in a Pod's spec.
    pub fn of(pod: &Pod) -> Self {
        let one = |c: &Container| (c.name.clone(), c.resources.clone().unwrap_or_default());
        Self {
            shared: pod.spec.as_ref().and_then(|spec| spec.resources.clone()),
            containers: pod.spec.iter().flat_map(containers).map(one).collect(),
        }
    }
}

fn containers(spec: &k8s_openapi::api::core::v1::PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers.iter().flatten().chain(&spec.containers)
}

/// Returns a copy of the Pod with these resources in its spec.
pub fn with_resources(pod: &Pod, resources: &PodResources) -> Pod {
    let mut pod = pod.clone();
    if let Some(spec) = &mut pod.spec {
        spec.resources.clone_from(&resources.shared);
        let all = spec.init_containers.iter_mut().flatten().chain(&mut spec.containers);
        for container in all {
            if let Some(own) = resources.containers.get(&container.name) {
                container.resources = Some(own.clone());
            }
        }
    }
    pod
}

/// Reports whether two Pods or their containers have different amounts of a resource (`cpu` or `memory`).
pub fn differs(pod: &Pod, other: &Pod, name: &str) -> bool {
    let amounts = |pod: &Pod| -> Vec<(i64, i64)> {
        let of = |resources: Option<&ResourceRequirements>| {
            let amounts = resources.map(Amounts::of).unwrap_or_default();
            match name {
                "cpu" => (amounts.cpu_request, amounts.cpu_limit),
                _ => (amounts.memory_request, amounts.memory_limit),
            }
        };
        let all = pod.spec.iter().flat_map(containers).map(|c| c.resources.as_ref());
        std::iter::once(pod_level(pod)).chain(all).map(of).collect()
    };
    amounts(pod) != amounts(other)
}

/// Returns upstream's message if a resize would change memory of a Pod that may use swap, without a restart.
pub fn forbidden_by_swap(pod: &Pod, allocated: &Pod) -> Option<String> {
    if qos_class(pod) != QosClass::Burstable {
        return None;
    }
    let memory = |resources: Option<&ResourceRequirements>| {
        let amounts = resources.map(Amounts::of).unwrap_or_default();
        (amounts.memory_request, amounts.memory_limit)
    };
    let before = PodResources::of(allocated);
    let changes = |container: &Container| {
        let own = before.containers.get(&container.name);
        memory(container.resources.as_ref()) != memory(own) && !restarts(container, "memory")
    };
    let is_forbidden = memory(pod_level(pod)) != memory(pod_level(allocated))
        || pod.spec.iter().flat_map(containers).any(changes);
    is_forbidden.then(|| "In-place resize of containers with swap is not supported.".to_owned())
}

/// Reports whether a container restarts if its amount of a resource changes.
fn restarts(container: &Container, name: &str) -> bool {
    let mut policies = container.resize_policy.iter().flatten();
    policies.any(|p| p.resource_name == name && p.restart_policy == "RestartContainer")
}

/// Returns the resources that an earlier kubelet had allocated: those of the spec, unless the status reports others.
pub fn recover_resources(pod: &Pod) -> PodResources {
    let mut all = PodResources::of(pod);
    if let Some(status) = &pod.status
        && let (Some(shared), Some(allocated), Some(actual)) =
            (&mut all.shared, &status.allocated_resources, &status.resources)
        && shared.requests.as_ref().is_some_and(|requests| requests != allocated)
    {
        *shared = actual.clone();
    }
    let statuses = pod.status.iter().flat_map(|s| {
        s.container_statuses.iter().flatten().chain(s.init_container_statuses.iter().flatten())
    });
    for status in statuses {
        let (Some(resources), Some(allocated), Some(actual)) =
            (all.containers.get_mut(&status.name), &status.allocated_resources, &status.resources)
        else {
            continue;
        };
        if resources.requests.as_ref().is_some_and(|requests| requests != allocated) {
            *resources = actual.clone();
        }
    }
    all
}

/// Returns the requests that are allocated to a Pod: those that its containers share, or else their sum.
pub(crate) fn allocated_resources(pod: &Pod) -> Option<BTreeMap<String, Quantity>> {
    if let Some(shared) = pod_level(pod).and_then(|shared| shared.requests.clone()) {
        return Some(shared);
    }
    let amounts = pod_amounts(pod);
    let cpu = (amounts.cpu_request > 0)
        .then(|| ("cpu".to_owned(), Quantity(format!("{}m", amounts.cpu_request))));
    let memory = (amounts.memory_request > 0)
        .then(|| ("memory".to_owned(), Quantity(amounts.memory_request.to_string())));
    let requests: BTreeMap<_, _> = cpu.into_iter().chain(memory).collect();
    (!requests.is_empty()).then_some(requests)
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

/// Returns how a running container of the Pod gets the resources that are allocated to it; `None` if it has them.
pub(crate) fn change(pod: &Pod, has: &Running, container: &Container) -> Option<Change> {
    // Without a record of the Pod-level resources, assume the present ones, because the container may have to restart.
    let shared = has.shared.as_ref().or(pod_level(pod));
    let has = has.resources.as_ref().map(|own| container_amounts(shared, Some(own)))?;
    let allocated = container_amounts(pod_level(pod), container.resources.as_ref());
    let changed = [
        ("cpu", (has.cpu_request, has.cpu_limit) != (allocated.cpu_request, allocated.cpu_limit)),
        (
            "memory",
            (has.memory_request, has.memory_limit)
                != (allocated.memory_request, allocated.memory_limit),
        ),
    ];
    let mut changed = changed.into_iter().filter(|(_, changed)| *changed).peekable();
    changed.peek()?;
    Some(if changed.any(|(name, _)| restarts(container, name)) {
        Change::Restart
    } else {
        Change::InPlace
    })
}

/// Reports whether the Pod's cgroup does not have the allocated Pod-level resources yet.
pub fn changes_pod_level(pod: &Pod, observed: &Observed) -> bool {
    let Some(allocated) = pod_level(pod) else { return false };
    observed.shared.as_ref().map(Amounts::of) != Some(Amounts::of(allocated))
}

/// Reports whether the Pod or a running container does not have its allocated resources yet.
pub(crate) fn in_progress(pod: &Pod, observed: &Observed) -> bool {
    let of_pod = observed.shared.is_some() && changes_pod_level(pod, observed);
    of_pod
        || pod.spec.iter().flat_map(containers).any(|container| {
            let newest = observed.newest(&container.name).filter(|c| c.is_running());
            newest.is_some_and(|has| change(pod, has, container).is_some())
        })
}

/// Returns a copy of the Pod with the resources that its cgroup and its running containers have.
pub fn actual(pod: &Pod, observed: &Observed) -> Pod {
    let mut all = PodResources::of(pod);
    if let Some(shared) = observed.shared.clone().filter(|_| all.shared.is_some()) {
        all.shared = Some(shared);
    }
    for (name, resources) in &mut all.containers {
        let newest = observed.newest(name).filter(|c| c.is_running());
        if let Some(has) = newest.and_then(|c| c.resources.as_ref()) {
            resources.clone_from(has);
        }
    }
    with_resources(pod, &all)
}

/// Returns the cgroup limits of a Pod while its containers or the Pod itself may still change.
pub fn current_limits(pod: &Pod, observed: &Observed) -> CgroupLimits {
    let actual = actual(pod, observed);
    if changes_pod_level(pod, observed) { loosest(&actual, pod) } else { pod_cgroup(&actual) }
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
