//! Fuzz tests of damaged configs, Butane texts and partition tables.

use serde_json::{Value, json};

use crate::{
    butane::{Directory, DirectoryError, TreeEntry},
    gpt::{Geometry, Guid, Table},
    kargs, merge, parse, partition, typed, units,
};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

fn newest() -> Value {
    json!({
        "ignition": {"version": "3.4.0", "config": {"merge": [{"source": "http://a/b"}]}, "timeouts": {"httpTotal": 9}},
        "kernelArguments": {"shouldExist": ["a=b"], "shouldNotExist": ["c"]},
        "passwd": {"users": [{"name": "core", "uid": 500, "groups": ["sudo"], "sshAuthorizedKeys": ["k"]}]},
        "storage": {
            "disks": [{"device": "/dev/vda", "wipeTable": true, "partitions": [
                {"number": 1, "label": "A", "sizeMiB": 4, "startMiB": 1},
                {"number": 0, "label": "B", "guid": "0FC63DAF-8483-4772-8E79-3D69D8477DE4"}]}],
            "raid": [{"name": "m", "level": "raid1", "devices": ["/dev/a", "/dev/b"]}],
            "luks": [{"name": "l", "device": "/dev/a", "keyFile": {"source": "data:;base64,YQ=="}}],
            "filesystems": [{"device": "/dev/b", "format": "ext4", "path": "/var"}],
            "files": [{"path": "/a", "mode": 420, "append": [{"source": "data:,x", "compression": "gzip"}]}],
            "links": [{"path": "/l", "target": "/a", "hard": true}],
        },
        "systemd": {"units": [{"name": "a.service", "enabled": true, "dropins": [{"name": "1.conf", "contents": "[X]"}]}]},
    })
}

fn older() -> Value {
    json!({
        "ignition": {"version": "2.3.0", "config": {"append": [{"source": "http://a/b"}]}},
        "networkd": {"units": [{"name": "a.network", "contents": "[Match]"}]},
        "passwd": {"users": [{"name": "core", "create": {"uid": 500}}]},
        "storage": {
            "disks": [{"device": "/dev/vda", "partitions": [{"label": "A", "size": 8192, "start": 2048}]}],
            "filesystems": [{"name": "r", "mount": {"device": "/dev/b", "format": "ext4", "create": {"force": true}}}],
            "files": [{"filesystem": "r", "path": "/a", "mode": 420, "append": true, "contents": {"source": "data:,x"}}],
        },
    })
}

/// Checks the properties of every accepted config.
fn taken(config: &Value) {
    let shown = || config.to_string();
    // The fetch stage stores the text, which the other stages parse.
    assert_eq!(parse(&shown()).as_ref(), Ok(config), "{}", shown());
    // A merged config is validated again, but merging accepts any config.
    let _ = parse(&merge(&newest(), config).to_string());
    let config = typed(config).unwrap_or_else(|error| panic!("{error} in {}", shown()));
    let _ = units::plan(&config.systemd.units);
    if let Some(line) = kargs::apply("root=x quiet", &config.kernel_arguments) {
        assert_eq!(kargs::apply(&line, &config.kernel_arguments), None, "{line}");
    }
    let geometry = Geometry { sector: 512, sectors: 131_072 };
    let empty = || Table::empty(geometry, Guid([9; 16])).unwrap();
    for disk in &config.storage.disks {
        let Ok(table) = partition::plan(None, empty(), disk, || Guid([7; 16])) else { continue };
        assert_eq!(read(&written(&table), geometry).as_ref(), Some(&table), "{}", shown());
        let again = partition::plan(Some(&table), empty(), disk, || Guid([8; 16]));
        let again = again.unwrap_or_else(|error| panic!("{error}: {}", shown()));
        assert_eq!(again.entries.len(), table.entries.len(), "{}", shown());
    }
}

#[test]
fn configs() {
    let seeds = [newest().to_string(), older().to_string()];
    fuzz::fuzz(HERE, "config", &seeds.each_ref().map(String::as_bytes), |input| {
        let Ok(text) = std::str::from_utf8(input) else { return };
        if let Ok(config) = parse(text) {
            taken(&config);
        }
    });
}

/// A directory in which every file exists.
struct Anything;

impl Directory for Anything {
    fn read(&self, _: &str) -> Result<Vec<u8>, DirectoryError> {
        Ok(b"contents".to_vec())
    }

    fn below(&self, _: &str) -> Result<Vec<(String, TreeEntry)>, DirectoryError> {
        Ok(vec![
            (String::new(), TreeEntry::Directory),
            ("f".into(), TreeEntry::File { executable: true }),
        ])
    }
}

#[test]
fn butane_texts() {
    let seeds: [&[u8]; 3] = [
        b"variant: fcos\nversion: 1.5.0\nstorage:\n  files:\n    - {path: /a, mode: 0644, contents: {inline: x}}\n  filesystems:\n    - device: /dev/b\n      format: xfs\n      path: /var/lib\n      with_mount_unit: true\nsystemd:\n  units:\n    - name: a.service\n      contents: |\n        [Service]\n",
        b"variant: flatcar\nversion: 1.0.0\npasswd: {users: &u [{name: core}]}\nignition:\n  config:\n    replace: {local: f}\nstorage:\n  trees: [{local: t, path: /o, user: {id: 1}}]\n",
        // A Container Linux Config.
        b"etcd: {version: 3.1.0, name: a}\nlocksmith: {reboot_strategy: off}\nstorage:\n  disks:\n    - device: /dev/a\n      partitions: [{size: 5MiB, type_guid: raid_partition}]\n  files:\n    - {path: /a, contents: {remote: {url: http://x, verification: {hash: {function: sha512, sum: a}}}}}\n",
    ];
    fuzz::fuzz(HERE, "butane", &seeds, |input| {
        let Ok(text) = std::str::from_utf8(input) else { return };
        if let Ok(translation) = crate::translate(text, Some(&Anything)) {
            // A small text must not expand to a large config.
            assert!(translation.config.to_string().len() < 200 * input.len().max(1000));
            if let Ok(config) = parse(&translation.config.to_string()) {
                taken(&config);
            }
        }
    });
}

fn read(disk: &[u8], geometry: Geometry) -> Option<Table> {
    let part = |at: u64, length: usize| {
        let at = usize::try_from(at).unwrap_or(usize::MAX).min(disk.len());
        Ok::<_, std::convert::Infallible>(
            disk[at..at.saturating_add(length).min(disk.len())].to_vec(),
        )
    };
    Table::read(geometry, part).ok()?.ok()?
}

fn written(table: &Table) -> Vec<u8> {
    let Geometry { sector, sectors } = table.geometry;
    let mut disk = vec![0; (sector * sectors) as usize];
    for (at, bytes) in table.writes() {
        disk[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
    }
    disk
}

/// Fixes the checksums, so that damage passes the checksum test.
fn summed(disk: &mut [u8]) {
    let number = |disk: &[u8], at: usize| {
        disk.get(at..at + 4).map_or(0, |bytes| {
            u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize
        })
    };
    let (table, length) =
        (512 * number(disk, 584), number(disk, 592).saturating_mul(number(disk, 596)));
    let Some(entries) = disk.get(table..table.saturating_add(length)) else { return };
    let sum = crc32fast::hash(entries).to_le_bytes();
    let Some(header) = disk.get_mut(512..604) else { return };
    header[88..92].copy_from_slice(&sum);
    header[16..20].fill(0);
    let sum = crc32fast::hash(header).to_le_bytes();
    header[16..20].copy_from_slice(&sum);
}

#[test]
fn partition_tables() {
    let geometry = Geometry { sector: 512, sectors: 96 };
    let disk = typed(
        &json!({"storage": {"disks": [{"device": "/dev/a", "partitions": [{"number": 1, "label": "A"}, {"number": 5}]}]}}),
    );
    let disk = disk.unwrap_or_default().storage.disks.remove(0);
    let mut table = Table::empty(geometry, Guid([9; 16])).unwrap();
    let guid = Guid([3; 16]);
    let entry = crate::gpt::Entry {
        kind: Guid::LINUX,
        guid,
        first: 40,
        last: 50,
        attributes: 0,
        label: "A".into(),
    };
    table.set(1, Some(entry));
    fuzz::fuzz(HERE, "gpt", &[&written(&table)], |input| {
        let mut input = input.to_vec();
        summed(&mut input);
        let geometry = Geometry { sector: 512, sectors: input.len() as u64 / 512 };
        let Ok(empty) = Table::empty(geometry, guid) else {
            let _ = read(&input, geometry);
            return;
        };
        let Some(table) = read(&input, geometry) else { return };
        let _ = table.free();
        assert_eq!(
            read(&written(&table), geometry).map(|t| t.entries),
            Some(table.entries.clone())
        );
        let _ = partition::plan(Some(&table), empty, &disk, || guid);
    });
}
