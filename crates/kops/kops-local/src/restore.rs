//! Carries out commands to restore a backup: terminates the control planes, whose replacements start from the backup,
//! and undoes the restoration if they do not come up. [`kops_core::restore`] decides.

use std::path::PathBuf;

use instances::{AttachedVolume, Fleet, FleetSpec, Group, Machine};
use kops_core::{
    backup::{Restore, started_before},
    member::Mark,
    restore::{Observation, Step, cancel, step},
};
use kops_store::{Backups, ETCD, Registry, nanoseconds};
use tokio::time::Instant;
use vfs::{Precondition, Version};

use crate::{error::Error, volumes::is_of_etcd};

const UNDONE: &str = "the restoration of a backup was undone";

/// The progress of a restoration.
#[derive(Default)]
pub(crate) struct RestoreProgress {
    /// The step that is waited for, and when it was first seen.
    seen: Option<(String, Instant)>,
    /// `true` if the restoration is known to be stuck.
    stuck: bool,
    /// The last command whose backup was verified.
    verified: Option<Verified>,
}

/// A command whose backup can be restored.
#[derive(Debug, PartialEq)]
struct Verified {
    restore: Restore,
    /// The control planes that started before this time are terminated, in Unix nanoseconds.
    before: i64,
}

/// A control plane: its present machine, and the directory of its etcd volume, if the volume is mounted.
struct ControlPlane {
    machine: Option<Machine>,
    volume: Option<PathBuf>,
}

/// The control planes of a cluster, and its backups.
struct Site<'a> {
    fleet: &'a Fleet,
    cluster: &'a str,
    backups: Backups,
    control_planes: Vec<ControlPlane>,
}

impl RestoreProgress {
    /// Takes the next step of a restoration. `is_ready` reports whether an API server is ready.
    pub(crate) async fn advance(
        &mut self,
        registry: &Registry,
        fleet: &Fleet,
        spec: &FleetSpec,
        is_ready: impl Future<Output = Result<bool, Error>>,
    ) -> Result<(), Error> {
        let site = Site::of(registry, fleet, spec)?;
        let backups = &site.backups;
        let stored = backups.mark()?;
        let mark = stored.as_ref().map(|(mark, _)| mark);
        if let Some(restore) = backups.pending_restore(mark)? {
            self.begin(&site, &restore)?;
            let Some((mark, version)) = stored else { return Ok(()) };
            let waits = format!("the start of {}", restore.generation());
            let observed = self.observe(&site, waits, &mark.generation, false);
            if let Some(cancelled) = cancel(&mark, &restore, &observed) {
                tracing::error!(
                    backup = restore.backup,
                    "not all control planes came back to restore the backup; cancelling the command"
                );
                // A member that begins at the same moment writes the mark, too; only one of both succeeds.
                backups.set_mark(&cancelled, &Precondition::Read(version), rt::now().into())?;
            }
            return Ok(());
        }
        let Some((mark, version)) = stored else { return Ok(()) };
        if let Some(undone) = mark.terminates_before() {
            site.terminate(undone, UNDONE)?;
        }
        backups.delete_finished_commands(&mark)?;
        if mark.previous.is_none() {
            *self = Self::default();
            return Ok(());
        }
        let previous = mark.previous.clone().unwrap_or_default();
        let observed = self.observe(&site, mark.generation.clone(), &previous, is_ready.await?);
        self.decide(&site, &mark, version, &observed)
    }

    /// Terminates all control planes that started before a command; their replacements start from its backup. A command
    /// for a backup that cannot be restored is deleted instead.
    fn begin(&mut self, site: &Site<'_>, restore: &Restore) -> Result<(), Error> {
        let known = self.verified.as_ref().filter(|verified| verified.restore == *restore);
        let before = known.map_or(restore.timestamp, |verified| verified.before);
        if site.started_before(before).next().is_none() {
            return Ok(());
        }
        if known.is_none() {
            match site.backups.verify(&restore.backup, Some(site.cluster)) {
                Ok(()) => {}
                Err(error) if error.is_of_backup() => {
                    tracing::error!(%error, "the backup is not restored, and its command is deleted");
                    return Ok(site.backups.delete_command_of(restore)?);
                }
                Err(error) => return Err(error.into()),
            }
            // The replacements must not be terminated again, even if the clock of the command's writer is ahead.
            let now = nanoseconds(rt::now().into());
            let before = restore.timestamp.min(now);
            self.verified = Some(Verified { restore: restore.clone(), before });
        }
        site.terminate(before, "a backup is restored")
    }

    /// Observes for how long a step is waited for, and how many members hold the data of a generation.
    fn observe(
        &mut self,
        site: &Site<'_>,
        waits: String,
        generation: &str,
        is_ready: bool,
    ) -> Observation {
        let begun = match &self.seen {
            Some((seen, begun)) if *seen == waits => *begun,
            _ => Instant::now(),
        };
        self.seen = Some((waits, begun));
        let holds = |machine: &&ControlPlane| {
            let volume = machine.volume.as_deref();
            volume.is_some_and(|volume| kops_node::nodeup::holds_generation(volume, generation))
        };
        let all = &site.control_planes;
        let (members, intact) = (all.len(), all.iter().filter(holds).count());
        Observation { is_ready, waited: begun.elapsed(), members, intact }
    }

    fn decide(
        &mut self,
        site: &Site<'_>,
        mark: &Mark,
        version: Version,
        observed: &Observation,
    ) -> Result<(), Error> {
        let since = Precondition::Read(version);
        match step(mark, observed) {
            Step::Nothing => {}
            Step::Confirm(confirmed) => {
                tracing::info!(backup = mark.backup, "the restored cluster is ready");
                site.backups.set_mark(&confirmed, &since, rt::now().into())?;
            }
            Step::Undo(undone) => {
                let seconds = observed.waited.as_secs();
                tracing::error!(
                    backup = mark.backup,
                    seconds,
                    "the restored cluster is not ready in time; undoing the restoration"
                );
                // The next call terminates the control planes, unless another writer was first.
                site.backups.set_mark(&undone, &since, rt::now().into())?;
            }
            Step::Stuck if !self.stuck => {
                self.stuck = true;
                tracing::error!(
                    backup = mark.backup,
                    intact = observed.intact,
                    members = observed.members,
                    "the restored cluster is not ready, and too few members hold their data from before; restore \
                     another backup"
                );
            }
            Step::Stuck => {}
        }
        Ok(())
    }
}

impl<'a> Site<'a> {
    fn of(registry: &Registry, fleet: &'a Fleet, spec: &'a FleetSpec) -> Result<Self, Error> {
        let names = spec.groups.iter().filter(|group| group.trusted).flat_map(Group::names);
        let control_plane = |name: String| {
            let machine = fleet.machine(&name)?;
            let volume = etcd_volume(fleet, &spec.cluster, &name, machine.as_ref());
            Ok(ControlPlane { machine, volume })
        };
        Ok(Self {
            fleet,
            cluster: &spec.cluster,
            backups: registry.backups(&spec.cluster),
            control_planes: names.map(control_plane).collect::<Result<_, Error>>()?,
        })
    }

    /// Returns the machines of control planes that started before a time, in Unix nanoseconds.
    fn started_before(&self, time: i64) -> impl Iterator<Item = &Machine> {
        let machines = self.control_planes.iter().filter_map(|plane| plane.machine.as_ref());
        machines.filter(move |machine| started_before(machine.made, time))
    }

    /// Terminates the control planes that started before a time, in Unix nanoseconds.
    fn terminate(&self, before: i64, reason: &'static str) -> Result<(), Error> {
        for machine in self.started_before(before) {
            tracing::warn!(machine = machine.name, reason, "terminating the machine");
            instances::replace(self.fleet, &machine.name, &machine.id)?;
        }
        Ok(())
    }
}

/// Returns the directory of a control plane's etcd volume, as this host sees it; `None` while the machine does not run.
/// Machines of earlier versions have a directory of this host.
fn etcd_volume(
    fleet: &Fleet,
    cluster: &str,
    name: &str,
    machine: Option<&Machine>,
) -> Option<PathBuf> {
    let volumes = machine.map(|machine| machine.volumes.as_slice()).unwrap_or_default();
    if volumes.is_empty() {
        return Some(fleet.volumes(name).join(format!("{cluster}--{ETCD}--0")));
    }
    let is_own = |volume: &&AttachedVolume| is_of_etcd(cluster, &volume.tags, ETCD);
    fleet.mounted_volume(name, volumes.iter().find(is_own)?)
}

#[cfg(test)]
mod tests {
    use kops_core::restore::TIMEOUT;

    use super::*;

    struct TestFleet {
        directory: tempfile::TempDir,
        registry: Registry,
        fleet: Fleet,
        spec: FleetSpec,
    }

    impl TestFleet {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let url = format!("file://{}/store", directory.path().display());
            let group = Group {
                name: "cp".to_owned(),
                numbers: [1].into(),
                trusted: true,
                ..Group::default()
            };
            let spec =
                FleetSpec { cluster: "c".to_owned(), groups: vec![group], ..FleetSpec::default() };
            let fleet = Fleet::at(directory.path().join("instances"));
            Self { registry: Registry::open(&url, &|_| None).unwrap(), fleet, spec, directory }
        }

        fn backups(&self) -> Backups {
            self.registry.backups("c")
        }

        fn set(&self, mark: &Mark) {
            let since = self.backups().mark().unwrap();
            let since =
                since.map_or(Precondition::Absent, |(_, version)| Precondition::Read(version));
            self.backups().set_mark(mark, &since, rt::now().into()).unwrap();
        }

        fn mark(&self) -> Mark {
            self.backups().mark().unwrap().unwrap().0
        }

        async fn advance(&self, progress: &mut RestoreProgress, is_ready: bool) {
            let ready = async { Ok(is_ready) };
            progress.advance(&self.registry, &self.fleet, &self.spec, ready).await.unwrap();
        }
    }

    fn restored() -> Mark {
        Mark {
            generation: "restored-7".to_owned(),
            backup: "b".to_owned(),
            previous: Some(String::new()),
            ..Mark::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn undoes_restoration_that_does_not_come_up() {
        let place = TestFleet::new();
        let mut progress = RestoreProgress::default();
        place.set(&restored());
        // Without the old data there is nothing to return to.
        for _ in 0..3 {
            place.advance(&mut progress, false).await;
            tokio::time::advance(TIMEOUT).await;
        }
        assert_eq!(place.mark().generation, "restored-7");
        assert!(progress.stuck);
        let trash = place.directory.path().join("instances/volumes/cp-1/c--main--0/data-trashcan");
        std::fs::create_dir_all(trash.join("first-x/member")).unwrap();
        place.advance(&mut progress, false).await;
        let undone = place.mark();
        assert_eq!((undone.generation.as_str(), undone.undone), ("", 7));
        place.advance(&mut progress, false).await;
        assert_eq!(place.mark(), undone);
    }

    #[tokio::test(start_paused = true)]
    async fn keeps_restoration_that_came_up_once() {
        let place = TestFleet::new();
        let mut progress = RestoreProgress::default();
        let trash = place.directory.path().join("instances/volumes/cp-1/c--main--0/data-trashcan");
        std::fs::create_dir_all(trash.join("first-x/member")).unwrap();
        place.set(&restored());
        place.advance(&mut progress, false).await;
        tokio::time::advance(TIMEOUT / 2).await;
        place.advance(&mut progress, true).await;
        assert_eq!(place.mark().previous, None);
        tokio::time::advance(TIMEOUT * 2).await;
        place.advance(&mut progress, false).await;
        assert_eq!(place.mark().generation, "restored-7");
    }

    /// A control plane does not come back, so the others run their data again.
    #[tokio::test(start_paused = true)]
    async fn cancels_command_that_does_not_begin() {
        let place = TestFleet::new();
        let mut progress = RestoreProgress::default();
        let (backups, store) = (place.backups(), place.backups().store);
        let since = Precondition::Absent;
        let spec = backups.path("control/etcd-cluster-spec");
        store.write(&spec, b"{}", &since, vfs::Secrecy::Open).unwrap();
        place.set(&Mark::default());
        let data = place.directory.path().join("instances/volumes/cp-1/c--main--0");
        std::fs::create_dir_all(data.join("data/member")).unwrap();
        let command = backups.write_command("b", rt::now().into()).unwrap();
        place.advance(&mut progress, false).await;
        tokio::time::advance(TIMEOUT * 2).await;
        // Without data, the member goes on to wait for the backup.
        place.advance(&mut progress, false).await;
        assert_eq!(backups.commands().unwrap().len(), 1);
        let tag = kops_core::member::Tag {
            cluster: "c".to_owned(),
            etcd: "main".to_owned(),
            member: "a".to_owned(),
            id: "v".to_owned(),
            used: true,
            generation: String::new(),
        };
        std::fs::write(data.join("volume.json"), tag.to_text()).unwrap();
        place.advance(&mut progress, false).await;
        assert_eq!(place.mark().undone, command.timestamp);
        place.advance(&mut progress, false).await;
        assert_eq!(backups.commands().unwrap(), []);
    }

    /// The machine of the control plane would be terminated, if the backup were not verified before.
    #[tokio::test]
    async fn deletes_command_for_unusable_backup() {
        let place = TestFleet::new();
        let mut progress = RestoreProgress::default();
        let backups = place.backups();
        let write = |name: &str, text: &str| {
            let path = backups.path(name);
            let secrecy = vfs::Secrecy::Open;
            backups.store.write(&path, text.as_bytes(), &Precondition::Absent, secrecy).unwrap();
        };
        write("control/etcd-cluster-spec", "{}");
        let document = place.directory.path().join("instances/machines/cp-1/document");
        std::fs::create_dir_all(&document).unwrap();
        let machine = instances::Machine {
            cluster: "c".to_owned(),
            group: "cp".to_owned(),
            name: "cp-1".to_owned(),
            id: "x".to_owned(),
            made: 1,
            address: "127.0.0.1".parse().unwrap(),
            gateway: "127.0.0.1".parse().unwrap(),
            cgroup: String::new(),
            trusted: true,
            user_data: String::new(),
            volumes: Vec::new(),
        };
        let text = serde_json::to_vec(&machine).unwrap();
        std::fs::write(document.join("machine.json"), text).unwrap();
        for backup in ["missing", "damaged"] {
            backups.write_command(backup, rt::now().into()).unwrap();
            assert_eq!(backups.commands().unwrap().len(), 1);
            place.advance(&mut progress, true).await;
            assert_eq!(backups.commands().unwrap(), [], "{backup}");
            assert_eq!(progress.verified, None);
            if backup == "missing" {
                write("damaged/_etcd_backup.meta", r#"{"etcdVersion": "3.4.23"}"#);
                write("damaged/etcd.backup.gz", "photo");
            }
        }
    }
}
