//! hostPath volumes.

use std::{
    fs,
    os::unix::fs::{FileTypeExt, PermissionsExt},
    path::Path,
};

use k8s_openapi::api::core::v1::HostPathVolumeSource;

use crate::{
    error::Error,
    plugin::{MountWork, Plugin, Prepared, Request, VolumePath},
};

pub(crate) struct HostPath;

impl Plugin for HostPath {
    fn prepare<'a>(&self, request: Request<'a>) -> Option<Prepared<'a>> {
        let source = request.volume.host_path.clone()?;
        let work: MountWork = Box::new(move |_| mount(&source));
        Some(Box::pin(async { Ok(work) }))
    }
}

pub(crate) fn mount(source: &HostPathVolumeSource) -> Result<VolumePath, Error> {
    let path = Path::new(&source.path);
    let kind = source.type_.as_deref().unwrap_or_default();
    match kind {
        "DirectoryOrCreate" if !path.exists() => {
            sys::make_directories(path, 0o755).map_err(Error::file("create directory", path))?;
        }
        "FileOrCreate" if !path.exists() => {
            fs::write(path, "").map_err(Error::file("create file", path))?;
            fs::set_permissions(path, fs::Permissions::from_mode(0o644))
                .map_err(Error::file("set the mode of", path))?;
        }
        _ => {}
    }
    if !kind.is_empty() {
        check(path, kind)?;
    }
    Ok(VolumePath::new(path.to_owned()))
}

fn check(path: &Path, kind: &str) -> Result<(), Error> {
    let file_type = fs::metadata(path).map(|m| m.file_type());
    let expected = kind.trim_end_matches("OrCreate");
    let fits = file_type.as_ref().is_ok_and(|file_type| match expected {
        "Directory" => file_type.is_dir(),
        "File" => file_type.is_file(),
        "Socket" => file_type.is_socket(),
        "CharDevice" => file_type.is_char_device(),
        "BlockDevice" => file_type.is_block_device(),
        _ => false,
    });
    if fits {
        return Ok(());
    }
    let expected = match expected {
        "Directory" => "directory",
        "File" => "file",
        "Socket" => "socket",
        "CharDevice" => "character device",
        "BlockDevice" => "block device",
        other => other,
    };
    Err(Error::HostPath { path: path.to_owned(), expected: expected.to_owned() })
}
