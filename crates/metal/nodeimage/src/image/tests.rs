use std::{io::Read, os::unix::fs::symlink};

use flate2::read::GzDecoder;

use super::*;

const VERSION: &str = "6.1.0-1-test";

/// Creates a tree with all inputs of an image, in the given order.
fn tree(root: &Path, backwards: bool) {
    let mut files: Vec<String> =
        initrd::PROGRAMS.iter().map(|name| format!("usr/sbin/{name}")).collect();
    files.extend(initrd::FILES.iter().map(|file| (*file).to_owned()));
    files.extend(
        [
            "boot/vmlinuz-6.1.0-1-test",
            "usr/lib/EXTLINUX/gptmbr.bin",
            "usr/lib/systemd/boot/efi/systemd-bootx64.efi",
            "usr/lib/modules/6.1.0-1-test/modules.dep",
            "usr/lib/modules/6.1.0-1-test/kernel/drivers/virtio/virtio.ko",
            "usr/lib/modules/6.1.0-1-test/kernel/sound/sound.ko",
            "etc/shadow",
            "etc/ssh/ssh_host_rsa_key",
        ]
        .map(str::to_owned),
    );
    if backwards {
        files.reverse();
    }
    for file in files {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "x").unwrap();
    }
    fs::create_dir_all(root.join("etc/systemd/system/multi-user.target.wants")).unwrap();
    let wanted = root.join("etc/systemd/system/multi-user.target.wants/cron.service");
    symlink("/lib/systemd/system/cron.service", wanted).unwrap();
}

fn image(at: &Path, backwards: bool) -> PathBuf {
    let (root, output) = (at.join("tree"), at.join("out"));
    tree(&root, backwards);
    let binary = at.join("binary");
    fs::write(&binary, "binary").unwrap();
    fs::write(at.join("ca.crt"), "-----BEGIN CERTIFICATE-----\nours\n").unwrap();
    let args = Args {
        output: output.clone(),
        tree: Some(root),
        binary: Some(binary),
        suite: String::new(),
        mirror: None,
        image: vec![at.join("binary")],
        ca: vec![at.join("ca.crt")],
    };
    build(&args).unwrap();
    output
}

fn unpacked(packed: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    GzDecoder::new(packed).read_to_end(&mut out).unwrap();
    out
}

#[test]
fn same_inputs_give_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let outputs = ["a", "elsewhere"].map(|name| image(&dir.path().join(name), name != "a"));
    for name in ["vmlinuz", "initrd.img", "rootfs.img", "SHA256SUMS"] {
        let bytes = outputs.each_ref().map(|output| fs::read(output.join(name)).unwrap());
        assert!(bytes[0] == bytes[1], "{name} differs");
    }
}

#[test]
fn parts_contain_boot_files_and_no_identity() {
    let dir = tempfile::tempdir().unwrap();
    let output = image(dir.path(), false);
    let names = |archive: &[u8]| -> Vec<String> {
        cpio::parse(archive).into_iter().map(|(_, name, _)| name).collect()
    };
    // UEFI kernels load both parts without a gap.
    assert_eq!(fs::metadata(output.join("initrd.img")).unwrap().len() % 4, 0);
    let early = unpacked(&fs::read(output.join("initrd.img")).unwrap());
    let trusted = cpio::parse(&early).into_iter().find(|(_, name, _)| name == TRUST);
    assert!(String::from_utf8(trusted.unwrap().2).unwrap().ends_with("ours\n"));
    let early = names(&early);
    let has = |names: &[String], name: &str| names.iter().any(|known| known == name);
    for name in ["init", "dev/null", "usr/bin/windlass", "usr/sbin/mdadm"] {
        assert!(has(&early, name), "{name}");
    }
    let drivers = format!("usr/lib/modules/{VERSION}/kernel");
    assert!(has(&early, &format!("{drivers}/drivers/virtio/virtio.ko")));
    assert!(!has(&early, &format!("{drivers}/sound/sound.ko")));
    let outer = cpio::parse(&fs::read(output.join("rootfs.img")).unwrap());
    let root = names(&unpacked(&outer[0].2));
    for name in
        ["usr/lib/systemd/system/kubelet.path", "usr/bin/kubelet", "usr/lib/windlass/images/0.tar"]
    {
        assert!(has(&root, name), "{name}");
    }
    for name in
        ["etc/ssh/ssh_host_rsa_key", "etc/systemd/system/multi-user.target.wants/cron.service"]
    {
        assert!(!has(&root, name), "{name}");
    }
}

#[test]
fn rejects_tree_without_required_program() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path(), false);
    fs::remove_file(dir.path().join("usr/sbin/mdadm")).unwrap();
    let error = initrd::entries(dir.path(), VERSION, Path::new("/dev/null")).unwrap_err();
    assert!(error.to_string().contains("mdadm"), "{error}");
}
