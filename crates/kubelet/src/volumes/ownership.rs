//! `fsGroup`: the group that a Pod's processes share.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::Path,
};

use k8s_openapi::api::core::v1::Pod;

use super::Error;

pub(super) fn group(pod: &Pod) -> Option<u32> {
    let security = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
    security.and_then(|s| s.fs_group).and_then(|group| u32::try_from(group).ok())
}

/// Gives a fresh directory to the Pod's group; what is made in it later inherits the group.
pub(super) fn give_directory(dir: &Path, group: u32, mode: u32) -> Result<(), Error> {
    chown(dir, None, Some(group)).map_err(Error::file("give away", dir))?;
    let mode = fs::Permissions::from_mode(mode | 0o2070);
    fs::set_permissions(dir, mode).map_err(Error::file("set the mode of", dir))
}
