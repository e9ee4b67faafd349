//! The inputs of a status.

use k8s_openapi::{
    api::core::v1::{Pod, PodStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};

use crate::{
    memory::Memory, observed::Observed, plan::Ending, probe::Verdicts, resize::Pending,
    time::Timestamp,
};

/// The inputs of a status.
#[derive(Clone, Copy)]
pub struct StatusInputs<'a> {
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
    /// The last reported status, of this kubelet or an earlier one.
    pub previous: &'a PodStatus,
    /// The final state, if the Pod is ending or has ended.
    pub ending: Option<&'a Ending>,
    /// `true` if the Pod's containers are being stopped or have been stopped.
    pub stopping: bool,
    /// The addresses of the node.
    pub host_ips: &'a [String],
    /// The runtime's name, which prefixes container IDs.
    pub runtime: &'a str,
    /// The reason why a resize is pending.
    pub pending: Option<&'a Pending>,
    /// The error of the last attempt to resize a container.
    pub resize_error: Option<&'a str>,
}

/// Truncates a time to whole seconds, as the API does; otherwise the status would differ from the one read back.
pub(super) fn seconds(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}
