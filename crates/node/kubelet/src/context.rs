//! The context that all parts of the kubelet share.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use pod_core::Timestamp;
use tokio::sync::Semaphore;

use crate::{config::Settings, events::Events, machine::Machine, node::OwnNode, objects::Objects};

/// The settings, clients and managers of one kubelet.
pub(crate) struct Context {
    pub(crate) settings: Settings,
    pub(crate) machine: Machine,
    pub(crate) cri: cri::Client,
    /// The runtime's name, which prefixes container IDs in statuses.
    pub(crate) runtime_name: String,
    pub(crate) client: Option<client::Client>,
    pub(crate) mirrors: crate::sources::mirror::Mirrors,
    pub(crate) objects: Objects,
    /// The Node object of this node, as last seen at the API server.
    pub(crate) node: OwnNode,
    pub(crate) events: Events,
    pub(crate) cgroups: Box<dyn sys::cgroup::Cgroups>,
    pub(crate) mounts: Arc<dyn sys::mount::Mounts>,
    /// Operations on volumes' files, which run with a timeout in threads of their own.
    pub(crate) operations: crate::volumes::Operations,
    /// The CSI drivers of this node and their volumes in use.
    pub(crate) csi: Arc<crate::volumes::csi::Csi>,
    /// The devices of device plugins, and their allocation to Pods.
    pub(crate) devices: Arc<crate::devices::Devices>,
    /// The ResourceClaims of this node's Pods, and their drivers.
    pub(crate) claims: Arc<crate::claims::Claims>,
    /// The CPU, memory and topology managers.
    pub(crate) placement: Arc<crate::placement::Placement>,
    /// Records of the credentials with which images were pulled.
    pub(crate) pull_records: crate::pulls::PullRecords,
    /// Limits the number of concurrent image pulls.
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

/// Converts a time of the runtime, in nanoseconds since the epoch. Zero and negative values become the epoch.
pub(crate) fn of_nanos(nanos: i64) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(nanos.max(0))).unwrap_or(Timestamp::UNIX_EPOCH)
}
