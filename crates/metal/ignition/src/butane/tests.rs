use serde_json::{Value as Json, json};

use super::*;

pub(super) struct Local;

impl Directory for Local {
    fn read(&self, name: &str) -> Result<Vec<u8>, DirectoryError> {
        match name {
            "key" => Ok(b"ssh-ed25519 A a\n\nssh-ed25519 B b\n".to_vec()),
            "binary" => Ok(vec![0xff; 9]),
            "text" => Ok(b"x".to_vec()),
            "tree/bin/b" | "tree/etc/a" => Ok(name.as_bytes().to_vec()),
            _ => Err("no such file".into()),
        }
    }

    fn below(&self, name: &str) -> Result<Vec<(String, TreeEntry)>, DirectoryError> {
        let file = |executable| TreeEntry::File { executable };
        let link = TreeEntry::Link { target: "../x".into() };
        let tree = [
            ("", TreeEntry::Directory),
            ("bin", TreeEntry::Directory),
            ("bin/b", file(true)),
            ("etc", TreeEntry::Directory),
            ("etc/a", file(false)),
            ("etc/l", link),
        ];
        match name {
            "tree" => Ok(tree.map(|(name, found)| (name.to_owned(), found)).to_vec()),
            "odd" => Ok(vec![("p".into(), TreeEntry::Other)]),
            _ => Err("no such directory".into()),
        }
    }
}

fn translated(body: &str) -> Json {
    translated_as("1.5.0", body)
}

fn translated_as(version: &str, body: &str) -> Json {
    let text = format!("variant: fcos\nversion: {version}\n{body}");
    translate(&text, Some(&Local)).unwrap().config
}

#[test]
fn configs() {
    for (body, want) in [
        ("", json!({})),
        (
            "passwd:\n  users:\n    - name: core\n      ssh_authorized_keys: [k]\n      ssh_authorized_keys_local: [key]\n      no_create_home: true\n",
            json!({ "passwd": { "users": [{ "name": "core", "noCreateHome": true,
                "sshAuthorizedKeys": ["k", "ssh-ed25519 A a", "ssh-ed25519 B b"] }] } }),
        ),
        (
            "storage:\n  files:\n    - path: /a\n      mode: 0644\n      contents:\n        inline: hi there\n      user: {id: 5}\n",
            json!({ "storage": { "files": [{ "path": "/a", "mode": 420, "user": { "id": 5 },
                "contents": { "source": "data:,hi%20there", "compression": "" } }] } }),
        ),
        (
            "storage:\n  files:\n    - path: /b\n      append:\n        - local: binary\n          compression: gzip\n        - source: https://example.test/x\n          http_headers: [{name: A, value: B}]\n          verification: {hash: sha256-e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855}\n",
            json!({ "storage": { "files": [{ "path": "/b", "append": [
                { "source": "data:;base64,////////////", "compression": "gzip" },
                { "source": "https://example.test/x", "httpHeaders": [{ "name": "A", "value": "B" }],
                  "verification": { "hash": "sha256-e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" } }] }] } }),
        ),
        (
            "storage:\n  disks:\n    - device: /dev/vda\n      wipe_table: true\n      partitions:\n        - {label: ROOT, size_mib: 0, type_guid: 0FC63DAF-8483-4772-8E79-3D69D8477DE4}\n",
            json!({ "storage": { "disks": [{ "device": "/dev/vda", "wipeTable": true,
                "partitions": [{ "label": "ROOT", "sizeMiB": 0, "typeGuid": "0FC63DAF-8483-4772-8E79-3D69D8477DE4" }] }] } }),
        ),
        (
            "systemd:\n  units:\n    - name: a.service\n      enabled: true\n      contents: |\n        [Unit]\n      dropins:\n        - {name: x.conf, contents_local: key}\n",
            json!({ "systemd": { "units": [{ "name": "a.service", "enabled": true, "contents": "[Unit]\n",
                "dropins": [{ "name": "x.conf", "contents": "ssh-ed25519 A a\n\nssh-ed25519 B b\n" }] }] } }),
        ),
        (
            "kernel_arguments:\n  should_exist: [a=b]\n",
            json!({ "kernelArguments": { "shouldExist": ["a=b"] } }),
        ),
    ] {
        let mut want = want;
        want["ignition"]["version"] = "3.4.0".into();
        assert_eq!(translated(body), want, "{body}");
    }
}

/// Returns "PATH MODE OWNERS" for each entry of a section.
fn entries(config: &Json, section: &str) -> Vec<String> {
    let list = config["storage"][section].as_array().cloned().unwrap_or_default();
    let shown = |entry: &Json| {
        let fields = ["mode", "user", "group", "target"].map(|key| match &entry[key] {
            Json::Null => "-".to_owned(),
            Json::Object(owner) => owner.values().next().unwrap().to_string(),
            other => other.to_string(),
        });
        format!("{} {}", entry["path"].as_str().unwrap(), fields.join(" "))
    };
    list.iter().map(shown).collect()
}

#[test]
fn trees() {
    let plain = translated(
        "storage:\n  files:\n    - {path: /o/etc/a, mode: 0600}\n  trees:\n    - {local: tree, path: //o/}\n",
    );
    assert_eq!(entries(&plain, "files"), ["/o/etc/a 384 - - -", "/o/bin/b 493 - - -"]);
    assert_eq!(plain["storage"]["files"][0]["contents"]["source"], "data:,tree%2Fetc%2Fa");
    assert_eq!(entries(&plain, "links"), ["/o/etc/l - - - \"../x\""]);
    assert_eq!(plain["storage"].get("directories"), None);

    let owned = translated_as(
        "1.7.0",
        "storage:\n  links:\n    - {path: /etc/l, hard: false}\n  trees:\n\
         \x20   - {local: tree, file_mode: 0640, group: {id: 5}}\n",
    );
    let want = ["/ 493 - 5 -", "/bin 493 - 5 -", "/etc 493 - 5 -"];
    assert_eq!(entries(&owned, "directories"), want);
    assert_eq!(entries(&owned, "files"), ["/bin/b 416 - 5 -", "/etc/a 416 - 5 -"]);
    assert_eq!(entries(&owned, "links"), ["/etc/l - - - \"../x\""]);
}

#[test]
fn compresses_repetitive_contents() {
    let config = translated(&format!(
        "storage:\n  files:\n    - path: /a\n      contents:\n        inline: \"{}\"\n",
        "a b".repeat(500)
    ));
    let contents = &config["storage"]["files"][0]["contents"];
    assert_eq!(contents["compression"], "gzip");
    assert!(contents["source"].as_str().unwrap().starts_with("data:;base64,H4sI"));
}

#[test]
fn lays_out_mirrored_and_encrypted_boot_disk() {
    let config = translated(
        "boot_device:\n  luks: {tpm2: true, threshold: 1}\n  mirror: {devices: [/dev/a, /dev/b]}\n\
         storage:\n  filesystems:\n    - {device: /dev/mapper/root, format: btrfs, label: root, wipe_filesystem: true}\n",
    );
    let storage = &config["storage"];
    assert_eq!(
        storage["disks"][1],
        json!({ "device": "/dev/b", "wipeTable": true, "partitions": [
            { "label": "bios-2", "sizeMiB": 1, "typeGuid": "21686148-6449-6E6F-744E-656564454649" },
            { "label": "esp-2", "sizeMiB": 127, "typeGuid": "C12A7328-F81F-11D2-BA4B-00A0C93EC93B" },
            { "label": "boot-2", "sizeMiB": 384 },
            { "label": "root-2" },
        ] })
    );
    assert_eq!(
        storage["raid"][0],
        json!({ "name": "md-boot", "level": "raid1", "options": ["--metadata=1.0"],
            "devices": ["/dev/disk/by-partlabel/boot-1", "/dev/disk/by-partlabel/boot-2"] })
    );
    assert_eq!(
        storage["luks"],
        json!([{ "name": "root", "label": "luks-root", "device": "/dev/md/md-root", "wipeVolume": true,
            "clevis": { "tpm2": true, "threshold": 1 } }])
    );
    // The config's own fields of the same device win.
    let formats: Vec<_> =
        storage["filesystems"].as_array().unwrap().iter().map(|f| &f["format"]).collect();
    assert_eq!(formats, ["vfat", "vfat", "ext4", "btrfs"]);
}

#[test]
fn encrypts_root_by_crypto_adapter_on_s390x() {
    let config = translated_as(
        "1.6.0",
        "boot_device: {layout: s390x-eckd, luks: {device: /dev/dasda, cex: {enabled: true}}}\n",
    );
    let volume = json!([{ "name": "root", "label": "luks-root", "device": "/dev/dasda2",
        "wipeVolume": true, "cex": { "enabled": true } }]);
    assert_eq!(config["storage"]["luks"], volume);
    assert_eq!(config["storage"]["filesystems"][0]["device"], "/dev/mapper/root");
}

#[test]
fn judges_configs_that_a_config_contains() {
    let of = |inline: &str| {
        let text = format!(
            "variant: fcos\nversion: 1.7.0\nignition: {{config: {{replace: {{inline: '{inline}'}}}}}}\n"
        );
        translate(&text, None).map(|translation| {
            translation.warnings.iter().map(Notice::to_string).collect::<Vec<_>>()
        })
    };
    assert_eq!(of(r#"{"ignition":{"version":"3.4.0"}}"#), Ok(Vec::new()));
    let unknown = of(r#"{"ignition":{"version":"9.0.0"}}"#).unwrap();
    assert!(unknown[0].starts_with("$.ignition.config.replace.inline, line 3 col 39: skipping"));
    let error = of("x").unwrap_err().to_string();
    let place = "error at $.ignition.config.replace.inline, line 3 col 39: config is not valid";
    assert!(error.starts_with(place), "{error}");
}

#[test]
fn adds_grub_users() {
    let config = translated("grub:\n  users:\n    - {name: root, password_hash: grub.x}\n");
    let file = &config["storage"]["files"][0];
    assert_eq!(file["path"], "/boot/grub2/user.cfg");
    let text = crate::decode_url(file["append"][0]["source"].as_str().unwrap()).unwrap();
    let wanted = "# Generated by Butane\n\nset superusers=\"root\"\npassword_pbkdf2 root grub.x\n";
    assert_eq!(String::from_utf8_lossy(&text), wanted);
    // Other variants do not have it and warn.
    let text = "variant: flatcar\nversion: 1.0.0\ngrub:\n  users: []\n";
    let warnings = translate(text, None).unwrap().warnings;
    assert_eq!(warnings[0].to_string(), "$.grub, line 3 col 1: unused key grub");
}

#[test]
fn mount_units() {
    let config = translated(
        "storage:\n  filesystems:\n    - device: /dev/disk/by-label/var-x\n      path: /var/lib\n      format: xfs\n      with_mount_unit: true\n      mount_options: [ro, noatime]\n    - {device: /dev/vdb, format: swap, with_mount_unit: true}\n",
    );
    let filesystem = &config["storage"]["filesystems"][0];
    assert_eq!(filesystem.get("withMountUnit"), None);
    let units = &config["systemd"]["units"];
    assert_eq!(units[0]["name"], "var-lib.mount");
    let fsck = "systemd-fsck@dev-disk-by\\x2dlabel-var\\x2dx.service";
    assert_eq!(
        units[0]["contents"],
        format!(
            "# Generated by Butane\n[Unit]\nRequires={fsck}\nAfter={fsck}\n\n[Mount]\nWhere=/var/lib\n\
             What=/dev/disk/by-label/var-x\nType=xfs\nOptions=ro,noatime\n\n[Install]\nRequiredBy=local-fs.target"
        )
    );
    assert_eq!(units[1]["name"], "dev-vdb.swap");
    let remote = translated(
        "storage:\n  luks:\n    - {name: a, device: /dev/b, clevis: {tang: [{url: http://t, thumbprint: x}]}}\n\
         \x20 filesystems:\n    - {device: /dev/mapper/a, path: /a, format: xfs, mount_options: [ro], with_mount_unit: true}\n",
    );
    let unit = remote["systemd"]["units"][0]["contents"].as_str().unwrap();
    assert!(unit.contains("Options=ro,_netdev\n") && unit.ends_with("=remote-fs.target"), "{unit}");
    assert_eq!(units[1]["enabled"], true);
}

#[test]
fn versions() {
    for (variant, version, want) in [
        ("fcos", "1.0.0", Some("3.0.0")),
        ("fcos", "1.3.0", Some("3.2.0")),
        ("fcos", "1.7.0", Some("3.6.0")),
        ("flatcar", "1.0.0", Some("3.3.0")),
        ("flatcar", "1.1.0", Some("3.4.0")),
        ("flatcar", "9.0.0", None),
        ("other", "1.0.0", None),
    ] {
        let text = format!("variant: {variant}\nversion: {version}\n");
        let config = translate(&text, None).map(|t| t.config["ignition"]["version"].clone());
        assert_eq!(config.ok(), want.map(Json::from), "{variant} {version}");
    }
}

#[test]
fn errors_name_path_and_position() {
    let head = "variant: fcos\nversion: 1.5.0\n";
    // A missing value is reported at its parent.
    for (body, want) in [
        (
            "storage:\n  files:\n    - path: a\n",
            "error at $.storage.files.0.path, line 5 col 13: path not absolute",
        ),
        (
            "storage:\n  files:\n    - path: /a//b\n",
            "error at $.storage.files.0.path, line 5 col 13: path is not fully simplified",
        ),
        (
            "storage:\n  files:\n    - mode: 5\n",
            "error at $.storage.files.0.path, line 5 col 7: path not specified",
        ),
        (
            "storage:\n  files:\n    - path: /a\n    - path: /a\n",
            "error at $.storage.files.1, line 6 col 7: duplicate entry defined",
        ),
        (
            "storage:\n  files:\n    - path: /a\n      mode: rw\n",
            "error at $.storage.files.0.mode, line 6 col 13: expected an integer, found a string",
        ),
        ("storage: 5\n", "error at $.storage, line 3 col 10: expected a mapping, found a number"),
        (
            "storage:\n  files:\n    - {path: /etc/a, contents: {inline: x}}\n  trees:\n    - {local: tree}\n",
            "error at $.storage.trees.0, line 7 col 7: matching filesystem node has existing contents or different type",
        ),
        (
            "storage:\n  files:\n    - path: /etc/l\n  trees:\n    - {local: tree}\n",
            "error at $.storage.trees.0, line 7 col 7: matching filesystem node has existing contents or different type",
        ),
        (
            "storage:\n  trees:\n    - local: odd\n",
            "error at $.storage.trees.0, line 5 col 7: trees may only contain files, directories, and symlinks",
        ),
        (
            "storage:\n  trees:\n    - path: /x\n",
            "error at $.storage.trees.0, line 5 col 7: local is required",
        ),
        // Errors of Ignition itself.
        (
            "passwd:\n  users:\n    - name: a\n      ssh_authorized_keys: [k, l, k]\n",
            "error at $.passwd.users.0.ssh_authorized_keys.2, line 6 col 35: duplicate entry defined",
        ),
        (
            "boot_device:\n  layout: vax\n",
            "error at $.boot_device.layout, line 4 col 11: layout must be one of: aarch64, ppc64le, x86_64",
        ),
        (
            "boot_device:\n  mirror:\n    devices: [/dev/a]\n",
            "error at $.boot_device.mirror.devices, line 5 col 14: mirroring requires at least two devices",
        ),
        (
            "grub:\n  users:\n    - name: root\n",
            "error at $.grub.users.0.password_hash, line 5 col 7: field \"password_hash\" is required",
        ),
        (
            "storage:\n  files:\n    - path: /a\n      contents: {local: absent}\n",
            "error at $.storage.files.0.contents, line 6 col 17: absent: no such file",
        ),
    ] {
        let error = translate(&format!("{head}{body}"), Some(&Local)).unwrap_err().to_string();
        assert_eq!(error, want, "{body}");
    }
    assert!(translate("a: [", None).unwrap_err().to_string().contains("line 1"));
    let unused = translate(&format!("{head}passwd:\n  user: x\n"), None).unwrap().warnings;
    assert_eq!(unused[0].to_string(), "$.passwd.user, line 4 col 3: unused key user");
}
