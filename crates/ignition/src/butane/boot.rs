//! What Fedora CoreOS' configs say of the boot disk and of the boot loader, as plain storage.

use api_meta::Tree as _;
use serde_json::{Map, Value as Json, json};

use super::resource;
use crate::config::ConfigError;

const RESERVED: &str = "8DA63339-0007-60C0-C436-083AC8230908";
const BIOS: &str = "21686148-6449-6E6F-744E-656564454649";
const PREP: &str = "9E1A2D38-C612-4316-AA26-8B49521E5A8B";
const ESP: &str = "C12A7328-F81F-11D2-BA4B-00A0C93EC93B";

/// The first two partitions of a boot disk: label, mebibytes, type.
type Layout = [(&'static str, u64, &'static str); 2];

fn layout(name: &str) -> Option<Layout> {
    let reserved = ("reserved", 1, RESERVED);
    Some(match name {
        "" | "x86_64" => [("bios", 1, BIOS), ("esp", 127, ESP)],
        "aarch64" => [reserved, ("esp", 127, ESP)],
        "ppc64le" => [("prep", 4, PREP), reserved],
        _ => return None,
    })
}

/// Whether a variant's version knows a section.
pub(super) fn knows(variant: &str, version: &str, section: &str) -> bool {
    let since = if section == "grub" { 5 } else { 3 };
    let minor = version.split('.').nth(1).and_then(|minor| minor.parse::<u32>().ok());
    variant == "fcos" && minor.is_some_and(|minor| minor >= since)
}

fn invalid<T>(path: impl Into<String>, reason: &str) -> Result<T, ConfigError> {
    Err(ConfigError::Invalid { path: path.into(), reason: reason.to_owned() })
}

/// Lays out the boot disk, of which the config's own storage may change what it names.
pub(super) fn device(config: Map<String, Json>, boot: &Json) -> Result<Json, ConfigError> {
    let Some(layout) = layout(boot["layout"].as_str().unwrap_or_default()) else {
        return invalid("bootDevice.layout", "layout must be one of: aarch64, ppc64le, x86_64");
    };
    let mirror = boot["mirror"]["devices"].as_array().map(Vec::as_slice).unwrap_or_default();
    if mirror.len() == 1 {
        return invalid("bootDevice.mirror.devices", "mirroring requires at least two devices");
    }
    let luks = &boot["luks"];
    let encrypted =
        luks["tpm2"] == true || luks["tang"].as_array().is_some_and(|tang| !tang.is_empty());
    if mirror.is_empty() && !encrypted {
        return Ok(Json::Object(config));
    }
    let (mut disks, mut filesystems) = (Vec::new(), Vec::new());
    for (n, device) in mirror.iter().enumerate() {
        let n = n + 1;
        let mut partitions: Vec<Json> = layout
            .iter()
            .map(|(label, size, kind)| json!({ "label": format!("{label}-{n}"), "sizeMiB": size, "typeGuid": kind }))
            .collect();
        partitions.push(json!({ "label": format!("boot-{n}"), "sizeMiB": 384 }));
        partitions.push(json!({ "label": format!("root-{n}") }));
        disks.push(json!({ "device": device, "wipeTable": true, "partitions": partitions }));
        if layout.iter().any(|(label, ..)| *label == "esp") {
            let esp = format!("esp-{n}");
            filesystems.push(filesystem(&format!("/dev/disk/by-partlabel/{esp}"), "vfat", &esp));
        }
    }
    let mut storage = json!({});
    let mut root = "/dev/disk/by-partlabel/root";
    if !mirror.is_empty() {
        root = "/dev/md/md-root";
        let devices = |label: &str| -> Vec<String> {
            (1..=mirror.len()).map(|n| format!("/dev/disk/by-partlabel/{label}-{n}")).collect()
        };
        storage["disks"] = disks.into();
        // Behind the filesystem, GRUB of a BIOS does not see that there is an array.
        storage["raid"] = json!([
            { "name": "md-boot", "level": "raid1", "devices": devices("boot"), "options": ["--metadata=1.0"] },
            { "name": "md-root", "level": "raid1", "devices": devices("root") },
        ]);
        filesystems.push(filesystem("/dev/md/md-boot", "ext4", "boot"));
    }
    if encrypted {
        let mut volume =
            json!({ "name": "root", "label": "luks-root", "device": root, "wipeVolume": true });
        for key in ["tang", "threshold", "tpm2"] {
            if !luks[key].is_null() {
                volume["clevis"][key] = luks[key].clone();
            }
        }
        if !luks["discard"].is_null() {
            volume["discard"] = luks["discard"].clone();
        }
        storage["luks"] = json!([volume]);
        root = "/dev/mapper/root";
    }
    filesystems.push(filesystem(root, "xfs", "root"));
    storage["filesystems"] = filesystems.into();
    Ok(crate::merge(&json!({ "storage": storage }), &Json::Object(config)))
}

fn filesystem(device: &str, format: &str, label: &str) -> Json {
    json!({ "device": device, "format": format, "label": label, "wipeFilesystem": true })
}

/// Has GRUB ask for a password before its entries are changed.
pub(super) fn users(config: Json, grub: &Json) -> Result<Json, ConfigError> {
    let users = grub["users"].as_array().map(Vec::as_slice).unwrap_or_default();
    if users.is_empty() {
        return Ok(config);
    }
    let (mut names, mut lines) = (Vec::new(), String::new());
    for (n, user) in users.iter().enumerate() {
        let Some(name) = user.opt_text("name") else {
            return invalid(format!("grub.users.{n}.name"), "field \"name\" is required");
        };
        let Some(hash) = user.opt_text("passwordHash") else {
            let path = format!("grub.users.{n}.passwordHash");
            return invalid(path, "field \"password_hash\" is required");
        };
        names.push(name);
        lines += &format!("password_pbkdf2 {name} {hash}\n");
    }
    let text = format!("# Generated by Butane\n\nset superusers=\"{}\"\n{lines}", names.join(" "));
    let (source, compression) = resource::data_url(text.as_bytes(), true);
    let part = json!({ "source": source, "compression": compression.unwrap_or_default() });
    let boot = json!({ "device": "/dev/disk/by-label/boot", "format": "ext4", "path": "/boot" });
    let file = json!({ "path": "/boot/grub2/user.cfg", "append": [part] });
    let own = json!({ "storage": { "filesystems": [boot], "files": [file] } });
    Ok(crate::merge(&own, &config))
}
