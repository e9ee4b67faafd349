use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

use crate::{
    Container, Member, Memory, Observed, Phase, Role, Run, Sandbox, Timestamp, Verdict, Verdicts,
    container_hash, members, phase::decides_end, resize, should_restart, time::after,
};

/// How long a sandbox stands at least, if it is not the first to be lost, before it is replaced.
const REPAIR: Duration = Duration::from_secs(10);

/// All that a plan is made from.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    pub pod: &'a Pod,
    pub observed: &'a Observed,
    pub memory: &'a Memory,
    pub verdicts: &'a Verdicts,
    pub now: Timestamp,
}

/// One thing to do; a plan's steps are taken in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Stops a sandbox that is no longer ready, and what it holds.
    StopSandbox {
        id: String,
    },
    CreateSandbox {
        attempt: u32,
    },
    /// Starts a container; `exited` is when its predecessor ended, if it had one that did.
    Start {
        name: String,
        role: Role,
        sandbox: String,
        attempt: u32,
        exited: Option<Timestamp>,
    },
    Kill {
        id: String,
        name: String,
        why: Why,
    },
    /// Gives a running container other resources.
    Resize {
        id: String,
        name: String,
    },
    /// Removes an instance that has had successors.
    Remove {
        id: String,
    },
    /// Removes a sandbox that has a successor and holds nothing any more.
    RemoveSandbox {
        id: String,
    },
}

/// Why a container is stopped, for its Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    LivenessFailed,
    StartupFailed,
    /// The Pod's spec says otherwise now, such as another image.
    SpecChanged,
    /// Other resources act only after a new start.
    Resized,
    /// The application containers have ended, so its help is not needed.
    NotNeeded,
    /// The sandbox around it has ended, and its network with it.
    SandboxLost,
}

/// What to do about a Pod now. The steps are taken in their order, and the Pod is looked at again after them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub steps: Vec<Step>,
    /// The Pod is over: whatever still runs is to be stopped, and nothing started again.
    pub ending: Option<Ending>,
    /// When to look again even if nothing happens.
    pub again: Option<Timestamp>,
}

/// How a Pod ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Ending {
    pub phase: Phase,
    pub reason: Option<String>,
    pub message: Option<String>,
    /// The node ended it to save others, which its owner may want to know.
    pub disrupted: bool,
}

impl Plan {
    fn look_at(&mut self, at: Timestamp) {
        self.again = Some(self.again.map_or(at, |earlier| earlier.min(at)));
    }
}

/// Says what to do next for a Pod that is to run.
pub fn plan(inputs: &Inputs<'_>) -> Plan {
    let mut plan = Plan::default();
    if let Some(ending) = ending(inputs, &mut plan) {
        plan.ending = Some(ending);
        return plan;
    }
    match inputs.observed.ready_sandbox() {
        Some(sandbox) => containers(inputs, sandbox, &mut plan),
        None => new_sandbox(inputs, &mut plan),
    }
    let remains = inputs.observed.remains().map(|c| Step::Remove { id: c.id.clone() });
    plan.steps.extend(remains);
    let spent = inputs.observed.spent_sandboxes().map(|s| Step::RemoveSandbox { id: s.id.clone() });
    plan.steps.extend(spent);
    plan
}

/// Whether the Pod is over: its time is up, or its containers have ended for good.
fn ending(inputs: &Inputs<'_>, plan: &mut Plan) -> Option<Ending> {
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
        plan.look_at(deadline);
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

/// What the latest exit of a container means, `None` while it has not exited.
fn verdict(inputs: &Inputs<'_>, member: &Member<'_>) -> Option<Verdict> {
    let code = inputs.observed.newest(&member.container.name)?.exit_code()?;
    Some(should_restart(inputs.pod, member, code))
}

fn new_sandbox(inputs: &Inputs<'_>, plan: &mut Plan) {
    let observed = inputs.observed;
    let lost = observed.running().map(|c| Step::Kill {
        id: c.id.clone(),
        name: c.name.clone(),
        why: Why::SandboxLost,
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
        return plan.look_at(at);
    }
    let attempt = observed.sandboxes.iter().map(|s| s.attempt + 1).max().unwrap_or(0);
    // One loss is repaired at once; a sandbox that goes on dying is not.
    let wait = if attempt < 2 { Duration::ZERO } else { REPAIR };
    if let Some(last) = observed.sandboxes.first()
        && after(last.created, wait) > inputs.now
    {
        return plan.look_at(after(last.created, wait));
    }
    // The old one's network is given back before a new one is asked for.
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
        let one = One { inputs, sandbox, member, current };
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
            // Ephemeral containers wait for nothing, run once and are never restarted.
            Role::Ephemeral if inputs.observed.newest(&member.container.name).is_none() => {
                one.start(plan, None)
            }
            Role::Ephemeral => {}
        }
    }
}

/// One container in its sandbox.
struct One<'a> {
    inputs: &'a Inputs<'a>,
    sandbox: &'a Sandbox,
    member: &'a Member<'a>,
    current: Option<&'a Container>,
}

impl One<'_> {
    /// Brings an init container to its end; says whether it has reached it.
    fn init(&self, plan: &mut Plan) -> bool {
        match self.current.map(|c| &c.run) {
            Some(Run::Exited { code: 0, .. }) => return true,
            Some(Run::Exited { finished, .. }) => self.restart(plan, *finished),
            Some(Run::Running { .. }) => {}
            Some(Run::Created | Run::Unknown) | None => self.start(plan, None),
        }
        false
    }

    /// Keeps a container running; says whether it runs and has started.
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
                    Why::StartupFailed
                } else if !health.live {
                    Why::LivenessFailed
                } else if !current.hash.is_empty()
                    && current.hash != container_hash(&self.member.container)
                {
                    Why::SpecChanged
                } else {
                    let has = current.resources.as_ref();
                    match has.and_then(|has| resize::change(has, &self.member.container)) {
                        Some(resize::Change::Restart) => Why::Resized,
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
            Some(wait) => plan.look_at(after(self.inputs.now, wait)),
            None => self.start(plan, Some(exited)),
        }
    }

    fn start(&self, plan: &mut Plan, exited: Option<Timestamp>) {
        let name = &self.member.container.name;
        if let Some(failure) = self.inputs.memory.failure(name)
            && failure.retry_at > self.inputs.now
        {
            return plan.look_at(failure.retry_at);
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

/// The attempt to go on from when the runtime has no trace of a container, but the API remembers it.
fn reported_restarts(pod: &Pod, name: &str) -> u32 {
    let Some(status) = &pod.status else { return 0 };
    let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    let known =
        all.filter(|s| s.name == name && s.container_id.as_ref().is_some_and(|id| !id.is_empty()));
    known.map(|s| u32::try_from(s.restart_count).unwrap_or(0) + 1).max().unwrap_or(0)
}
