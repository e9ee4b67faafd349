//! Tests of in-place resize.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Pod, PodStatus, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};
use serde_json::{Value, json};

use super::steps::{NoHistory, at, container, pod, running, sandbox};
use crate::{
    Inputs, KillReason, Memory, Observed, StatusInputs, Step, Verdicts, plan,
    resize::{
        Pending, PodResources, actual, consider, current_limits, forbidden_by_swap, loosest,
        recover_resources, with_resources,
    },
    resources::{container_amounts, oom_score_adj, pod_amounts, pod_cgroup, pod_level},
    status,
};

fn resources(cpu: &str, memory: &str) -> Value {
    let amounts = json!({ "cpu": cpu, "memory": memory });
    json!({ "requests": amounts, "limits": amounts })
}

fn sized(resources: Value, policy: &str) -> Pod {
    let policy = json!([{ "resourceName": "memory", "restartPolicy": policy }]);
    pod(
        json!({ "containers": [{ "name": "c", "image": "i", "resources": resources, "resizePolicy": policy }] }),
    )
}

fn of(value: Value) -> ResourceRequirements {
    serde_json::from_value(value).unwrap()
}

fn running_with(pod: &Pod, has: Value) -> Observed {
    let mut container = container(pod, "c", 0, running());
    container.resources = Some(of(has));
    Observed::new(vec![sandbox(true)], vec![container])
}

#[test]
fn resizes_in_place_or_restarts_by_policy() {
    for (has, wants, policy, step) in [
        (("1", "1Mi"), ("1", "1Mi"), "NotRequired", None),
        (("1", "1Mi"), ("1000m", "1024Ki"), "NotRequired", None),
        (("1", "1Mi"), ("2", "1Mi"), "RestartContainer", Some("resize")),
        (("1", "1Mi"), ("1", "2Mi"), "NotRequired", Some("resize")),
        (("1", "1Mi"), ("1", "2Mi"), "RestartContainer", Some("kill")),
    ] {
        let pod = sized(resources(wants.0, wants.1), policy);
        let observed = running_with(&pod, resources(has.0, has.1));
        let inputs = Inputs {
            pod: &pod,
            observed: &observed,
            memory: &Memory::default(),
            verdicts: &Verdicts::default(),
            now: at(5),
        };
        let steps = plan(&inputs).steps;
        let name = match steps.as_slice() {
            [] => None,
            [Step::Resize { .. }] => Some("resize"),
            [Step::Kill { why: KillReason::Resized, .. }] => Some("kill"),
            other => panic!("{other:?}"),
        };
        assert_eq!(name, step, "{has:?} to {wants:?}, {policy}");
    }
}

#[test]
fn rejects_or_defers_resize_beyond_capacity() {
    let allocatable: BTreeMap<_, _> = [("cpu", "2"), ("memory", "1Gi")]
        .map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned())))
        .into();
    let other = sized(resources("1500m", "1Mi"), "NotRequired");
    for (cpu, reason, message) in [
        ("500m", "", ""),
        (
            "600m",
            "Deferred",
            "Node didn't have enough resource: cpu, requested: 600, used: 1500, capacity: 2000",
        ),
        (
            "3",
            "Infeasible",
            "Node didn't have enough capacity: cpu, requested: 3000, capacity: 2000",
        ),
    ] {
        let pod = sized(resources(cpu, "1Mi"), "NotRequired");
        let said = consider(&pod, &allocatable, [&other].into_iter());
        let said = said.map_or_else(|p| (p.reason, p.message), |()| ("", String::new()));
        assert_eq!(said, (reason, message.to_owned()));
    }
}

#[test]
fn status_reports_allocated_actual_and_pending_resources() {
    let pod = sized(resources("2", "1Mi"), "NotRequired");
    let observed = running_with(&pod, resources("1", "1Mi"));
    let pending = Pending { reason: "Deferred", message: "later".to_owned() };
    let empty = NoHistory::default();
    let inputs = StatusInputs { pending: Some(&pending), ..empty.inputs(&pod, &observed) };
    let said = status(&inputs);
    let own = &said.container_statuses.unwrap()[0];
    assert_eq!(own.resources, Some(of(resources("1", "1Mi"))), "what acts");
    assert_eq!(own.allocated_resources, of(resources("2", "1Mi")).requests, "what was given");
    let conditions = said.conditions.unwrap();
    let find = |kind: &str| conditions.iter().find(|c| c.type_ == kind).unwrap();
    assert_eq!(find("PodResizePending").reason.as_deref(), Some("Deferred"));
    assert_eq!(find("PodResizeInProgress").status, "True");
    let done = running_with(&pod, resources("2", "1Mi"));
    let mut later = pod.clone();
    later.status = Some(PodStatus { conditions: Some(conditions), ..PodStatus::default() });
    let said = status(&StatusInputs { pod: &later, observed: &done, pending: None, ..inputs });
    let conditions = said.conditions.unwrap();
    assert!(conditions.iter().all(|c| !c.type_.starts_with("PodResize")), "{conditions:?}");
}

#[test]
fn recovers_allocated_resources_from_status() {
    let mut pod = sized(resources("2", "2Mi"), "NotRequired");
    assert_eq!(recover_resources(&pod), PodResources::of(&pod));
    pod.status = serde_json::from_value(json!({ "containerStatuses": [{
        "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
        "allocatedResources": { "cpu": "1", "memory": "1Mi" }, "resources": resources("1", "1Mi"),
    }] }))
    .unwrap();
    let resources_before = recover_resources(&pod);
    assert_eq!(resources_before.containers["c"], of(resources("1", "1Mi")));
    assert_eq!(PodResources::of(&with_resources(&pod, &resources_before)), resources_before);
}

#[test]
fn loosest_limits_allow_old_and_new_resources() {
    let before = sized(resources("1", "8Mi"), "NotRequired");
    let after = sized(resources("2", "4Mi"), "NotRequired");
    let limits = loosest(&before, &after);
    assert_eq!((limits.cpu, limits.memory), (2000, 8 << 20));
}

/// Returns a Pod whose containers share resources. The container `c` has none of its own, and `d` limits its memory.
fn shared(resources: Value) -> Pod {
    let policy = json!([{ "resourceName": "memory", "restartPolicy": "RestartContainer" }]);
    pod(json!({ "resources": resources, "containers": [
        { "name": "c", "image": "i", "resizePolicy": policy },
        { "name": "d", "image": "i", "resizePolicy": policy,
            "resources": { "requests": { "memory": "1Mi" }, "limits": { "memory": "2Mi" } } },
    ] }))
}

/// Returns both containers, started while the Pod had these resources, which its cgroup has, too.
fn started(pod: &Pod, resources: Value) -> Observed {
    let containers = ["c", "d"].map(|name| {
        let mut one = container(pod, name, 0, running());
        one.resources = PodResources::of(pod).containers.get(name).cloned();
        one.shared = Some(of(resources.clone()));
        one
    });
    let observed = Observed::new(vec![sandbox(true)], containers.to_vec());
    Observed { shared: Some(of(resources)), ..observed }
}

#[test]
fn plans_pod_level_resize_for_the_pod_and_containers_that_inherit_its_limits() {
    let steps = |from: Value, to: Value| -> Vec<String> {
        let pod = shared(to);
        let inputs = Inputs {
            pod: &pod,
            observed: &started(&pod, from),
            memory: &Memory::default(),
            verdicts: &Verdicts::default(),
            now: at(5),
        };
        let name = |step: &Step| match step {
            Step::Resize { name, .. } => format!("resize {name}"),
            Step::Kill { name, why: KillReason::Resized, .. } => format!("kill {name}"),
            Step::ResizePod => "pod".to_owned(),
            other => panic!("{other:?}"),
        };
        plan(&inputs).steps.iter().map(name).collect()
    };
    let base = || json!({ "requests": { "cpu": "1" }, "limits": { "cpu": "2", "memory": "8Mi" } });
    assert_eq!(steps(base(), base()), [""; 0]);
    let cpu = json!({ "requests": { "cpu": "1" }, "limits": { "cpu": "3", "memory": "8Mi" } });
    assert_eq!(steps(base(), cpu), ["resize c", "resize d", "pod"], "neither limits CPU");
    let memory = json!({ "requests": { "cpu": "1" }, "limits": { "cpu": "2", "memory": "9Mi" } });
    assert_eq!(steps(base(), memory), ["kill c", "pod"], "d has a limit of its own");
    let request =
        json!({ "requests": { "cpu": "1500m" }, "limits": { "cpu": "2", "memory": "8Mi" } });
    assert_eq!(steps(base(), request), ["pod"]);
}

#[test]
fn pod_level_amounts_replace_those_of_containers_one_by_one() {
    let pod = shared(json!({ "requests": { "cpu": "1" }, "limits": { "cpu": "2" } }));
    let amounts = pod_amounts(&pod);
    assert_eq!((amounts.cpu_request, amounts.cpu_limit), (1000, 2000));
    assert_eq!((amounts.memory_request, amounts.memory_limit), (1 << 20, 0), "of the containers");
    let both = shared(json!({ "requests": { "memory": "513Mi" }, "limits": { "memory": "1Gi" } }));
    let spec = both.spec.as_ref().unwrap();
    let own = spec.containers.iter().map(|c| c.resources.as_ref());
    let limits: Vec<i64> =
        own.map(|own| container_amounts(pod_level(&both), own).memory_limit).collect();
    assert_eq!(limits, [1 << 30, 2 << 20]);
    // Half of the 512 MiB that no container requests counts for each of the two.
    assert_eq!(oom_score_adj(&both, 0, 1 << 30), 750);
    assert_eq!(oom_score_adj(&both, 256 << 20, 1 << 30), 500);
}

#[test]
fn status_reports_pod_level_resources_until_they_are_applied() {
    let (old, new) = (resources("1", "8Mi"), resources("2", "16Mi"));
    let pod = shared(new.clone());
    let observed = started(&pod, old.clone());
    let empty = NoHistory::default();
    let inputs = empty.inputs(&pod, &observed);
    let resizing = |status: &PodStatus| {
        let mut conditions = status.conditions.iter().flatten();
        conditions.any(|c| c.type_ == "PodResizeInProgress")
    };
    let before = status(&inputs);
    assert_eq!(before.resources, Some(of(old.clone())), "those of the cgroup");
    assert_eq!(before.allocated_resources, of(new.clone()).requests);
    assert!(resizing(&before));
    let limits = |observed: &Observed| current_limits(&pod, observed);
    assert_eq!((limits(&observed).cpu, limits(&observed).memory), (2000, 16 << 20));
    assert_eq!(pod_cgroup(&actual(&pod, &observed)).memory, 8 << 20);
    let done = started(&pod, new.clone());
    let after = status(&StatusInputs { observed: &done, ..inputs });
    assert_eq!((after.resources.clone(), resizing(&after)), (Some(of(new.clone())), false));
    // A kubelet that restarts before the allocation takes the resources of the status.
    let mut later = shared(resources("4", "32Mi"));
    later.status = Some(after);
    assert_eq!(recover_resources(&later).shared, Some(of(new)));
    let plain = sized(resources("1", "1Mi"), "NotRequired");
    let plain_observed = running_with(&plain, resources("1", "1Mi"));
    let plain = status(&StatusInputs { pod: &plain, observed: &plain_observed, ..inputs });
    assert_eq!(plain.resources, None);
    let sum = of(resources("1000m", "1048576")).requests;
    assert_eq!(plain.allocated_resources, sum, "the requests of the containers");
}

#[test]
fn defers_pod_level_resize_beyond_free_resources() {
    let allocatable = [("cpu".to_owned(), Quantity("2".to_owned()))].into();
    let other = sized(resources("1500m", "1Mi"), "NotRequired");
    let reason = |cpu: &str| {
        let pod = shared(json!({ "requests": { "cpu": cpu } }));
        consider(&pod, &allocatable, [&other].into_iter()).map_err(|pending| pending.reason)
    };
    assert_eq!(reason("500m"), Ok(()));
    assert_eq!((reason("600m"), reason("3")), (Err("Deferred"), Err("Infeasible")));
}

#[test]
fn forbids_resize_of_memory_with_swap_unless_container_restarts() {
    let burstable = |memory: &str, policy: &str| {
        sized(json!({ "requests": { "cpu": "1", "memory": memory } }), policy)
    };
    let before = burstable("1Mi", "NotRequired");
    assert!(forbidden_by_swap(&burstable("2Mi", "NotRequired"), &before).is_some());
    assert_eq!(forbidden_by_swap(&burstable("2Mi", "RestartContainer"), &before), None);
    assert_eq!(forbidden_by_swap(&burstable("1024Ki", "NotRequired"), &before), None);
    let guaranteed = |memory| sized(resources("1", memory), "NotRequired");
    assert_eq!(forbidden_by_swap(&guaranteed("2Mi"), &guaranteed("1Mi")), None, "it has no swap");
    let sharing = |memory: &str| shared(json!({ "requests": { "memory": memory } }));
    assert!(forbidden_by_swap(&sharing("2Mi"), &sharing("1Mi")).is_some());
}
