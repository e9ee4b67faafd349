//! Parses the kernel command line, with the arguments of Ignition, CoreOS and Flatcar.

use std::path::PathBuf;

use crate::error::Error;

const URLS: [&str; 3] = ["ignition.config.url", "coreos.config.url", "flatcar.config.url"];
const FIRST_BOOT: [&str; 3] = ["ignition.firstboot", "coreos.first_boot", "flatcar.first_boot"];
const PLATFORM: [&str; 3] = ["ignition.platform.id", "coreos.oem.id", "flatcar.oem.id"];

/// Reads the command line of the running kernel. Tests set another path.
pub(crate) fn read() -> Result<String, Error> {
    let path = std::env::var_os("IGNITION_KERNEL_CMDLINE_PATH");
    let path = path.map_or_else(|| PathBuf::from("/proc/cmdline"), PathBuf::from);
    std::fs::read_to_string(&path)
        .map_err(Error::file("reading the kernel's command line at", &path))
}

/// Returns the last value of an argument; empty if it has none.
pub(crate) fn value<'l>(line: &'l str, name: &str) -> Option<&'l str> {
    let words = line.split_whitespace().map(|word| word.split_once('=').unwrap_or((word, "")));
    words.filter(|(key, _)| *key == name).map(|(_, value)| value.trim_matches('"')).next_back()
}

pub(crate) fn config_url(line: &str) -> Option<&str> {
    let url = URLS.iter().find_map(|name| value(line, name));
    url.filter(|url| !url.is_empty())
}

/// The location of the root filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RootLocation {
    Memory,
    /// An installed disk: a device, or UUID=, LABEL=, PARTUUID=, PARTLABEL=.
    Disk(String),
    /// The disk to install to now.
    Install(String),
}

/// The actions of a boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The root filesystem.
    pub(crate) root: RootLocation,
    /// `true` if Ignition's stages run.
    pub(crate) ignite: bool,
    /// Ignition's platform, if the command line names one.
    pub(crate) platform: Option<String>,
}

impl Plan {
    pub(crate) fn of(line: &str) -> Self {
        let argument = |name| value(line, name).filter(|value| !value.is_empty());
        let root = match (argument("windlass.install"), argument("root")) {
            (Some(disk), _) => RootLocation::Install(disk.to_owned()),
            (None, Some("tmpfs" | "ram" | "/dev/ram0")) | (None, None) => RootLocation::Memory,
            (None, Some(disk)) => RootLocation::Disk(disk.to_owned()),
        };
        let first = FIRST_BOOT.iter().find_map(|name| value(line, name));
        let first = first.is_some_and(|value| !matches!(value, "0" | "no" | "false" | "off"));
        // A root that is not persistent is configured at every boot.
        let ignite = first || !matches!(root, RootLocation::Disk(_));
        let platform = PLATFORM.iter().find_map(|name| argument(name));
        // Older names of the platform without a cloud.
        let platform = platform.map(|name| if name == "pxe" { "metal" } else { name }.to_owned());
        Self { root, ignite, platform }
    }
}

/// Returns the device node for a root argument.
pub(crate) fn device(root: &str) -> String {
    for (prefix, directory) in [
        ("UUID=", "by-uuid"),
        ("LABEL=", "by-label"),
        ("PARTUUID=", "by-partuuid"),
        ("PARTLABEL=", "by-partlabel"),
    ] {
        if let Some(name) = root.strip_prefix(prefix) {
            let name =
                if prefix.ends_with("UUID=") { name.to_ascii_lowercase() } else { name.to_owned() };
            return format!("/dev/disk/{directory}/{name}");
        }
    }
    root.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_ignition_and_coreos_arguments() {
        let disk = |text: &str| RootLocation::Disk(text.into());
        for (line, root, ignite, platform, url) in [
            ("", RootLocation::Memory, true, None, None),
            (
                "console=ttyS0 ignition.config.url=http://a/b?c=d ignition.firstboot ignition.platform.id=metal",
                RootLocation::Memory,
                true,
                Some("metal"),
                Some("http://a/b?c=d"),
            ),
            (
                "coreos.config.url=http://x coreos.first_boot=1 coreos.oem.id=pxe root=LABEL=ROOT",
                disk("LABEL=ROOT"),
                true,
                Some("metal"),
                Some("http://x"),
            ),
            ("root=UUID=AB", disk("UUID=AB"), false, None, None),
            ("root=/dev/vda2 flatcar.first_boot=0", disk("/dev/vda2"), false, None, None),
            (
                "root=/dev/vda2 windlass.install=/dev/vda",
                RootLocation::Install("/dev/vda".into()),
                true,
                None,
                None,
            ),
        ] {
            let plan = Plan { root, ignite, platform: platform.map(str::to_owned) };
            assert_eq!(Plan::of(line), plan, "{line}");
            assert_eq!(config_url(line), url, "{line}");
        }
        assert_eq!(device("UUID=AB-c"), "/dev/disk/by-uuid/ab-c");
        assert_eq!(device("PARTLABEL=X"), "/dev/disk/by-partlabel/X");
        assert_eq!(device("/dev/sda1"), "/dev/sda1");
    }
}
