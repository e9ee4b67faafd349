//! The mark of a started etcd cluster and the command to restore a backup, as etcd-manager stores them beside the
//! backups.

use std::collections::BTreeMap;

use api_meta::Tree as _;
use serde_json::{Map, Value, json};

/// The prefix of a restored cluster's generation.
const RESTORED: &str = "restored-";

/// The mark in the store: a cluster was started, from which backup and with which volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// The cluster's generation, as in a [`Tag`].
    pub generation: String,
    /// The backup that it was restored from; empty for none.
    pub backup: String,
    /// The IDs of the volumes, by member.
    pub members: BTreeMap<String, String>,
}

impl Mark {
    /// Parses the mark. Upstream's mark has no members, so no volume counts as a founder.
    pub fn read(text: &[u8]) -> Option<Self> {
        let tree: Map<String, Value> = serde_json::from_slice(text).ok()?;
        let tree = Value::from(tree);
        let members = tree.at("members").as_object().into_iter().flatten();
        let members = members.map(|(name, id)| Some((name.clone(), id.as_str()?.to_owned())));
        Some(Self {
            generation: tree.text("generation").to_owned(),
            backup: tree.text("backup").to_owned(),
            members: members.collect::<Option<_>>()?,
        })
    }

    /// Returns the time of the command that restored the cluster, in Unix nanoseconds; `None` for the first cluster.
    pub(crate) fn restored_at(&self) -> Option<i64> {
        self.generation.strip_prefix(RESTORED)?.parse().ok()
    }

    /// Returns the mark as it is stored. `timestamp` is in nanoseconds, as in upstream's mark.
    pub fn to_text(&self, timestamp: u64) -> String {
        let Self { generation, backup, members } = self;
        json!({"timestamp": timestamp, "generation": generation, "backup": backup, "members": members})
            .to_string()
    }
}

/// A command to restore a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restore {
    /// The backup's name.
    pub backup: String,
    /// The time of the command, in Unix nanoseconds.
    pub timestamp: i64,
}

impl Restore {
    /// Parses a command; `None` for other commands.
    pub fn read(text: &[u8]) -> Option<Self> {
        let tree: Value = serde_json::from_slice(text).ok()?;
        let backup = tree.text("restoreBackup.backup").to_owned();
        let timestamp = long(tree.get("timestamp")).filter(|timestamp| *timestamp > 0)?;
        (!backup.is_empty()).then_some(Self { backup, timestamp })
    }

    /// Returns the command as it is stored. `spec` is the restored cluster's etcd spec, as in the store.
    pub fn to_text(&self, spec: &Value) -> String {
        let Self { backup, timestamp } = self;
        let tree = json!({
            "timestamp": timestamp.to_string(), "restoreBackup": {"clusterSpec": spec, "backup": backup},
        });
        format!("{tree:#}")
    }

    /// Returns the generation of the restored cluster, which differs from all others.
    pub fn generation(&self) -> String {
        format!("{RESTORED}{}", self.timestamp)
    }

    /// Reports whether a machine created at `created`, in Unix seconds, may have started before this command.
    pub fn is_after(&self, created: i64) -> bool {
        // The creation times of machines are rounded up.
        created <= self.timestamp.div_euclid(1_000_000_000) + 1
    }
}

/// Reads a 64-bit number, which protobuf's JSON may write as a string.
pub(crate) fn long(value: Option<&Value>) -> Option<i64> {
    match value? {
        Value::String(text) => text.parse().ok(),
        other => other.as_i64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_round_trip_and_upstreams_has_no_members() {
        let members = [("a", "v-a"), ("b", "v-b")];
        let own = Mark {
            generation: "restored-7".to_owned(),
            backup: "b".to_owned(),
            members: members.map(|(name, id)| (name.to_owned(), id.to_owned())).into(),
        };
        assert_eq!(Mark::read(own.to_text(5).as_bytes()), Some(own));
        assert_eq!(Mark::read(br#"{"timestamp": 1583942400}"#), Some(Mark::default()));
        for text in ["", "[]", "5", r#"{"members": {"a": 5}}"#] {
            assert_eq!(Mark::read(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn parses_etcd_managers_commands() {
        let command = br#"{"timestamp": "1583942400123456789", "restoreBackup": {"clusterSpec": {"memberCount": 1}, "backup": "b"}}"#;
        let restore = Restore { backup: "b".to_owned(), timestamp: 1_583_942_400_123_456_789 };
        assert_eq!(Restore::read(command), Some(restore.clone()));
        assert_eq!(Restore::read(restore.to_text(&json!({})).as_bytes()), Some(restore.clone()));
        assert!(restore.is_after(1_583_942_401) && !restore.is_after(1_583_942_402));
        for text in
            ["", "[]", "{}", r#"{"restoreBackup": {"backup": "b"}}"#, r#"{"timestamp": "5"}"#]
        {
            assert_eq!(Restore::read(text.as_bytes()), None, "{text}");
        }
    }
}
