//! Unpublishes volumes from a Pod, and unstages them from the node when no Pod uses them. The records on the disk
//! decide, so a restarted kubelet unmounts what an earlier one mounted.

use std::{sync::Arc, time::Duration};

use csi::v1;
use futures_util::future::join_all;

use super::files::{EPHEMERAL, Layout, PodVolume};
use crate::{
    drivers::{AcquiredDriver, Drivers},
    error::{Cause, CsiError, Error, VolumeStep},
    iscsi,
    operations::EarlierResult,
    volumes::Volumes,
};

const SCAN_INTERVAL: Duration = Duration::from_secs(10);
/// The longest delay between attempts, as upstream.
const MAX_DELAY: Duration = Duration::from_secs(122);

/// Unpublishes all CSI volumes of a Pod. Tries all of them and returns the first error.
pub(crate) async fn unmount(volumes: &Volumes, uid: &str) -> Result<(), Error> {
    let (layout, owner) = (Layout::new(&volumes.root), uid.to_owned());
    let (read, pod_dir, mounts) = (layout.clone(), volumes.pod_dir(uid), volumes.mounts.clone());
    let look = move || {
        let held = read.of_pod(&owner)?;
        if !held.is_empty() {
            // Mounts of subPaths would keep the volumes busy.
            mounts.unmount_below(&pod_dir.join("volume-subpaths"))?;
        }
        Ok::<_, Error>(held)
    };
    let held = volumes.operations.run((uid, ""), EarlierResult::Discard, look).await??;
    let each = held.into_iter().map(|held| {
        let layout = layout.clone();
        async move {
            let job = UnmountJob::new(volumes, held, layout).await?;
            let key = (uid, job.held.in_pod.to_string_lossy().into_owned());
            let work = move || job.unpublish();
            volumes.operations.run((key.0, &key.1), EarlierResult::Discard, work).await?
        }
    });
    join_all(each).await.into_iter().collect::<Result<(), Error>>()?;
    volumes.drivers.remove_user(uid);
    Ok(())
}

impl Volumes {
    /// Finds the CSI volumes that an earlier kubelet mounted. Must run before the node reports its volumes in use.
    pub async fn reconstruct(&self) -> Result<(), Error> {
        let (layout, root) = (Layout::new(&self.root), self.root.clone());
        let look = move || {
            let disks = iscsi::connected_disks(&root);
            Ok::<_, Error>((layout.of_all_pods()?, layout.staged_volumes()?, disks))
        };
        let (published, staged, disks) =
            self.operations.run(("", "csi"), EarlierResult::Discard, look).await??;
        disks.iter().for_each(|disk| self.drivers.add_unused(disk));
        for held in published.into_iter().filter(|held| held.record.lifecycle != EPHEMERAL) {
            self.drivers.add_unused(&held.record.unique_name());
        }
        staged.iter().for_each(|held| self.drivers.add_unused(&held.record.unique_name()));
        Ok(())
    }

    /// Periodically unstages CSI volumes that no Pod uses, until shutdown. Such volumes remain if a driver did not
    /// answer or the kubelet was restarted.
    pub async fn unstage_unused(self: Arc<Self>) {
        let mut wait = rt::Backoff::new(SCAN_INTERVAL, MAX_DELAY);
        loop {
            tokio::time::sleep(wait.next(rt::random())).await;
            match self.unstage_once().await {
                Ok(()) => wait.reset(),
                Err(error) => {
                    tracing::warn!(%error, "unstage unused volumes from the node; trying again")
                }
            }
        }
    }

    pub(crate) async fn unstage_once(&self) -> Result<(), Error> {
        let layout = Layout::new(&self.root);
        let read = layout.clone();
        let staged =
            self.operations.run(("", "csi"), EarlierResult::Discard, move || read.staged_volumes());
        let unused = staged.await??.into_iter();
        let unused = unused.filter(|held| !self.drivers.is_used(&held.record.unique_name()));
        let each = unused.map(|held| {
            let layout = layout.clone();
            async move {
                let job = UnmountJob::new(self, held, layout).await?;
                let name = job.held.record.unique_name();
                let work = move || job.unstage_alone();
                self.operations.run(("", &name), EarlierResult::Discard, work).await?
            }
        });
        join_all(each).await.into_iter().collect()
    }
}

/// A volume that is about to be unmounted.
struct UnmountJob {
    drivers: Arc<Drivers>,
    runtime: tokio::runtime::Handle,
    /// The driver, held until it has answered.
    acquired: AcquiredDriver,
    layout: Layout,
    held: PodVolume,
    mounts: Arc<dyn sys::mount::Mounts>,
}

impl UnmountJob {
    async fn new(volumes: &Volumes, held: PodVolume, layout: Layout) -> Result<Self, Error> {
        let acquired = volumes.drivers.acquire(&held.record.driver, "Unmounter.TearDownAt").await;
        Ok(Self {
            drivers: volumes.drivers.clone(),
            runtime: tokio::runtime::Handle::current(),
            mounts: volumes.mounts.clone(),
            acquired: acquired.map_err(|cause| failed(&held, cause))?,
            layout,
            held,
        })
    }

    fn failed(&self, cause: impl Into<Cause>) -> Box<CsiError> {
        failed(&self.held, cause.into())
    }

    fn unpublish(self) -> Result<(), Error> {
        let runtime = self.runtime.clone();
        runtime.block_on(async {
            let name = self.held.record.unique_name();
            let _turn = self.drivers.lock_volume(&name).await;
            let request = v1::NodeUnpublishVolumeRequest {
                volume_id: self.held.record.handle.clone(),
                target_path: self.held.target.display().to_string(),
            };
            self.acquired.driver.unpublish(request).await.map_err(|error| self.failed(error))?;
            if self.mounts.is_mount_point(&self.held.target)? {
                let busy = std::io::Error::from(std::io::ErrorKind::ResourceBusy);
                return Err(Error::file("check that the driver has unmounted", &self.held.target)(busy));
            }
            self.layout.remove_record(&self.held)?;
            self.drivers.set_published(&name, self.held.target.clone(), false);
            if self.held.record.lifecycle != EPHEMERAL
                && let Err(error) = self.unstage().await
            {
                // The Pod does not use the volume any more and need not wait. [`Volumes::unstage_unused`] retries.
                tracing::warn!(volume = name, %error, "unstage a volume from the node; trying again later");
            }
            Ok(())
        })
    }

    fn unstage_alone(self) -> Result<(), Error> {
        let runtime = self.runtime.clone();
        runtime.block_on(async {
            let _turn = self.drivers.lock_volume(&self.held.record.unique_name()).await;
            self.unstage().await
        })
    }

    /// Unstages the volume if no Pod has it or is about to.
    async fn unstage(&self) -> Result<(), Error> {
        let record = &self.held.record;
        let name = record.unique_name();
        let same = |held: &PodVolume| held.record.unique_name() == name;
        let (at, data) = self.layout.staging_paths(record, self.held.block);
        if self.layout.of_all_pods()?.iter().any(same) {
            return Ok(());
        }
        let can = self.acquired.driver.capabilities().await.map_err(|error| self.failed(error))?;
        if can.stage && data.exists() {
            let request = v1::NodeUnstageVolumeRequest {
                volume_id: record.handle.clone(),
                staging_target_path: at.display().to_string(),
            };
            self.acquired.driver.unstage(request).await.map_err(|error| self.failed(error))?;
            if self.mounts.is_mount_point(&at)? {
                let busy = std::io::Error::from(std::io::ErrorKind::ResourceBusy);
                return Err(Error::file("check that the driver has unmounted", &at)(busy));
            }
        }
        self.layout.remove_staged_record(&self.held)?;
        self.drivers.set_staged(&name, false);
        Ok(())
    }
}

fn failed(held: &PodVolume, cause: Cause) -> Box<CsiError> {
    let volume = held.record.spec_name.clone();
    Box::new(CsiError { step: VolumeStep::SetUp, volume, cause })
}
