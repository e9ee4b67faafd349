//! Unpublishes volumes from a Pod, and unstages them from the node when no Pod uses them. The records on the disk
//! decide, so a restarted kubelet unmounts what an earlier one mounted.

use std::{sync::Arc, time::Duration};

use csi::v1;
use futures_util::future::join_all;

use super::{
    super::{EarlierResult, Error},
    Cause, Csi, CsiError, VolumeStep,
    files::{EPHEMERAL, Layout, PodVolume},
};
use crate::context::Context;

const LOOK: Duration = Duration::from_secs(10);
/// The longest delay between attempts, as upstream.
const LONGEST: Duration = Duration::from_secs(122);

/// Unpublishes all CSI volumes of a Pod. Tries all of them and returns the first error.
pub(crate) async fn tear_down(ctx: &Context, uid: &str) -> Result<(), Error> {
    let (layout, of) = (Layout::new(&ctx.settings.root), uid.to_owned());
    let (read, pod_dir, mounts) = (layout.clone(), ctx.settings.pod_dir(uid), ctx.mounts.clone());
    let look = move || {
        let held = read.of_pod(&of)?;
        if !held.is_empty() {
            // Mounts of subPaths would keep the volumes busy.
            mounts.unmount_below(&pod_dir.join("volume-subpaths"))?;
        }
        Ok::<_, Error>(held)
    };
    let held = ctx.operations.run((uid, ""), EarlierResult::Discard, look).await??;
    let each = held.into_iter().map(|held| {
        let layout = layout.clone();
        async move {
            let back = UnmountJob::new(ctx, held, layout).await?;
            let key = (uid, back.held.in_pod.to_string_lossy().into_owned());
            let work = move || back.unpublish();
            ctx.operations.run((key.0, &key.1), EarlierResult::Discard, work).await?
        }
    });
    join_all(each).await.into_iter().collect::<Result<(), Error>>()?;
    ctx.csi.remove_user(uid);
    Ok(())
}

/// Finds the volumes that an earlier kubelet mounted. Must run before the node reports its volumes in use.
pub(crate) async fn reconstruct(ctx: &Context) -> Result<(), Error> {
    let layout = Layout::new(&ctx.settings.root);
    let look = move || Ok::<_, Error>((layout.of_all_pods()?, layout.staged()?));
    let (published, staged) =
        ctx.operations.run(("", "csi"), EarlierResult::Discard, look).await??;
    for held in published.into_iter().filter(|held| held.record.lifecycle != EPHEMERAL) {
        ctx.csi.add_unused(&held.record.unique_name());
    }
    staged.iter().for_each(|held| ctx.csi.add_unused(&held.record.unique_name()));
    Ok(())
}

/// Periodically unstages volumes that no Pod uses, until shutdown. Such volumes remain if a driver did not answer or
/// the kubelet was restarted.
pub(crate) async fn unstage_unused(ctx: Arc<Context>) {
    let mut wait = rt::Backoff::new(LOOK, LONGEST);
    loop {
        tokio::time::sleep(wait.next(rt::random())).await;
        match unstage_once(&ctx).await {
            Ok(()) => wait.reset(),
            Err(error) => {
                tracing::warn!(%error, "unstage unused volumes from the node; trying again")
            }
        }
    }
}

pub(super) async fn unstage_once(ctx: &Context) -> Result<(), Error> {
    let layout = Layout::new(&ctx.settings.root);
    let read = layout.clone();
    let staged = ctx.operations.run(("", "csi"), EarlierResult::Discard, move || read.staged());
    let unused = staged.await??.into_iter();
    let unused = unused.filter(|held| !ctx.csi.is_wanted(&held.record.unique_name()));
    let each = unused.map(|held| {
        let layout = layout.clone();
        async move {
            let back = UnmountJob::new(ctx, held, layout).await?;
            let name = back.held.record.unique_name();
            let work = move || back.unstage_alone();
            ctx.operations.run(("", &name), EarlierResult::Discard, work).await?
        }
    });
    join_all(each).await.into_iter().collect()
}

/// A volume that is about to be unmounted.
struct UnmountJob {
    csi: Arc<Csi>,
    runtime: tokio::runtime::Handle,
    driver: csi::Driver,
    /// A slot of the driver, held until the driver has answered.
    _seat: tokio::sync::OwnedSemaphorePermit,
    layout: Layout,
    held: PodVolume,
    mounts: Arc<dyn sys::mount::Mounts>,
}

impl UnmountJob {
    async fn new(ctx: &Context, held: PodVolume, layout: Layout) -> Result<Self, Error> {
        let name = &held.record.driver;
        let failed = |why| {
            let volume = held.record.spec_name.clone();
            Box::new(CsiError { doing: VolumeStep::SetUp, volume, why })
        };
        let no_driver =
            || failed(Cause::NoDriver { asking: "Unmounter.TearDownAt", driver: name.clone() });
        let driver = ctx.csi.driver(name).ok_or_else(no_driver)?;
        let seat = tokio::time::timeout(super::SEAT, ctx.csi.acquire_slot(name)).await;
        let seat = seat.map_err(|_| failed(Cause::Busy(name.clone())))?.ok_or_else(no_driver)?;
        Ok(Self {
            csi: ctx.csi.clone(),
            runtime: tokio::runtime::Handle::current(),
            mounts: ctx.mounts.clone(),
            driver,
            _seat: seat,
            layout,
            held,
        })
    }

    fn failed(&self, why: impl Into<Cause>) -> Box<CsiError> {
        let (volume, why) = (self.held.record.spec_name.clone(), why.into());
        Box::new(CsiError { doing: VolumeStep::SetUp, volume, why })
    }

    fn unpublish(self) -> Result<(), Error> {
        let runtime = self.runtime.clone();
        runtime.block_on(async {
            let name = self.held.record.unique_name();
            let _turn = self.csi.lock_volume(&name).await;
            let request = v1::NodeUnpublishVolumeRequest {
                volume_id: self.held.record.handle.clone(),
                target_path: self.held.target.display().to_string(),
            };
            self.driver.unpublish(request).await.map_err(|error| self.failed(error))?;
            if self.mounts.is_mount_point(&self.held.target)? {
                let busy = std::io::Error::from(std::io::ErrorKind::ResourceBusy);
                return Err(Error::file("check that the driver has unmounted", &self.held.target)(busy));
            }
            self.layout.remove_record(&self.held)?;
            self.csi.set_published(&name, self.held.target.clone(), false);
            if self.held.record.lifecycle != EPHEMERAL
                && let Err(error) = self.unstage().await
            {
                // The Pod does not use the volume any more and need not wait. [`unstage_unused`] retries.
                tracing::warn!(volume = name, %error, "unstage a volume from the node; trying again later");
            }
            Ok(())
        })
    }

    fn unstage_alone(self) -> Result<(), Error> {
        let runtime = self.runtime.clone();
        runtime.block_on(async {
            let _turn = self.csi.lock_volume(&self.held.record.unique_name()).await;
            self.unstage().await
        })
    }

    /// Unstages the volume if no Pod has it or is about to.
    async fn unstage(&self) -> Result<(), Error> {
        let record = &self.held.record;
        let name = record.unique_name();
        let same = |held: &PodVolume| held.record.unique_name() == name;
        let (at, data) = self.layout.staging(record, self.held.block);
        if self.layout.of_all_pods()?.iter().any(same) {
            return Ok(());
        }
        let can = self.driver.capabilities().await.map_err(|error| self.failed(error))?;
        if can.stage && data.exists() {
            let request = v1::NodeUnstageVolumeRequest {
                volume_id: record.handle.clone(),
                staging_target_path: at.display().to_string(),
            };
            self.driver.unstage(request).await.map_err(|error| self.failed(error))?;
            if self.mounts.is_mount_point(&at)? {
                let busy = std::io::Error::from(std::io::ErrorKind::ResourceBusy);
                return Err(Error::file("check that the driver has unmounted", &at)(busy));
            }
        }
        self.layout.forget_staged(&self.held)?;
        self.csi.set_staged(&name, false);
        Ok(())
    }
}
