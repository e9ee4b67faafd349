//! Backups of etcd in etcd-manager's layout: `TIME-SEQUENCE/{_etcd_backup.meta,etcd.backup.gz}`, and its commands, which lie
//! beside them as `control/TIME-SEQUENCE/_command.json`.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use api_meta::Timestamp;
use kops_api::Spec as _;
use serde_json::{Value, json};

use crate::member::Mark;

/// In a backup's directory: what it is, which is written last.
pub const META: &str = "_etcd_backup.meta";
/// Beside it: etcd's snapshot, compressed.
pub const DATA: &str = "etcd.backup.gz";
/// What a command's directory holds.
pub const COMMAND: &str = "_command.json";

/// How the generations of restored clusters begin.
const RESTORED: &str = "restored-";
const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;

/// The name of a backup or a command of this moment.
pub fn name(now: Timestamp, sequence: &str) -> String {
    format!("{}-{sequence}", now.to_seconds())
}

/// When something was made, by its name; nothing if it is no such name.
pub fn moment(name: &str) -> Option<Timestamp> {
    let time = name.find("Z-").map_or(name, |at| name.get(..=at).unwrap_or(name));
    time.parse().ok()
}

/// For how long backups are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// One of each hour.
    pub hourly: Duration,
    /// One of each day.
    pub daily: Duration,
}

impl Default for Retention {
    /// etcd-manager's.
    fn default() -> Self {
        let days = |days| Duration::from_secs(days * DAY);
        Self { hourly: days(7), daily: days(7 * 365) }
    }
}

/// The backups that are kept no longer. Of the last hour all are kept, then the first of each hour, then of each day; what has
/// no moment in its name is somebody else's.
pub fn expired(names: &[String], now: Timestamp, retention: Retention) -> Vec<&str> {
    let mut first: BTreeMap<(u64, i64), (Timestamp, &str)> = BTreeMap::new();
    let mut kept = BTreeSet::new();
    let known: Vec<_> = names.iter().filter_map(|name| Some((name, moment(name)?))).collect();
    for (name, at) in &known {
        // One of the future is of a clock that is ahead.
        let age = now.since(*at);
        let length = match age {
            age if age < Duration::from_secs(HOUR) => {
                kept.insert(name.as_str());
                continue;
            }
            age if age < retention.hourly => HOUR,
            age if age < retention.daily => DAY,
            _ => continue,
        };
        let turn = at.unix().div_euclid(length.cast_signed());
        let entry = first.entry((length, turn)).or_insert((*at, name));
        if *at < entry.0 {
            *entry = (*at, name);
        }
    }
    kept.extend(first.values().map(|(_, name)| *name));
    known.iter().map(|(name, _)| name.as_str()).filter(|name| !kept.contains(name)).collect()
}

/// What a backup says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    pub etcd_version: String,
    pub members: i64,
    /// In seconds.
    pub timestamp: i64,
}

/// A number of 64 bits, which protobuf's JSON has as a text.
fn long(value: Option<&Value>) -> Option<i64> {
    match value? {
        Value::String(text) => text.parse().ok(),
        other => other.as_i64(),
    }
}

fn spec(members: i64, version: &str) -> Value {
    json!({"memberCount": members, "etcdVersion": version})
}

impl Info {
    /// Reads what a backup says; nothing if it says no version.
    pub fn read(text: &[u8]) -> Option<Self> {
        let tree: Value = serde_json::from_slice(text).ok()?;
        let etcd_version = Some(tree.text("etcdVersion").to_owned()).filter(|v| !v.is_empty())?;
        let members = tree.int("clusterSpec.memberCount").unwrap_or(0);
        Some(Self { etcd_version, members, timestamp: long(tree.get("timestamp")).unwrap_or(0) })
    }

    /// As it lies beside a backup.
    pub fn to_text(&self) -> String {
        let version = self.etcd_version.as_str();
        let tree = json!({
            "etcdVersion": version, "timestamp": self.timestamp.to_string(), "clusterSpec": spec(self.members, version),
        });
        format!("{tree:#}")
    }
}

/// A command to restore a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restore {
    pub backup: String,
    /// When it was given, in nanoseconds.
    pub timestamp: i64,
}

impl Restore {
    /// Reads a command; nothing if it is another one.
    pub fn read(text: &[u8]) -> Option<Self> {
        let tree: Value = serde_json::from_slice(text).ok()?;
        let backup = tree.text("restoreBackup.backup").to_owned();
        let timestamp = long(tree.get("timestamp")).filter(|timestamp| *timestamp > 0)?;
        (!backup.is_empty()).then_some(Self { backup, timestamp })
    }

    /// As it stands in the store. The spec is that of the cluster that comes of it, as it lies in the store.
    pub fn to_text(&self, spec: &Value) -> String {
        let Self { backup, timestamp } = self;
        let tree = json!({
            "timestamp": timestamp.to_string(), "restoreBackup": {"clusterSpec": spec, "backup": backup},
        });
        format!("{tree:#}")
    }

    /// What tells the cluster that comes of it from all others.
    pub fn generation(&self) -> String {
        format!("{RESTORED}{}", self.timestamp)
    }

    /// Whether a machine that was made at a moment, in seconds, may have begun with what there was before.
    pub fn is_after(&self, made: i64) -> bool {
        // Machines' moments are rounded up.
        made <= self.timestamp.div_euclid(1_000_000_000) + 1
    }
}

/// The command that is still to be carried out: the newest, unless the cluster that there is, or a later one, came of it.
pub fn pending(commands: Vec<Restore>, begun: Option<&Mark>) -> Option<Restore> {
    let came_of = begun.and_then(|begun| begun.generation.strip_prefix(RESTORED)?.parse().ok());
    let newest = commands.into_iter().max_by_key(|command| command.timestamp);
    newest.filter(|command| came_of.is_none_or(|came_of: i64| command.timestamp > came_of))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn names_are_etcd_managers() {
        assert_eq!(name(at("2026-11-23T10:00:00.5Z"), "000012"), "2026-11-23T10:00:00Z-000012");
        assert_eq!(moment("2026-11-23T10:00:00Z-000012"), Some(at("2026-11-23T10:00:00Z")));
        assert_eq!(moment("2026-11-23T10:00:00Z"), Some(at("2026-11-23T10:00:00Z")));
        for text in ["", "control", "Z-", "2026-11-23", "x2026-11-23T10:00:00Z-1"] {
            assert_eq!(moment(text), None, "{text}");
        }
    }

    #[test]
    fn fewer_backups_are_kept_the_older_they_are() {
        let days = |days| Duration::from_secs(days * DAY);
        let retention = Retention { hourly: days(1), daily: days(3) };
        let names: Vec<_> = [
            "2026-11-23T12:00:00Z-1", // of the future
            "2026-11-23T10:59:00Z-1",
            "2026-11-23T10:45:00Z-1",
            "2026-11-23T10:30:00Z-1",
            "2026-11-23T09:59:00Z-1", // an hour old, and not the first of its hour
            "2026-11-23T09:15:00Z-1",
            "2026-11-22T10:30:00Z-1", // a day old, and not the first of its day
            "2026-11-22T09:30:00Z-1",
            "2026-11-20T11:30:00Z-1",
            "2026-11-20T10:30:00Z-1", // too old
            "photos",
        ]
        .map(str::to_owned)
        .into();
        let gone = expired(&names, at("2026-11-23T11:00:00Z"), retention);
        assert_eq!(
            gone,
            ["2026-11-23T09:59:00Z-1", "2026-11-22T10:30:00Z-1", "2026-11-20T10:30:00Z-1"]
        );
        assert!(expired(&names, at("2026-11-23T09:00:00Z"), retention).len() < 4);
    }

    #[test]
    fn the_newest_command_is_carried_out_once() {
        let of = |timestamp: i64| Restore { backup: timestamp.to_string(), timestamp };
        let mark = |generation: &str| Mark { generation: generation.to_owned(), ..Mark::default() };
        let left =
            |begun: Option<&Mark>| pending(vec![of(3), of(9), of(5)], begun).map(|r| r.timestamp);
        assert_eq!(left(None), Some(9));
        assert_eq!(left(Some(&mark(""))), Some(9));
        assert_eq!(left(Some(&mark(&of(5).generation()))), Some(9));
        assert_eq!(left(Some(&mark(&of(9).generation()))), None);
        assert_eq!(left(Some(&mark(&of(10).generation()))), None);
        assert_eq!(pending(Vec::new(), None), None);
    }

    #[test]
    fn what_etcd_manager_wrote_is_read() {
        let text = br#"{
  "etcdVersion": "3.4.3",
  "timestamp": "1583942400",
  "clusterSpec": {
    "memberCount": 3,
    "etcdVersion": "3.4.3"
  }
}"#;
        let info = Info { etcd_version: "3.4.3".to_owned(), members: 3, timestamp: 1_583_942_400 };
        assert_eq!(Info::read(text), Some(info.clone()));
        assert_eq!(Info::read(info.to_text().as_bytes()), Some(info));
        let command = br#"{"timestamp": "1583942400123456789", "restoreBackup": {"clusterSpec": {"memberCount": 1}, "backup": "b"}}"#;
        let restore = Restore { backup: "b".to_owned(), timestamp: 1_583_942_400_123_456_789 };
        assert_eq!(Restore::read(command), Some(restore.clone()));
        assert_eq!(Restore::read(restore.to_text(&json!({})).as_bytes()), Some(restore.clone()));
        assert!(restore.is_after(1_583_942_401) && !restore.is_after(1_583_942_402));
        for text in
            ["", "[]", "{}", r#"{"restoreBackup": {"backup": "b"}}"#, r#"{"timestamp": "5"}"#]
        {
            assert_eq!(Info::read(text.as_bytes()), None);
            assert_eq!(Restore::read(text.as_bytes()), None, "{text}");
        }
    }
}
