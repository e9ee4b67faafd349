//! Plans the next steps for a Pod.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

use crate::{
    memory::Memory,
    observed::{Container, Observed, Run, Sandbox},
    phase::{Phase, decides_end},
    probe::Verdicts,
    resize,
    restart_all::Trigger,
    spec::{Member, Role, Verdict, container_hash, members, should_restart},
    step::{KillReason, Step},
    time::{Timestamp, after},
};

/// The least age of a sandbox before it is replaced, from the second loss on.
const REPAIR: Duration = Duration::from_secs(10);

/// The inputs of a plan.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// The Pod with the resources that were allocated to it.
    pub pod: &'a Pod,
    /// The sandboxes and containers in the runtime.
    pub observed: &'a Observed,
    /// Earlier failures and their back-off.
    pub memory: &'a Memory,
    /// The results of probes.
    pub verdicts: &'a Verdicts,
    /// The current time.
    pub now: Timestamp,
}

/// The plan for a Pod. After its steps, the caller observes the Pod and plans again.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// The final state, if the Pod has ended: running containers must be stopped, and none started.
    pub ending: Option<Ending>,
    /// The time of the next plan if nothing changes before.
    pub again: Option<Timestamp>,
}

/// The final state of a Pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Ending {
    /// The final phase.
    pub phase: Phase,
    /// The reason for the status.
    pub reason: Option<String>,
    /// The message for the status.
    pub message: Option<String>,
    /// `true` if the node evicted the Pod, which sets the condition `DisruptionTarget`.
    pub disrupted: bool,
}

impl Plan {
    fn plan_again_at(&mut self, at: Timestamp) {
        self.again = Some(self.again.map_or(at, |earlier| earlier.min(at)));
    }
}

/// Plans the next steps for a Pod that must run.
pub fn plan(inputs: &Inputs<'_>) -> Plan {
    let mut plan = Plan::default();
    if let Some(ending) = final_state(inputs, &mut plan) {
        plan.ending = Some(ending);
        return plan;
    }
    if let Some(trigger) = Trigger::find(inputs.pod, inputs.observed) {
        restart_all(inputs, &trigger, &mut plan);
        return plan;
    }
    match inputs.observed.ready_sandbox() {
        Some(sandbox) => {
            containers(inputs, sandbox, &mut plan);
            // After the containers, because the Pod's limits must allow theirs.
            if resize::changes_pod_level(inputs.pod, inputs.observed) {
                plan.steps.push(Step::ResizePod);
            }
        }
        None => new_sandbox(inputs, &mut plan),
    }
    let remains = inputs.observed.remains().map(|c| Step::Remove { id: c.id.clone() });
    plan.steps.extend(remains);
    let spent =
        inputs.observed.replaced_sandboxes().map(|s| Step::RemoveSandbox { id: s.id.clone() });
    plan.steps.extend(spent);
    plan
}

/// Plans the restart of all containers. The back-off of the exited container delays its removal.
fn restart_all(inputs: &Inputs<'_>, trigger: &Trigger<'_>, plan: &mut Plan) {
    let steps = trigger.steps(inputs.pod, inputs.observed);
    let (name, exited) = trigger.exit();
    match inputs.memory.restart_wait(name, exited, inputs.now) {
        Some(wait) if matches!(steps[..], [Step::RestartAll { .. }]) => {
            plan.plan_again_at(after(inputs.now, wait));
        }
        _ => plan.steps = steps,
    }
}

/// Returns the final state if the deadline has passed or all containers have ended for good.
fn final_state(inputs: &Inputs<'_>, plan: &mut Plan) -> Option<Ending> {
    let pod = inputs.pod;
    let started = pod.status.as_ref().and_then(|s| s.start_time.as_ref());
    let limit = pod.spec.as_ref().and_then(|s| s.active_deadline_seconds);
    if let (Some(started), Some(limit)) = (started, limit) {
        let deadline = after(started.0, Duration::from_secs(limit.unsigned_abs()));
        if deadline <= inputs.now {
            let message = "Pod was active on the node longer than the specified deadline";
            return Some(Ending {
                phase: Phase::Failed,
                reason: Some("DeadlineExceeded".to_owned()),
                message: Some(message.to_owned()),
                disrupted: false,
            });
        }
        plan.plan_again_at(deadline);
    }
    let over = |phase| Ending { phase, reason: None, message: None, disrupted: false };
    let (mut all, mut failed) = (true, false);
    for member in members(pod) {
        let verdict = verdict(inputs, &member);
        if member.role == Role::Init && verdict == Some(Verdict::Failed) {
            return Some(over(Phase::Failed));
        }
        if decides_end(&member) {
            all &= matches!(verdict, Some(Verdict::Succeeded | Verdict::Failed));
            failed |= verdict == Some(Verdict::Failed);
        }
    }
    all.then(|| over(if failed { Phase::Failed } else { Phase::Succeeded }))
}

/// Returns the verdict on the newest exit of a container, or `None` while it has not exited.
fn verdict(inputs: &Inputs<'_>, member: &Member<'_>) -> Option<Verdict> {
    let code = inputs.observed.newest(&member.container.name)?.exit_code()?;
    Some(should_restart(inputs.pod, member, code))
}

fn new_sandbox(inputs: &Inputs<'_>, plan: &mut Plan) {
    let observed = inputs.observed;
    let lost = observed.running().map(|c| Step::Kill {
        id: c.id.clone(),
        name: c.name.clone(),
        why: KillReason::SandboxLost,
    });
    plan.steps.extend(lost);
    if let Some(sandbox) = observed.sandboxes.first()
        && !plan.steps.is_empty()
    {
        plan.steps.push(Step::StopSandbox { id: sandbox.id.clone() });
        return;
    }
    if let Some(at) = inputs.memory.sandbox_retry_at()
        && at > inputs.now
    {
        return plan.plan_again_at(at);
    }
    let attempt = observed.sandboxes.iter().map(|s| s.attempt + 1).max().unwrap_or(0);
    // The first loss is repaired immediately; repeated losses are delayed.
    let wait = if attempt < 2 { Duration::ZERO } else { REPAIR };
    if let Some(last) = observed.sandboxes.first()
        && after(last.created, wait) > inputs.now
    {
        return plan.plan_again_at(after(last.created, wait));
    }
    // Release the old sandbox's network before the new one is created.
    if let Some(sandbox) = observed.sandboxes.first() {
        plan.steps.push(Step::StopSandbox { id: sandbox.id.clone() });
    }
    plan.steps.push(Step::CreateSandbox { attempt });
}

fn containers(inputs: &Inputs<'_>, sandbox: &Sandbox, plan: &mut Plan) {
    let members = members(inputs.pod);
    let in_sandbox = |m: &Member<'_>| inputs.observed.newest_in(&m.container.name, &sandbox.id);
    let initialised = members.iter().any(|m| m.role == Role::App && in_sandbox(m).is_some());
    let mut ready_for_apps = true;
    for member in &members {
        let current = in_sandbox(member);
        let one = ContainerInSandbox { inputs, sandbox, member, current };
        match member.role {
            Role::Init if initialised => {}
            Role::Init if ready_for_apps => ready_for_apps = one.init(plan),
            Role::Sidecar if initialised || ready_for_apps => {
                let started = one.keep_running(plan);
                ready_for_apps &= initialised || started;
            }
            Role::Init | Role::Sidecar => {}
            Role::App if ready_for_apps || initialised => {
                let for_good = verdict(inputs, member).is_some_and(|v| v != Verdict::Restart);
                if !for_good {
                    one.keep_running(plan);
                }
            }
            Role::App => {}
            // Ephemeral containers start immediately, run once and never restart.
            Role::Ephemeral if inputs.observed.newest(&member.container.name).is_none() => {
                one.start(plan, None)
            }
            Role::Ephemeral => {}
        }
    }
}

/// A container in its sandbox.
struct ContainerInSandbox<'a> {
    inputs: &'a Inputs<'a>,
    sandbox: &'a Sandbox,
    member: &'a Member<'a>,
    current: Option<&'a Container>,
}

impl ContainerInSandbox<'_> {
    /// Plans an init container. Returns `true` if it has succeeded.
    fn init(&self, plan: &mut Plan) -> bool {
        match self.current.map(|c| &c.run) {
            Some(Run::Exited { code: 0, .. }) => return true,
            Some(Run::Exited { finished, .. }) => self.restart(plan, *finished),
            Some(Run::Running { .. }) => {}
            Some(Run::Created | Run::Unknown) | None => self.start(plan, None),
        }
        false
    }

    /// Plans a container that must keep running. Returns `true` if it runs and has started.
    fn keep_running(&self, plan: &mut Plan) -> bool {
        let Some(current) = self.current else {
            self.start(plan, None);
            return false;
        };
        match &current.run {
            Run::Exited { finished, .. } => self.restart(plan, *finished),
            Run::Created | Run::Unknown => self.start(plan, None),
            Run::Running { .. } => {
                let health = self.inputs.verdicts.of(&current.id, &self.member.container);
                let why = if health.startup_failed {
                    KillReason::StartupFailed
                } else if !health.live {
                    KillReason::LivenessFailed
                } else if !current.hash.is_empty()
                    && current.hash != container_hash(&self.member.container)
                {
                    KillReason::SpecChanged
                } else {
                    match resize::change(self.inputs.pod, current, &self.member.container) {
                        Some(resize::Change::Restart) => KillReason::Resized,
                        Some(resize::Change::InPlace) => {
                            let (id, name) = (current.id.clone(), current.name.clone());
                            plan.steps.push(Step::Resize { id, name });
                            return health.started;
                        }
                        None => return health.started,
                    }
                };
                plan.steps.push(Step::Kill {
                    id: current.id.clone(),
                    name: current.name.clone(),
                    why,
                });
            }
        }
        false
    }

    fn restart(&self, plan: &mut Plan, exited: Timestamp) {
        let name = &self.member.container.name;
        match self.inputs.memory.restart_wait(name, exited, self.inputs.now) {
            Some(wait) => plan.plan_again_at(after(self.inputs.now, wait)),
            None => self.start(plan, Some(exited)),
        }
    }

    fn start(&self, plan: &mut Plan, exited: Option<Timestamp>) {
        let name = &self.member.container.name;
        if let Some(failure) = self.inputs.memory.failure(name)
            && failure.retry_at > self.inputs.now
        {
            return plan.plan_again_at(failure.retry_at);
        }
        let attempts = self.inputs.observed.containers.iter().filter(|c| c.name == *name);
        plan.steps.push(Step::Start {
            name: name.clone(),
            role: self.member.role,
            sandbox: self.sandbox.id.clone(),
            attempt: attempts
                .map(|c| c.attempt + 1)
                .max()
                .unwrap_or_else(|| reported_restarts(self.inputs.pod, name)),
            exited,
        });
    }
}

/// Returns the next attempt according to the Pod's status, for a container that the runtime does not have any more.
fn reported_restarts(pod: &Pod, name: &str) -> u32 {
    let Some(status) = &pod.status else { return 0 };
    let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    let created =
        all.filter(|s| s.name == name && s.container_id.as_ref().is_some_and(|id| !id.is_empty()));
    created.map(|s| u32::try_from(s.restart_count).unwrap_or(0) + 1).max().unwrap_or(0)
}
