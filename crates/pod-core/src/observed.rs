use k8s_openapi::api::core::v1::ResourceRequirements;

use crate::Timestamp;

/// What the runtime has of one Pod, newest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    pub sandboxes: Vec<Sandbox>,
    pub containers: Vec<Container>,
}

/// A Pod's sandbox as the runtime shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Sandbox {
    pub id: String,
    /// How many sandboxes the Pod had before it.
    pub attempt: u32,
    pub ready: bool,
    pub created: Timestamp,
    /// The Pod's addresses, the primary first; none on the host's network.
    pub ips: Vec<String>,
}

/// One run of a container as the runtime shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Container {
    pub id: String,
    pub name: String,
    pub sandbox: String,
    /// How many runs the container had before it.
    pub attempt: u32,
    pub created: Timestamp,
    pub run: Run,
    /// As the runtime names it, which status reports.
    pub image: String,
    pub image_id: String,
    /// The hash of the spec that it was made from; empty when unknown.
    pub hash: String,
    pub message: String,
    /// The paths in the container of the mounts that are read-only with all that is mounted below them.
    pub recursive_read_only: Vec<String>,
    /// What it was last told to keep to; `None` where that is not known.
    pub resources: Option<ResourceRequirements>,
}

/// How far a run has come.
#[derive(Clone, Debug, PartialEq)]
pub enum Run {
    /// Made, never started: what a kubelet leaves that was killed between the two.
    Created,
    Running {
        started: Timestamp,
    },
    Exited {
        started: Option<Timestamp>,
        finished: Timestamp,
        code: i32,
        reason: String,
    },
    Unknown,
}

impl Observed {
    /// Brings what the runtime lists into order, the newest first.
    pub fn new(mut sandboxes: Vec<Sandbox>, mut containers: Vec<Container>) -> Self {
        sandboxes.sort_by_key(|s| std::cmp::Reverse((s.created, s.attempt)));
        containers.sort_by_key(|c| std::cmp::Reverse((c.created, c.attempt)));
        Self { sandboxes, containers }
    }

    /// The sandbox that the Pod's containers are to run in, if it stands.
    pub fn ready_sandbox(&self) -> Option<&Sandbox> {
        self.sandboxes.first().filter(|s| s.ready)
    }

    /// A container's latest instance, in whatever sandbox.
    pub fn newest(&self, name: &str) -> Option<&Container> {
        self.containers.iter().find(|c| c.name == name)
    }

    /// A container's latest instance in one sandbox.
    pub(crate) fn newest_in(&self, name: &str, sandbox: &str) -> Option<&Container> {
        self.containers.iter().find(|c| c.name == name && c.sandbox == sandbox)
    }

    /// Every instance that is not the latest of its container and does not run: remains of earlier attempts. The
    /// second latest stays while it is wanted for its logs (`kubectl logs --previous`).
    pub fn remains(&self) -> impl Iterator<Item = &Container> {
        self.containers.iter().enumerate().filter_map(|(at, container)| {
            let newer = self.containers[..at].iter().filter(|c| c.name == container.name).count();
            (newer >= 2 && !container.is_running()).then_some(container)
        })
    }

    /// Sandboxes that were replaced and hold no container that is still wanted.
    pub(crate) fn spent_sandboxes(&self) -> impl Iterator<Item = &Sandbox> {
        let replaced = self.sandboxes.iter().skip(1).filter(|s| !s.ready);
        replaced.filter(|s| self.containers.iter().all(|c| c.sandbox != s.id))
    }

    /// The runs that go on, of any container.
    pub fn running(&self) -> impl Iterator<Item = &Container> {
        self.containers.iter().filter(|c| c.is_running())
    }
}

impl Container {
    /// Whether its process was alive when the runtime was asked.
    pub fn is_running(&self) -> bool {
        matches!(self.run, Run::Running { .. })
    }

    /// The exit code of a run that is over.
    pub fn exit_code(&self) -> Option<i32> {
        match self.run {
            Run::Exited { code, .. } => Some(code),
            _ => None,
        }
    }
}
