//! Image garbage collection.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use pod_core::{PodRegistry as _, Timestamp};

use crate::{context::Context, pods::Pods};

/// Removes unused images, the least recently used first, when their file system exceeds the high threshold.
#[derive(Default)]
pub(super) struct Collector {
    uses: HashMap<String, ImageUse>,
}

#[derive(Clone, Copy)]
struct ImageUse {
    first: Timestamp,
    last_used: Timestamp,
}

impl ImageUse {
    /// Reports whether the image was not used for this time. The time before the kubelet's start does not count,
    /// because the kubelet does not know it.
    fn is_over(&self, age: Duration, now: Timestamp) -> bool {
        let unused = now.duration_since(self.last_used.max(self.first));
        Duration::try_from(unused).unwrap_or_default() > age
    }
}

impl Collector {
    pub(super) async fn collect(&mut self, ctx: &Context, pods: &Pods) -> Result<(), cri::Error> {
        let now = ctx.now();
        let images = ctx.cri.list_images().await?;
        let used = used_images(ctx, pods).await?;
        let references: Vec<String> = images.iter().map(|image| image.id.clone()).collect();
        ctx.pull_records.prune(&references, now);
        self.uses.retain(|id, _| images.iter().any(|image| image.id == *id));
        for image in &images {
            let image_use = self
                .uses
                .entry(image.id.clone())
                .or_insert(ImageUse { first: now, last_used: Timestamp::MIN });
            if used.contains(&image.id) {
                image_use.last_used = now;
            }
        }
        let mut free: Vec<_> = images.into_iter().filter(|image| removable(image, &used)).collect();
        if let Some(max_age) = ctx.settings.images.max_age {
            let (old, young): (Vec<_>, Vec<_>) = free.into_iter().partition(|image| {
                self.uses.get(&image.id).is_some_and(|image_use| image_use.is_over(max_age, now))
            });
            free = young;
            for image in old {
                tracing::info!(image = ?image.repo_tags, "remove an image that was not used for too long");
                remove(ctx, &image).await;
            }
        }
        let Some(mut excess) = bytes_to_free(ctx).await? else { return Ok(()) };
        free.sort_by_key(|image| self.uses.get(&image.id).map(|s| (s.last_used, s.first)));
        for image in free {
            let old = self.uses.get(&image.id).is_some_and(|u| {
                Duration::try_from(now.duration_since(u.first)).unwrap_or_default()
                    >= ctx.settings.images.min_age
            });
            if !old {
                continue;
            }
            tracing::info!(image = ?image.repo_tags, size = image.size, "remove an unused image");
            if !remove(ctx, &image).await {
                continue;
            }
            match excess.checked_sub(image.size) {
                Some(left) => excess = left,
                None => return Ok(()),
            }
        }
        let text =
            format!("wanted to free {excess} bytes more, but no more unused images are old enough");
        ctx.events.of_node(&ctx.settings.node_name, "Warning", "FreeDiskSpaceFailed", text);
        Ok(())
    }
}

/// Removes every image that no container uses.
pub(crate) async fn remove_unused(ctx: &Context, pods: &Pods) -> Result<(), cri::Error> {
    let used = used_images(ctx, pods).await?;
    for image in ctx.cri.list_images().await? {
        if removable(&image, &used) {
            tracing::info!(image = ?image.repo_tags, size = image.size, "remove an unused image");
            remove(ctx, &image).await;
        }
    }
    Ok(())
}

/// Removes an image. Returns `false` if that fails, which keeps no other image from being removed.
async fn remove(ctx: &Context, image: &cri::v1::Image) -> bool {
    match ctx.cri.remove_image(&image.id).await {
        Ok(_) => true,
        Err(error) => {
            tracing::warn!(image = ?image.repo_tags, %error, "remove an image");
            false
        }
    }
}

/// Reports whether an image may be removed. Images built on the node stay, because no registry has them.
fn removable(image: &cri::v1::Image, used: &HashSet<String>) -> bool {
    let own = image.repo_tags.iter().any(|name| bootstrap_core::images::is_own(name));
    !image.pinned && !own && !used.contains(&image.id)
}

async fn used_images(ctx: &Context, pods: &Pods) -> Result<HashSet<String>, cri::Error> {
    let containers = ctx.cri.list_containers(None).await?;
    let mut used: HashSet<String> =
        containers.into_iter().flat_map(|c| [c.image_ref, c.image_id]).collect();
    used.extend(sandbox_image(ctx).await?);
    // The runtime does not list the images that containers mount. The containers of a Pod that ends may still run.
    let all = pods.list();
    let references: HashSet<&str> = all.iter().flat_map(volume_images).collect();
    for reference in references {
        used.extend(ctx.cri.image_status(reference).await?.map(|image| image.id));
    }
    Ok(used)
}

/// Returns the references of the images that a Pod has as volumes.
fn volume_images(pod: &Pod) -> impl Iterator<Item = &str> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(|volume| volume.image.as_ref()?.reference.as_deref())
}

/// Returns the number of bytes to free, or `None` if the images' file system is below the high threshold.
async fn bytes_to_free(ctx: &Context) -> Result<Option<u64>, cri::Error> {
    let info = ctx.cri.image_fs_info().await?;
    let place = info.image_filesystems.into_iter().find_map(|fs| Some(fs.fs_id?.mountpoint));
    let disk = place.and_then(|place| sys::disk_use(Path::new(&place)).ok()).unwrap_or_default();
    Ok(amount_above_threshold(disk, ctx.settings.images.gc_high, ctx.settings.images.gc_low))
}

/// Returns the number of bytes to free. A high threshold of 100 % disables garbage collection.
fn amount_above_threshold(disk: sys::DiskUse, high: u64, low: u64) -> Option<u64> {
    if disk.capacity == 0 || high >= 100 || disk.used_percent() < high {
        return None;
    }
    let free = disk.capacity / 100 * (100 - low);
    Some(free.saturating_sub(disk.available))
}

/// Returns the ID of the sandbox image. No container refers to it, and old runtimes do not pin it.
async fn sandbox_image(ctx: &Context) -> Result<Option<String>, cri::Error> {
    let info = ctx.cri.status(true).await?.info;
    let config =
        info.get("config").and_then(|text| serde_json::from_str::<serde_json::Value>(text).ok());
    let Some(name) = config.as_ref().and_then(|c| c["sandboxImage"].as_str()) else {
        return Ok(None);
    };
    Ok(ctx.cri.image_status(name).await?.map(|image| image.id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_local_pinned_and_used_images() {
        let image = |tag: &str, pinned| cri::v1::Image {
            id: "sha256:1".to_owned(),
            repo_tags: vec![tag.to_owned()],
            pinned,
            ..Default::default()
        };
        let unused = HashSet::new();
        assert!(removable(&image("docker.io/library/app:1", false), &unused));
        assert!(!removable(&image("windlass.local/coredns:v1.14.2", false), &unused));
        assert!(!removable(&image("docker.io/library/app:1", true), &unused));
        let used = HashSet::from(["sha256:1".to_owned()]);
        assert!(!removable(&image("docker.io/library/app:1", false), &used));
    }

    #[test]
    fn counts_age_from_last_use_or_first_sight() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let unused = ImageUse { first: at(100), last_used: Timestamp::MIN };
        let age = Duration::from_secs(60);
        assert!(!unused.is_over(age, at(160)) && unused.is_over(age, at(161)));
        let used = ImageUse { last_used: at(150), ..unused };
        assert!(!used.is_over(age, at(210)) && used.is_over(age, at(211)));
    }

    #[test]
    fn frees_down_to_low_threshold_and_never_at_hundred_percent() {
        let disk = |available| sys::DiskUse { capacity: 1000, available, ..Default::default() };
        for (available, high, low, wanted) in [
            (500, 85, 80, None),
            (160, 85, 80, None),
            (151, 85, 80, Some(49)),
            (150, 85, 80, Some(50)),
            (0, 85, 80, Some(200)),
            (0, 100, 80, None),
        ] {
            assert_eq!(
                amount_above_threshold(disk(available), high, low),
                wanted,
                "{available} {high} {low}"
            );
        }
        assert_eq!(amount_above_threshold(sys::DiskUse::default(), 85, 80), None);
    }
}
