use serde_json::{Value, json};

use crate::translate;

#[track_caller]
fn config(text: &str) -> Value {
    let translation = translate(text, None).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(translation.warnings, [], "{text}");
    assert_eq!(translation.config["ignition"]["version"], "2.3.0");
    translation.config
}

#[test]
fn storage_users_and_units() {
    let sum = "ab".repeat(64);
    let text = "ignition:\n  config:\n    append:\n      - source: http://x/y\n        verification: {hash: {function: sha512, sum: SUM}}\n\
         storage:\n  disks:\n    - device: /dev/sda\n      wipe_table: true\n      partitions:\n        \
         - {label: ROOT, number: 1, size: 512MiB, start: 1MiB, type_guid: swap_partition}\n  filesystems:\n    \
         - name: data\n      mount: {device: /dev/sdb, format: ext4, wipe_filesystem: true, label: D}\n  files:\n    \
         - {path: /a, mode: 0644, contents: {inline: Hello, remote: }}\n    \
         - {path: /b, filesystem: data, mode: 0600, contents: {remote: {url: http://x/b, compression: gzip}}}\n  links:\n    \
         - {path: /l, target: /a}\n\
         systemd:\n  units:\n    - {name: a.service, enabled: true, dropins: [{name: x.conf, contents: '[Service]'}]}\n\
         networkd:\n  units:\n    - {name: 00-eth0.network, contents: '[Match]'}\n\
         passwd:\n  users:\n    - {name: core, ssh_authorized_keys: [key1], password_hash: h}\n";
    let got = config(&text.replace("SUM", &sum));
    let hash = &got["ignition"]["config"]["append"][0]["verification"]["hash"];
    assert_eq!(hash.as_str(), Some(format!("sha512-{sum}").as_str()));
    let partition = json!({
        "label": "ROOT", "number": 1, "size": 1_048_576, "start": 2048, "typeGuid": "0657fd6d-a4ab-43c4-84e5-0933c84b4f4f",
    });
    assert_eq!(got["storage"]["disks"][0]["partitions"][0], partition);
    assert_eq!(
        got["storage"]["files"],
        json!([
            { "filesystem": "root", "path": "/a", "mode": 0o644, "contents": { "source": "data:,Hello" } },
            { "filesystem": "data", "path": "/b", "mode": 0o600, "contents": { "source": "http://x/b", "compression": "gzip" } },
        ])
    );
    assert_eq!(got["storage"]["links"][0]["filesystem"], "root");
    assert_eq!(got["networkd"]["units"][0]["name"], "00-eth0.network");
    assert_eq!(got["passwd"]["users"][0]["sshAuthorizedKeys"], json!(["key1"]));
}

#[test]
fn container_linux_own_services() {
    let got = config(
        "etcd:\n  version: 3.1.0\n  name: a b\n  election_timeout: 100\n\
         flannel:\n  version: 0.7.0\n  etcd_endpoints: http://e\n  interface: eth0\n  network_config: '{\"a\":1}'\n\
         docker:\n  flags: [--debug, -l]\n\
         update: {group: Beta, server: http://u}\n\
         locksmith: {reboot_strategy: etcd-lock, window_start: 'Sun 1:00', window_length: 2h}\n",
    );
    let dropins: Vec<(&str, &str, &str)> = got["systemd"]["units"]
        .as_array()
        .unwrap()
        .iter()
        .map(|unit| {
            assert_eq!(unit["enable"], true);
            let dropin = &unit["dropins"][0];
            let text = |value: &'_ Value| value.as_str().unwrap().to_owned().leak() as &str;
            (text(&unit["name"]), text(&dropin["name"]), text(&dropin["contents"]))
        })
        .collect();
    assert_eq!(
        dropins,
        [
            (
                "etcd-member.service",
                "20-clct-etcd-member.conf",
                "[Service]\nEnvironment=\"ETCD_IMAGE_TAG=v3.1.0\"\nExecStart=\nExecStart=/usr/lib/coreos/etcd-wrapper $ETCD_OPTS \
                 \\\n  --name=\"a b\" \\\n  --election-timeout=100"
            ),
            (
                "flanneld.service",
                "20-clct-flannel.conf",
                "[Service]\nEnvironment=\"FLANNEL_IMAGE_TAG=v0.7.0\"\nExecStart=\nExecStart=/usr/lib/coreos/flannel-wrapper $FLANNEL_OPTS \
                 \\\n  --etcd-endpoints=\"http://e\" \\\n  --iface=\"eth0\"\nExecStartPre=/usr/bin/etcdctl --endpoints=\"http://e\" \
                 set /coreos.com/network/config \"{\\\"a\\\":1}\""
            ),
            (
                "docker.service",
                "20-clct-docker.conf",
                "[Service]\nEnvironment=\"DOCKER_OPTS=--debug -l\""
            ),
        ]
    );
    let file = &got["storage"]["files"][0];
    assert_eq!(file["path"], "/etc/coreos/update.conf");
    let text = crate::decode_url(file["contents"]["source"].as_str().unwrap()).unwrap();
    assert_eq!(
        String::from_utf8_lossy(&text),
        "GROUP=beta\nSERVER=http://u\nREBOOT_STRATEGY=\"etcd-lock\"\nLOCKSMITHD_REBOOT_WINDOW_START=\"Sun 1:00\"\n\
         LOCKSMITHD_REBOOT_WINDOW_LENGTH=\"2h\""
    );
}

#[test]
fn errors_name_path_and_position() {
    for (text, want) in [
        (
            "etcd:\n  name: \"{HOSTNAME}\"\n",
            "error at $.etcd.name, line 2 col 3: platform must be specified to use templating: \"{HOSTNAME}\"",
        ),
        (
            "storage:\n  disks:\n    - device: /dev/a\n      partitions:\n        - size: 5 parsecs\n",
            "error at $.storage.disks.0.partitions.0.size, line 5 col 17: \"5 parsecs\" is not a size in whole sectors, such as 512MiB",
        ),
        (
            "storage:\n  files:\n    - path: a\n",
            "error at $.storage.files.0.path, line 3 col 13: path not absolute",
        ),
        (
            "storage:\n  files:\n    - path: /a\n      filesystem: b\n",
            "error at $.storage.files.0.filesystem, line 4 col 19: the filesystem \"b\" does not exist",
        ),
        (
            "locksmith:\n  reboot_strategy: never\n",
            "error at $.locksmith.reboot_strategy, line 2 col 20: unknown reboot strategy",
        ),
        (
            "systemd:\n  units: 5\n",
            "error at $.systemd.units, line 2 col 10: expected a list, found a number",
        ),
        // A Butane config without `variant`.
        (
            "version: 1.5.0\nstorage: {}\n",
            "error at $, line 1 col 1: error parsing variant; must be specified",
        ),
    ] {
        assert_eq!(translate(text, None).unwrap_err().to_string(), want, "{text}");
    }
    let unused = translate("storage:\n  file: []\n", None).unwrap().warnings;
    assert_eq!(unused[0].to_string(), "$.storage.file, line 2 col 3: unused key file");
}

#[test]
fn warns_of_what_upstream_warns_of() {
    for (text, want) in [
        (
            "storage: {files: [{path: /a, contents: {inline: x}}]}\n",
            "$.storage.files.0.mode, line 1 col 19: permissions unset, defaulting to 0000",
        ),
        (
            "passwd: {users: [{name: a, create: {uid: 5}}]}\n",
            "$.passwd.users.0.create, line 1 col 36: the create object has been deprecated in favor of user-level options",
        ),
        (
            "systemd: {units: [{name: a.service, enabled: true, contents: \"[Unit]\"}]}\n",
            "$.systemd.units.0.contents, line 1 col 62: unit \"a.service\" is enabled, but has no install section so enable does nothing",
        ),
    ] {
        let warnings = translate(text, None).unwrap().warnings;
        assert_eq!(warnings.iter().map(ToString::to_string).collect::<Vec<_>>(), [want]);
    }
}
