//! How volumes are taken back: from a Pod, and, when no Pod has one any more, from the node. What is on the disk decides,
//! so that a kubelet that was started again takes back what the one before it gave.

use std::{sync::Arc, time::Duration};

use csi::v1;
use futures_util::future::join_all;

use super::{
    super::{Earlier, Error},
    Csi, Doing, Failed, Why,
    files::{EPHEMERAL, Held, Layout},
};
use crate::context::Context;

const LOOK: Duration = Duration::from_secs(10);
/// As long as upstream's kubelet waits at most before it tries again.
const LONGEST: Duration = Duration::from_secs(122);

/// Takes back all volumes of drivers that a Pod has; tells the first failure after all have been tried.
pub(crate) async fn tear_down(ctx: &Context, uid: &str) -> Result<(), Error> {
    let (layout, of) = (Layout::new(&ctx.settings.root), uid.to_owned());
    let (read, pod_dir, mounts) = (layout.clone(), ctx.settings.pod_dir(uid), ctx.mounts.clone());
    let look = move || {
        let held = read.of_pod(&of)?;
        if !held.is_empty() {
            // Parts of volumes are mounted elsewhere, and would keep the volumes busy.
            mounts.unmount_below(&pod_dir.join("volume-subpaths"))?;
        }
        Ok::<_, Error>(held)
    };
    let held = ctx.operations.run((uid, ""), Earlier::IsStale, look).await??;
    let each = held.into_iter().map(|held| {
        let layout = layout.clone();
        async move {
            let back = Back::new(ctx, held, layout).await?;
            let key = (uid, back.held.in_pod.to_string_lossy().into_owned());
            let work = move || back.unpublish();
            ctx.operations.run((key.0, &key.1), Earlier::IsStale, work).await?
        }
    });
    join_all(each).await.into_iter().collect::<Result<(), Error>>()?;
    ctx.csi.unwant(uid);
    Ok(())
}

/// Finds what a kubelet before this one mounted, before the API is told what is in use.
pub(crate) async fn reconstruct(ctx: &Context) -> Result<(), Error> {
    let layout = Layout::new(&ctx.settings.root);
    let look = move || Ok::<_, Error>((layout.of_all_pods()?, layout.staged()?));
    let (published, staged) = ctx.operations.run(("", "csi"), Earlier::IsStale, look).await??;
    for held in published.into_iter().filter(|held| held.record.lifecycle != EPHEMERAL) {
        ctx.csi.found(&held.record.unique_name());
    }
    staged.iter().for_each(|held| ctx.csi.found(&held.record.unique_name()));
    Ok(())
}

/// Takes from the node what no Pod has, until shutdown: what was left when a driver did not answer, or when this kubelet
/// was started.
pub(crate) async fn unstage_unused(ctx: Arc<Context>) {
    let mut wait = rt::Backoff::new(LOOK, LONGEST);
    loop {
        tokio::time::sleep(wait.next(rt::random())).await;
        match unstage_once(&ctx).await {
            Ok(()) => wait.reset(),
            Err(error) => tracing::warn!(%error, "take unused volumes from the node"),
        }
    }
}

pub(super) async fn unstage_once(ctx: &Context) -> Result<(), Error> {
    let layout = Layout::new(&ctx.settings.root);
    let read = layout.clone();
    let staged = ctx.operations.run(("", "csi"), Earlier::IsStale, move || read.staged());
    let unused = staged.await??.into_iter();
    let unused = unused.filter(|held| !ctx.csi.is_wanted(&held.record.unique_name()));
    let each = unused.map(|held| {
        let layout = layout.clone();
        async move {
            let back = Back::new(ctx, held, layout).await?;
            let name = back.held.record.unique_name();
            let work = move || back.unstage_alone();
            ctx.operations.run(("", &name), Earlier::IsStale, work).await?
        }
    });
    join_all(each).await.into_iter().collect()
}

/// One volume to be taken back.
struct Back {
    csi: Arc<Csi>,
    runtime: tokio::runtime::Handle,
    driver: csi::Driver,
    /// Kept until the driver has answered.
    _seat: tokio::sync::OwnedSemaphorePermit,
    layout: Layout,
    held: Held,
    mounts: Arc<dyn sys::mount::Mounts>,
}

impl Back {
    async fn new(ctx: &Context, held: Held, layout: Layout) -> Result<Self, Error> {
        let name = &held.record.driver;
        let failed = |why| {
            let volume = held.record.spec_name.clone();
            Box::new(Failed { doing: Doing::SetUp, volume, why })
        };
        let no_driver =
            || failed(Why::NoDriver { asking: "Unmounter.TearDownAt", driver: name.clone() });
        let driver = ctx.csi.driver(name).ok_or_else(no_driver)?;
        let seat = tokio::time::timeout(super::SEAT, ctx.csi.seat(name)).await;
        let seat = seat.map_err(|_| failed(Why::Busy(name.clone())))?.ok_or_else(no_driver)?;
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

    fn failed(&self, why: impl Into<Why>) -> Box<Failed> {
        let (volume, why) = (self.held.record.spec_name.clone(), why.into());
        Box::new(Failed { doing: Doing::SetUp, volume, why })
    }

    fn unpublish(self) -> Result<(), Error> {
        let runtime = self.runtime.clone();
        runtime.block_on(async {
            let name = self.held.record.unique_name();
            let _turn = self.csi.turn(&name).await;
            let request = v1::NodeUnpublishVolumeRequest {
                volume_id: self.held.record.handle.clone(),
                target_path: self.held.target.display().to_string(),
            };
            self.driver.unpublish(request).await.map_err(|error| self.failed(error))?;
            if self.mounts.is_mount_point(&self.held.target)? {
                let busy = std::io::Error::from(std::io::ErrorKind::ResourceBusy);
                return Err(Error::file("find unmounted by its driver", &self.held.target)(busy));
            }
            self.layout.forget(&self.held)?;
            self.csi.set_published(&name, self.held.target.clone(), false);
            if self.held.record.lifecycle != EPHEMERAL
                && let Err(error) = self.unstage().await
            {
                // The Pod has nothing of it any more, and need not wait: housekeeping tries again.
                tracing::warn!(volume = name, %error, "take a volume from the node");
            }
            Ok(())
        })
    }

    fn unstage_alone(self) -> Result<(), Error> {
        let runtime = self.runtime.clone();
        runtime.block_on(async {
            let _turn = self.csi.turn(&self.held.record.unique_name()).await;
            self.unstage().await
        })
    }

    /// Takes the volume from the node if no Pod has it, or is about to.
    async fn unstage(&self) -> Result<(), Error> {
        let record = &self.held.record;
        let name = record.unique_name();
        let same = |held: &Held| held.record.unique_name() == name;
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
                return Err(Error::file("find unmounted by its driver", &at)(busy));
            }
        }
        self.layout.forget_staged(&self.held)?;
        self.csi.set_staged(&name, false);
        Ok(())
    }
}
