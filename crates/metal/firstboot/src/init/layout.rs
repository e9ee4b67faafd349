//! The layout of a disk to install: its root, the devices below it, and the boot partitions. No device is accessed
//! here.

use std::{collections::BTreeSet, path::Path};

use api_meta::Tree as _;
use ignition::spec::{Config, Filesystem, Luks};
use serde_json::{Value, json};

use crate::error::Error;

const ESP: &str = "C12A7328-F81F-11D2-BA4B-00A0C93EC93B";
const BOOT_LABEL: &str = "windlass-boot";
const ROOT_LABEL: &str = "windlass-root";
const BY_LABEL: &str = "/dev/disk/by-partlabel/";

/// A boot partition and its disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bootable {
    pub(super) disk: String,
    pub(super) label: String,
}

impl Bootable {
    pub(super) fn device(&self) -> String {
        format!("{BY_LABEL}{}", self.label)
    }
}

/// Returns the partitions of the default layout: one for booting, and one for the rest of the disk.
fn disks(disk: &str, root: &str) -> Value {
    json!([{ "device": disk, "wipeTable": true, "partitions": [
        { "number": 1, "label": BOOT_LABEL, "sizeMiB": 512, "typeGuid": ESP },
        { "number": 2, "label": root },
    ] }])
}

fn boot() -> Value {
    json!({ "device": format!("{BY_LABEL}{BOOT_LABEL}"), "format": "vfat", "label": "BOOT", "path": "/boot",
            "wipeFilesystem": true })
}

/// Returns the default layout of a disk.
fn default_layout(disk: &str) -> Value {
    let root = json!({ "device": format!("{BY_LABEL}{ROOT_LABEL}"), "format": "ext4", "label": ROOT_LABEL,
                       "path": "/", "wipeFilesystem": true });
    json!({ "ignition": { "version": "3.4.0" },
            "storage": { "disks": disks(disk, ROOT_LABEL), "filesystems": [boot(), root] } })
}

/// Returns the root filesystem. Fedora CoreOS identifies it by its label, so configs of its boot disk have no path.
pub(super) fn root(config: &Config) -> Option<&Filesystem> {
    let find = |is: &dyn Fn(&&Filesystem) -> bool| config.storage.filesystems.iter().find(is);
    let path = |f: &&Filesystem| f.path.as_deref().is_some_and(|path| !path.is_empty());
    find(&|f| f.path.as_deref() == Some("/"))
        .or_else(|| find(&|f| !path(f) && f.label.as_deref() == Some("root")))
}

/// The volumes and devices below a device.
pub(super) struct Backing<'c> {
    /// The encrypted volumes, in the order of unlocking.
    pub(super) volumes: Vec<&'c Luks>,
    /// The physical devices.
    pub(super) devices: Vec<String>,
}

/// Returns the volumes and devices below a device.
pub(super) fn backing<'c>(config: &'c Config, device: &str) -> Backing<'c> {
    let mut backing = Backing { volumes: Vec::new(), devices: Vec::new() };
    let mut left = vec![device.to_owned()];
    let mut visited = BTreeSet::new();
    while let Some(device) = left.pop() {
        // A config may contain a cycle.
        if !visited.insert(device.clone()) {
            continue;
        }
        let name = |prefix: &str| device.strip_prefix(prefix).map(str::to_owned);
        let mapped = name("/dev/mapper/").or_else(|| name("/dev/disk/by-id/dm-name-"));
        let volume = config.storage.luks.iter().find(|v| mapped.as_ref() == Some(&v.name));
        let array = name("/dev/md/");
        let array = config.storage.raid.iter().find(|r| array.as_ref() == Some(&r.name));
        match (volume, array) {
            (Some(volume), _) => {
                backing.volumes.insert(0, volume);
                left.extend(volume.device.clone());
            }
            (None, Some(array)) => left.extend(array.devices.iter().cloned()),
            (None, None) => backing.devices.push(device),
        }
    }
    backing
}

/// Returns every EFI system partition of the config. The machine can boot from any of the disks.
pub(super) fn bootable(config: &Config) -> Vec<Bootable> {
    let mut out = Vec::new();
    for disk in &config.storage.disks {
        let is = |kind: &Option<String>| {
            kind.as_deref().is_some_and(|kind| kind.eq_ignore_ascii_case(ESP))
        };
        for partition in disk.partitions.iter().filter(|partition| is(&partition.type_guid)) {
            if let Some(label) = partition.label.clone().filter(|label| !label.is_empty()) {
                out.push(Bootable { disk: disk.device.clone(), label });
            }
        }
    }
    out
}

/// Adds a root and a boot partition if the config lacks them.
pub(super) fn complete(disk: &str, value: &Value) -> Result<Value, Error> {
    let config = typed(value)?;
    let Some(own) = root(&config) else { return Ok(ignition::merge(&default_layout(disk), value)) };
    let backing = backing(&config, &own.device);
    if let Some(volume) = backing.volumes.iter().find(|volume| !volume.clevis.is_wanted()) {
        let reason = "the root is on it, and nothing unlocks it at the next boot; a key file would be stored \
                      unencrypted beside it; add clevis (tang or tpm2)";
        return Err(refused(format!("volume {}", volume.name), reason));
    }
    let mut value = value.clone();
    for filesystem in value.items_mut("storage.filesystems") {
        if filesystem["device"] == own.device.as_str() {
            filesystem["path"] = "/".into();
        }
    }
    if !bootable(&config).is_empty() {
        return Ok(value);
    }
    let labels = config.storage.disks.iter().flat_map(|disk| &disk.partitions);
    let labels: Vec<&str> = labels.filter_map(|partition| partition.label.as_deref()).collect();
    // A partition that the config uses but does not create belongs to the default layout, under the config's label.
    let label = match backing.devices.as_slice() {
        [device] => device
            .strip_prefix(BY_LABEL)
            .filter(|label| !labels.contains(label) || [ROOT_LABEL, "root"].contains(label)),
        _ => None,
    };
    let Some(label) = label else {
        let reason = "it has no boot partition: add an EFI system partition with a label and vfat \
                      on each boot disk";
        return Err(refused(format!("installing to {disk}"), reason));
    };
    let below = json!({ "ignition": { "version": "3.4.0" },
                        "storage": { "disks": disks(disk, label), "filesystems": [boot()] } });
    Ok(ignition::merge(&below, &value))
}

fn refused(what: String, reason: &str) -> Error {
    Error::Refused { what, reason: reason.to_owned() }
}

fn typed(value: &Value) -> Result<Config, Error> {
    ignition::typed(value)
        .map_err(|source| Error::Config { origin: "the merged config".into(), source })
}

/// Reads the config in a file.
pub(super) fn read(path: &Path) -> Result<Value, Error> {
    let text = std::fs::read_to_string(path).map_err(Error::file("reading", path))?;
    serde_json::from_str(&text).map_err(|error| Error::file("reading", path)(error.into()))
}

pub(super) fn read_typed(path: &Path) -> Result<Config, Error> {
    typed(&read(path)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(storage: Value) -> Result<Config, String> {
        let config = json!({ "ignition": { "version": "3.4.0" }, "storage": storage });
        let value = complete("/dev/vda", &config).map_err(|error| error.to_string())?;
        typed(&ignition::parse(&value.to_string()).unwrap()).map_err(|error| error.to_string())
    }

    /// Translates a Butane boot device.
    fn butane(boot_device: &str) -> Value {
        let text = format!("variant: fcos\nversion: 1.5.0\nboot_device:\n{boot_device}");
        ignition::translate(&text, None).unwrap().config["storage"].take()
    }

    fn labels(config: &Config) -> Vec<&str> {
        let partitions = config.storage.disks.iter().flat_map(|disk| &disk.partitions);
        partitions.filter_map(|partition| partition.label.as_deref()).collect()
    }

    #[test]
    fn default_layout_merges_config_partitions() {
        let partitions =
            json!([{ "number": 2, "sizeMiB": 2048 }, { "number": 3, "label": "data" }]);
        let config =
            completed(json!({ "disks": [{ "device": "/dev/vda", "partitions": partitions }] }));
        let config = config.unwrap();
        assert_eq!(labels(&config), ["windlass-boot", "windlass-root", "data"]);
        assert_eq!(config.storage.disks[0].partitions[1].size_mib, Some(2048));
        let root = root(&config).unwrap();
        assert_eq!(root.device, "/dev/disk/by-partlabel/windlass-root");
        assert_eq!(bootable(&config)[0].device(), "/dev/disk/by-partlabel/windlass-boot");
    }

    #[test]
    fn mirror_boots_from_each_disk() {
        let config =
            completed(butane("  mirror: {devices: [/dev/vda, /dev/vdb]}\n  luks: {tpm2: true}\n"));
        let config = config.unwrap();
        let bootable = bootable(&config);
        let want = [("/dev/vda", "esp-1"), ("/dev/vdb", "esp-2")];
        assert_eq!(bootable.iter().map(|b| (&*b.disk, &*b.label)).collect::<Vec<_>>(), want);
        let root = root(&config).unwrap();
        assert_eq!((root.device.as_str(), root.path.as_deref()), ("/dev/mapper/root", Some("/")));
        let Backing { volumes, devices } = backing(&config, &root.device);
        assert_eq!(volumes.iter().map(|v| v.name.as_str()).collect::<Vec<_>>(), ["root"]);
        assert_eq!(devices, ["/dev/disk/by-partlabel/root-2", "/dev/disk/by-partlabel/root-1"]);
    }

    #[test]
    fn encrypted_root_uses_default_layout() {
        let config = completed(butane("  luks: {tang: [{url: http://t, thumbprint: x}]}\n"));
        let config = config.unwrap();
        assert_eq!(labels(&config), ["windlass-boot", "root"]);
        assert_eq!(bootable(&config).len(), 1);
        let formats: Vec<_> =
            config.storage.filesystems.iter().map(|f| f.format.as_deref().unwrap()).collect();
        assert_eq!(formats, ["vfat", "xfs"]);
    }

    #[test]
    fn rejects_unbootable_layouts() {
        let root = |device: &str| json!([{ "device": device, "format": "ext4", "path": "/" }]);
        let array = json!([{ "name": "r", "level": "raid1", "devices": ["/dev/vdb", "/dev/vdc"] }]);
        let key = json!({ "source": "data:,k" });
        let volume = json!([{ "name": "r", "device": "/dev/vdb", "keyFile": key }]);
        for (storage, want) in [
            (json!({ "raid": array, "filesystems": root("/dev/md/r") }), "EFI system partition"),
            (json!({ "luks": volume, "filesystems": root("/dev/mapper/r") }), "volume r"),
        ] {
            let error = completed(storage).unwrap_err();
            assert!(error.contains(want), "{error}");
        }
    }
}
