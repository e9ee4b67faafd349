//! Computes the status of a Pod.

mod conditions;
mod inputs;

use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    ContainerStatus, HostIP, Pod, PodIP, PodStatus, VolumeMountStatus,
};

pub use self::{conditions::is_kubelets, inputs::StatusInputs};
use self::{conditions::pod_conditions, inputs::seconds};
use crate::{
    amounts::pod_level,
    observed::{Container, Observed, Run},
    phase::{Phase, phase},
    plan::Ending,
    qos::qos_class,
    resize,
    spec::{Member, Role, Verdict, is_static, log_name, members, should_restart},
    time::{Timestamp, go_duration},
};

/// Computes the status to report for a Pod.
pub fn status(inputs: &StatusInputs<'_>) -> PodStatus {
    let previous = inputs.previous;
    let (mut init, mut apps, mut ephemeral) = (Vec::new(), Vec::new(), Vec::new());
    let initialised = is_initialised(inputs);
    for member in members(inputs.pod) {
        let status = container_status(inputs, &member, initialised);
        match member.role {
            Role::Init | Role::Sidecar => init.push(status),
            Role::App => apps.push(status),
            Role::Ephemeral => ephemeral.push(status),
        }
    }
    let computed = phase(inputs.pod, &init, &apps);
    let runs = inputs.observed.running().next().is_some();
    let phase = match inputs.ending {
        // The final phase is only reported once no container runs, so that no controller replaces the Pod too early.
        Some(ending) if ending.reason.is_some() || !runs => ending.phase,
        _ if inputs.stopping && runs => computed.min(Phase::Running),
        _ if inputs.stopping && !is_static(inputs.pod) => stopped_phase(computed, &apps),
        _ => computed,
    };
    let phase = match previous.phase.as_deref() {
        Some(last @ ("Succeeded" | "Failed")) => last,
        _ => phase.as_str(),
    };
    let mut ips = pod_ips(inputs.pod, inputs.observed, inputs.host_ips);
    // A Pod without a sandbox keeps its last address while it is being stopped.
    if ips.is_empty() && (inputs.stopping || inputs.ending.is_some()) {
        ips = previous.pod_ips.iter().flatten().map(|ip| ip.ip.clone()).collect();
    }
    let conditions = pod_conditions(inputs, phase, &init, &apps, initialised);
    PodStatus {
        phase: Some(phase.to_owned()),
        conditions: Some(conditions),
        init_container_statuses: non_empty(init),
        container_statuses: non_empty(apps),
        ephemeral_container_statuses: non_empty(ephemeral),
        host_ip: inputs.host_ips.first().cloned(),
        host_ips: non_empty(inputs.host_ips.iter().map(|ip| HostIP { ip: ip.clone() }).collect()),
        pod_ip: ips.first().cloned(),
        pod_ips: non_empty(ips.into_iter().map(|ip| PodIP { ip }).collect()),
        qos_class: previous
            .qos_class
            .clone()
            .or_else(|| Some(qos_class(inputs.pod).as_str().to_owned())),
        start_time: previous.start_time.clone().or(Some(seconds(inputs.now))),
        reason: inputs.ending.and_then(|e| e.reason.clone()).or_else(|| previous.reason.clone()),
        message: inputs.ending.and_then(|e| e.message.clone()).or_else(|| previous.message.clone()),
        observed_generation: inputs.pod.metadata.generation,
        nominated_node_name: previous.nominated_node_name.clone(),
        resize: previous.resize.clone(),
        resource_claim_statuses: previous.resource_claim_statuses.clone(),
        resources: pod_level(inputs.pod)
            .map(|allocated| inputs.observed.shared.as_ref().unwrap_or(allocated).clone()),
        allocated_resources: resize::allocated_resources(inputs.pod),
        ..PodStatus::default()
    }
}

/// Returns the final phase of a Pod that is deleted and whose containers have stopped. Controllers that wait for a
/// final phase, such as a Job's, see one also if the Pod never started or would have restarted its containers.
fn stopped_phase(computed: Phase, apps: &[ContainerStatus]) -> Phase {
    let succeeded = |status: &ContainerStatus| {
        let ended = status.state.as_ref().and_then(|state| state.terminated.as_ref());
        ended.is_some_and(|ended| ended.exit_code == 0)
    };
    if computed.is_terminal() {
        computed
    } else if apps.iter().all(succeeded) {
        Phase::Succeeded
    } else {
        Phase::Failed
    }
}

/// Returns the addresses of a Pod with a ready sandbox: its own, or those of the node in the node's network.
pub fn pod_ips(pod: &Pod, observed: &Observed, host_ips: &[String]) -> Vec<String> {
    let host_network = pod.spec.as_ref().and_then(|s| s.host_network) == Some(true);
    match observed.ready_sandbox() {
        Some(_) if host_network => host_ips.to_vec(),
        Some(sandbox) => sandbox.ips.clone(),
        None => Vec::new(),
    }
}

/// Returns the status of a Pod that was refused before any of its containers was created. Keeps the conditions of other
/// writers.
pub fn refused_status(pod: &Pod, ending: &Ending, now: Timestamp) -> PodStatus {
    let before = pod.status.clone().unwrap_or_default();
    PodStatus {
        phase: Some(ending.phase.as_str().to_owned()),
        reason: ending.reason.clone(),
        message: ending.message.clone(),
        qos_class: before.qos_class.or_else(|| Some(qos_class(pod).as_str().to_owned())),
        start_time: before.start_time.or(Some(seconds(now))),
        observed_generation: pod.metadata.generation,
        conditions: before.conditions,
        ..PodStatus::default()
    }
}

fn non_empty<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

/// Reports whether all init containers are done, or an application container proves that they were.
fn is_initialised(inputs: &StatusInputs<'_>) -> bool {
    members(inputs.pod).iter().all(|member| {
        let newest = inputs.observed.newest(&member.container.name);
        match member.role {
            Role::Init => newest.is_some_and(|c| c.exit_code() == Some(0)),
            Role::Sidecar => newest.is_some_and(|c| match c.run {
                Run::Running { .. } => inputs.verdicts.of(&c.id, &member.container).started,
                Run::Exited { .. } => true,
                Run::Created | Run::Unknown => false,
            }),
            Role::App | Role::Ephemeral => true,
        }
    }) || members(inputs.pod)
        .iter()
        .any(|m| m.role == Role::App && inputs.observed.newest(&m.container.name).is_some())
}

fn container_status(
    inputs: &StatusInputs<'_>,
    member: &Member<'_>,
    initialised: bool,
) -> ContainerStatus {
    let name = &member.container.name;
    let old = old_status(inputs.previous, name);
    let Some(newest) = inputs.observed.newest(name) else {
        return without_instance(inputs, member, initialised, old);
    };
    let id = format!("{}://{}", inputs.runtime, newest.id);
    let health = inputs.verdicts.of(&newest.id, &member.container);
    let running = newest.is_running();
    let before = inputs.observed.containers.iter().filter(|c| c.name == *name).nth(1);
    let mut last_state = before.and_then(|c| terminated_state(inputs, c));
    if last_state.is_none() && newest.attempt > 0 {
        last_state = old.and_then(|o| last_of(o, &id));
    }
    // An init container is ready only after it has succeeded.
    let may_be_ready = member.role != Role::Init;
    let (mut state, mut ready) =
        (ContainerState::default(), running && may_be_ready && health.ready);
    match &newest.run {
        Run::Running { started } => {
            state.running = Some(ContainerStateRunning { started_at: Some(seconds(*started)) });
        }
        Run::Exited { finished, code, .. } => {
            let ended = terminated_state(inputs, newest);
            ready = member.role == Role::Init && *code == 0;
            match waiting_to_restart(inputs, member, *code, *finished) {
                Some(waiting) => (state, last_state) = (waiting, ended),
                None => state = ended.unwrap_or_default(),
            }
        }
        Run::Created | Run::Unknown => state = waiting_state(inputs, member, initialised),
    }
    ContainerStatus {
        name: name.clone(),
        state: Some(state),
        last_state,
        ready,
        started: Some(running && health.started),
        restart_count: i32::try_from(newest.attempt).unwrap_or(i32::MAX),
        image: newest.image.clone(),
        image_id: newest.image_id.clone(),
        container_id: Some(id),
        // The API server takes a running container without this field for one that cannot be resized.
        resources: newest
            .resources
            .as_ref()
            .filter(|_| running)
            .or(member.container.resources.as_ref())
            .cloned()
            .or(running.then(Default::default)),
        allocated_resources: member.container.resources.as_ref().and_then(|r| r.requests.clone()),
        volume_mounts: mounts(member, newest),
        ..ContainerStatus::default()
    }
}

fn mounts(member: &Member<'_>, newest: &Container) -> Option<Vec<VolumeMountStatus>> {
    let recursive = |path: &String| newest.recursive_read_only.contains(path);
    let mounts = member.container.volume_mounts.iter().flatten();
    non_empty(
        mounts
            .map(|m| VolumeMountStatus {
                name: m.name.clone(),
                mount_path: m.mount_path.clone(),
                read_only: m.read_only,
                recursive_read_only: (m.read_only == Some(true)).then(|| {
                    if recursive(&m.mount_path) { "Enabled" } else { "Disabled" }.to_owned()
                }),
                ..Default::default()
            })
            .collect(),
    )
}

/// Returns the status of a container that the runtime does not have: not created yet, or removed.
fn without_instance(
    inputs: &StatusInputs<'_>,
    member: &Member<'_>,
    initialised: bool,
    old: Option<&ContainerStatus>,
) -> ContainerStatus {
    let ran = old.filter(|o| o.container_id.as_ref().is_some_and(|id| !id.is_empty()));
    if let Some(old) = ran {
        let mut status = old.clone();
        let state = old.state.clone().unwrap_or_default();
        (status.ready, status.started) = (member.role == Role::Init && old.ready, Some(false));
        if let Some(running) = state.running {
            status.state = Some(ContainerState {
                terminated: Some(state_of_lost(old, running)),
                ..Default::default()
            });
        }
        let for_good =
            status.state.as_ref().and_then(|s| s.terminated.as_ref()).is_some_and(|t| {
                should_restart(inputs.pod, member, t.exit_code) != Verdict::Restart
            });
        if !(inputs.stopping || inputs.ending.is_some() || for_good) {
            if status.state.as_ref().is_some_and(|s| s.terminated.is_some()) {
                status.last_state = status.state.take();
            }
            status.state = Some(waiting_state(inputs, member, initialised));
        }
        return status;
    }
    ContainerStatus {
        name: member.container.name.clone(),
        image: member.container.image.clone().unwrap_or_default(),
        state: Some(waiting_state(inputs, member, initialised)),
        started: Some(false),
        ..ContainerStatus::default()
    }
}

/// Returns the final state of a container that was running and has disappeared.
fn state_of_lost(
    old: &ContainerStatus,
    running: ContainerStateRunning,
) -> ContainerStateTerminated {
    ContainerStateTerminated {
        exit_code: 137,
        reason: Some("ContainerStatusUnknown".to_owned()),
        message: Some("The container could not be located when the pod was terminated".to_owned()),
        started_at: running.started_at,
        container_id: old.container_id.clone(),
        ..ContainerStateTerminated::default()
    }
}

fn old_status<'a>(previous: &'a PodStatus, name: &str) -> Option<&'a ContainerStatus> {
    let lists = [
        &previous.container_statuses,
        &previous.init_container_statuses,
        &previous.ephemeral_container_statuses,
    ];
    lists.into_iter().flatten().flatten().find(|s| s.name == name)
}

/// Returns the final state of an earlier run, from the last reported status.
fn last_of(old: &ContainerStatus, id: &str) -> Option<ContainerState> {
    let ended = old.state.as_ref().filter(|s| s.terminated.is_some());
    if ended.is_some() && old.container_id.as_deref() != Some(id) {
        return ended.cloned();
    }
    old.last_state.clone().filter(|s| s.terminated.is_some())
}

fn terminated_state(inputs: &StatusInputs<'_>, container: &Container) -> Option<ContainerState> {
    let Run::Exited { started, finished, code, reason } = &container.run else { return None };
    let reason = match (reason.as_str(), code) {
        ("", 0) => "Completed",
        ("", _) => "Error",
        (reason, _) => reason,
    };
    let terminated = ContainerStateTerminated {
        exit_code: *code,
        reason: Some(reason.to_owned()),
        message: Some(container.message.clone()).filter(|m| !m.is_empty()),
        started_at: Some(seconds(started.unwrap_or(Timestamp::UNIX_EPOCH))),
        finished_at: Some(seconds(*finished)),
        container_id: Some(format!("{}://{}", inputs.runtime, container.id)),
        ..ContainerStateTerminated::default()
    };
    Some(ContainerState { terminated: Some(terminated), ..ContainerState::default() })
}

/// Returns the waiting state of a container that will restart later.
fn waiting_to_restart(
    inputs: &StatusInputs<'_>,
    member: &Member<'_>,
    code: i32,
    finished: Timestamp,
) -> Option<ContainerState> {
    let over = inputs.stopping || inputs.ending.is_some();
    if over || should_restart(inputs.pod, member, code) != Verdict::Restart {
        return None;
    }
    let name = &member.container.name;
    if let Some((reason, message)) = inputs.memory.waiting_reason(name) {
        return Some(waiting(reason, Some(message)));
    }
    inputs.memory.restart_wait(name, finished, inputs.now)?;
    let delay = go_duration(inputs.memory.restart_delay(name));
    let pod = log_name(inputs.pod);
    let message = format!("back-off {delay} restarting failed container={name} pod={pod}");
    Some(waiting("CrashLoopBackOff".to_owned(), Some(message)))
}

fn waiting(reason: String, message: Option<String>) -> ContainerState {
    let waiting = Some(ContainerStateWaiting { reason: Some(reason), message });
    ContainerState { waiting, ..ContainerState::default() }
}

fn waiting_state(
    inputs: &StatusInputs<'_>,
    member: &Member<'_>,
    initialised: bool,
) -> ContainerState {
    if let Some((reason, message)) = inputs.memory.waiting_reason(&member.container.name) {
        let message = if reason == "ImagePullBackOff" {
            let image = member.container.image.as_deref().unwrap_or_default();
            format!("Back-off pulling image \"{image}\": {message}")
        } else {
            message
        };
        return waiting(reason, Some(message));
    }
    let has_init = inputs
        .pod
        .spec
        .as_ref()
        .is_some_and(|s| s.init_containers.iter().flatten().next().is_some());
    let reason = if has_init && !(initialised && member.role == Role::App) {
        "PodInitializing"
    } else {
        "ContainerCreating"
    };
    waiting(reason.to_owned(), None)
}
