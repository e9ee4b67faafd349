use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use pod_core::Timestamp;
use tokio::sync::Semaphore;

use crate::{config::Settings, events::Events, machine::Machine, node::Own, objects::Objects};

/// What every part of one kubelet works with.
pub(crate) struct Context {
    pub(crate) settings: Settings,
    pub(crate) machine: Machine,
    pub(crate) cri: cri::Client,
    /// The name with which container ids begin in statuses.
    pub(crate) runtime_name: String,
    pub(crate) client: Option<client::Client>,
    pub(crate) mirrors: crate::sources::mirror::Mirrors,
    pub(crate) objects: Objects,
    /// What the API says of this node.
    pub(crate) node: Own,
    pub(crate) events: Events,
    pub(crate) cgroups: Box<dyn sys::cgroup::Cgroups>,
    pub(crate) mounts: Arc<dyn sys::mount::Mounts>,
    /// What is done with volumes' files.
    pub(crate) operations: crate::volumes::Operations,
    /// The storage drivers of this node, and which of their volumes are in use.
    pub(crate) csi: Arc<crate::volumes::csi::Csi>,
    /// The devices of this node's plugins, and which Pod has which.
    pub(crate) devices: Arc<crate::devices::Devices>,
    /// The claims that this node's Pods use, and the drivers that have part in them.
    pub(crate) claims: Arc<crate::claims::Claims>,
    /// Who has which CPUs, memory and devices, and where.
    pub(crate) placement: Arc<crate::placement::Placement>,
    /// Who may use images that are here.
    pub(crate) pull_records: crate::pulls::PullRecords,
    /// How many images are pulled at once.
    pub(crate) pulls: Semaphore,
    pub(crate) clock: Arc<dyn rt::Clock>,
    pub(crate) pressures: crate::eviction::Pressures,
    pub(crate) stats: crate::stats::Stats,
    pub(crate) tasks: rt::Tasks,
}

impl Context {
    pub(crate) fn now(&self) -> Timestamp {
        timestamp(self.clock.now())
    }
}

pub(crate) fn timestamp(time: SystemTime) -> Timestamp {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let nanos = i128::try_from(since.as_nanos()).unwrap_or(i128::MAX);
    Timestamp::from_nanosecond(nanos).unwrap_or(Timestamp::MAX)
}

/// The runtime's times are nanoseconds since the epoch, zero where there is none.
pub(crate) fn of_nanos(nanos: i64) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(nanos.max(0))).unwrap_or(Timestamp::UNIX_EPOCH)
}
