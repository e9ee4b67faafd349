//! Tests of in-place resize.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Pod, PodStatus, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};
use serde_json::{Value, json};

use super::steps::{at, container, pod, running, sandbox};
use crate::{
    Inputs, KillReason, Memory, Observed, StatusInputs, Step, Verdicts, plan,
    resize::{Pending, consider, container_resources, loosest, recover_resources, with_resources},
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
    let inputs = StatusInputs {
        pod: &pod,
        observed: &observed,
        memory: &Memory::default(),
        verdicts: &Verdicts::default(),
        now: at(5),
        previous: &PodStatus::default(),
        ending: None,
        stopping: false,
        host_ips: &[],
        runtime: "r",
        pending: Some(&pending),
        resize_error: None,
    };
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
    assert_eq!(recover_resources(&pod), container_resources(&pod));
    pod.status = serde_json::from_value(json!({ "containerStatuses": [{
        "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
        "allocatedResources": { "cpu": "1", "memory": "1Mi" }, "resources": resources("1", "1Mi"),
    }] }))
    .unwrap();
    let resources_before = recover_resources(&pod);
    assert_eq!(resources_before["c"], of(resources("1", "1Mi")));
    assert_eq!(container_resources(&with_resources(&pod, &resources_before)), resources_before);
}

#[test]
fn loosest_limits_allow_old_and_new_resources() {
    let before = sized(resources("1", "8Mi"), "NotRequired");
    let after = sized(resources("2", "4Mi"), "NotRequired");
    let limits = loosest(&before, &after);
    assert_eq!((limits.cpu, limits.memory), (2000, 8 << 20));
}
