//! The state and the means of all volumes of one kubelet.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use kubelet_objects::{Events, NodeInformer, Objects};
use pod_core::Timestamp;
use sys::mount::Mounts;

use crate::{
    certificates::Certificates, drivers::Drivers, operations::Operations, program::VolumePrograms,
    space::VolumeSpace,
};

/// The directory below the kubelet's root for volumes that the kubelet creates for claims.
pub(crate) const LOCAL_DIRECTORY: &str = "local-volumes";

/// The time that a Pod waits for a volume to be attached before it reports an error, as upstream.
const ATTACH: Duration = Duration::from_secs(123);

/// The volumes of one kubelet.
pub struct Volumes {
    /// The directory for the kubelet's state.
    pub root: PathBuf,
    /// The name of the Node.
    pub node_name: String,
    /// The reader of ConfigMaps, Secrets and claims.
    pub objects: Arc<Objects>,
    /// The Node object of this node.
    pub node: Arc<NodeInformer>,
    /// The recorder of Events.
    pub events: Events,
    /// The kernel's mounts.
    pub mounts: Arc<dyn Mounts>,
    /// The host's programs that mount volumes.
    pub programs: VolumePrograms,
    /// The operations on volumes' files, which run with a timeout in threads of their own.
    pub operations: Operations,
    /// The CSI drivers of this node and their volumes in use.
    pub drivers: Arc<Drivers>,
    /// The keys and certificates in projected volumes.
    pub certificates: Certificates,
    /// The space that the volumes may take in the node's memory.
    pub space: Arc<VolumeSpace>,
    /// The clock.
    pub clock: Arc<dyn rt::Clock>,
}

impl Volumes {
    pub(crate) fn pod_dir(&self, uid: &str) -> PathBuf {
        pod_core::paths::pod_dir(&self.root, uid)
    }

    pub(crate) fn now(&self) -> Timestamp {
        pod_core::timestamp(self.clock.now())
    }

    /// Waits until the Node lists a volume as attached and in use. Returns `false` after upstream's time limit.
    pub(crate) async fn wait_attached(&self, volume: &str) -> bool {
        let mut changes = self.node.changes();
        let wait = async {
            while !self.node.get().is_some_and(|node| node.may_use(volume)) {
                if changes.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::time::timeout(ATTACH, wait).await.is_ok()
    }

    /// Returns the directory of the local volumes that the kubelet creates.
    pub fn local_directory(&self) -> PathBuf {
        local_directory(&self.root)
    }
}

/// Returns the directory of the local volumes that the kubelet creates below its directory `root`.
pub fn local_directory(root: &Path) -> PathBuf {
    root.join(LOCAL_DIRECTORY)
}
