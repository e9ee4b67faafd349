//! The conditions of a Pod: those of the kubelet, and those of other writers, which it keeps.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition};

use super::inputs::{StatusInputs, seconds};
use crate::{
    resize::{self, Pending},
    restart_all::Trigger,
    spec::{Role, members},
};

/// Returns the kubelet's conditions, followed by those of other writers.
pub(super) fn pod_conditions(
    inputs: &StatusInputs<'_>,
    phase: &str,
    init: &[ContainerStatus],
    apps: &[ContainerStatus],
    initialised: bool,
) -> Vec<PodCondition> {
    let sandbox = inputs.observed.ready_sandbox().is_some();
    let containers_ready = containers_ready(inputs.pod, phase, init, apps);
    let ready = match (&containers_ready.status, readiness_gates(inputs)) {
        (true, Some(message)) => ConditionState::no("ReadinessGatesNotReady", Some(message)),
        _ => containers_ready.clone(),
    };
    let mut own = vec![
        ("PodReadyToStartContainers", ConditionState { status: sandbox, ..ConditionState::yes() }),
        ("Initialized", initialized(inputs.pod, phase, init, initialised)),
        ("Ready", ready),
        ("ContainersReady", containers_ready),
        ("PodScheduled", ConditionState::yes()),
    ];
    own.extend(resizes(inputs));
    own.extend(all_restarting(inputs));
    if let Some(ending) = inputs.ending.filter(|ending| ending.disrupted) {
        let message = ending.message.clone();
        let state = ConditionState { status: true, reason: Some("TerminationByKubelet"), message };
        own.push(("DisruptionTarget", state));
    }
    let old: BTreeMap<&str, &PodCondition> =
        inputs.previous.conditions.iter().flatten().map(|c| (c.type_.as_str(), c)).collect();
    let mut all: Vec<PodCondition> = own
        .iter()
        .map(|(kind, state)| state.condition(kind, old.get(kind).copied(), inputs))
        .collect();
    let others = inputs.pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
    let ours = |kind: &str| own.iter().any(|(own, _)| *own == kind) || RESIZES.contains(&kind);
    all.extend(others.filter(|c| !ours(&c.type_)).cloned());
    all
}

fn containers_ready(
    pod: &Pod,
    phase: &str,
    init: &[ContainerStatus],
    apps: &[ContainerStatus],
) -> ConditionState {
    match phase {
        "Succeeded" => return ConditionState::no("PodCompleted", None),
        "Failed" => return ConditionState::no("PodFailed", None),
        _ => {}
    }
    let lasting = members(pod).into_iter().filter(|m| matches!(m.role, Role::App | Role::Sidecar));
    let not_ready: Vec<&str> = lasting
        .filter_map(|m| {
            let mut all = apps.iter().chain(init);
            all.find(|s| s.name == m.container.name && !s.ready).map(|s| s.name.as_str())
        })
        .collect();
    if not_ready.is_empty() {
        return ConditionState::yes();
    }
    let message = format!("containers with unready status: [{}]", not_ready.join(" "));
    ConditionState::no("ContainersNotReady", Some(message))
}

fn initialized(
    pod: &Pod,
    phase: &str,
    init: &[ContainerStatus],
    initialised: bool,
) -> ConditionState {
    if phase == "Succeeded" {
        return ConditionState { reason: Some("PodCompleted"), ..ConditionState::yes() };
    }
    if initialised {
        return ConditionState::yes();
    }
    let members = members(pod);
    let sidecar =
        |name: &str| members.iter().any(|m| m.role == Role::Sidecar && m.container.name == name);
    // A sidecar counts as complete once it has started, any other init container once it has succeeded.
    let complete =
        |s: &ContainerStatus| if sidecar(&s.name) { s.started == Some(true) } else { s.ready };
    let incomplete: Vec<&str> =
        init.iter().filter(|s| !complete(s)).map(|s| s.name.as_str()).collect();
    let message = format!("containers with incomplete status: [{}]", incomplete.join(" "));
    ConditionState::no("ContainersNotInitialized", Some(message))
}

/// Reports whether a condition belongs to the kubelet. Another writer may have set one of the same type.
pub fn is_kubelets(condition: &PodCondition) -> bool {
    const ALWAYS: [&str; 5] =
        ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];
    let kind = condition.type_.as_str();
    ALWAYS.contains(&kind)
        || RESIZES.contains(&kind)
        || kind == RESTARTING
        || condition.reason.as_deref() == Some("TerminationByKubelet")
}

/// The condition of a Pod whose containers all restart.
const RESTARTING: &str = "AllContainersRestarting";

/// Returns the condition of a restart of all containers: true during the restart, and false after the first one.
fn all_restarting(inputs: &StatusInputs<'_>) -> Option<(&'static str, ConditionState)> {
    let restarts = inputs.ending.is_none() && !inputs.stopping;
    let trigger = Trigger::find(inputs.pod, inputs.observed).filter(|_| restarts);
    let was_set = inputs.previous.conditions.iter().flatten().any(|c| c.type_ == RESTARTING);
    let state = match trigger {
        Some(trigger) => ConditionState {
            status: true,
            reason: Some("ContainerExited"),
            message: Some(trigger.message()),
        },
        None if was_set => ConditionState { status: false, reason: None, message: None },
        None => return None,
    };
    Some((RESTARTING, state))
}

/// The conditions that exist only while they are true.
const RESIZES: [&str; 2] = ["PodResizePending", "PodResizeInProgress"];

fn resizes(inputs: &StatusInputs<'_>) -> Vec<(&'static str, ConditionState)> {
    let [pending, in_progress] = RESIZES;
    let mut conditions = Vec::new();
    if let Some(Pending { reason, message }) = inputs.pending {
        let message = Some(message.clone());
        conditions.push((pending, ConditionState { status: true, reason: Some(reason), message }));
    }
    if resize::in_progress(inputs.pod, inputs.observed) {
        let reason = inputs.resize_error.map(|_| "Error");
        let message = inputs.resize_error.map(str::to_owned);
        conditions.push((in_progress, ConditionState { status: true, reason, message }));
    }
    conditions
}

/// Returns a message if readiness gates keep the Pod from being ready.
fn readiness_gates(inputs: &StatusInputs<'_>) -> Option<String> {
    let gates = inputs.pod.spec.as_ref()?.readiness_gates.as_ref()?;
    let conditions = inputs.pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    let closed: Vec<String> = gates
        .iter()
        .filter_map(|gate| {
            let kind = &gate.condition_type;
            match conditions.into_iter().flatten().find(|c| c.type_ == *kind) {
                None => Some(format!(
                    "corresponding condition of pod readiness gate \"{kind}\" does not exist."
                )),
                Some(c) if c.status != "True" => Some(format!(
                    "the status of pod readiness gate \"{kind}\" is not \"True\", but {}",
                    c.status
                )),
                Some(_) => None,
            }
        })
        .collect();
    (!closed.is_empty()).then(|| closed.join(", "))
}

/// The present state of one Pod condition.
#[derive(Clone)]
struct ConditionState {
    status: bool,
    reason: Option<&'static str>,
    message: Option<String>,
}

impl ConditionState {
    fn yes() -> Self {
        Self { status: true, reason: None, message: None }
    }

    fn no(reason: &'static str, message: Option<String>) -> Self {
        Self { status: false, reason: Some(reason), message }
    }

    fn condition(
        &self,
        kind: &str,
        old: Option<&PodCondition>,
        inputs: &StatusInputs<'_>,
    ) -> PodCondition {
        let status = if self.status { "True" } else { "False" };
        let since = old.filter(|o| o.status == status).and_then(|o| o.last_transition_time.clone());
        PodCondition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: self.reason.map(str::to_owned),
            message: self.message.clone(),
            last_transition_time: Some(since.unwrap_or(seconds(inputs.now))),
            observed_generation: inputs.pod.metadata.generation,
            last_probe_time: None,
        }
    }
}
