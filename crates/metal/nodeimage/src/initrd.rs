//! The initrd: drivers, udev and disk tools.

use std::{collections::BTreeSet, fs, path::Path};

use crate::{
    contents,
    cpio::{self, Content, Entries, Entry},
    elf,
    error::Error,
    tree,
};

/// Programs by name, with their libraries. Their directory in the tree does not matter.
pub(crate) const PROGRAMS: &[&str] = &[
    // clevis consists of scripts for this shell.
    "bash",
    "blkid",
    "blockdev",
    "busybox",
    "clevis",
    "clevis-decrypt",
    "clevis-decrypt-sss",
    "clevis-decrypt-tang",
    "clevis-decrypt-tpm2",
    "clevis-encrypt-sss",
    "clevis-encrypt-tang",
    "clevis-encrypt-tpm2",
    "clevis-luks-bind",
    "clevis-luks-common-functions",
    "clevis-luks-list",
    "clevis-luks-unlock",
    "cryptsetup",
    "curl",
    // udev's rules call it, and cryptsetup waits for them.
    "dmsetup",
    "extlinux",
    "ip",
    "jose",
    "kmod",
    "luksmeta",
    "mdadm",
    "mkfs.btrfs",
    "mkfs.ext4",
    "mkfs.fat",
    "mkfs.xfs",
    "mkswap",
    "modprobe",
    "mount",
    "partx",
    "pwmake",
    "tpm2",
    "tpm2_create",
    "tpm2_createpolicy",
    "tpm2_createprimary",
    "tpm2_flushcontext",
    "tpm2_load",
    "tpm2_pcrread",
    "tpm2_unseal",
    "udevadm",
    "umount",
    "wipefs",
];

/// The commands that scripts use and busybox provides.
const APPLETS: &[&str] = &[
    "basename", "cat", "cut", "grep", "head", "ls", "mkdir", "mktemp", "mv", "rm", "sed", "sleep",
    "sort", "tail", "tr",
];

/// Files and directories to include completely.
pub(crate) const FILES: &[&str] = &[
    "etc/cracklib/cracklib.conf",
    "etc/mke2fs.conf",
    "etc/ssl/certs/ca-certificates.crt",
    "usr/lib/modprobe.d",
    "usr/lib/systemd/network/99-default.link",
    "usr/lib/systemd/systemd-udevd",
    "usr/lib/udev/ata_id",
    "usr/lib/udev/cdrom_id",
    "usr/lib/udev/rules.d",
    "usr/lib/udev/scsi_id",
    // cryptsetup loads it by name when a thread ends.
    "usr/lib/x86_64-linux-gnu/libgcc_s.so.1",
    // The TPM tools load it by name.
    "usr/lib/x86_64-linux-gnu/libtss2-tcti-device.so.0",
    // pwmake requires the dictionary.
    "var/cache/cracklib",
];

/// Drivers for disks, networks and filesystems.
const DRIVERS: &[&str] = &[
    "arch/x86/crypto",
    "block",
    "crypto",
    "drivers/ata",
    "drivers/block",
    "drivers/char/hw_random",
    "drivers/firmware",
    "drivers/hv",
    "drivers/md",
    "drivers/message",
    "drivers/net/ethernet",
    "drivers/net/hyperv",
    "drivers/net/mdio",
    "drivers/net/net_failover.ko",
    "drivers/net/phy",
    "drivers/net/virtio_net.ko",
    "drivers/net/vmxnet3",
    "drivers/net/xen-netfront.ko",
    "drivers/nvme",
    "drivers/pci",
    "drivers/scsi",
    "drivers/virtio",
    "drivers/xen",
    "fs/btrfs",
    "fs/fat",
    "fs/nls",
    "fs/xfs",
    "lib",
    "net/core",
    "net/packet",
];

const LIBRARIES: &[&str] = &["usr/lib/x86_64-linux-gnu", "usr/lib", "usr/lib64"];

/// The script with which udhcpc sets the address, the default route and the resolvers.
const SCRIPT: &str = "#!/bin/busybox sh
[ \"$1\" = bound ] || [ \"$1\" = renew ] || exit 0
/bin/busybox ip addr replace \"$ip/${mask:-24}\" dev \"$interface\"
for router in $router; do
    /bin/busybox ip route replace default via \"$router\" dev \"$interface\"
    break
done
: > /etc/resolv.conf
[ -z \"$domain\" ] || echo \"search $domain\" >> /etc/resolv.conf
for server in $dns; do echo \"nameserver $server\" >> /etc/resolv.conf; done
";

/// Returns the entries of the first part, with the binary as the init process.
pub(crate) fn entries(root: &Path, version: &str, binary: &Path) -> Result<Entries, Error> {
    let mut out = Entries::new();
    for (link, target) in
        [("bin", "usr/bin"), ("sbin", "usr/sbin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")]
    {
        out.insert(link.to_owned(), Entry::link(target));
    }
    for place in [
        "dev",
        "proc",
        "run",
        "sys",
        "sysroot",
        "tmp",
        "etc",
        "usr/bin",
        "usr/sbin",
        "usr/lib",
        "usr/lib64",
    ] {
        out.insert(place.to_owned(), Entry::directory());
    }
    // Devices for the init process before it mounts devtmpfs.
    out.insert("dev/console".to_owned(), Entry::new(0o600, Content::CharacterDevice(5, 1)));
    out.insert("dev/null".to_owned(), Entry::new(0o666, Content::CharacterDevice(1, 3)));
    let mut pending: Vec<String> = FILES.iter().map(|file| (*file).to_owned()).collect();
    for program in PROGRAMS {
        let places = ["usr/bin", "usr/sbin"].map(|directory| format!("{directory}/{program}"));
        let place = places.into_iter().find(|path| tree::resolve(root, path).is_some());
        pending.push(place.ok_or_else(|| Error::Missing((*program).to_owned()))?);
    }
    let mut visited = BTreeSet::new();
    while let Some(path) = pending.pop() {
        if visited.insert(path.clone()) {
            pick(root, &path, &mut out, &mut pending)?;
        }
    }
    for applet in APPLETS {
        out.insert(format!("usr/bin/{applet}"), Entry::link("busybox"));
    }
    modules(root, version, &mut out)?;
    let size = fs::metadata(binary).map_err(sys::Error::at("reading", binary))?.len();
    let content = Content::File { path: binary.to_owned(), size };
    out.insert("usr/bin/windlass".to_owned(), Entry::new(0o755, content));
    out.insert("init".to_owned(), Entry::link("usr/bin/windlass"));
    out.insert(
        "usr/share/udhcpc/windlass.script".to_owned(),
        Entry::new(0o755, Content::Bytes(SCRIPT.into())),
    );
    // udev warns about unknown groups, which have no effect here.
    out.insert("etc/passwd".to_owned(), Entry::text("root:x:0:0:root:/root:/bin/sh\n"));
    out.insert("etc/group".to_owned(), Entry::text(contents::GROUPS));
    out.insert("etc/initrd-release".to_owned(), Entry::text("NAME=Windlass\nID=windlass\n"));
    cpio::complete(&mut out);
    Ok(out)
}

/// Adds a path of the tree and queues its link target and libraries.
fn pick(
    root: &Path,
    path: &str,
    out: &mut Entries,
    pending: &mut Vec<String>,
) -> Result<(), Error> {
    let place = root.join(path);
    let entry = tree::entry(&place).map_err(sys::Error::at("reading", &place))?;
    let Some(entry) = entry else { return Ok(()) };
    match &entry.content {
        Content::Directory => {
            for file in fs::read_dir(&place).map_err(sys::Error::at("listing", &place))? {
                let file = file.map_err(sys::Error::at("listing", &place))?;
                pending.push(format!("{path}/{}", file.file_name().to_string_lossy()));
            }
        }
        Content::Link(_) => pending.extend(resolved(root, path)),
        Content::File { path: file, .. } => {
            let bytes = fs::read(file).map_err(sys::Error::at("reading", file))?;
            for library in elf::libraries(&bytes) {
                let places = match library.strip_prefix('/') {
                    Some(loader) => vec![loader.to_owned()],
                    None => {
                        LIBRARIES.iter().map(|directory| format!("{directory}/{library}")).collect()
                    }
                };
                let place = places.into_iter().find(|place| tree::resolve(root, place).is_some());
                pending.push(under_usr(&place.ok_or(Error::Missing(library))?));
            }
        }
        Content::Bytes(_) | Content::CharacterDevice(..) => {}
    }
    out.insert(path.to_owned(), entry);
    Ok(())
}

fn resolved(root: &Path, path: &str) -> Option<String> {
    Some(tree::resolve(root, path)?.to_string_lossy().into_owned())
}

/// Debian's `/lib` and similar directories are links into `/usr`.
fn under_usr(path: &str) -> String {
    let moved = ["bin/", "sbin/", "lib/", "lib64/"].iter().any(|top| path.starts_with(top));
    if moved { format!("usr/{path}") } else { path.to_owned() }
}

fn modules(root: &Path, version: &str, out: &mut Entries) -> Result<(), Error> {
    let base = format!("usr/lib/modules/{version}");
    let directory = root.join(&base);
    let mut pending_modules = Vec::new();
    for file in fs::read_dir(&directory).map_err(sys::Error::at("listing", &directory))? {
        let name = file
            .map_err(sys::Error::at("listing", &directory))?
            .file_name()
            .to_string_lossy()
            .into_owned();
        if name.starts_with("modules.") {
            pending_modules.push(format!("{base}/{name}"));
        }
    }
    let drivers = DRIVERS.iter().map(|driver| format!("{base}/kernel/{driver}"));
    // Kernels differ in their built-in drivers.
    pending_modules.extend(drivers.filter(|path| root.join(path).exists()));
    while let Some(path) = pending_modules.pop() {
        pick(root, &path, out, &mut pending_modules)?;
    }
    Ok(())
}
