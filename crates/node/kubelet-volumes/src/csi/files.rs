//! Paths and records of CSI volumes, as in upstream's kubelet, so that each kubelet can take over the other's mounts.
//! The records survive restarts of the kubelet.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use data_encoding::HEXLOWER;
use pod_core::paths::DIRECTORY_MODE;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::error::Error;

const DATA: &str = "vol_data.json";
/// The directory of CSI volumes in a Pod's directory.
pub const VOLUMES_IN_POD: &str = "kubernetes.io~csi";
pub(crate) const EPHEMERAL: &str = "Ephemeral";
pub(crate) const PERSISTENT: &str = "Persistent";

/// The record of a volume in a Pod's directory. A staging directory has one with fewer fields.
///
/// Upstream adds fields without a version. A record without a driver or a handle is of an unknown format.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    #[serde(default, rename = "attachmentID", skip_serializing_if = "String::is_empty")]
    pub(crate) attachment: String,
    #[serde(rename = "driverName")]
    pub(crate) driver: String,
    #[serde(default, rename = "nodeName", skip_serializing_if = "String::is_empty")]
    pub(crate) node: String,
    #[serde(default, rename = "specVolID", skip_serializing_if = "String::is_empty")]
    pub(crate) spec_name: String,
    #[serde(rename = "volumeHandle")]
    pub(crate) handle: String,
    #[serde(default, rename = "volumeLifecycleMode", skip_serializing_if = "String::is_empty")]
    pub(crate) lifecycle: String,
}

impl Record {
    /// Returns the volume's name in a Node's status.
    pub(crate) fn unique_name(&self) -> String {
        format!("kubernetes.io/csi/{}^{}", self.driver, self.handle)
    }

    /// Returns the record for the staging directory.
    fn staged(&self) -> Self {
        Self { driver: self.driver.clone(), handle: self.handle.clone(), ..Self::default() }
    }

    fn read(dir: &Path) -> Result<Self, Error> {
        let path = dir.join(DATA);
        let text = fs::read(&path).map_err(Error::file("read", &path))?;
        let parsed = serde_json::from_slice(&text);
        parsed.map_err(|error| Error::file("read", &path)(io::Error::other(error)))
    }

    /// Writes the record atomically.
    fn write(&self, dir: &Path) -> Result<(), Error> {
        sys::make_directories(dir, DIRECTORY_MODE).map_err(Error::file("create directory", dir))?;
        let (path, new) = (dir.join(DATA), dir.join("vol_data.json.new"));
        let text = serde_json::to_vec(self).unwrap_or_default();
        fs::write(&new, text)
            .and_then(|()| fs::rename(&new, &path))
            .map_err(Error::file("write", &path))
    }
}

/// Returns `csi-` and a hash, as in the name of a VolumeAttachment.
fn hash(parts: &[&str]) -> String {
    format!("csi-{}", HEXLOWER.encode(&Sha256::digest(parts.concat())))
}

/// Returns the name of the VolumeAttachment of a volume and a node.
pub(crate) fn attachment(handle: &str, driver: &str, node: &str) -> String {
    hash(&[handle, driver, node])
}

/// Returns the handle of an inline ephemeral volume.
pub(crate) fn ephemeral_handle(uid: &str, volume: &str) -> String {
    hash(&[uid, volume])
}

/// The directory layout of one kubelet.
#[derive(Clone)]
pub(crate) struct Layout {
    root: PathBuf,
}

/// A volume of a Pod, as recorded on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodVolume {
    pub(crate) record: Record,
    pub(crate) block: bool,
    /// The path at which the driver publishes the volume for the Pod.
    pub(crate) target: PathBuf,
    /// The volume's path in the Pod's directory: a directory, or the link to a device.
    pub(crate) in_pod: PathBuf,
}

impl Layout {
    pub(crate) fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    fn plugin(&self) -> PathBuf {
        self.root.join("plugins/kubernetes.io/csi")
    }

    fn devices(&self) -> PathBuf {
        self.plugin().join("volumeDevices")
    }

    /// Returns the staging path and the directory of its record.
    pub(crate) fn staging_paths(&self, record: &Record, block: bool) -> (PathBuf, PathBuf) {
        if block {
            let name = escape(&record.spec_name);
            return (
                self.devices().join("staging").join(&name),
                self.devices().join(name).join("data"),
            );
        }
        let hash = HEXLOWER.encode(&Sha256::digest(&record.handle));
        let dir = self.plugin().join(&record.driver).join(hash);
        (dir.join("globalmount"), dir)
    }

    /// Returns the volume of the Pod with this UID.
    pub(crate) fn pod_volume(&self, uid: &str, record: Record, block: bool) -> PodVolume {
        let name = escape(&record.spec_name);
        let pod = self.root.join("pods").join(uid);
        let in_pod = pod
            .join(if block { "volumeDevices" } else { "volumes" })
            .join(VOLUMES_IN_POD)
            .join(&name);
        let target = if block {
            self.devices().join("publish").join(&name).join(uid)
        } else {
            in_pod.join("mount")
        };
        PodVolume { record, block, target, in_pod }
    }

    /// Records that a Pod has the volume. Must be called before the driver.
    pub(crate) fn record(&self, held: &PodVolume) -> Result<(), Error> {
        if !held.block {
            return held.record.write(&held.in_pod);
        }
        let (_, data) = self.staging_paths(&held.record, true);
        held.record.write(&data)?;
        for path in [&held.in_pod, &held.target] {
            let above = path.parent().unwrap_or(path);
            sys::make_directories(above, DIRECTORY_MODE)
                .map_err(Error::file("create directory", above))?;
        }
        match std::os::unix::fs::symlink(&held.target, &held.in_pod) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(Error::file("link", &held.in_pod)(error))
            }
            _ => Ok(()),
        }
    }

    /// Records the staging path. Must be called before the driver. A block device's record is shared with its Pods.
    pub(crate) fn record_staged(&self, held: &PodVolume) -> Result<PathBuf, Error> {
        let (at, data) = self.staging_paths(&held.record, held.block);
        sys::make_directories(&at, DIRECTORY_MODE).map_err(Error::file("create directory", &at))?;
        if held.block {
            held.record.write(&data)?;
        } else {
            held.record.staged().write(&data)?;
        }
        Ok(at)
    }

    /// Removes the record of a Pod's volume. Must be called after the driver has unpublished it.
    pub(crate) fn remove_record(&self, held: &PodVolume) -> Result<(), Error> {
        // A driver should remove the target path, but not all do.
        remove_empty(&held.target)?;
        if held.block {
            remove_file(&held.in_pod)?;
            return held.target.parent().map_or(Ok(()), remove_empty);
        }
        remove_data(&held.in_pod)
    }

    pub(crate) fn remove_staged_record(&self, held: &PodVolume) -> Result<(), Error> {
        let (at, data) = self.staging_paths(&held.record, held.block);
        remove_empty(&at)?;
        remove_data(&data)?;
        if held.block { data.parent().map_or(Ok(()), remove_empty) } else { Ok(()) }
    }

    /// Returns the recorded volumes of a Pod.
    pub(crate) fn of_pod(&self, uid: &str) -> Result<Vec<PodVolume>, Error> {
        let pod = self.root.join("pods").join(uid);
        let mut all = Vec::new();
        for name in names(&pod.join("volumes").join(VOLUMES_IN_POD))? {
            let record = match Record::read(&pod.join("volumes").join(VOLUMES_IN_POD).join(&name)) {
                // The kubelet ended before the record was written, so the driver was not called.
                Err(Error::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                    continue;
                }
                other => other?,
            };
            all.push(self.pod_volume(uid, Record { spec_name: unescape(&name), ..record }, false));
        }
        for name in names(&pod.join("volumeDevices").join(VOLUMES_IN_POD))? {
            let record = Record::read(&self.devices().join(&name).join("data"))?;
            all.push(self.pod_volume(uid, Record { spec_name: unescape(&name), ..record }, true));
        }
        Ok(all)
    }

    /// Returns the recorded volumes of all Pods.
    pub(crate) fn of_all_pods(&self) -> Result<Vec<PodVolume>, Error> {
        let mut all = Vec::new();
        for uid in names(&self.root.join("pods"))? {
            all.extend(self.of_pod(&uid)?);
        }
        Ok(all)
    }

    /// Returns the staged volumes, without a Pod. A volume may be recorded before the driver has staged it.
    pub(crate) fn staged_volumes(&self) -> Result<Vec<PodVolume>, Error> {
        let mut all = Vec::new();
        for driver in names(&self.plugin())?.into_iter().filter(|name| name != "volumeDevices") {
            let dir = self.plugin().join(driver);
            for name in names(&dir)? {
                // Skip an unreadable record. It must not hide the others.
                let Ok(record) = Record::read(&dir.join(&name)) else { continue };
                all.push(self.pod_volume("", record, false));
            }
        }
        for name in names(&self.devices())? {
            let Ok(record) = Record::read(&self.devices().join(&name).join("data")) else {
                continue;
            };
            all.push(self.pod_volume("", Record { spec_name: unescape(&name), ..record }, true));
        }
        Ok(all)
    }
}

/// Escapes a name for a path, as upstream.
fn escape(name: &str) -> String {
    name.replace('/', "~")
}

fn unescape(name: &str) -> String {
    name.replace('~', "/")
}

fn names(dir: &Path) -> Result<Vec<String>, Error> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::file("read the directory", dir)(error)),
    };
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}

/// Treats a missing file as success.
fn ignore_missing(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn remove_file(path: &Path) -> Result<(), Error> {
    ignore_missing(fs::remove_file(path)).map_err(Error::file("remove", path))
}

/// Removes an empty directory or an empty file. Never removes content of a volume. A directory that other Pods use
/// stays.
fn remove_empty(path: &Path) -> Result<(), Error> {
    let removed = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => match fs::remove_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            other => other,
        },
        Ok(meta) if meta.is_file() && meta.len() > 0 => Err(io::Error::new(
            io::ErrorKind::DirectoryNotEmpty,
            "the driver left a file in its place",
        )),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    ignore_missing(removed).map_err(Error::file("remove", path))
}

fn remove_data(dir: &Path) -> Result<(), Error> {
    remove_file(&dir.join(DATA))?;
    remove_empty(dir)
}
