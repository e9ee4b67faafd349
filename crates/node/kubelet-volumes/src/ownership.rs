//! The owner of volumes' files: the Pod's `fsGroup`, and the user of all its containers.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::Path,
};

use k8s_openapi::api::core::v1::Pod;

use crate::error::Error;

pub(crate) fn group(pod: &Pod) -> Option<u32> {
    let security = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
    security.and_then(|s| s.fs_group).and_then(|group| u32::try_from(group).ok())
}

/// Returns the user of all of a Pod's containers, if they have the same one.
pub(crate) fn user(pod: &Pod) -> Option<u32> {
    let security = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
    let of_pod = security.and_then(|s| s.run_as_user);
    let members = pod_core::members(pod);
    let lasting = members.iter().filter(|m| m.role != pod_core::Role::Ephemeral);
    let mut users = lasting
        .map(|m| m.container.security_context.as_ref().and_then(|s| s.run_as_user).or(of_pod));
    let first = users.next()??;
    users.all(|user| user == Some(first)).then(|| u32::try_from(first).ok())?
}

/// Returns the owner and the mode of a file with a credential. If the Pod's user or group is known, only that user may
/// read the file.
pub(crate) fn of_credential(pod: &Pod, mode: i32) -> (Option<u32>, u32) {
    let owner = user(pod);
    let has_reader = owner.is_some() || group(pod).is_some();
    (owner, if has_reader { 0o600 } else { mode.unsigned_abs() })
}

/// Reports whether a directory already has the group. Its content is then assumed to have it, too.
pub(crate) fn has_group(dir: &Path, group: u32) -> bool {
    use std::os::unix::fs::MetadataExt;
    let bits = 0o2070;
    fs::symlink_metadata(dir).is_ok_and(|meta| meta.gid() == group && meta.mode() & bits == bits)
}

/// Sets the group of a new directory. Files created in it later inherit the group.
pub(crate) fn set_directory_group(dir: &Path, group: u32, mode: u32) -> Result<(), Error> {
    chown(dir, None, Some(group)).map_err(Error::file("set the owner of", dir))?;
    let mode = fs::Permissions::from_mode(mode | 0o2070);
    fs::set_permissions(dir, mode).map_err(Error::file("set the mode of", dir))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn only_a_known_user_or_group_reads_credentials() {
        let credential = |of_pod: Value, users: &[u32]| {
            let container =
                |user: &u32| json!({"name": "c", "securityContext": {"runAsUser": user}});
            let containers: Vec<Value> = users.iter().map(container).collect();
            let spec = json!({"containers": containers, "securityContext": of_pod});
            of_credential(&serde_json::from_value(json!({"spec": spec})).unwrap(), 0o644)
        };
        assert_eq!(credential(json!({}), &[]), (None, 0o644));
        assert_eq!(credential(json!({}), &[1, 2]), (None, 0o644));
        assert_eq!(credential(json!({}), &[1, 1]), (Some(1), 0o600));
        assert_eq!(credential(json!({"fsGroup": 7}), &[1, 2]), (None, 0o600));
    }
}
