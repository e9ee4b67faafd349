//! Detects that the informer does not show the controller's own write of a Job yet.

use std::collections::HashMap;

use api_meta::{ObjectMeta, Tree as _};
use parking_lot::Mutex;
use serde_json::Value;

/// The version of each Job that the controller wrote last, until the informer shows it.
///
/// An older status lacks Pods that the controller has recorded since. They have lost their finalizer, so a plan for
/// that status would not count them, and would replace them.
#[derive(Default)]
pub(super) struct WrittenVersions(Mutex<HashMap<String, Version>>);

struct Version {
    uid: String,
    revision: u64,
}

impl WrittenVersions {
    /// Records a Job as the API server returned it.
    pub(super) fn note(&self, key: &str, written: &Value) {
        let Ok(revision) = written.text("metadata.resourceVersion").parse() else { return };
        let version = Version { uid: written.text("metadata.uid").to_owned(), revision };
        self.0.lock().insert(key.to_owned(), version);
    }

    /// Reports whether the informer's Job is older than the written one.
    pub(super) fn is_stale(&self, key: &str, job: &ObjectMeta) -> bool {
        let mut versions = self.0.lock();
        let Some(written) = versions.get(key) else { return false };
        let revision = job.resource_version.parse::<u64>();
        if written.uid == job.uid && revision.is_ok_and(|revision| revision < written.revision) {
            return true;
        }
        versions.remove(key);
        false
    }

    pub(super) fn forget(&self, key: &str) {
        self.0.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn job_is_stale_until_written_version_is_seen() {
        let job = |uid: &str, version: &str| ObjectMeta {
            uid: uid.to_owned(),
            resource_version: version.to_owned(),
            ..ObjectMeta::default()
        };
        let written = WrittenVersions::default();
        let note =
            || written.note("n/j", &json!({"metadata": {"uid": "a", "resourceVersion": "10"}}));
        assert!(!written.is_stale("n/j", &job("a", "9")), "nothing was written");
        note();
        assert!(written.is_stale("n/j", &job("a", "9")));
        assert!(!written.is_stale("n/j", &job("b", "9")), "the Job was recreated");
        note();
        assert!(!written.is_stale("n/j", &job("a", "10")));
        assert!(!written.is_stale("n/j", &job("a", "9")), "a version that was seen is forgotten");
        note();
        written.forget("n/j");
        assert!(!written.is_stale("n/j", &job("a", "9")));
    }
}
