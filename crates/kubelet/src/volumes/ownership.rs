//! The group that a Pod's processes share (`fsGroup`), and the user that they all are.

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

/// The user as whom all of a Pod's containers run, if they agree on one.
pub(super) fn user(pod: &Pod) -> Option<u32> {
    let security = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
    let of_pod = security.and_then(|s| s.run_as_user);
    let members = pod_core::members(pod);
    let lasting = members.iter().filter(|m| m.role != pod_core::Role::Ephemeral);
    let mut users = lasting
        .map(|m| m.container.security_context.as_ref().and_then(|s| s.run_as_user).or(of_pod));
    let first = users.next()??;
    users.all(|user| user == Some(first)).then(|| u32::try_from(first).ok())?
}

/// Whether a directory is the group's already, so that what is in it is taken to be too.
pub(super) fn has_group(dir: &Path, group: u32) -> bool {
    use std::os::unix::fs::MetadataExt;
    let bits = 0o2070;
    fs::symlink_metadata(dir).is_ok_and(|meta| meta.gid() == group && meta.mode() & bits == bits)
}

/// Gives a fresh directory to the Pod's group; what is made in it later inherits the group.
pub(super) fn give_directory(dir: &Path, group: u32, mode: u32) -> Result<(), Error> {
    chown(dir, None, Some(group)).map_err(Error::file("give away", dir))?;
    let mode = fs::Permissions::from_mode(mode | 0o2070);
    fs::set_permissions(dir, mode).map_err(Error::file("set the mode of", dir))
}
