//! The phase of a Pod.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

use crate::spec::{Member, Role, Verdict, members, should_restart};

/// The phase of a Pod, in the order in which a Pod passes through them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Some container has not started.
    Pending,
    /// All containers have started, and at least one runs or restarts.
    Running,
    /// All containers have succeeded.
    Succeeded,
    /// All containers have ended, and at least one has failed; or the Pod was ended by the node.
    Failed,
}

impl Phase {
    /// Returns the phase's name in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }

    /// Reports whether the Pod has ended for good.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// The life cycle of a container, as its status shows it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    NeverRan,
    Running {
        started: bool,
    },
    Ended {
        code: i32,
    },
    /// The container has ended and will restart.
    Between {
        code: i32,
    },
}

fn life(status: Option<&ContainerStatus>) -> Life {
    let Some(status) = status else { return Life::NeverRan };
    let state = status.state.as_ref();
    if let Some(ended) = state.and_then(|s| s.terminated.as_ref()) {
        return Life::Ended { code: ended.exit_code };
    }
    if state.is_some_and(|s| s.running.is_some()) {
        return Life::Running { started: status.started.unwrap_or(false) };
    }
    match status.last_state.as_ref().and_then(|s| s.terminated.as_ref()) {
        Some(ended) => Life::Between { code: ended.exit_code },
        None => Life::NeverRan,
    }
}

/// Computes the phase from a Pod's container statuses.
pub(crate) fn phase(pod: &Pod, init: &[ContainerStatus], apps: &[ContainerStatus]) -> Phase {
    let find = |all: &[ContainerStatus], name: &str| life(all.iter().find(|s| s.name == name));
    let (mut initialising, mut init_failed) = (false, false);
    let (mut waiting, mut running, mut ended) = (0, 0, Vec::new());
    for member in members(pod) {
        let name = &member.container.name;
        match member.role {
            Role::Ephemeral => {}
            Role::Sidecar => match find(init, name) {
                Life::NeverRan | Life::Running { started: false } => initialising = true,
                _ => {}
            },
            Role::Init => match find(init, name) {
                Life::Ended { code: 0 } | Life::Between { code: 0 } => {}
                Life::Ended { code } if should_restart(pod, &member, code) == Verdict::Failed => {
                    init_failed = true
                }
                _ => initialising = true,
            },
            Role::App => match find(apps, name) {
                Life::NeverRan => waiting += 1,
                Life::Running { .. } => running += 1,
                Life::Between { .. } => ended.push(Verdict::Restart),
                Life::Ended { code } => ended.push(should_restart(pod, &member, code)),
            },
        }
    }
    if init_failed {
        return Phase::Failed;
    }
    // An application container that has run proves that initialization was complete once, whatever sidecars do now.
    if (initialising && running == 0 && ended.is_empty()) || waiting > 0 {
        return Phase::Pending;
    }
    if running > 0 || ended.contains(&Verdict::Restart) {
        return Phase::Running;
    }
    if ended.is_empty() {
        return Phase::Pending;
    }
    if ended.contains(&Verdict::Failed) { Phase::Failed } else { Phase::Succeeded }
}

/// Reports whether the Pod ends when this container and all others like it have ended.
pub(crate) fn decides_end(member: &Member<'_>) -> bool {
    member.role == Role::App
}
