//! emptyDir volumes.

use std::{fs, os::unix::fs::PermissionsExt};

use k8s_openapi::api::core::v1::EmptyDirVolumeSource;
use pod_core::huge_pages;

use crate::{
    error::Error,
    ownership,
    plugin::{MountWork, Plugin, Prepared, Request, Site, VolumePath},
};

const MODE: u32 = 0o777;
/// The mode of a tmpfs, as upstream and the kernel's default: with the sticky bit.
const MEMORY_MODE: u32 = 0o1777;

pub(crate) struct EmptyDir;

impl Plugin for EmptyDir {
    fn prepare<'a>(&self, request: Request<'a>) -> Option<Prepared<'a>> {
        let source = request.volume.empty_dir.clone()?;
        let work: MountWork = Box::new(move |site| mount(site, &source));
        Some(Box::pin(async { Ok(work) }))
    }
}

fn mount(site: &Site, source: &EmptyDirVolumeSource) -> Result<VolumePath, Error> {
    let dir = site.dir("kubernetes.io~empty-dir")?;
    let ready = dir.with_file_name(format!("{}.ready", site.volume));
    let in_memory = source.medium.as_deref().is_some_and(|m| m == "Memory");
    let huge = source.medium.as_deref().filter(|m| m.starts_with(huge_pages::MEDIUM));
    if in_memory {
        if site.mounts.is_mount_point(&dir)? {
            return Ok(VolumePath::new(dir));
        }
        let size = source.size_limit.as_ref().map(pod_core::resources::whole).filter(|&s| s > 0);
        // A larger tmpfs would let the Pod exceed its memory limit and be killed.
        let limit =
            Some(pod_core::resources::pod_amounts(&site.pod).memory_limit).filter(|&l| l > 0);
        let size = size.into_iter().chain(limit).min();
        site.mounts.tmpfs(&dir, size.map(i64::unsigned_abs))?;
    } else if let Some(medium) = huge {
        if site.mounts.is_mount_point(&dir)? {
            return Ok(VolumePath::new(dir));
        }
        site.mounts.huge_pages(&dir, huge_pages::of_medium(&site.pod, medium)?)?;
    } else if ready.exists() {
        return Ok(VolumePath::new(dir));
    }
    // The mode is set explicitly, because the umask would restrict it.
    let mode = if in_memory { MEMORY_MODE } else { MODE };
    fs::set_permissions(&dir, fs::Permissions::from_mode(mode))
        .map_err(Error::file("set the mode of", &dir))?;
    if let Some(group) = ownership::group(&site.pod) {
        ownership::set_directory_group(&dir, group, mode)?;
    }
    if !in_memory && huge.is_none() {
        fs::write(&ready, "").map_err(Error::file("write", &ready))?;
    }
    Ok(VolumePath::new(dir))
}
