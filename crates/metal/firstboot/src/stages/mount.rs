//! The stages mount and umount: mount the filesystems below the root for the files stage.

use ignition::spec::Filesystem;

use rustix::fs::FileType;

use crate::{context::Context, disks::state::State, error::Error, root::Root};

/// Returns the filesystems with a mount point, outermost first. The initrd mounts the root itself.
fn mount_points(filesystems: &[Filesystem]) -> Vec<(&Filesystem, &str)> {
    let mounted = filesystems
        .iter()
        .filter(|f| !matches!(f.format.as_deref(), None | Some("" | "swap" | "none")));
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
    for (filesystem, path) in mount_points(filesystems) {
        make_mount_point(context, &root, path)?;
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

/// Creates a mount point and records the new directories. Links in the path are rejected, because the filesystem would
/// be mounted elsewhere.
fn make_mount_point(context: &Context, root: &Root, path: &str) -> Result<(), Error> {
    let mut new = Vec::new();
    let ends = path.match_indices('/').map(|(at, _)| at).skip(1).chain([path.len()]);
    for end in ends {
        let part = &path[..end];
        match root.stat(part)? {
            None => new.push(part.to_owned()),
            Some(file) if file.kind == FileType::Directory => {}
            Some(_) => {
                let reason =
                    format!("{part} is not a directory, so no filesystem can be mounted there");
                return Err(Error::Node { path: path.to_owned(), reason });
            }
        }
    }
    root.make_directory(path)?;
    if new.is_empty() {
        return Ok(());
    }
    let mut state = State::load(&context.state_file)?;
    state.directories.extend(new);
    state.save(&context.state_file)
}

pub(super) fn umount(context: &Context, filesystems: &[Filesystem]) -> Result<(), Error> {
    let root = Root::open(&context.root)?;
    for (_, path) in mount_points(filesystems).into_iter().rev() {
        let place = root.outside(path)?.display().to_string();
        context.programs.must(&["umount", &place])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sys::{ProgramOutput, RecordedPrograms};

    use super::*;

    fn context(root: &std::path::Path) -> Context {
        Context::below(root, Arc::new(RecordedPrograms::new(|_| ProgramOutput::default())))
    }

    #[test]
    fn mounts_outer_first_and_unmounts_last() {
        let dir = tempfile::tempdir().unwrap();
        let programs = Arc::new(RecordedPrograms::new(|_| ProgramOutput {
            code: Some(0),
            ..Default::default()
        }));
        let context = Context { programs: programs.clone(), ..context(dir.path()) };
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
        assert_eq!(State::load(&context.state_file).unwrap().directories, ["/var", "/var/lib"]);
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

    #[test]
    fn rejects_mount_points_behind_links() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc", dir.path().join("link")).unwrap();
        let root = Root::open(dir.path()).unwrap();
        let context = context(dir.path());
        let error = make_mount_point(&context, &root, "/link/a").unwrap_err().to_string();
        assert_eq!(
            error,
            "/link/a: /link is not a directory, so no filesystem can be mounted there"
        );
    }
}
