//! The sources of statistics.

use std::{path::PathBuf, sync::Arc};

use kubelet_volumes::Volumes;
use pod_core::{Timestamp, cgroups::CgroupNames};
use sys::cgroup::Cgroups;

use crate::machine::Machine;

/// The settings and clients that statistics are read with.
pub struct StatsSources {
    /// The name of the Node.
    pub node_name: String,
    /// The directory for the kubelet's state.
    pub root: PathBuf,
    /// The directory of container logs.
    pub logs: PathBuf,
    /// The facts about the machine.
    pub machine: Machine,
    /// The container runtime.
    pub cri: cri::Client,
    /// The kernel's cgroups.
    pub cgroups: Arc<dyn Cgroups>,
    /// The names of the cgroups of Pods.
    pub cgroup_names: CgroupNames,
    /// The volumes of Pods.
    pub volumes: Arc<Volumes>,
    /// The clock.
    pub clock: Arc<dyn rt::Clock>,
}

impl StatsSources {
    pub(crate) fn now(&self) -> Timestamp {
        pod_core::timestamp(self.clock.now())
    }
}
