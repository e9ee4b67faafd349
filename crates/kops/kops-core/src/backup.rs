//! Backups and commands of etcd in etcd-manager's layout: `TIME-SEQUENCE/{_etcd_backup.meta,etcd.backup.gz}` for a
//! backup, `control/TIME-SEQUENCE/_command.json` beside them for a command.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use api_meta::{Timestamp, Tree as _};
use serde_json::{Value, json};

use crate::marks::{Mark, long};
pub use crate::marks::{Restore, started_before};

/// The metadata file of a backup. It is written last.
pub const META: &str = "_etcd_backup.meta";
/// The compressed etcd snapshot of a backup.
pub const DATA: &str = "etcd.backup.gz";
/// The file of a command.
pub const COMMAND: &str = "_command.json";

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;

/// Returns the name of a backup or command taken at `now`.
pub fn name(now: Timestamp, sequence: &str) -> String {
    format!("{}-{sequence}", now.to_seconds())
}

/// Parses the time in a backup's or command's name; `None` if it has none.
pub fn moment(name: &str) -> Option<Timestamp> {
    let time = name.find("Z-").map_or(name, |at| name.get(..=at).unwrap_or(name));
    time.parse().ok()
}

/// The retention of backups by age.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Older than an hour and younger than this: one backup per hour is kept.
    pub hourly: Duration,
    /// Older than that and younger than this: one backup per day is kept.
    pub daily: Duration,
}

impl Default for Retention {
    /// Returns etcd-manager's defaults: 7 days hourly, 7 years daily.
    fn default() -> Self {
        let days = |days| Duration::from_secs(days * DAY);
        Self { hourly: days(7), daily: days(7 * 365) }
    }
}

/// Returns the backups to delete. All backups of the last hour are kept, then the first of each hour, then the first of
/// each day. Names without a time are never returned, because kOps did not write them.
pub fn expired(names: &[String], now: Timestamp, retention: Retention) -> Vec<&str> {
    let mut first: BTreeMap<(u64, i64), (Timestamp, &str)> = BTreeMap::new();
    let mut retained = BTreeSet::new();
    let known: Vec<_> = names.iter().filter_map(|name| Some((name, moment(name)?))).collect();
    for (name, at) in &known {
        // The age of a backup from the future is zero; its clock was ahead.
        let age = now.since(*at);
        let length = match age {
            age if age < Duration::from_secs(HOUR) => {
                retained.insert(name.as_str());
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
    retained.extend(first.values().map(|(_, name)| *name));
    known.iter().map(|(name, _)| name.as_str()).filter(|name| !retained.contains(name)).collect()
}

/// The metadata of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// The version of etcd that wrote the backup.
    pub etcd_version: String,
    /// The number of members of the etcd cluster.
    pub members: i64,
    /// The time of the backup, in Unix seconds.
    pub timestamp: i64,
}

fn spec(members: i64, version: &str) -> Value {
    json!({"memberCount": members, "etcdVersion": version})
}

impl Info {
    /// Parses a backup's metadata; `None` if it has no etcd version.
    pub fn read(text: &[u8]) -> Option<Self> {
        let tree: Value = serde_json::from_slice(text).ok()?;
        let etcd_version = Some(tree.text("etcdVersion").to_owned()).filter(|v| !v.is_empty())?;
        let members = tree.int("clusterSpec.memberCount");
        Some(Self { etcd_version, members, timestamp: long(tree.get("timestamp")).unwrap_or(0) })
    }

    /// Returns the metadata as it is stored beside a backup.
    pub fn to_text(&self) -> String {
        let version = self.etcd_version.as_str();
        let tree = json!({
            "etcdVersion": version, "timestamp": self.timestamp.to_string(), "clusterSpec": spec(self.members, version),
        });
        format!("{tree:#}")
    }
}

/// Returns the newest command, unless the present cluster or a later one was restored by it.
pub fn pending(commands: Vec<Restore>, mark: Option<&Mark>) -> Option<Restore> {
    let done = mark.and_then(Mark::restored_at);
    let newest = commands.into_iter().max_by_key(|command| command.timestamp);
    newest.filter(|command| done.is_none_or(|done| command.timestamp > done))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn uses_etcd_managers_names() {
        assert_eq!(name(at("2026-11-23T10:00:00.5Z"), "000012"), "2026-11-23T10:00:00Z-000012");
        assert_eq!(moment("2026-11-23T10:00:00Z-000012"), Some(at("2026-11-23T10:00:00Z")));
        assert_eq!(moment("2026-11-23T10:00:00Z"), Some(at("2026-11-23T10:00:00Z")));
        for text in ["", "control", "Z-", "2026-11-23", "x2026-11-23T10:00:00Z-1"] {
            assert_eq!(moment(text), None, "{text}");
        }
    }

    #[test]
    fn keeps_fewer_backups_with_age() {
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
    fn returns_newest_restore_once() {
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
    fn parses_etcd_managers_metadata() {
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
        for text in
            ["", "[]", "{}", r#"{"restoreBackup": {"backup": "b"}}"#, r#"{"timestamp": "5"}"#]
        {
            assert_eq!(Info::read(text.as_bytes()), None, "{text}");
        }
    }
}
