//! Takes snapshots of a store in use periodically and keeps the newest.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use rt::Clock;
use time::{
    OffsetDateTime, PrimitiveDateTime, format_description::FormatItem, macros::format_description,
};

use crate::{
    copy::Keyspace,
    engine::Store,
    error::{Error, Result},
    snapshot::Snapshot,
};

/// The longest wait after a failed snapshot.
const LONGEST_RETRY: Duration = Duration::from_secs(60);
/// The file name. Names have one length and sort by time.
const NAME: &[FormatItem<'_>] =
    format_description!("snapshot-[year]-[month]-[day]T[hour]-[minute]-[second]Z");

/// The directory, interval and number of snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The target directory. It is created if missing; other files in it are left alone.
    pub directory: PathBuf,
    /// The interval between snapshots.
    pub every: Duration,
    /// The number of snapshots to keep; older ones are deleted.
    pub keep: usize,
}

impl Schedule {
    /// Takes a snapshot now and deletes those beyond `keep`. A failed snapshot deletes nothing.
    pub async fn take(
        &self,
        store: &dyn Store,
        keyspace: Keyspace,
        now: SystemTime,
    ) -> Result<Snapshot> {
        std::fs::create_dir_all(&self.directory).map_err(self.failed("make the directory of"))?;
        let name = OffsetDateTime::from(now).format(NAME).unwrap_or_default();
        let taken = Snapshot::save_from(store, keyspace, &self.directory.join(name), now).await?;
        for name in expendable(self.snapshots()?, self.keep) {
            std::fs::remove_file(self.directory.join(name))
                .map_err(self.failed("remove an old snapshot in"))?;
        }
        Ok(taken)
    }

    /// Takes snapshots at the interval until the task is aborted. The first is due one interval after the newest
    /// existing snapshot, so a restart does not shift the schedule.
    pub async fn follow(self, store: Arc<dyn Store>, keyspace: Keyspace, clock: Arc<dyn Clock>) {
        let mut wait = due_in(&self.snapshots().unwrap_or_default(), self.every, clock.now());
        loop {
            tokio::time::sleep(wait).await;
            wait = match self.take(&*store, keyspace, clock.now()).await {
                Ok(taken) => {
                    let directory = self.directory.display();
                    tracing::info!(%directory, keys = taken.keys, revision = taken.revision, "saved a snapshot");
                    self.every
                }
                Err(error) => {
                    tracing::error!(%error, "could not save a snapshot; retrying within 60 seconds");
                    self.every.min(LONGEST_RETRY)
                }
            };
        }
    }

    /// Returns the names of existing snapshots, the oldest first.
    fn snapshots(&self) -> Result<Vec<String>> {
        let entries =
            std::fs::read_dir(&self.directory).map_err(self.failed("list the snapshots in"))?;
        let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        let mut names: Vec<String> =
            names.collect::<std::io::Result<_>>().map_err(self.failed("list the snapshots in"))?;
        names.retain(|name| taken_at(name).is_some());
        names.sort();
        Ok(names)
    }

    fn failed(&self, operation: &'static str) -> impl Fn(std::io::Error) -> Error {
        let path = Path::display(&self.directory).to_string();
        move |source| Error::Io { operation, path: path.clone(), source }
    }
}

/// Returns the time in a snapshot's name; `None` for other files.
fn taken_at(name: &str) -> Option<SystemTime> {
    let at = PrimitiveDateTime::parse(name, NAME).ok()?;
    Some(at.assume_utc().into())
}

fn due_in(taken: &[String], every: Duration, now: SystemTime) -> Duration {
    let last = taken.last().and_then(|name| taken_at(name));
    // A snapshot dated in the future comes from a wrong clock; take the next one at once.
    let age = last.and_then(|last| now.duration_since(last).ok());
    age.map_or(Duration::ZERO, |age| every.saturating_sub(age))
}

fn expendable(mut taken: Vec<String>, keep: usize) -> Vec<String> {
    taken.truncate(taken.len().saturating_sub(keep.max(1)));
    taken
}

#[cfg(test)]
mod tests {
    use rt::ManualClock;

    use super::*;
    use crate::{
        Expected, Op, Write,
        embedded::{Embedded, Options},
    };

    const KEYSPACE: Keyspace = Keyspace { first: "/registry/a/", expiring: &[], excluded: &[] };
    const HOUR: Duration = Duration::from_secs(3600);

    fn start() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_289_585)
    }

    async fn put(store: &Embedded, key: &str) {
        let op = Op::Put { value: "v".into(), ttl_seconds: None };
        let write = Write { key: key.into(), expected: Expected::Any, op };
        store.write(write).await.unwrap();
    }

    #[tokio::test]
    async fn keeps_newest_snapshots_and_restores_each() {
        let dir = tempfile::tempdir().unwrap();
        let store = Embedded::open(&dir.path().join("store"), Options::default()).unwrap();
        let schedule = Schedule { directory: dir.path().join("snapshots"), every: HOUR, keep: 2 };
        for hour in 0..4u32 {
            put(&store, &format!("/registry/b/{hour}")).await;
            schedule.take(&store, KEYSPACE, start() + hour * HOUR).await.unwrap();
        }
        std::fs::write(schedule.directory.join("notes"), "of somebody").unwrap();
        let kept = schedule.snapshots().unwrap();
        assert_eq!(kept, ["snapshot-2026-11-21T21-33-05Z", "snapshot-2026-11-21T22-33-05Z"]);
        for (name, keys) in kept.iter().zip([3, 4]) {
            let target = dir.path().join(format!("restored-{keys}"));
            let file = schedule.directory.join(name);
            assert_eq!(Snapshot::restore(&file, &target, 0).unwrap().keys, keys);
            let restored = Embedded::open(&target, Options::default()).unwrap();
            assert!(restored.get("/registry/b/2").await.unwrap().0.is_some());
        }
        // A failed snapshot deletes no existing one.
        std::fs::remove_dir_all(&schedule.directory).unwrap();
        std::fs::write(&schedule.directory, "a file").unwrap();
        let error = schedule.take(&store, KEYSPACE, start()).await.unwrap_err().to_string();
        assert!(error.contains("snapshots"), "{error}");
    }

    #[test]
    fn keeps_schedule_across_restarts() {
        let at = |hours: u32| OffsetDateTime::from(start() + hours * HOUR).format(NAME).unwrap();
        let now = start() + 3 * HOUR;
        for (taken, wait) in [
            (vec![], Duration::ZERO),
            (vec![at(0)], Duration::ZERO),
            (vec![at(1), at(2)], HOUR),
            (vec![at(3)], 2 * HOUR),
            (vec![at(9)], Duration::ZERO),
        ] {
            assert_eq!(due_in(&taken, 2 * HOUR, now), wait, "{taken:?}");
        }
        assert_eq!(expendable(vec![at(1), at(2)], 0), [at(1)], "the newest is never removed");
    }

    #[tokio::test(start_paused = true)]
    async fn takes_snapshots_until_aborted() {
        let dir = tempfile::tempdir().unwrap();
        let store =
            Arc::new(Embedded::open(&dir.path().join("store"), Options::default()).unwrap());
        put(&store, "/registry/b/1").await;
        let schedule = Schedule { directory: dir.path().join("s"), every: HOUR, keep: 5 };
        let clock = Arc::new(ManualClock::new(start()));
        let following = tokio::spawn(schedule.clone().follow(store, KEYSPACE, clock.clone()));
        for n in 1..4 {
            while schedule.snapshots().unwrap_or_default().len() < n {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            clock.advance(HOUR);
        }
        following.abort();
    }
}
