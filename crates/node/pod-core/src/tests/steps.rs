//! Tests of single plans and statuses.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde_json::json;

use crate::{
    Container, Ending, Inputs, KillReason, Memory, Observed, Phase, Role, Run, Sandbox,
    StatusInputs, Step, Timestamp, Verdicts, after, container_hash, members, plan,
    probe::{ProbeKind, Timing, Track},
    status,
};

pub(super) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

pub(crate) fn pod(spec: serde_json::Value) -> Pod {
    let meta = json!({ "name": "web", "namespace": "default", "uid": "u1" });
    serde_json::from_value(json!({ "metadata": meta, "spec": spec })).unwrap()
}

pub(super) fn sandbox(ready: bool) -> Sandbox {
    Sandbox { id: "s0".into(), attempt: 0, ready, created: at(0), ips: vec!["10.0.0.1".into()] }
}

pub(super) fn container(pod: &Pod, name: &str, attempt: u32, run: Run) -> Container {
    let member = members(pod).into_iter().find(|m| m.container.name == name).unwrap();
    Container {
        id: format!("{name}-{attempt}"),
        name: name.into(),
        sandbox: "s0".into(),
        attempt,
        created: at(i64::from(attempt)),
        run,
        image: "i".into(),
        image_id: "sha256:0".into(),
        hash: container_hash(&member.container),
        message: String::new(),
        recursive_read_only: Vec::new(),
        resources: None,
        shared: None,
    }
}

pub(super) fn running() -> Run {
    Run::Running { started: at(1) }
}

pub(super) fn exited(code: i32, second: i64) -> Run {
    Run::Exited { started: Some(at(1)), finished: at(second), code, reason: String::new() }
}

pub(super) fn look(
    pod: &Pod,
    observed: &Observed,
    memory: &Memory,
    verdicts: &Verdicts,
    second: i64,
) -> crate::Plan {
    plan(&Inputs { pod, observed, memory, verdicts, now: at(second) })
}

/// The inputs of a status that most tests leave empty.
#[derive(Default)]
pub(super) struct NoHistory {
    memory: Memory,
    verdicts: Verdicts,
    previous: PodStatus,
}

impl NoHistory {
    pub(super) fn inputs<'a>(&'a self, pod: &'a Pod, observed: &'a Observed) -> StatusInputs<'a> {
        StatusInputs {
            pod,
            observed,
            memory: &self.memory,
            verdicts: &self.verdicts,
            now: at(5),
            previous: &self.previous,
            ending: None,
            stopping: false,
            host_ips: &[],
            runtime: "containerd",
            pending: None,
            resize_error: None,
        }
    }
}

pub(super) fn tell(
    pod: &Pod,
    observed: &Observed,
    memory: &Memory,
    ending: Option<&Ending>,
    second: i64,
) -> PodStatus {
    status(&StatusInputs {
        memory,
        now: at(second),
        ending,
        stopping: ending.is_some(),
        host_ips: &["192.0.2.1".to_owned()],
        ..NoHistory::default().inputs(pod, observed)
    })
}

pub(super) fn starts(plan: &crate::Plan) -> Vec<&str> {
    plan.steps
        .iter()
        .filter_map(|s| if let Step::Start { name, .. } = s { Some(name.as_str()) } else { None })
        .collect()
}

fn three() -> Pod {
    pod(json!({
        "initContainers": [
            { "name": "first", "image": "i" },
            { "name": "side", "image": "i", "restartPolicy": "Always", "startupProbe": { "exec": {} } },
        ],
        "containers": [{ "name": "app", "image": "i" }],
    }))
}

#[test]
fn containers_start_in_order() {
    let pod = three();
    let (memory, mut verdicts) = (Memory::default(), Verdicts::default());
    let plan = look(&pod, &Observed::default(), &memory, &verdicts, 5);
    assert_eq!(plan.steps, [Step::CreateSandbox { attempt: 0 }]);
    let mut seen = Vec::new();
    let expect = |seen: &[Container], verdicts: &Verdicts, wanted: &[&str]| {
        let observed = Observed::new(vec![sandbox(true)], seen.to_vec());
        assert_eq!(starts(&look(&pod, &observed, &memory, verdicts, 5)), wanted);
    };
    expect(&seen, &verdicts, &["first"]);
    seen.push(container(&pod, "first", 0, running()));
    expect(&seen, &verdicts, &[]);
    seen[0].run = exited(0, 2);
    expect(&seen, &verdicts, &["side"]);
    seen.push(container(&pod, "side", 0, running()));
    expect(&seen, &verdicts, &[]);
    verdicts.set("side-0", ProbeKind::Startup, true);
    expect(&seen, &verdicts, &["app"]);
    seen.push(container(&pod, "app", 0, running()));
    expect(&seen, &verdicts, &[]);
    // The initialization is not repeated: the sidecar restarts while the application runs.
    seen[1].run = exited(1, 3);
    expect(&seen, &verdicts, &["side"]);
}

#[test]
fn plans_nothing_for_pod_in_desired_state() {
    let pod = three();
    let mut verdicts = Verdicts::default();
    verdicts.set("side-0", ProbeKind::Startup, true);
    let seen = vec![
        container(&pod, "first", 0, exited(0, 2)),
        container(&pod, "side", 0, running()),
        container(&pod, "app", 0, running()),
    ];
    let plan =
        look(&pod, &Observed::new(vec![sandbox(true)], seen), &Memory::default(), &verdicts, 9);
    assert_eq!(plan, crate::Plan::default());
}

#[test]
fn backs_off_restarts_and_reports_it() {
    let pod = pod(json!({ "containers": [{ "name": "app", "image": "i" }] }));
    let mut memory = Memory::default();
    let observed = |attempt, second| {
        Observed::new(vec![sandbox(true)], vec![container(&pod, "app", attempt, exited(3, second))])
    };
    let verdicts = Verdicts::default();
    let mut second = 0;
    // The first restart is immediate; the delay of later ones doubles, up to five minutes.
    for (attempt, delay) in [0, 10, 20, 40, 80, 160, 300, 300].into_iter().enumerate() {
        let seen = observed(u32::try_from(attempt).unwrap(), second);
        if delay > 0 {
            let early = look(&pod, &seen, &memory, &verdicts, second + delay - 1);
            assert_eq!((starts(&early), early.again), (vec![], Some(at(second + delay))));
            let told = tell(&pod, &seen, &memory, None, second + 1);
            let told = &told.container_statuses.unwrap()[0];
            let waiting = told.state.clone().unwrap().waiting.unwrap();
            assert_eq!(waiting.reason.as_deref(), Some("CrashLoopBackOff"));
            let text = waiting.message.unwrap();
            assert!(
                text.ends_with("restarting failed container=app pod=web_default(u1)"),
                "{text}"
            );
            assert_eq!(told.last_state.clone().unwrap().terminated.unwrap().exit_code, 3);
        }
        assert_eq!(starts(&look(&pod, &seen, &memory, &verdicts, second + delay)), ["app"]);
        memory.record_restart("app", at(second), at(second + delay));
        second += delay;
    }
    // The back-off is reset after a long run.
    let seen = observed(9, second + 3600);
    assert_eq!(starts(&look(&pod, &seen, &memory, &verdicts, second + 3600)), ["app"]);
}

#[test]
fn ends_pod_by_restart_policy() {
    for (policy, code, ended) in [
        ("Always", 0, None),
        ("OnFailure", 0, Some(Phase::Succeeded)),
        ("OnFailure", 1, None),
        ("Never", 0, Some(Phase::Succeeded)),
        ("Never", 1, Some(Phase::Failed)),
    ] {
        let pod = pod(
            json!({ "restartPolicy": policy, "containers": [{ "name": "app", "image": "i" }] }),
        );
        let observed =
            Observed::new(vec![sandbox(true)], vec![container(&pod, "app", 0, exited(code, 2))]);
        let plan = look(&pod, &observed, &Memory::default(), &Verdicts::default(), 3);
        assert_eq!(plan.ending.map(|e| e.phase), ended, "{policy} {code}");
        // The sandbox of a Pod that has ended is not created again.
        let gone = Observed::new(vec![sandbox(false)], observed.containers.clone());
        let plan = look(&pod, &gone, &Memory::default(), &Verdicts::default(), 3);
        assert_eq!(plan.ending.is_some(), ended.is_some(), "{policy} {code}");
        assert_eq!(plan.steps.contains(&Step::CreateSandbox { attempt: 1 }), ended.is_none());
    }
}

#[test]
fn restart_rule_overrides_policy() {
    let rule = json!([{ "action": "Restart", "exitCodes": { "operator": "In", "values": [42] } }]);
    let app = json!({ "name": "app", "image": "i", "restartPolicy": "Never", "restartPolicyRules": rule });
    let pod = pod(json!({ "restartPolicy": "Never", "containers": [app] }));
    for (code, restarts) in [(42, true), (1, false)] {
        let observed =
            Observed::new(vec![sandbox(true)], vec![container(&pod, "app", 0, exited(code, 2))]);
        let plan = look(&pod, &observed, &Memory::default(), &Verdicts::default(), 3);
        assert_eq!(starts(&plan).len(), usize::from(restarts));
    }
}

#[test]
fn ends_pod_past_its_deadline() {
    let mut pod = pod(
        json!({ "activeDeadlineSeconds": 10, "containers": [{ "name": "app", "image": "i" }] }),
    );
    pod.status = serde_json::from_value(json!({ "startTime": at(0).to_string() })).unwrap();
    let observed = Observed::new(vec![sandbox(true)], vec![container(&pod, "app", 0, running())]);
    let early = look(&pod, &observed, &Memory::default(), &Verdicts::default(), 9);
    assert_eq!((early.ending, early.again), (None, Some(at(10))));
    let late = look(&pod, &observed, &Memory::default(), &Verdicts::default(), 10).ending.unwrap();
    assert_eq!(late.reason.as_deref(), Some("DeadlineExceeded"));
    assert_eq!(
        tell(&pod, &observed, &Memory::default(), Some(&late), 10).phase.as_deref(),
        Some("Failed")
    );
}

#[test]
fn restarts_on_failed_probe_or_changed_image() {
    let probed = json!({ "name": "app", "image": "i", "livenessProbe": { "exec": {} }, "startupProbe": { "exec": {} } });
    let pod = pod(json!({ "containers": [probed] }));
    let app = container(&pod, "app", 0, running());
    let observed = Observed::new(vec![sandbox(true)], vec![app.clone()]);
    for (kind, why) in [
        (ProbeKind::Startup, KillReason::StartupFailed),
        (ProbeKind::Liveness, KillReason::LivenessFailed),
    ] {
        let mut verdicts = Verdicts::default();
        verdicts.set("app-0", ProbeKind::Startup, true);
        verdicts.set("app-0", kind, false);
        let plan = look(&pod, &observed, &Memory::default(), &verdicts, 3);
        assert_eq!(plan.steps, [Step::Kill { id: "app-0".into(), name: "app".into(), why }]);
    }
    let mut verdicts = Verdicts::default();
    verdicts.set("app-0", ProbeKind::Startup, true);
    let old = Container { hash: "other".into(), ..app };
    let plan = look(
        &pod,
        &Observed::new(vec![sandbox(true)], vec![old]),
        &Memory::default(),
        &verdicts,
        3,
    );
    assert!(matches!(plan.steps[0], Step::Kill { why: KillReason::SpecChanged, .. }));
}

#[test]
fn backs_off_failed_starts_and_reports_them() {
    let pod = pod(json!({ "containers": [{ "name": "app", "image": "none:1" }] }));
    let observed = Observed::new(vec![sandbox(true)], vec![]);
    let mut memory = Memory::default();
    memory.begin_pass();
    memory.record_pull_failure("app", "ErrImagePull", "no such host".into(), at(0));
    let reason = |memory: &Memory| {
        let status = tell(&pod, &observed, memory, None, 1);
        status.container_statuses.unwrap()[0]
            .state
            .clone()
            .unwrap()
            .waiting
            .unwrap()
            .reason
            .unwrap()
    };
    assert_eq!(reason(&memory), "ErrImagePull");
    memory.begin_pass();
    assert_eq!(reason(&memory), "ImagePullBackOff");
    let plan = look(&pod, &observed, &memory, &Verdicts::default(), 9);
    assert_eq!((starts(&plan), plan.again), (vec![], Some(at(10))));
    assert_eq!(starts(&look(&pod, &observed, &memory, &Verdicts::default(), 10)), ["app"]);
    memory.record_pull_failure("app", "ErrImagePull", "no such host".into(), at(10));
    let plan = look(&pod, &observed, &memory, &Verdicts::default(), 11);
    assert_eq!(plan.again, Some(at(30)), "the second wait is twice the first");
}

#[test]
fn reports_observed_state_in_status() {
    let pod = three();
    let none = tell(&pod, &Observed::default(), &Memory::default(), None, 5);
    assert_eq!(none.phase.as_deref(), Some("Pending"));
    let app = &none.container_statuses.unwrap()[0];
    assert_eq!(
        app.state.clone().unwrap().waiting.unwrap().reason.as_deref(),
        Some("PodInitializing")
    );
    let ready = |status: &PodStatus, kind: &str| {
        status.conditions.as_ref().unwrap().iter().find(|c| c.type_ == kind).unwrap().status
            == "True"
    };
    let seen = vec![
        container(&pod, "first", 0, exited(0, 2)),
        container(&pod, "side", 0, running()),
        container(&pod, "app", 0, running()),
    ];
    let told = tell(&pod, &Observed::new(vec![sandbox(true)], seen), &Memory::default(), None, 5);
    assert_eq!(told.phase.as_deref(), Some("Running"));
    assert_eq!(told.pod_ip.as_deref(), Some("10.0.0.1"));
    assert!(ready(&told, "Initialized") && ready(&told, "PodReadyToStartContainers"));
    assert!(!ready(&told, "Ready"), "the sidecar's startup probe has said nothing yet");
    let killed = Container {
        run: Run::Exited {
            started: Some(at(1)),
            finished: at(2),
            code: 137,
            reason: "OOMKilled".into(),
        },
        message: "last words".into(),
        ..container(&pod, "app", 0, running())
    };
    let told =
        tell(&pod, &Observed::new(vec![sandbox(true)], vec![killed]), &Memory::default(), None, 5);
    let ended = told.container_statuses.unwrap()[0].state.clone().unwrap().terminated.unwrap();
    assert_eq!(
        (ended.reason.as_deref(), ended.message.as_deref()),
        (Some("OOMKilled"), Some("last words"))
    );
}

#[test]
fn keeps_status_of_unchanged_pod() {
    let pod = pod(json!({ "containers": [{ "name": "app", "image": "i" }] }));
    let observed = Observed::new(vec![sandbox(true)], vec![container(&pod, "app", 0, running())]);
    let first = tell(&pod, &observed, &Memory::default(), None, 5);
    let again = status(&StatusInputs {
        previous: &first,
        now: at(100),
        host_ips: &["192.0.2.1".to_owned()],
        ..NoHistory::default().inputs(&pod, &observed)
    });
    assert_eq!(first, again, "an unchanged Pod has an unchanged status");
}

#[test]
fn deleted_pod_reaches_final_phase() {
    let phase = |annotations: serde_json::Value, code: Option<i32>| {
        let mut pod = pod(json!({ "containers": [{ "name": "app", "image": "i" }] }));
        pod.metadata.annotations = serde_json::from_value(annotations).unwrap();
        let containers = code.map(|code| container(&pod, "app", 0, exited(code, 3)));
        let observed = Observed::new(vec![], containers.into_iter().collect());
        let empty = NoHistory::default();
        let inputs = StatusInputs { stopping: true, ..empty.inputs(&pod, &observed) };
        status(&inputs).phase.unwrap()
    };
    assert_eq!(phase(json!({}), None), "Failed", "no container ever ran");
    assert_eq!(phase(json!({}), Some(0)), "Succeeded");
    assert_eq!(phase(json!({}), Some(137)), "Failed");
    let file = json!({"kubernetes.io/config.source": "file"});
    assert_eq!(phase(file, None), "Pending", "a static Pod runs again");
}

#[test]
fn sidecars_stop_last_and_in_reverse() {
    let pod = pod(json!({
        "initContainers": [
            { "name": "s1", "image": "i", "restartPolicy": "Always" },
            { "name": "s2", "image": "i", "restartPolicy": "Always" },
        ],
        "containers": [{ "name": "a", "image": "i" }, { "name": "b", "image": "i" }],
    }));
    let seen = ["s1", "s2", "a", "b"].map(|name| container(&pod, name, 0, running())).to_vec();
    let observed = Observed::new(vec![sandbox(true)], seen);
    let mut stages: Vec<Vec<&str>> = crate::stop_stages(&pod, &observed)
        .iter()
        .map(|s| s.iter().map(|c| c.name.as_str()).collect())
        .collect();
    stages[0].sort_unstable();
    assert_eq!(stages, [vec!["a", "b"], vec!["s2"], vec!["s1"]]);
}

#[test]
fn changes_verdict_at_thresholds() {
    let timing = Timing::of(
        &serde_json::from_value(json!({ "failureThreshold": 3, "successThreshold": 2 })).unwrap(),
    );
    let mut track = Track::new(timing);
    let spoken: Vec<_> = [true, true, false, false, true, false, false, false, false, true, true]
        .into_iter()
        .map(|success| track.record(success))
        .collect();
    let mut expected = [None; 11];
    (expected[1], expected[7], expected[10]) = (Some(true), Some(false), Some(true));
    assert_eq!(spoken, expected);
    assert_eq!(timing.first(at(0)), after(at(0), Duration::ZERO));
}

#[test]
fn ephemeral_containers_start_at_once_and_run_once() {
    let pod = pod(json!({
        "containers": [{ "name": "app", "image": "i" }],
        "ephemeralContainers": [{ "name": "debug", "image": "i", "targetContainerName": "app" }],
    }));
    let app = container(&pod, "app", 0, running());
    let plan = look(
        &pod,
        &Observed::new(vec![sandbox(true)], vec![app.clone()]),
        &Memory::default(),
        &Verdicts::default(),
        3,
    );
    assert!(
        matches!(&plan.steps[..], [Step::Start { name, role: Role::Ephemeral, .. }] if name == "debug")
    );
    let debug = container(&pod, "debug", 0, exited(1, 2));
    let plan = look(
        &pod,
        &Observed::new(vec![sandbox(true)], vec![app, debug]),
        &Memory::default(),
        &Verdicts::default(),
        3,
    );
    assert!(plan.steps.is_empty());
}

#[test]
fn container_hash_matches_upstream() {
    let pod = pod(json!({ "containers": [{ "name": "box", "image": "box:1" }] }));
    let member = members(&pod).remove(0);
    assert_eq!(container_hash(&member.container), "d900ad9e");
}
