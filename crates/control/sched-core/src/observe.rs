//! The progress of scheduling, as the caller of the core measures it. The core itself has no clock.

/// A stage of an attempt to schedule a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// The filters are prepared for the Pod.
    PreFilter,
    /// The nodes are checked.
    Filter,
    /// Preemption looks for victims.
    PostFilter,
    /// The nodes that passed are compared.
    Score,
    /// Volumes and devices of the chosen node are reserved.
    Reserve,
}

/// The result of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StageResult {
    /// The Pod may go on.
    Success,
    /// The Pod fits nowhere now.
    Unschedulable,
    /// The stage failed for another reason.
    Error,
}

/// The state of a waiting Pod, as upstream's metrics name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QueueName {
    /// Pods to try next.
    Active,
    /// Pods that wait for the end of their backoff.
    Backoff,
    /// Pods that no node has room for.
    Unschedulable,
    /// Pods that must not be tried yet.
    Gated,
}

/// Receives the progress of scheduling. Calls come from one thread at a time, and a stage ends before another begins.
pub trait Observer: Send + Sync {
    /// A stage begins.
    fn begin(&self) {}

    /// The stage that began last ends, for a Pod of this scheduler name.
    fn end(&self, _stage: Stage, _result: StageResult, _scheduler: &str) {}

    /// An event has moved a Pod into a queue.
    fn queued(&self, _queue: QueueName, _event: &'static str) {}
}

/// The observer that ignores all progress.
pub(crate) struct Unobserved;

impl Observer for Unobserved {}
