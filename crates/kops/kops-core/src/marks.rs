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
    /// The generation before the restoration, whose data the members still hold; `None` if the cluster has come up.
    pub previous: Option<String>,
    /// The time of the command whose restoration was undone, in Unix nanoseconds; zero for none.
    pub undone: i64,
    /// The time of the mark, in Unix nanoseconds.
    pub timestamp: i64,
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
            previous: tree.at("previous").as_str().map(str::to_owned),
            undone: long(tree.get("undone")).unwrap_or(0),
            timestamp: long(tree.get("timestamp")).unwrap_or(0),
        })
    }

    /// Returns the time of the last command that was carried out, undone or not, in Unix nanoseconds; `None` if there
    /// was none.
    pub(crate) fn restored_at(&self) -> Option<i64> {
        let restored = self.generation.strip_prefix(RESTORED).and_then(|time| time.parse().ok());
        restored.max(Some(self.undone).filter(|time| *time > 0))
    }

    /// Returns the mark of a restored cluster that is up. It is not undone any more, and its control planes are not
    /// terminated.
    #[must_use]
    pub fn confirmed(&self) -> Self {
        Self { previous: None, undone: 0, ..self.clone() }
    }

    /// Returns the mark of the cluster before the restoration; `None` if it cannot be undone. The mark names no volume,
    /// because members only return to their data, and start no new cluster.
    pub fn undo(&self) -> Option<Self> {
        let generation = self.previous.clone()?;
        Some(Self { generation, undone: self.restored_at()?, ..Self::default() })
    }

    /// Returns the time in Unix nanoseconds before which a control plane must have started to be terminated, because it
    /// runs a restored cluster that was undone.
    pub fn terminates_before(&self) -> Option<i64> {
        (self.undone > 0).then_some(self.timestamp)
    }

    /// Returns the mark as it is stored. `timestamp` is in nanoseconds, as in upstream's mark.
    pub fn to_text(&self, timestamp: i64) -> String {
        let Self { generation, backup, members, previous, undone, .. } = self;
        let mut tree = json!({
            "timestamp": timestamp, "generation": generation, "backup": backup, "members": members,
        });
        if let Some(previous) = previous {
            tree.set("previous", previous.as_str());
        }
        if *undone > 0 {
            tree.set("undone", *undone);
        }
        tree.to_string()
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
}

/// Reports whether a machine created at `created`, in Unix seconds, may have started before a time in Unix nanoseconds.
pub fn started_before(created: i64, nanoseconds: i64) -> bool {
    // The creation times of machines are rounded up.
    created <= nanoseconds.div_euclid(1_000_000_000) + 1
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
            previous: Some(String::new()),
            timestamp: 5,
            ..Mark::default()
        };
        assert_eq!(Mark::read(own.to_text(5).as_bytes()), Some(own.clone()));
        let upstreams = Mark { timestamp: 1_583_942_400, ..Mark::default() };
        assert_eq!(Mark::read(br#"{"timestamp": 1583942400}"#), Some(upstreams.clone()));
        // The command that was undone is not carried out again.
        let undone = own.undo().unwrap();
        assert_eq!((undone.generation.as_str(), undone.restored_at()), ("", Some(7)));
        assert_eq!(Mark::read(undone.to_text(0).as_bytes()), Some(undone.clone()));
        assert_eq!((own.confirmed().undo(), undone.undo(), upstreams.undo()), (None, None, None));
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
        let is_before = |created| started_before(created, restore.timestamp);
        assert!(is_before(1_583_942_401) && !is_before(1_583_942_402));
        for text in
            ["", "[]", "{}", r#"{"restoreBackup": {"backup": "b"}}"#, r#"{"timestamp": "5"}"#]
        {
            assert_eq!(Restore::read(text.as_bytes()), None, "{text}");
        }
    }
}
