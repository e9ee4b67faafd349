//! Tests of the restart of all containers after one has exited.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::steps::{NoHistory, at, container, exited, look, pod, running, sandbox, starts, tell};
use crate::{Container, KillReason, Memory, Observed, Phase, StatusInputs, Step, Verdicts, status};

/// Returns a Pod with the restart policy `Never`, whose container `watch` restarts all if it exits with 88.
fn watched(rules: Value) -> Pod {
    pod(json!({ "restartPolicy": "Never",
        "initContainers": [{ "name": "setup", "image": "i" }],
        "containers": [
            { "name": "watch", "image": "i", "restartPolicy": "Never", "restartPolicyRules": rules },
            { "name": "work", "image": "i" },
        ],
        "ephemeralContainers": [{ "name": "debug", "image": "i" }] }))
}

fn rule(action: &str, operator: &str, codes: &[i32]) -> Value {
    json!({ "action": action, "exitCodes": { "operator": operator, "values": codes } })
}

fn observed(containers: &[Container]) -> Observed {
    Observed::new(vec![sandbox(true)], containers.to_vec())
}

#[test]
fn ends_and_removes_all_containers_but_ephemeral_ones_before_the_exited_one() {
    let pod = watched(json!([rule("RestartAllContainers", "In", &[88])]));
    let of = |name: &str, run| container(&pod, name, 0, run);
    let (setup, watch) = (of("setup", exited(0, 2)), of("watch", exited(88, 4)));
    let debug = of("debug", running());
    let (mut memory, verdicts) = (Memory::default(), Verdicts::default());
    let steps = |containers: &[Container], memory: &Memory, second: i64| {
        look(&pod, &observed(containers), memory, &verdicts, second)
    };
    let running_work = of("work", running());
    let all = [setup.clone(), watch.clone(), running_work, debug.clone()];
    let kill = Step::Kill { id: "work-0".into(), name: "work".into(), why: KillReason::RestartAll };
    assert_eq!(steps(&all, &memory, 5).steps, [kill]);
    let all = [setup, watch.clone(), of("work", exited(137, 5)), debug.clone()];
    let remove = |id: &str| Step::Remove { id: id.into() };
    let mut removed = steps(&all, &memory, 5).steps;
    removed.sort_by_key(|step| format!("{step:?}"));
    assert_eq!(removed, [remove("setup-0"), remove("work-0")]);
    let last = [watch, debug.clone()];
    let restart = Step::RestartAll { id: "watch-0".into(), name: "watch".into(), exited: at(4) };
    assert_eq!(steps(&last, &memory, 5).steps, std::slice::from_ref(&restart));
    // The exited container waits for its back-off, so that a loop of restarts gets slower.
    memory.record_restart("watch", at(3), at(3));
    let waiting = steps(&last, &memory, 5);
    assert!(waiting.steps.is_empty() && waiting.again > Some(at(5)), "{waiting:?}");
    assert_eq!(steps(&last, &memory, 60).steps, [restart]);
    // The Pod then starts as if it were new.
    let plan = steps(&[debug], &memory, 60);
    assert_eq!(starts(&plan), ["setup"]);
}

#[test]
fn only_first_matching_rule_restarts_all() {
    for (rules, code, restarts) in [
        (json!([rule("RestartAllContainers", "In", &[88])]), 88, true),
        (json!([rule("RestartAllContainers", "In", &[88])]), 1, false),
        (json!([rule("RestartAllContainers", "NotIn", &[0])]), 1, true),
        (json!([rule("RestartAllContainers", "NotIn", &[0])]), 0, false),
        (
            json!([rule("Restart", "In", &[88]), rule("RestartAllContainers", "In", &[88])]),
            88,
            false,
        ),
        (
            json!([rule("Unknown", "In", &[88]), rule("RestartAllContainers", "In", &[88])]),
            88,
            true,
        ),
    ] {
        let pod = watched(rules.clone());
        let containers = [
            container(&pod, "setup", 0, exited(0, 2)),
            container(&pod, "watch", 0, exited(code, 4)),
            container(&pod, "work", 0, running()),
        ];
        let plan = look(&pod, &observed(&containers), &Memory::default(), &Verdicts::default(), 5);
        let kills = plan
            .steps
            .iter()
            .any(|step| matches!(step, Step::Kill { why: KillReason::RestartAll, .. }));
        assert_eq!(kills, restarts, "{rules} {code}");
    }
}

#[test]
fn reports_condition_during_and_after_restart_and_counts_it() {
    let pod = watched(json!([rule("RestartAllContainers", "In", &[88])]));
    let containers = [
        container(&pod, "setup", 0, exited(0, 2)),
        container(&pod, "watch", 0, exited(88, 4)),
        container(&pod, "work", 0, exited(0, 3)),
    ];
    let during = tell(&pod, &observed(&containers), &Memory::default(), None, 5);
    let find = |status: &k8s_openapi::api::core::v1::PodStatus| {
        let mut conditions = status.conditions.iter().flatten();
        let found = conditions.find(|c| c.type_ == "AllContainersRestarting");
        found.map(|c| (c.status.clone(), c.message.clone()))
    };
    let message = "Container watch exited with code 88, triggering pod restart".to_owned();
    assert_eq!(find(&during), Some(("True".to_owned(), Some(message))));
    assert_ne!(during.phase.as_deref(), Some(Phase::Failed.as_str()));
    let mut later = pod.clone();
    later.status = Some(during.clone());
    let after = status(&StatusInputs {
        now: at(6),
        previous: &during,
        ..NoHistory::default().inputs(&later, &observed(&[]))
    });
    assert_eq!(find(&after), Some(("False".to_owned(), None)));
    assert!(!["Failed", "Succeeded"].contains(&after.phase.as_deref().unwrap()), "{after:?}");
    later.status = Some(after);
    let plan = look(&later, &observed(&[]), &Memory::default(), &Verdicts::default(), 6);
    assert!(
        matches!(&plan.steps[..], [Step::Start { name, attempt: 1, .. }, ..] if name == "setup"),
        "{plan:?}"
    );
}
