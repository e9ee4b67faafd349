//! Periodic cleanup that no Pod's worker does: leftovers of deleted Pods and unused images. Logs are rotated by a task
//! of their own.

mod groups;
mod images;
mod logs;
mod orphans;

pub(crate) use images::remove_unused as remove_unused_images;
pub(crate) use logs::run as rotate_logs;

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};

use crate::{context::Context, log_links, pods::Pods};

const INTERVAL: Duration = Duration::from_secs(10);
const ORPHANS: Duration = Duration::from_secs(60);
const IMAGES: Duration = Duration::from_secs(300);

/// Runs all cleanup until shutdown. Waits for all Pod sources first, because a Pod may look like an orphan before.
pub(crate) async fn run(ctx: Arc<Context>, pods: Pods, mut sources: watch::Receiver<bool>) {
    let _ = sources.wait_for(|read| *read).await;
    let mut images = images::Collector::default();
    let (mut next_orphans, mut next_images) = (Instant::now(), Instant::now() + IMAGES);
    let mut groups = groups::Groups::default();
    loop {
        if let Err(error) = groups.update(&ctx, &pods) {
            tracing::warn!(%error, "set the limits of the cgroups above Pods");
        }
        if let Err(error) = ctx.volumes.sync_local().await {
            tracing::warn!(%error, "publish the directory of local volumes, or remove one");
        }
        if let Err(error) = ctx.volumes.release_local().await {
            tracing::warn!(%error, "list the local volumes that no Pod uses");
        }
        pods.retry_resizes();
        tokio::time::sleep(INTERVAL).await;
        if Instant::now() >= next_orphans {
            next_orphans = Instant::now() + ORPHANS;
            if let Err(error) = orphans::remove(&ctx, &pods).await {
                tracing::warn!(%error, "list the leftovers of orphaned Pods");
            }
            if let Err(error) = log_links::remove_dangling(&ctx.settings.logs) {
                tracing::warn!(%error, "remove the links to removed logs");
            }
        }
        if Instant::now() >= next_images {
            next_images = Instant::now() + IMAGES;
            if let Err(error) = images.collect(&ctx, &pods).await {
                tracing::warn!(%error, "remove unused images");
            }
        }
    }
}
