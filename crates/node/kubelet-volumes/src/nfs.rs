//! NFS volumes, in a Pod's spec and in PersistentVolumes, mounted by the host's `mount` and its helper `mount.nfs`.
//!
//! The kubelet never touches the files of a mounted volume: if its server is gone, that would block. So the volume gets
//! no group, as upstream, and a sync only reads the table of mounts.

use k8s_openapi::api::core::v1::{NFSVolumeSource, PersistentVolume};

use crate::{
    error::{ClaimError, Error},
    plugin::{MountWork, Plugin, Prepared, Request, Site, VolumePath},
};

/// The directory of NFS volumes in a Pod's directory.
pub const NFS_IN_POD: &str = "kubernetes.io~nfs";

/// The annotation with mount options, from before the field existed.
const MOUNT_OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";

pub(crate) struct Inline;

impl Plugin for Inline {
    fn prepare<'a>(&self, request: Request<'a>) -> Option<Prepared<'a>> {
        let source = request.volume.nfs.as_ref()?;
        let nfs = Nfs::new(&request.volume.name, source, Vec::new(), false);
        let work = nfs.map(|nfs| -> MountWork { Box::new(move |site| nfs.mount(site)) });
        Some(Box::pin(async { work }))
    }
}

/// An export and the way to mount it.
#[derive(Debug)]
pub(crate) struct Nfs {
    /// The name of the PersistentVolume, or of the volume in the Pod.
    name: String,
    /// The export as `mount` names it.
    source: String,
    read_only: bool,
    options: Vec<String>,
}

impl Nfs {
    /// Describes an NFS volume. The author of a Pod chooses the server, so its name must not be an option of
    /// `mount`.
    pub(crate) fn new(
        name: &str,
        source: &NFSVolumeSource,
        mut options: Vec<String>,
        read_only: bool,
    ) -> Result<Self, Error> {
        let server = source.server.trim_matches(['[', ']']);
        let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-_:%".contains(c);
        if server.is_empty() || server.starts_with('-') || !server.chars().all(is_plain) {
            return Err(Error::NfsServer(source.server.clone()));
        }
        if !source.path.starts_with('/') || source.path.contains(['\0', '\n']) {
            return Err(Error::NfsPath(source.path.clone()));
        }
        let read_only = read_only || source.read_only == Some(true);
        if read_only && !options.iter().any(|option| option == "ro") {
            options.push("ro".to_owned());
        }
        let host = if server.contains(':') { format!("[{server}]") } else { server.to_owned() };
        let source = format!("{host}:{}", source.path);
        Ok(Self { name: name.to_owned(), source, read_only, options })
    }

    /// Describes the export of a PersistentVolume, with its mount options.
    pub(crate) fn of_volume(
        volume: &PersistentVolume,
        source: &NFSVolumeSource,
        read_only: bool,
    ) -> Result<Self, Error> {
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        if volume.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref()) == Some("Block") {
            return Err(ClaimError::Block(name.to_owned()).into());
        }
        Self::new(name, source, mount_options(volume), read_only)
    }

    pub(crate) fn mount(&self, site: &Site) -> Result<VolumePath, Error> {
        let at = site.path_named(NFS_IN_POD, &self.name);
        if !site.mounts.is_mount_point(&at)? {
            site.dir_named(NFS_IN_POD, &self.name)?;
            let (options, target) = (self.options.join(","), at.to_string_lossy());
            let mut arguments = vec!["-t", "nfs"];
            if !options.is_empty() {
                arguments.extend(["-o", &options]);
            }
            arguments.extend([self.source.as_str(), &target]);
            site.runtime.block_on(site.programs.run("mount", &arguments))?;
        }
        Ok(VolumePath { read_only: self.read_only, ..VolumePath::new(at) })
    }
}

/// Returns the mount options of a PersistentVolume; its annotation wins over the field, as upstream.
pub(crate) fn mount_options(volume: &PersistentVolume) -> Vec<String> {
    let annotated = volume.metadata.annotations.as_ref().and_then(|all| all.get(MOUNT_OPTIONS));
    let options = match annotated {
        Some(text) => text.split(',').map(str::to_owned).collect(),
        None => {
            volume.spec.as_ref().and_then(|spec| spec.mount_options.clone()).unwrap_or_default()
        }
    };
    let mut unique: Vec<String> = Vec::new();
    for option in options {
        if !option.is_empty() && !unique.contains(&option) {
            unique.push(option);
        }
    }
    unique
}

#[cfg(test)]
mod tests;
