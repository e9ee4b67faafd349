//! The observed sandboxes and containers of a Pod.

use k8s_openapi::api::core::v1::ResourceRequirements;

use crate::time::Timestamp;

/// The sandboxes and containers of one Pod, newest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// The sandboxes, newest first.
    pub sandboxes: Vec<Sandbox>,
    /// The runs of all containers, newest first.
    pub containers: Vec<Container>,
    /// The resources shared by all containers that the Pod's cgroup has; `None` if unknown.
    pub shared: Option<ResourceRequirements>,
}

/// A sandbox as the runtime reports it.
#[derive(Clone, Debug, PartialEq)]
pub struct Sandbox {
    /// The runtime's ID.
    pub id: String,
    /// The number of earlier sandboxes of the Pod.
    pub attempt: u32,
    /// `true` if the sandbox is ready.
    pub ready: bool,
    /// The time of creation.
    pub created: Timestamp,
    /// The Pod's addresses, the primary one first. Empty on the host's network.
    pub ips: Vec<String>,
}

/// A run of a container as the runtime reports it.
#[derive(Clone, Debug, PartialEq)]
pub struct Container {
    /// The runtime's ID.
    pub id: String,
    /// The container's name in the Pod.
    pub name: String,
    /// The ID of the sandbox.
    pub sandbox: String,
    /// The number of earlier runs of the container.
    pub attempt: u32,
    /// The time of creation.
    pub created: Timestamp,
    /// The state of the run.
    pub run: Run,
    /// The image's name in the runtime, for the status.
    pub image: String,
    /// The image's ID or digest in the runtime.
    pub image_id: String,
    /// The hash of the container's spec at its creation; empty if unknown.
    pub hash: String,
    /// The termination message; empty while the container runs.
    pub message: String,
    /// The paths of mounts that are recursively read-only.
    pub recursive_read_only: Vec<String>,
    /// The resources that were set last; `None` if unknown.
    pub resources: Option<ResourceRequirements>,
    /// The resources shared by all containers of the Pod at that time.
    pub shared: Option<ResourceRequirements>,
}

/// The state of a container's run.
#[derive(Clone, Debug, PartialEq)]
pub enum Run {
    /// Created but not started. A kubelet that was killed in between leaves this state.
    Created,
    /// The process is running.
    Running {
        /// The start of the process.
        started: Timestamp,
    },
    /// The process has ended.
    Exited {
        /// The start of the process, if it started.
        started: Option<Timestamp>,
        /// The end of the process.
        finished: Timestamp,
        /// The exit code.
        code: i32,
        /// The runtime's reason, for example `OOMKilled`.
        reason: String,
    },
    /// The runtime does not know.
    Unknown,
}

impl Observed {
    /// Sorts the runtime's lists, newest first.
    pub fn new(mut sandboxes: Vec<Sandbox>, mut containers: Vec<Container>) -> Self {
        sandboxes.sort_by_key(|s| std::cmp::Reverse((s.created, s.attempt)));
        containers.sort_by_key(|c| std::cmp::Reverse((c.created, c.attempt)));
        Self { sandboxes, containers, shared: None }
    }

    /// Returns the newest sandbox if it is ready.
    pub fn ready_sandbox(&self) -> Option<&Sandbox> {
        self.sandboxes.first().filter(|s| s.ready)
    }

    /// Returns the newest run of a container in any sandbox.
    pub fn newest(&self, name: &str) -> Option<&Container> {
        self.containers.iter().find(|c| c.name == name)
    }

    /// Returns the newest run of a container in one sandbox.
    pub(crate) fn newest_in(&self, name: &str, sandbox: &str) -> Option<&Container> {
        self.containers.iter().find(|c| c.name == name && c.sandbox == sandbox)
    }

    /// Returns ended runs that can be removed. The newest two runs of a container are kept, the second one for its logs
    /// (`kubectl logs --previous`).
    pub fn remains(&self) -> impl Iterator<Item = &Container> {
        self.containers.iter().enumerate().filter_map(|(at, container)| {
            let newer = self.containers[..at].iter().filter(|c| c.name == container.name).count();
            (newer >= 2 && !container.is_running()).then_some(container)
        })
    }

    /// Returns replaced sandboxes without containers.
    pub(crate) fn replaced_sandboxes(&self) -> impl Iterator<Item = &Sandbox> {
        let replaced = self.sandboxes.iter().skip(1).filter(|s| !s.ready);
        replaced.filter(|s| self.containers.iter().all(|c| c.sandbox != s.id))
    }

    /// Returns the running runs of all containers.
    pub fn running(&self) -> impl Iterator<Item = &Container> {
        self.containers.iter().filter(|c| c.is_running())
    }
}

impl Container {
    /// Reports whether the process was running at the time of the observation.
    pub fn is_running(&self) -> bool {
        matches!(self.run, Run::Running { .. })
    }

    /// Returns the exit code of an ended run.
    pub fn exit_code(&self) -> Option<i32> {
        match self.run {
            Run::Exited { code, .. } => Some(code),
            _ => None,
        }
    }
}
