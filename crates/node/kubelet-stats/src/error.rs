//! The error of collecting statistics.

/// The error of collecting statistics.
#[derive(Debug, thiserror::Error)]
pub enum StatsError {
    #[error("list the container runtime's sandboxes and containers: {0}")]
    Runtime(#[from] cri::Error),
    #[error("read the control groups: the reading panicked; see the kubelet's log")]
    Panicked,
}
