//! Removes leftovers of Pods that no longer exist.

use std::collections::BTreeSet;

use pod_core::PodRegistry;

use crate::{context::Context, pods::Pods, steps};

/// Removes the directories, logs and control groups of Pods that neither the sources nor the runtime know.
pub(super) async fn remove(ctx: &Context, pods: &Pods) -> Result<(), cri::Error> {
    let runtime_pods = ctx.cri.list_pods().await?;
    let is_orphan = |uid: &String| !runtime_pods.contains_key(uid) && !pods.has_pod(uid);
    let mut uids: BTreeSet<String> = names(&ctx.settings.root.join("pods"));
    uids.extend(steps::group_uids(ctx));
    for uid in uids.into_iter().filter(is_orphan) {
        tracing::info!(uid, "remove the leftovers of a deleted Pod");
        let volumes = ctx.volumes.unmount(&uid).await.map_err(|e| e.to_string());
        let group = steps::remove_group(ctx, &uid).map_err(|e| e.to_string());
        if let Err(message) = volumes.and(group) {
            tracing::warn!(
                uid,
                message,
                "remove the leftovers of a deleted Pod; trying again later"
            );
        }
        let ending = format!("_{uid}");
        for logs in names(&ctx.settings.logs).into_iter().filter(|name| name.ends_with(&ending)) {
            drop(std::fs::remove_dir_all(ctx.settings.logs.join(logs)));
        }
    }
    for uid in ctx.placement.holders().into_iter().filter(is_orphan) {
        tracing::info!(uid, "release the CPUs, memory and devices of a deleted Pod");
        ctx.placement.release(&uid).await;
    }
    Ok(())
}

fn names(dir: &std::path::Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect()
}
