//! The root as Debian's packages create it, in a directory.

use std::{
    fs, io,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use sys::{HostPrograms, Programs};

use crate::{
    cpio::{Content, Entries, Entry},
    error::Error,
};

/// The packages for running a node and for partitioning its disks.
const PACKAGES: &[&str] = &[
    "linux-image-cloud-amd64",
    "systemd",
    "systemd-sysv",
    "systemd-resolved",
    "systemd-timesyncd",
    "systemd-boot-efi",
    "udev",
    "dbus",
    "containerd",
    "runc",
    "nftables",
    "conntrack",
    "iproute2",
    "ethtool",
    "kmod",
    "procps",
    "busybox-static",
    "ca-certificates",
    "openssh-server",
    "e2fsprogs",
    "xfsprogs",
    "btrfs-progs",
    "dosfstools",
    "mdadm",
    "cryptsetup-bin",
    "clevis-luks",
    "clevis-systemd",
    "clevis-tpm2",
    "extlinux",
    "syslinux-common",
];

/// Excluded prefixes: documentation, generated files, and files that must differ between machines.
const EXCLUDED: &[&str] = &[
    "boot/",
    "dev/",
    "proc/",
    "run/",
    "sys/",
    "tmp/",
    "etc/.pwd.lock",
    "etc/group-",
    "etc/gshadow-",
    "etc/machine-id",
    // It contains its creation time.
    "etc/mdadm/mdadm.conf",
    "etc/passwd-",
    "etc/shadow-",
    "etc/hostname",
    "etc/resolv.conf",
    "etc/ssh/ssh_host_",
    "initrd.img",
    "vmlinuz",
    "usr/bin/windlass",
    "usr/share/bash-completion/",
    "usr/share/doc/",
    "usr/share/i18n/",
    "usr/share/info/",
    "usr/share/initramfs-tools/",
    "usr/share/lintian/",
    "usr/share/locale/",
    "usr/share/man/",
    "usr/lib/systemd/boot/",
    "usr/lib/syslinux/",
    "usr/lib/EXTLINUX/",
    "var/cache/",
    "var/lib/apt/",
    "var/lib/dbus/machine-id",
    "var/lib/dpkg/diversions-old",
    "var/lib/dpkg/status-old",
    "var/lib/initramfs-tools/",
    "var/lib/systemd/",
    "var/log/",
    "var/tmp/",
];

/// Creates the tree with mmdebstrap.
pub(crate) fn make(suite: &str, mirror: Option<&str>, into: &Path) -> Result<(), Error> {
    let include = format!("--include={}", PACKAGES.join(","));
    let directory = into.display().to_string();
    // Accounts contain the day of their creation.
    let day = std::env::var("SOURCE_DATE_EPOCH").unwrap_or_else(|_| "1700000000".to_owned());
    let day = format!("SOURCE_DATE_EPOCH={day}");
    // Otherwise the kernel package builds an initrd, which takes minutes.
    let mut command = vec!["env", "INITRD=No", &day, "mmdebstrap"];
    command.extend(["--variant=minbase", "--format=directory"]);
    command.extend([
        include.as_str(),
        "--dpkgopt=force-unsafe-io",
        "--dpkgopt=path-exclude=/usr/share/doc/*",
    ]);
    command.extend([
        "--dpkgopt=path-exclude=/usr/share/man/*",
        "--dpkgopt=path-exclude=/usr/share/locale/*",
    ]);
    command.extend([suite, directory.as_str()]);
    command.extend(mirror);
    HostPrograms.must(&command)?;
    Ok(())
}

/// Returns the entries of a tree for the image.
pub(crate) fn read(tree: &Path) -> Result<Entries, Error> {
    let mut entries = Entries::new();
    let mut pending = vec![String::new()];
    while let Some(directory) = pending.pop() {
        let path = tree.join(&directory);
        let listed = fs::read_dir(&path).map_err(sys::Error::at("listing", &path))?;
        for file in listed {
            let file = file.map_err(sys::Error::at("listing", &path))?.path();
            let name = file.strip_prefix(tree).unwrap_or(&file).to_string_lossy().into_owned();
            let Some(entry) = entry(&file).map_err(sys::Error::at("reading", &file))? else {
                continue;
            };
            let directory = entry.content == Content::Directory;
            let is_included = |name: &str| !EXCLUDED.iter().any(|prefix| name.starts_with(prefix));
            if !is_included(&name) {
                continue;
            }
            if directory && is_included(&format!("{name}/")) {
                pending.push(name.clone());
            }
            // An excluded directory stays empty as a mount point.
            entries.insert(name, entry);
        }
    }
    Ok(entries)
}

/// Reads an entry; `None` for sockets, pipes and devices of a running system.
pub(crate) fn entry(path: &Path) -> io::Result<Option<Entry>> {
    let metadata = path.symlink_metadata()?;
    let kind = metadata.file_type();
    let content = if kind.is_dir() {
        Content::Directory
    } else if kind.is_symlink() {
        Content::Link(fs::read_link(path)?.to_string_lossy().into_owned())
    } else if kind.is_file() {
        Content::File { path: path.to_owned(), size: metadata.len() }
    } else if kind.is_socket() || kind.is_fifo() || kind.is_block_device() || kind.is_char_device()
    {
        return Ok(None);
    } else {
        return Err(io::Error::other("neither a file, a directory nor a link"));
    };
    let mode = metadata.mode() & 0o7777;
    Ok(Some(Entry { mode, uid: metadata.uid(), gid: metadata.gid(), content }))
}

/// Resolves a path of the tree, with links relative to the tree.
pub(crate) fn resolve(tree: &Path, name: &str) -> Option<PathBuf> {
    let mut pending: Vec<String> = name.split('/').rev().map(str::to_owned).collect();
    let mut at = PathBuf::new();
    let mut links = 0;
    while let Some(part) = pending.pop() {
        match part.as_str() {
            "" | "." => continue,
            ".." => {
                at.pop();
                continue;
            }
            _ => {}
        }
        let next = at.join(&part);
        match fs::read_link(tree.join(&next)) {
            Ok(target) => {
                links += 1;
                if links > 40 {
                    return None;
                }
                if target.is_absolute() {
                    at = PathBuf::new();
                }
                pending.extend(target.to_string_lossy().split('/').rev().map(str::to_owned));
            }
            Err(_) => at = next,
        }
    }
    tree.join(&at).exists().then_some(at)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn reads_tree_without_machine_identity() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path();
        for path in ["usr/bin", "proc/1", "etc/ssh", "usr/share/doc/x"] {
            fs::create_dir_all(tree.join(path)).unwrap();
        }
        for path in [
            "usr/bin/prog",
            "etc/machine-id",
            "etc/ssh/ssh_host_key",
            "etc/ssh/sshd_config",
            "usr/share/doc/x/y",
        ] {
            fs::write(tree.join(path), "x").unwrap();
        }
        symlink("usr/bin", tree.join("bin")).unwrap();
        symlink("/bin/prog", tree.join("etc/link")).unwrap();
        let names: Vec<String> = read(tree).unwrap().into_keys().collect();
        assert_eq!(
            names,
            [
                "bin",
                "etc",
                "etc/link",
                "etc/ssh",
                "etc/ssh/sshd_config",
                "proc",
                "usr",
                "usr/bin",
                "usr/bin/prog",
                "usr/share",
                "usr/share/doc"
            ]
        );
        assert_eq!(resolve(tree, "etc/link").as_deref(), Some(Path::new("usr/bin/prog")));
        assert_eq!(resolve(tree, "bin/none"), None);
    }
}
