//! Butane's own rules in addition to Ignition's: the fields, errors and warnings of each variant and version.

use api_meta::Tree as _;
use serde_json::{Map, Value as Json};

use crate::{advice::Advice, error::ConfigError, schema};

/// A variant and version of Butane, which determines fields and rules.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec {
    is_fcos: bool,
    /// The minor version of the variant.
    minor: u32,
    /// The minor version of the Ignition spec that is the target.
    ignition: u32,
}

impl Spec {
    pub(super) fn new(variant: &str, version: &str) -> Option<Self> {
        let number = |text: &str| text.split('.').nth(1)?.parse().ok();
        let ignition = number(schema::target(variant, version)?)?;
        Some(Self { is_fcos: variant == "fcos", minor: number(version)?, ignition })
    }

    /// Returns `true` if the version has the field at a path in Butane's names, from the root.
    pub(super) fn knows(&self, path: &str) -> bool {
        match path {
            "boot_device" => self.is_fcos && self.minor >= 3,
            "grub" => self.is_fcos && self.minor >= 5,
            _ => {
                SINCE.iter().all(|(field, since)| self.ignition >= *since || !matches(path, field))
            }
        }
    }

    /// Returns `true` if the variant is Fedora CoreOS of at least this minor version.
    pub(super) fn is_fcos_since(&self, minor: u32) -> bool {
        self.is_fcos && self.minor >= minor
    }
}

/// Fields newer than spec 3.0: the end of the path (`*` for each item) and the minor version of the spec.
const SINCE: [(&str, u32); 28] = [
    ("ignition.proxy", 1),
    ("storage.trees", 1),
    ("mount_options", 1),
    ("with_mount_unit", 1),
    ("http_headers", 1),
    ("local", 1),
    ("config.replace.compression", 1),
    ("config.replace.inline", 1),
    ("config.merge.*.compression", 1),
    ("config.merge.*.inline", 1),
    ("certificate_authorities.*.compression", 1),
    ("certificate_authorities.*.inline", 1),
    ("storage.luks", 2),
    ("partitions.*.resize", 2),
    ("users.*.should_exist", 2),
    ("groups.*.should_exist", 2),
    ("kernel_arguments", 3),
    ("discard", 4),
    ("open_options", 4),
    ("ssh_authorized_keys_local", 4),
    ("advertisement", 4),
    ("contents_local", 4),
    ("cex", 5),
    ("boot_device.luks.device", 5),
    ("trees.*.file_mode", 6),
    ("trees.*.dir_mode", 6),
    ("trees.*.user", 6),
    ("trees.*.group", 6),
];

fn matches(path: &str, end: &str) -> bool {
    let mut parts = path.rsplit('.');
    end.rsplit('.').all(|expected| match parts.next() {
        Some(part) if expected == "*" => part.bytes().all(|b| b.is_ascii_digit()),
        part => part == Some(expected),
    })
}

type Outcome = Result<(), ConfigError>;

fn fail(path: impl Into<String>, reason: &str) -> Outcome {
    Err(ConfigError::Invalid { path: path.into(), reason: reason.to_owned() })
}

/// Validates a config before its translation and returns its warnings. Names are in camel case already.
pub(super) fn check(config: &Map<String, Json>, spec: &Spec) -> Result<Vec<Advice>, ConfigError> {
    let storage = config.get("storage").unwrap_or(&Json::Null);
    for (i, filesystem) in storage.items("filesystems").iter().enumerate() {
        mount_unit(&format!("storage.filesystems.{i}"), filesystem, spec)?;
    }
    for (i, user) in config.get("grub").unwrap_or(&Json::Null).items("users").iter().enumerate() {
        for (field, name) in [("name", "name"), ("passwordHash", "password_hash")] {
            if user.opt_text(field).is_none_or(str::is_empty) {
                let reason = format!("field {name:?} is required");
                return fail(format!("grub.users.{i}.{field}"), &reason).map(|()| Vec::new());
            }
        }
    }
    let boot = config.get("bootDevice").unwrap_or(&Json::Null);
    let mut warnings = boot_device(boot, spec)?;
    modes(storage, &mut warnings);
    if spec.is_fcos_since(6) {
        reuse_by_label(storage, boot, &mut warnings);
    }
    Ok(warnings)
}

fn mount_unit(path: &str, filesystem: &Json, spec: &Spec) -> Outcome {
    if filesystem["withMountUnit"] != true {
        return Ok(());
    }
    let (format, mount) = (filesystem.opt_text("format"), filesystem.opt_text("path"));
    let format = format.unwrap_or_default();
    if format.is_empty() {
        return fail(format!("{path}.format"), "format is required if with_mount_unit is true");
    }
    let may_lack_path = format == "swap" && spec.ignition >= 3;
    if mount.is_none_or(str::is_empty) && !may_lack_path {
        let reason = "path is required if with_mount_unit is true and format is not swap";
        return fail(format!("{path}.path"), reason);
    }
    let allowed = |mount: &str| {
        let below = |root: &str| {
            mount.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        below("/etc") || below("/var")
    };
    if spec.is_fcos_since(6) && mount.is_some_and(|mount| !allowed(mount)) {
        let reason = "path must be under /etc or /var if with_mount_unit is true";
        return fail(format!("{path}.path"), reason);
    }
    Ok(())
}

fn boot_device(boot: &Json, spec: &Spec) -> Result<Vec<Advice>, ConfigError> {
    let mut warnings = Vec::new();
    let mirror = boot["mirror"].items("devices");
    let layout = boot.opt_text("layout");
    if !mirror.is_empty() && layout.is_none() {
        let path = "bootDevice.mirror";
        let reason = "boot_device.layout should be specified when boot_device.mirror is specified";
        if spec.is_fcos_since(7) {
            fail(path, reason)?;
        }
        warnings.push(Advice::new(path, reason));
    }
    let device = boot["luks"].opt_text("device").unwrap_or_default();
    if let Some(layout) = layout {
        check_layout(layout, device, !mirror.is_empty(), spec)?;
    }
    let on_s390x = layout.is_some_and(|layout| layout.starts_with("s390x"));
    let (cex, clevis) = methods(&boot["luks"]);
    if cex && !on_s390x {
        let path = if layout.is_some() { "bootDevice.layout" } else { "bootDevice.luks.cex" };
        fail(path, "when using cex the targeted architecture must match s390x")?;
    }
    if cex && clevis {
        fail("bootDevice.luks", "cannot use cex with clevis")?;
    }
    if spec.is_fcos_since(7) && !device.is_empty() && !cex && !clevis {
        fail("bootDevice.luks.luks", "no method specified for luks")?;
    }
    if mirror.len() == 1 {
        fail("bootDevice.mirror.devices", "mirroring requires at least two devices")?;
    }
    Ok(warnings)
}

/// Returns whether a crypto adapter and whether Clevis unlocks a volume.
fn methods(luks: &Json) -> (bool, bool) {
    (luks.flag("cex.enabled"), luks["tpm2"] == true || !luks.items("tang").is_empty())
}

fn check_layout(layout: &str, device: &str, mirrored: bool, spec: &Spec) -> Outcome {
    let path = "bootDevice.layout";
    if !spec.is_fcos_since(6) {
        return match layout {
            "aarch64" | "ppc64le" | "x86_64" => Ok(()),
            _ => fail(path, "layout must be one of: aarch64, ppc64le, x86_64"),
        };
    }
    let prefix = match layout {
        "aarch64" | "ppc64le" | "x86_64" | "s390x-virt" => "",
        "s390x-eckd" => "/dev/dasd",
        "s390x-zfcp" => "/dev/sd",
        _ => {
            let reason = "layout must be one of: aarch64, ppc64le, s390x-eckd, s390x-virt, s390x-zfcp, x86_64";
            return fail(path, reason);
        }
    };
    if !prefix.is_empty() {
        let letter = device.rsplit_once(prefix).map_or("", |(_, letter)| letter);
        if device.is_empty() {
            return fail(path, "device is required for layouts: s390x-eckd, s390x-zfcp");
        }
        if letter.len() != 1 || !letter.bytes().all(|b| b.is_ascii_lowercase()) {
            let reason = "device name must start with /dev/dasd on s390x-eckd layout or /dev/sd on s390x-zfcp layout";
            return fail(path, reason);
        }
    }
    if mirrored && layout.starts_with("s390x") {
        let reason = "mirroring not supported on layouts: s390x-eckd, s390x-zfcp, s390x-virt";
        return fail(path, reason);
    }
    Ok(())
}

fn modes(storage: &Json, out: &mut Vec<Advice>) {
    for (list, directory) in [("files", false), ("directories", true)] {
        for (i, node) in storage.items(list).iter().enumerate() {
            let mode = node["mode"].as_u64().and_then(|mode| u32::try_from(mode).ok());
            let Some(mode) = mode else { continue };
            let meant = octal_of(mode).is_some_and(|octal| is_typical(octal, directory));
            if meant && !is_typical(mode, directory) {
                let message = "unreasonable mode would be reasonable if specified in octal; remember to add a leading \
                    zero";
                out.push(Advice::new(format!("storage.{list}.{i}.mode"), message));
            }
        }
    }
}

/// Returns the mode whose octal digits are the decimal digits of `mode`.
fn octal_of(mode: u32) -> Option<u32> {
    let text = mode.to_string();
    (text.len() <= 4).then(|| u32::from_str_radix(&text, 8).ok()).flatten()
}

/// Returns `true` for a common mode: no class has fewer permissions than a wider class, and writing or executing
/// requires reading.
fn is_typical(mode: u32, directory: bool) -> bool {
    const READ: u32 = 4;
    const WRITE: u32 = 2;
    const EXECUTE: u32 = 1;
    if mode == 0 {
        return true;
    }
    let mut wider = 0;
    for class in [mode & 7, mode >> 3 & 7, mode >> 6 & 7] {
        let lacks_wider = wider & !class != 0;
        let executes_late = class & EXECUTE != 0 && wider & READ != 0 && wider & EXECUTE == 0;
        let blind = class & (WRITE | EXECUTE) != 0 && class & READ == 0;
        if lacks_wider || executes_late || blind {
            return false;
        }
        wider |= class;
    }
    let (setuid, setgid, sticky) = (mode & 0o4000 != 0, mode & 0o2000 != 0, mode & 0o1000 != 0);
    let has = |bit: u32| wider & bit != 0;
    has(READ)
        && if directory {
            has(EXECUTE) && !setuid && (!(setgid || sticky) || has(WRITE))
        } else {
            !sticky && (!(setuid || setgid) || has(EXECUTE) && mode & 2 == 0)
        }
}

const BOOT_DISK: &str = "/dev/disk/by-id/coreos-boot-disk";

fn reuse_by_label(storage: &Json, boot: &Json, out: &mut Vec<Advice>) {
    let mirror = boot["mirror"].items("devices");
    for (i, disk) in storage.items("disks").iter().enumerate() {
        let device = &disk["device"];
        if device == BOOT_DISK || disk["wipeTable"] == true || mirror.contains(device) {
            continue;
        }
        for (j, partition) in disk.items("partitions").iter().enumerate() {
            let number = partition.int("number");
            if number == 0 && !partition["label"].is_null() {
                let message = "partitions cannot be reused by label; number must be specified except on boot disk \
                    (/dev/disk/by-id/coreos-boot-disk) or when wipe_table is true";
                let path = format!("storage.disks.{i}.partitions.{j}.number");
                out.push(Advice::new(path, message));
            }
        }
    }
}

/// The minimum size of the root partition in MiB.
const ROOT_SIZE: i64 = 8192;
/// The partitions of Fedora CoreOS' disk image, with their numbers.
const RESERVED: [(&str, i64); 5] =
    [("BIOS-BOOT", 1), ("PowerPC-PReP-boot", 1), ("EFI-SYSTEM", 2), ("boot", 3), ("root", 4)];

/// Returns the warnings about the disks of a translated config, including the mirrored boot disk.
pub(super) fn check_disks(config: &Json, spec: &Spec) -> Vec<Advice> {
    let mut out = Vec::new();
    if !spec.is_fcos {
        return out;
    }
    for (i, disk) in config["storage"].items("disks").iter().enumerate() {
        let partitions = disk.items("partitions");
        for (j, partition) in partitions.iter().enumerate() {
            let path = format!("storage.disks.{i}.partitions.{j}");
            let Some(label) = partition.opt_text("label") else { continue };
            if label == "root" && spec.minor >= 3 {
                root_size(&path, j, partitions, &mut out);
            }
            let number = partition.int("number");
            let wrong = |(name, own): &(&str, i64)| *name == label && *own != number;
            if disk["wipeTable"] != true && RESERVED.iter().any(wrong) {
                let message = "incorrect partition number; a new partition will be created using reserved label";
                out.push(Advice::new(format!("{path}.label"), message));
            }
        }
    }
    out
}

fn root_size(path: &str, own: usize, partitions: &[Json], out: &mut Vec<Advice>) {
    let size = partitions[own].int("sizeMiB");
    let placed_by_itself = |(i, other): (usize, &Json)| i != own && other.int("startMiB") == 0;
    if size == 0 && partitions.iter().enumerate().any(placed_by_itself) {
        let message = "root partition cannot expand; it is set to fill available space but is followed by an \
            auto-positioned partition";
        out.push(Advice::new(format!("{path}.label"), message));
    } else if size != 0 && size < ROOT_SIZE {
        let message = "root should have 8GiB of space assigned";
        out.push(Advice::new(format!("{path}.sizeMiB"), message));
    }
}

/// Rejects features that the variant does not have.
pub(super) fn check_variant(config: &Json, spec: &Spec) -> Outcome {
    let volumes = config["storage"].items("luks").iter().enumerate();
    for (i, luks) in volumes.filter(|_| !spec.is_fcos) {
        if luks["clevis"].as_object().is_some_and(|clevis| !clevis.is_empty()) {
            let path = format!("storage.luks.{i}.clevis");
            return fail(path, "clevis is not supported in this spec version");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_fields_of_its_version() {
        let old = Spec::new("fcos", "1.0.0").unwrap();
        assert!(!old.knows("storage.files.0.contents.local") && old.knows("storage.files.0.path"));
        assert!(!old.knows("passwd.users.3.should_exist"));
        assert!(Spec::new("fcos", "1.2.0").unwrap().knows("passwd.users.3.should_exist"));
        assert!(old.knows("storage.disks.0.partitions.0.should_exist"));
        assert!(Spec::new("openshift", "4.8.0").is_none());
    }

    #[test]
    fn reads_decimal_digits_as_octal() {
        for (mode, octal) in
            [(644, Some(0o644)), (0, Some(0)), (888, None), (7777, Some(0o7777)), (17777, None)]
        {
            assert_eq!(octal_of(mode), octal, "{mode}");
        }
    }
}
