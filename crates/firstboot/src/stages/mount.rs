//! mount and umount: the filesystems that have a place below the root, for the files stage.

use ignition::spec::Filesystem;

use super::Context;
use crate::{Error, root::Root};

/// Those with a place, outermost first. The root itself is mounted by the initrd.
fn placed(filesystems: &[Filesystem]) -> Vec<(&Filesystem, &str)> {
    let mounted =
        filesystems.iter().filter(|f| !matches!(f.format.as_deref(), Some("swap" | "none")));
    let mut out: Vec<_> = mounted
        .filter_map(|filesystem| {
            Some((filesystem, filesystem.path.as_deref()?.trim_end_matches('/')))
        })
        .filter(|(_, path)| !path.is_empty())
        .collect();
    out.sort_by_key(|(_, path)| (path.split('/').count(), *path));
    out
}

pub(super) fn mount(context: &Context, filesystems: &[Filesystem]) -> Result<(), Error> {
    let root = Root::open(&context.root)?;
    for (filesystem, path) in placed(filesystems) {
        let place = root.outside(path)?.display().to_string();
        let options = filesystem.mount_options.join(",");
        let mut command = vec!["mount", "-t", filesystem.format.as_deref().unwrap_or("auto")];
        if !options.is_empty() {
            command.extend(["-o", &options]);
        }
        command.extend([filesystem.device.as_str(), &place]);
        context.programs.must(&command)?;
    }
    Ok(())
}

pub(super) fn umount(context: &Context, filesystems: &[Filesystem]) -> Result<(), Error> {
    let root = Root::open(&context.root)?;
    for (_, path) in placed(filesystems).into_iter().rev() {
        let place = root.outside(path)?.display().to_string();
        context.programs.must(&["umount", &place])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use sys::{ProgramOutput, RecordedPrograms};

    use super::*;

    #[test]
    fn the_outer_is_mounted_first_and_unmounted_last() {
        let dir = tempfile::tempdir().unwrap();
        let programs = Arc::new(RecordedPrograms::new(|_| ProgramOutput {
            code: Some(0),
            ..Default::default()
        }));
        let context = Context {
            platform: "file".into(),
            root: dir.path().to_owned(),
            config_cache: "/x".into(),
            neednet: "/x".into(),
            state_file: "/x".into(),
            fetch_timeout: Duration::ZERO,
            programs: programs.clone(),
            patience: Duration::ZERO,
        };
        let filesystem = |device: &str, path: &str, format: &str| Filesystem {
            device: device.into(),
            path: Some(path.into()),
            format: Some(format.into()),
            mount_options: vec!["ro".into(), "noatime".into()],
            ..Filesystem::default()
        };
        let list = [
            filesystem("/dev/a", "/var/lib", "xfs"),
            filesystem("/dev/b", "/var", "ext4"),
            filesystem("/dev/c", "/", "ext4"),
            filesystem("/dev/d", "", "swap"),
        ];
        mount(&context, &list).unwrap();
        umount(&context, &list).unwrap();
        let at = dir.path().canonicalize().unwrap();
        let at = at.display();
        assert_eq!(
            programs.calls(),
            [
                format!("mount -t ext4 -o ro,noatime /dev/b {at}/var"),
                format!("mount -t xfs -o ro,noatime /dev/a {at}/var/lib"),
                format!("umount {at}/var/lib"),
                format!("umount {at}/var"),
            ]
        );
    }
}
