//! The CPUs of a machine, the options of the policy, and the errors of an allocation.

use std::collections::BTreeMap;

/// The position of a CPU in the machine. CPUs with the same core are its hardware threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuLocation {
    /// The lowest CPU of the core.
    pub core: u32,
    /// The number of the socket.
    pub socket: i64,
    /// The number of the NUMA node.
    pub node: i64,
    /// The lowest of the CPUs that share the last-level cache.
    pub cache: u32,
}

/// The CPUs of a machine by number.
pub type Machine = BTreeMap<u32, CpuLocation>;

/// The options of the policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Allocate whole cores only (`full-pcpus-only`).
    pub full_cores: bool,
    /// Shared containers do not run on the reserved CPUs (`strict-cpu-reservation`).
    pub strict: bool,
    /// Allocate evenly if one NUMA node is not enough (`distribute-cpus-across-numa`).
    pub distribute: bool,
    /// Prefer CPUs that share a cache (`prefer-align-cpus-by-uncorecache`).
    pub by_cache: bool,
}

/// The error of an allocation of CPUs. The messages are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CpuError {
    #[error(
        "not enough cpus available to satisfy request: requested={requested}, available={available}"
    )]
    TooFew { requested: usize, available: usize },
    #[error(
        "SMT Alignment Error: requested {requested} cpus not multiple cpus per core = {per_core}"
    )]
    NoWholeCores { requested: usize, per_core: usize },
    #[error(
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = {available}, requested CPUs = \
         {requested}, CPUs per core = {per_core}"
    )]
    TooFewCores { requested: usize, available: usize, per_core: usize },
}

impl CpuError {
    /// Returns the reason in the status of a Pod that is refused because of the error.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::TooFew { .. } => "UnexpectedAdmissionError",
            Self::NoWholeCores { .. } | Self::TooFewCores { .. } => "SMTAlignmentError",
        }
    }
}
