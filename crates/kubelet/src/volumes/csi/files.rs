//! Where volumes of CSI drivers are, and what is written beside them: both as upstream's kubelet has it, so that either
//! can go on with what the other mounted. These files are the kubelet's memory over its own restarts.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::super::{DIRECTORY_MODE, Error};

const DATA: &str = "vol_data.json";
/// The directory of such volumes in a Pod's.
pub(crate) const IN_POD: &str = "kubernetes.io~csi";
pub(super) const EPHEMERAL: &str = "Ephemeral";
pub(super) const PERSISTENT: &str = "Persistent";

/// What is remembered of a volume in a Pod's directory, or, with fewer of the members, where it is staged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Record {
    #[serde(rename = "attachmentID", skip_serializing_if = "String::is_empty")]
    pub(super) attachment: String,
    #[serde(rename = "driverName")]
    pub(super) driver: String,
    #[serde(rename = "nodeName", skip_serializing_if = "String::is_empty")]
    pub(super) node: String,
    #[serde(rename = "specVolID", skip_serializing_if = "String::is_empty")]
    pub(super) spec_name: String,
    #[serde(rename = "volumeHandle")]
    pub(super) handle: String,
    #[serde(rename = "volumeLifecycleMode", skip_serializing_if = "String::is_empty")]
    pub(super) lifecycle: String,
}

impl Record {
    /// The volume's name in a Node's status.
    pub(super) fn unique_name(&self) -> String {
        format!("kubernetes.io/csi/{}^{}", self.driver, self.handle)
    }

    /// What is remembered where the volume is staged.
    fn staged(&self) -> Self {
        Self { driver: self.driver.clone(), handle: self.handle.clone(), ..Self::default() }
    }

    fn read(dir: &Path) -> Result<Self, Error> {
        let path = dir.join(DATA);
        let text = fs::read(&path).map_err(Error::file("read", &path))?;
        let parsed = serde_json::from_slice(&text);
        parsed.map_err(|error| Error::file("read", &path)(io::Error::other(error)))
    }

    /// Written beside and put in place, so that no crash leaves half of it.
    fn write(&self, dir: &Path) -> Result<(), Error> {
        sys::make_directories(dir, DIRECTORY_MODE).map_err(Error::file("make directory", dir))?;
        let (path, new) = (dir.join(DATA), dir.join("vol_data.json.new"));
        let text = serde_json::to_vec(self).unwrap_or_default();
        fs::write(&new, text)
            .and_then(|()| fs::rename(&new, &path))
            .map_err(Error::file("write", &path))
    }
}

/// `csi-` and the hash by which a VolumeAttachment, or a Pod's own volume, is called.
fn hashed(parts: &[&str]) -> String {
    format!("csi-{}", HEXLOWER.encode(&Sha256::digest(parts.concat())))
}

/// The name of the VolumeAttachment of a volume and a node.
pub(super) fn attachment(handle: &str, driver: &str, node: &str) -> String {
    hashed(&[handle, driver, node])
}

/// The handle of a volume that a Pod has for itself.
pub(super) fn ephemeral_handle(uid: &str, volume: &str) -> String {
    hashed(&[uid, volume])
}

/// The directories of one kubelet.
#[derive(Clone)]
pub(super) struct Layout {
    root: PathBuf,
}

/// A volume that a Pod has, by what is on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) record: Record,
    pub(super) block: bool,
    /// Where it is published for the Pod.
    pub(super) target: PathBuf,
    /// What of it is in the Pod's directory: a directory, or the link to a device.
    pub(super) in_pod: PathBuf,
}

impl Layout {
    pub(super) fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    fn plugin(&self) -> PathBuf {
        self.root.join("plugins/kubernetes.io/csi")
    }

    fn devices(&self) -> PathBuf {
        self.plugin().join("volumeDevices")
    }

    /// Where a volume is staged, and where that is remembered.
    pub(super) fn staging(&self, record: &Record, block: bool) -> (PathBuf, PathBuf) {
        if block {
            let name = escaped(&record.spec_name);
            return (
                self.devices().join("staging").join(&name),
                self.devices().join(name).join("data"),
            );
        }
        let hash = HEXLOWER.encode(&Sha256::digest(&record.handle));
        let dir = self.plugin().join(&record.driver).join(hash);
        (dir.join("globalmount"), dir)
    }

    /// The volume as the Pod of this uid has it.
    pub(super) fn held(&self, uid: &str, record: Record, block: bool) -> Held {
        let name = escaped(&record.spec_name);
        let pod = self.root.join("pods").join(uid);
        let in_pod =
            pod.join(if block { "volumeDevices" } else { "volumes" }).join(IN_POD).join(&name);
        let target = match block {
            true => self.devices().join("publish").join(&name).join(uid),
            false => in_pod.join("mount"),
        };
        Held { record, block, target, in_pod }
    }

    /// Remembers that a Pod has the volume, before the driver is asked for it.
    pub(super) fn remember(&self, held: &Held) -> Result<(), Error> {
        if !held.block {
            return held.record.write(&held.in_pod);
        }
        let (_, data) = self.staging(&held.record, true);
        held.record.write(&data)?;
        for path in [&held.in_pod, &held.target] {
            let above = path.parent().unwrap_or(path);
            sys::make_directories(above, DIRECTORY_MODE)
                .map_err(Error::file("make directory", above))?;
        }
        match std::os::unix::fs::symlink(&held.target, &held.in_pod) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(Error::file("link", &held.in_pod)(error))
            }
            _ => Ok(()),
        }
    }

    /// Remembers where the volume is staged, before the driver is asked to; that of a device is written with its Pod's.
    pub(super) fn remember_staged(&self, held: &Held) -> Result<PathBuf, Error> {
        let (at, data) = self.staging(&held.record, held.block);
        sys::make_directories(&at, DIRECTORY_MODE).map_err(Error::file("make directory", &at))?;
        match held.block {
            true => held.record.write(&data)?,
            false => held.record.staged().write(&data)?,
        }
        Ok(at)
    }

    /// Forgets what a Pod had, once the driver has taken it back.
    pub(super) fn forget(&self, held: &Held) -> Result<(), Error> {
        // Drivers remove what they published, and some do not.
        remove_empty(&held.target)?;
        if held.block {
            remove_file(&held.in_pod)?;
            return held.target.parent().map_or(Ok(()), remove_empty);
        }
        remove_data(&held.in_pod)
    }

    pub(super) fn forget_staged(&self, held: &Held) -> Result<(), Error> {
        let (at, data) = self.staging(&held.record, held.block);
        remove_empty(&at)?;
        remove_data(&data)?;
        if held.block { data.parent().map_or(Ok(()), remove_empty) } else { Ok(()) }
    }

    /// What a Pod has.
    pub(super) fn of_pod(&self, uid: &str) -> Result<Vec<Held>, Error> {
        let pod = self.root.join("pods").join(uid);
        let mut found = Vec::new();
        for name in names(&pod.join("volumes").join(IN_POD))? {
            let record = match Record::read(&pod.join("volumes").join(IN_POD).join(&name)) {
                // It was to be remembered and no driver was asked yet.
                Err(Error::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                    continue;
                }
                other => other?,
            };
            found.push(self.held(uid, Record { spec_name: unescaped(&name), ..record }, false));
        }
        for name in names(&pod.join("volumeDevices").join(IN_POD))? {
            let record = Record::read(&self.devices().join(&name).join("data"))?;
            found.push(self.held(uid, Record { spec_name: unescaped(&name), ..record }, true));
        }
        Ok(found)
    }

    /// What all Pods have.
    pub(super) fn of_all_pods(&self) -> Result<Vec<Held>, Error> {
        let mut found = Vec::new();
        for uid in names(&self.root.join("pods"))? {
            found.extend(self.of_pod(&uid)?);
        }
        Ok(found)
    }

    /// What is staged, or was to be; of no Pod.
    pub(super) fn staged(&self) -> Result<Vec<Held>, Error> {
        let mut found = Vec::new();
        for driver in names(&self.plugin())?.into_iter().filter(|name| name != "volumeDevices") {
            let dir = self.plugin().join(driver);
            for name in names(&dir)? {
                // One that cannot be read is of no use to anybody, and must not hide the others.
                let Ok(record) = Record::read(&dir.join(&name)) else { continue };
                found.push(self.held("", record, false));
            }
        }
        for name in names(&self.devices())? {
            let Ok(record) = Record::read(&self.devices().join(&name).join("data")) else {
                continue;
            };
            found.push(self.held("", Record { spec_name: unescaped(&name), ..record }, true));
        }
        Ok(found)
    }
}

/// A name as upstream writes it as part of a path.
fn escaped(name: &str) -> String {
    name.replace('/', "~")
}

fn unescaped(name: &str) -> String {
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

/// Success if it is not there.
fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn remove_file(path: &Path) -> Result<(), Error> {
    gone(fs::remove_file(path)).map_err(Error::file("remove", path))
}

/// Removes a directory with nothing in it, or a file with nothing in it: never what is on a volume. Other Pods' in the
/// same directory stay.
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
    gone(removed).map_err(Error::file("remove", path))
}

fn remove_data(dir: &Path) -> Result<(), Error> {
    remove_file(&dir.join(DATA))?;
    remove_empty(dir)
}
