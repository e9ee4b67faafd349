//! The volumes of etcd's members: their tags, by which machines find them, and what is done with a disk before its
//! file system is mounted.

use std::collections::{BTreeMap, BTreeSet};

use api_meta::Tree as _;
use serde_json::Value;

/// The prefix of the tag with a volume's member and all members of an etcd cluster: `MEMBER/ALL`, separated by commas.
const ETCD: &str = "k8s.io/etcd/";
/// The prefix of the tag with the owning cluster.
const CLUSTER: &str = "kubernetes.io/cluster/";
const OWNED: &str = "owned";
const CONTROL_PLANE: &str = "k8s.io/role/control-plane";
/// The size of a member's volume in GiB, as upstream's.
pub const SIZE: i64 = 20;

/// The tags of a volume.
pub type VolumeTags = BTreeMap<String, String>;

/// Returns the name and the tags of an etcd member's volume.
pub fn member_volume(cluster: &str, etcd: &Value, member: &str) -> (String, VolumeTags) {
    let (etcd, all) = (etcd.text("name"), member_names(etcd));
    let name = format!("{member}.etcd-{etcd}.{cluster}");
    let tags = [
        (format!("{ETCD}{etcd}"), format!("{member}/{all}")),
        (CONTROL_PLANE.to_owned(), "1".to_owned()),
        ("k8s.io/role/master".to_owned(), "1".to_owned()),
        (format!("{CLUSTER}{cluster}"), OWNED.to_owned()),
        ("KubernetesCluster".to_owned(), cluster.to_owned()),
        ("Name".to_owned(), name.clone()),
    ];
    (name, tags.into())
}

/// Returns the names of an etcd cluster's members in order, separated by commas.
fn member_names(etcd: &Value) -> String {
    let mut names: Vec<&str> =
        etcd.items("etcdMembers").iter().map(|member| member.text("name")).collect();
    names.sort_unstable();
    names.join(",")
}

/// The error of tags that do not say which etcd member a volume is for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TagError {
    #[error(
        "its tag {key} is {value:?}, expected: MEMBER/ALL, with MEMBER among ALL, separated by commas; \
         kops update cluster --yes writes it again"
    )]
    Members { key: String, value: String },
    #[error("it has the tags of two etcd clusters, {first} and {second}; remove one tag")]
    Both { first: String, second: String },
}

/// Returns the etcd cluster, such as `main`, that a volume's tags name; `None` if the volume is not one of the
/// cluster's etcd members.
pub fn etcd_of<'a>(cluster: &str, tags: &'a VolumeTags) -> Result<Option<&'a str>, TagError> {
    let is_own = tags.get(&format!("{CLUSTER}{cluster}")).is_some_and(|value| value == OWNED);
    if !is_own || !tags.contains_key(CONTROL_PLANE) {
        return Ok(None);
    }
    let mut of_etcd =
        tags.iter().filter_map(|(key, value)| Some((key, key.strip_prefix(ETCD)?, value)));
    let Some((key, etcd, value)) = of_etcd.next() else { return Ok(None) };
    if let Some((_, second, _)) = of_etcd.next() {
        return Err(TagError::Both { first: etcd.to_owned(), second: second.to_owned() });
    }
    let invalid = || TagError::Members { key: key.clone(), value: value.clone() };
    let (member, all) = value.split_once('/').ok_or_else(invalid)?;
    let all: BTreeSet<&str> = all.split(',').collect();
    if member.is_empty() || etcd.is_empty() || !all.contains(member) {
        return Err(invalid());
    }
    Ok(Some(etcd))
}

/// The file system of volumes.
pub const FILE_SYSTEM: &str = "ext4";

/// The content of a disk outside of any known format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskEnds {
    /// The first and the last MiB are zeros.
    Blank,
    /// The disk begins with the mark of a file system that is being created.
    Unfinished,
    /// There is other data.
    Data,
}

/// The observations of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskProbe {
    /// The exit code of `blkid`; `None` if a signal killed it.
    pub code: Option<i32>,
    /// The output of `blkid -p -s TYPE -s PTTYPE -o export`.
    pub output: String,
    /// The content at both ends.
    pub ends: DiskEnds,
}

/// The preparation of a disk for its mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Preparation {
    /// Create a file system.
    Format,
    /// Check the file system, and repair it.
    Check,
    /// Leave the disk alone, for this reason.
    Refuse(String),
}

impl DiskProbe {
    /// `blkid` found a format.
    const FOUND: i32 = 0;
    /// `blkid` found no format.
    const NOTHING: i32 = 2;
    /// `blkid` found several formats.
    const AMBIVALENT: i32 = 8;

    /// Decides what is done with the disk. Only a disk that is certainly empty gets a file system.
    pub fn preparation(&self) -> Preparation {
        let value = |name: &str| {
            let mut lines = self.output.lines().filter_map(|line| line.trim().split_once('='));
            lines.find(|(key, _)| *key == name).map_or("", |(_, value)| value)
        };
        let (kind, table) = (value("TYPE"), value("PTTYPE"));
        let keep = "it is not formatted, to lose nothing: move the data away, or, if it is not needed, delete the \
                    volume";
        let refuse = |cause: String| Preparation::Refuse(format!("{cause}; {keep}"));
        match (self.code, kind, table) {
            (Some(Self::FOUND), FILE_SYSTEM, "") => Preparation::Check,
            (Some(Self::FOUND), "", table) if !table.is_empty() => {
                refuse(format!("it holds a partition table ({table})"))
            }
            (Some(Self::FOUND), kind, "") if !kind.is_empty() => {
                refuse(format!("it holds {kind}, not {FILE_SYSTEM}"))
            }
            (Some(Self::FOUND), kind, table) if !kind.is_empty() => {
                refuse(format!("it holds both {kind} and a partition table ({table})"))
            }
            (Some(Self::FOUND), ..) => {
                refuse(format!("blkid names no format: {:?}", self.output.trim()))
            }
            (Some(Self::NOTHING), ..) if self.ends != DiskEnds::Data => Preparation::Format,
            (Some(Self::NOTHING), ..) => {
                refuse("it holds data of an unknown format in its first or last MiB".to_owned())
            }
            (Some(Self::AMBIVALENT), ..) => {
                refuse("it holds the marks of several formats".to_owned())
            }
            (code, ..) => {
                let code = code.map_or("a signal".to_owned(), |code| format!("exit code {code}"));
                Preparation::Refuse(format!(
                    "blkid cannot tell what it holds ({code}): {}; see the machine's kernel log (dmesg)",
                    self.output.trim()
                ))
            }
        }
    }
}

/// Returns the reason for which a file system must not be mounted, by the exit code of `fsck`; `None` if it is intact
/// or was repaired. The code is a sum of flags: 1 and 2 are repairs.
pub fn unrepaired(code: Option<i32>, output: &str) -> Option<String> {
    const REPAIRED: i32 = 1 | 2;
    let cause = match code {
        Some(code) if code & !REPAIRED == 0 => return None,
        Some(code) if code & 4 != 0 => "its file system has errors that need a decision".to_owned(),
        Some(code) => format!("its file system cannot be checked (exit code {code})"),
        None => "the check of its file system was killed".to_owned(),
    };
    let output = output.trim();
    let next = format!("repair it with fsck.{FILE_SYSTEM}, or restore a backup to a new volume");
    Some(format!("{cause}: {output}; {next}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec() -> Value {
        json!({"name": "main", "etcdMembers": [{"name": "b"}, {"name": "a"}]})
    }

    #[test]
    fn volumes_are_found_by_their_tags() {
        let (name, tags) = member_volume("c.local", &spec(), "b");
        assert_eq!(
            (name.as_str(), tags["k8s.io/etcd/main"].as_str()),
            ("b.etcd-main.c.local", "b/a,b")
        );
        let of = |change: &dyn Fn(&mut VolumeTags)| {
            let mut tags = tags.clone();
            change(&mut tags);
            etcd_of("c.local", &tags).map(|etcd| etcd.map(str::to_owned))
        };
        assert_eq!(of(&|_| {}), Ok(Some("main".to_owned())));
        // Volumes of other clusters, roles and purposes.
        assert_eq!(etcd_of("d.local", &tags), Ok(None));
        for key in
            ["kubernetes.io/cluster/c.local", "k8s.io/role/control-plane", "k8s.io/etcd/main"]
        {
            let found = of(&|tags| drop(tags.remove(key)));
            assert_eq!(found, Ok(None), "{key}");
        }
        let shared =
            of(&|tags| drop(tags.insert("kubernetes.io/cluster/c.local".into(), "shared".into())));
        assert_eq!(shared, Ok(None));
        for value in ["", "b", "/a,b", "c/a,b", "b/", "b/a;b"] {
            let error = of(&|tags| drop(tags.insert("k8s.io/etcd/main".into(), value.into())));
            assert!(matches!(error, Err(TagError::Members { .. })), "{value}: {error:?}");
        }
        let long = format!("b/{}", "x,".repeat(1 << 16));
        of(&|tags| drop(tags.insert("k8s.io/etcd/main".into(), long.clone()))).unwrap_err();
        let error = of(&|tags| drop(tags.insert("k8s.io/etcd/events".into(), "b/b".into())));
        assert!(matches!(error, Err(TagError::Both { .. })), "{error:?}");
    }

    #[test]
    fn only_an_empty_disk_is_formatted() {
        use DiskEnds::{Blank, Data, Unfinished};
        let export = |lines: &str| format!("DEVNAME=/dev/x\n{lines}\n");
        for (code, output, ends, expected) in [
            (Some(2), String::new(), Blank, "format"),
            (Some(2), String::new(), Unfinished, "format"),
            (Some(2), String::new(), Data, "unknown format"),
            (Some(0), export("TYPE=ext4"), Data, "check"),
            // The superblock is not in the first bytes.
            (Some(0), export("TYPE=ext4"), Unfinished, "check"),
            (Some(0), export("TYPE=ext3"), Data, "holds ext3, not ext4"),
            (Some(0), export("TYPE=xfs"), Data, "holds xfs"),
            (Some(0), export("TYPE=crypto_LUKS"), Data, "holds crypto_LUKS"),
            (Some(0), export("TYPE=swap"), Blank, "holds swap"),
            (Some(0), export("PTTYPE=gpt"), Data, "partition table (gpt)"),
            (Some(0), export("PTTYPE=dos"), Blank, "partition table (dos)"),
            (Some(0), export("TYPE=ext4\nPTTYPE=dos"), Data, "both ext4 and a partition table"),
            (Some(0), String::new(), Blank, "names no format"),
            (Some(0), export("LABEL=TYPE=ext4"), Blank, "names no format"),
            (Some(8), String::new(), Blank, "several formats"),
            (Some(4), "error: x: Input/output error".to_owned(), Blank, "exit code 4"),
            (None, String::new(), Blank, "a signal"),
        ] {
            let probe = DiskProbe { code, output: output.clone(), ends };
            let found = match probe.preparation() {
                Preparation::Format => "format".to_owned(),
                Preparation::Check => "check".to_owned(),
                Preparation::Refuse(reason) => reason,
            };
            assert!(found.contains(expected), "{code:?} {output:?} {ends:?}: {found}");
        }
    }

    #[test]
    fn damaged_file_systems_are_not_mounted() {
        for code in [0, 1, 2, 3] {
            assert_eq!(unrepaired(Some(code), "fixed"), None, "{code}");
        }
        for (code, expected) in [
            (Some(4), "errors that need a decision: inode 12; repair it"),
            (Some(5), "need a decision"),
            (Some(8), "exit code 8"),
            (Some(16), "exit code 16"),
            (Some(32), "exit code 32"),
            (Some(128), "exit code 128"),
            (Some(-1), "need a decision"),
            (None, "was killed"),
        ] {
            let reason = unrepaired(code, " inode 12\n").unwrap();
            assert!(reason.contains(expected), "{code:?}: {reason}");
        }
    }
}
