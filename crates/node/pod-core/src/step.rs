//! The steps of a Pod's plan.

use crate::{spec::Role, time::Timestamp};

/// A step of a plan. Steps are executed in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Stops a sandbox that is not ready any more, with its containers.
    StopSandbox {
        /// The sandbox.
        id: String,
    },
    /// Creates a sandbox.
    CreateSandbox {
        /// The number of earlier sandboxes.
        attempt: u32,
    },
    /// Starts a container.
    Start {
        /// The container's name.
        name: String,
        /// The container's role.
        role: Role,
        /// The ID of the sandbox.
        sandbox: String,
        /// The number of earlier runs.
        attempt: u32,
        /// The end of the previous run, if there was one.
        exited: Option<Timestamp>,
    },
    /// Stops a container.
    Kill {
        /// The ID of the run.
        id: String,
        /// The container's name.
        name: String,
        /// The cause, for the Event.
        why: KillReason,
    },
    /// Changes the resources of a running container.
    Resize {
        /// The ID of the run.
        id: String,
        /// The container's name.
        name: String,
    },
    /// Sets the limits of the Pod's cgroup to changed resources that the containers share.
    ResizePod,
    /// Removes the container whose exit restarts all, as the last one of the Pod.
    RestartAll {
        /// The ID of the run.
        id: String,
        /// The container's name.
        name: String,
        /// The end of the run.
        exited: Timestamp,
    },
    /// Removes an ended run that has successors.
    Remove {
        /// The ID of the run.
        id: String,
    },
    /// Removes an empty sandbox that was replaced.
    RemoveSandbox {
        /// The sandbox.
        id: String,
    },
}

/// The cause for stopping a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillReason {
    /// The liveness probe failed.
    LivenessFailed,
    /// The startup probe failed.
    StartupFailed,
    /// The container's spec has changed, for example its image.
    SpecChanged,
    /// Its changed resources need a restart.
    Resized,
    /// A sidecar whose application containers have ended.
    NotNeeded,
    /// The sandbox has ended, and the network with it.
    SandboxLost,
    /// All containers restart because another one has exited.
    RestartAll,
}
