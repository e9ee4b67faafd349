//! iSCSI volumes, in a Pod's spec and in PersistentVolumes: the kubelet logs in by the host's `iscsiadm`, mounts the
//! disk once for the node, and binds it for each Pod. After the last Pod it unmounts the disk and logs out.
//!
//! A record in the Pod's directory, written before the login, names the disk. A restarted kubelet finds it there.

mod disk;
mod session;
mod target;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{ISCSIPersistentVolumeSource, PersistentVolume};
use pod_core::paths::DIRECTORY_MODE;
use serde::{Deserialize, Serialize};
use sys::mount::Mounts;

use crate::{
    disk::DiskMount,
    drivers::Drivers,
    error::{Cause, ClaimError, CsiError, Error, VolumeStep},
    nfs::mount_options,
    operations::EarlierResult,
    ownership,
    plugin::{MountWork, Plugin, Prepared, Request, Site, VolumePath},
    program::VolumePrograms,
    volumes::Volumes,
};
use session::{Chap, Sessions};
use target::{Source, Target};

/// The directory of iSCSI volumes in a Pod's directory.
const PLUGIN: &str = "kubernetes.io~iscsi";
/// The directory of records in a Pod's directory.
const RECORDS: &str = "iscsi-disks";

pub(crate) struct Inline;

impl Plugin for Inline {
    fn prepare<'a>(&self, request: Request<'a>) -> Option<Prepared<'a>> {
        let source = Source::inline(request.volume.iscsi.as_ref()?);
        let name = request.volume.name.clone();
        Some(Box::pin(async move { prepare(&request, name, source?, Vec::new()).await }))
    }
}

/// Prepares an iSCSI PersistentVolume.
pub(crate) async fn prepare_volume(
    request: &Request<'_>,
    volume: &PersistentVolume,
    source: &ISCSIPersistentVolumeSource,
    read_only: bool,
) -> Result<MountWork, Error> {
    let name = volume.metadata.name.clone().unwrap_or_default();
    if volume.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref()) == Some("Block") {
        return Err(ClaimError::Block(name).into());
    }
    let mut source = Source::persistent(source)?;
    source.read_only |= read_only;
    let volumes = request.volumes;
    let (uid, unique) =
        (request.pod.metadata.uid.as_deref().unwrap_or_default(), source.target.unique_name());
    volumes.drivers.add_user(&unique, uid, true);
    let at = volumes.pod_dir(uid).join("volumes").join(PLUGIN).join(&name);
    if !volumes.mounts.is_mount_point(&at)? && !volumes.wait_attached(&unique).await {
        let cause = Cause::NotAttached(request.volume.name.clone());
        return Err(Box::new(CsiError { step: VolumeStep::Wait, volume: name, cause }).into());
    }
    prepare(request, name, source, mount_options(volume)).await
}

async fn prepare(
    request: &Request<'_>,
    name: String,
    source: Source,
    options: Vec<String>,
) -> Result<MountWork, Error> {
    let chap = secrets(request, &source).await?;
    let security = request.pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    let policy = security.and_then(|context| context.fs_group_change_policy.as_deref());
    let job = MountJob {
        root: request.volumes.root.clone(),
        drivers: request.volumes.drivers.clone(),
        keeps_matching_group: policy == Some("OnRootMismatch"),
        name,
        source,
        options,
        chap,
    };
    Ok(Box::new(move |site| job.mount(site)))
}

/// Reads the secrets of CHAP. A PersistentVolume names their namespace; a Pod uses its own.
async fn secrets(request: &Request<'_>, source: &Source) -> Result<Chap, Error> {
    if !source.discovery_secrets && !source.session_secrets {
        return Ok(Chap::default());
    }
    let reference = source.secret.as_ref().ok_or(Error::Iscsi {
        field: "secretRef",
        value: String::new(),
        expected: "the Secret with CHAP credentials, because chapAuthDiscovery or chapAuthSession is set",
    })?;
    let name = reference.name.clone().unwrap_or_default();
    let own = request.namespace();
    let namespace = reference.namespace.as_deref().filter(|of| !of.is_empty()).unwrap_or(own);
    let secret = request.volumes.objects.secret(namespace, &name).await?;
    let secret = secret.ok_or(Error::Missing { kind: "secret", name })?;
    let data = secret.data.unwrap_or_default().into_iter();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let data: BTreeMap<String, String> = data.map(|(key, value)| (key, text(&value.0))).collect();
    Ok(Chap {
        discovery: source.discovery_secrets.then(|| data.clone()),
        session: source.session_secrets.then_some(data),
    })
}

/// The record of a Pod's volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    target: Target,
    /// The path of the volume in the Pod's directory.
    at: PathBuf,
}

/// An iSCSI volume for a Pod.
struct MountJob {
    root: PathBuf,
    drivers: Arc<Drivers>,
    keeps_matching_group: bool,
    /// The name of the PersistentVolume, or of the volume in the Pod.
    name: String,
    source: Source,
    options: Vec<String>,
    chap: Chap,
}

impl MountJob {
    fn mount(&self, site: &Site) -> Result<VolumePath, Error> {
        let at = site.path_named(PLUGIN, &self.name);
        if !site.mounts.is_mount_point(&at)? {
            site.dir_named(PLUGIN, &self.name)?;
            let records = site.pod_dir.join(RECORDS);
            let record = Record { target: self.source.target.clone(), at: at.clone() };
            write_record(&records.join(format!("{}.json", self.name)), &record)?;
            site.runtime.block_on(self.attach_and_bind(site, &at))?;
        }
        Ok(VolumePath { read_only: self.source.read_only, ..VolumePath::new(at) })
    }

    async fn attach_and_bind(&self, site: &Site, at: &Path) -> Result<(), Error> {
        let target = &self.source.target;
        let _turn = self.drivers.lock_volume(&target.unique_name()).await;
        let whole = node_mount(&self.root, target);
        if !site.mounts.is_mount_point(&whole)? {
            self.drivers.set_staged(&target.unique_name(), true);
            Sessions { programs: &site.programs, target }.log_in(&self.chap).await?;
            let device = disk::find(&site.programs, target).await?;
            sys::make_directories(&whole, DIRECTORY_MODE)
                .map_err(Error::file("create directory", &whole))?;
            let mount = DiskMount {
                device: &device.to_string_lossy(),
                at: &whole.to_string_lossy(),
                fs_type: &self.source.fs_type,
                read_only: self.source.read_only,
                options: &self.options,
            };
            mount.run(&site.programs).await?;
        }
        let (Some(parent), Some(name)) = (whole.parent(), whole.file_name()) else {
            return Ok(());
        };
        let held = sys::hold_beneath(parent, Path::new(name))?;
        if let Some(group) = ownership::group(&site.pod).filter(|_| !self.source.read_only)
            && !(self.keeps_matching_group && ownership::has_group(&whole, group))
        {
            sys::give_tree(&held, group, &whole)?;
        }
        site.mounts.bind_held(&held, at)?;
        Ok(())
    }
}

/// Returns the path at which the node has a disk mounted, as upstream.
fn node_mount(root: &Path, target: &Target) -> PathBuf {
    let interface = format!("iface-{}", target.interface);
    root.join("plugins/kubernetes.io/iscsi").join(interface).join(target.directory())
}

fn write_record(path: &Path, record: &Record) -> Result<(), Error> {
    let write = || {
        path.parent().map_or(Ok(()), |above| sys::make_directories(above, DIRECTORY_MODE))?;
        fs::write(path, serde_json::to_vec(record)?)
    };
    write().map_err(Error::file("write", path))
}

/// Returns the records of a Pod by their paths.
fn records(pod_dir: &Path) -> Vec<(PathBuf, Record)> {
    let entries = fs::read_dir(pod_dir.join(RECORDS)).into_iter().flatten().flatten();
    let read = |path: PathBuf| {
        let text = fs::read(&path).and_then(|text| Ok(serde_json::from_slice(&text)?));
        match text {
            Ok(record) => Some((path, record)),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "the disk of this record stays connected");
                None
            }
        }
    };
    entries.filter_map(|entry| read(entry.path())).collect()
}

/// Returns the names of all disks that an earlier kubelet has connected to.
pub(crate) fn connected_disks(root: &Path) -> Vec<String> {
    let pods = fs::read_dir(root.join("pods")).into_iter().flatten().flatten();
    let all = pods.flat_map(|pod| records(&pod.path()));
    all.map(|(_, record)| record.target.unique_name()).collect()
}

/// Unmounts the iSCSI volumes of a Pod, and logs out of those that no other Pod uses.
pub(crate) async fn unmount(volumes: &Volumes, uid: &str) -> Result<(), Error> {
    let pod_dir = volumes.pod_dir(uid);
    let job = UnmountJob {
        root: volumes.root.clone(),
        drivers: volumes.drivers.clone(),
        mounts: volumes.mounts.clone(),
        programs: volumes.programs.clone(),
    };
    let runtime = tokio::runtime::Handle::current();
    let work = move || {
        for (path, record) in records(&pod_dir) {
            // Mounts of subPaths would keep the disk busy.
            job.mounts.unmount_below(&pod_dir.join("volume-subpaths"))?;
            runtime.block_on(job.detach(&path, &record))?;
        }
        Ok(())
    };
    volumes.operations.run((uid, RECORDS), EarlierResult::Discard, work).await?
}

struct UnmountJob {
    root: PathBuf,
    drivers: Arc<Drivers>,
    mounts: Arc<dyn Mounts>,
    programs: VolumePrograms,
}

impl UnmountJob {
    async fn detach(&self, path: &Path, record: &Record) -> Result<(), Error> {
        let target = &record.target;
        let _turn = self.drivers.lock_volume(&target.unique_name()).await;
        self.unmount(&record.at).await?;
        let is_last = !self.is_used_by_others(path, target);
        if is_last {
            let whole = node_mount(&self.root, target);
            // Not a lazy unmount: the disk must have all data before the session ends.
            self.unmount(&whole).await?;
            if !self.is_target_used_by_others(path, target) {
                Sessions { programs: &self.programs, target }.log_out().await?;
            }
        }
        fs::remove_file(path).map_err(Error::file("remove", path))?;
        if is_last {
            // Another node may have the disk now.
            self.drivers.set_staged(&target.unique_name(), false);
        }
        Ok(())
    }

    async fn unmount(&self, at: &Path) -> Result<(), Error> {
        if self.mounts.is_mount_point(at)? {
            self.programs.run("umount", &[&at.to_string_lossy()]).await?;
        }
        Ok(())
    }

    fn others<'a>(&self, path: &'a Path) -> impl Iterator<Item = Record> + use<'a> {
        let pods = fs::read_dir(self.root.join("pods")).into_iter().flatten().flatten();
        let all = pods.flat_map(|pod| records(&pod.path()));
        all.filter(move |(other, _)| other != path).map(|(_, record)| record)
    }

    fn is_used_by_others(&self, path: &Path, target: &Target) -> bool {
        let whole = node_mount(&self.root, target);
        self.others(path).any(|other| node_mount(&self.root, &other.target) == whole)
    }

    /// Reports whether another volume uses a disk of the same target, which shares the session.
    fn is_target_used_by_others(&self, path: &Path, target: &Target) -> bool {
        self.others(path).any(|other| {
            (&other.target.iqn, &other.target.interface) == (&target.iqn, &target.interface)
                && other.target.portals.iter().any(|portal| target.portals.contains(portal))
        })
    }
}
