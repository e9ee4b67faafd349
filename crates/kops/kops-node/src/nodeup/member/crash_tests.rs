//! Stops the start of a control plane's only member after each of its writes, and starts it again.
//!
//! `cargo test -p kops-node crash -- --nocapture` prints the table of steps and outcomes.

use std::{fs, path::Path};

use kops_core::backup::{DATA, Info};
use tokio::time::timeout;
use vfs::{Precondition, Secrecy, Store};

use super::*;
use crate::{
    protokube::back_up,
    testing::{RealEtcd, Site, is_installed},
};

const OBJECT: &str = "/registry/namespaces/default";
/// A start that waits for longer waits for ever: there is no other member.
const PATIENCE: Duration = Duration::from_secs(10);

/// The only control plane of a cluster, with its volume and the store.
struct ControlPlane {
    directory: tempfile::TempDir,
    site: Site,
}

impl ControlPlane {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let site = Site::new("a", &directory.path().join("volume/data"));
        let place = Self { directory, site };
        place.write("control/etcd-cluster-spec", "{}");
        place
    }

    fn backups(&self) -> Backups {
        let store = format!("file://{}/store", self.directory.path().display());
        let store = Store::open(&store).unwrap();
        Backups { store, directory: "backups/etcd/main".to_owned() }
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.backups().path(name);
        let (store, since) = (self.backups().store, Precondition::Absent);
        store.write(&path, text.as_bytes(), &since, Secrecy::Open).unwrap();
    }

    fn volume(&self, writes: &Writes) -> MemberVolume {
        MemberVolume {
            backups: self.backups(),
            volume: self.directory.path().join("volume"),
            cluster: "c".to_owned(),
            etcd: "main".to_owned(),
            member: self.site.name.clone(),
            peer_url: self.site.peer.clone(),
            members: vec![self.site.name.clone()],
            founders: vec![(self.site.name.clone(), self.site.peer.clone())],
            writes: writes.clone(),
        }
    }

    /// Starts the member, which stops before a write if few are left, and leaves parts of that write.
    async fn start(&self, writes: &Writes) -> Result<RealEtcd, String> {
        let mut waits = String::new();
        let mut report = |reason: &str| reason.clone_into(&mut waits);
        let member = timeout(PATIENCE, start(self.volume(writes), None, &mut report)).await;
        let stopped = |error: Error| {
            fs::write(self.directory.path().join("volume/.new-part"), "{").unwrap_or_default();
            let partial = self.directory.path().join("volume/restored/member/snap");
            fs::create_dir_all(&partial).unwrap();
            fs::write(partial.join("db"), "part").unwrap();
            error.to_string()
        };
        let member = match member {
            Ok(member) => member.map_err(stopped)?,
            Err(_) => return Err(format!("it waits: {waits}")),
        };
        assert_eq!(member.data, self.site.data);
        let etcd = RealEtcd::start(&self.site).await;
        member.start.finish().await.map_err(stopped)?;
        Ok(etcd)
    }

    async fn start_whole(&self) -> RealEtcd {
        self.start(&Writes::default()).await.unwrap()
    }

    /// Stores a backup that holds `value`, of a cluster that holds `later` now.
    async fn with_backup(value: &str, later: &str) -> (Self, String) {
        let place = Self::new();
        let etcd = place.start_whole().await;
        etcd.put(OBJECT, value);
        let info = Info { etcd_version: "3.4.23".to_owned(), members: 1, timestamp: 1 };
        let name = back_up(&etcd.client(), &place.backups(), "c", &info, 0).await.unwrap();
        etcd.put(OBJECT, later);
        (place, name)
    }

    fn trash(&self) -> usize {
        let trash = self.directory.path().join("volume/data-trashcan");
        fs::read_dir(trash).map_or(0, Iterator::count)
    }
}

/// Starts a member of each new place, stopped after `n` writes for every `n`, and then again. The place must come up
/// with `expected`. Prints the table.
async fn crash_everywhere<F: Future<Output = ControlPlane>>(
    scenario: &str,
    make: impl Fn() -> F,
    expected: Option<&str>,
) -> usize {
    println!("{scenario}");
    for left in 0.. {
        let place = make().await;
        let writes = Writes::default();
        writes.left.set(Some(left));
        let first = place.start(&writes).await;
        let step = writes.done.borrow().get(left).copied();
        let stopped = first.is_err();
        assert_eq!(stopped, step.is_some(), "{scenario}: {step:?} {:?}", first.err());
        // The whole control plane is killed, etcd included.
        drop(first);
        let etcd = match place.start(&Writes::default()).await {
            Ok(etcd) => etcd,
            Err(error) => {
                panic!("{scenario}, stopped before {step:?}: it does not begin again: {error}")
            }
        };
        assert_eq!(etcd.get(OBJECT).as_deref(), expected, "{scenario}, {step:?}");
        let again = place.volume(&Writes::default());
        assert!(again.tag().unwrap().used && place.trash() <= 1, "{scenario}, {step:?}");
        println!("  {left:2} stopped before {:30} it comes up", step.unwrap_or("the end"));
        if !stopped {
            return left;
        }
    }
    unreachable!()
}

#[tokio::test]
async fn crash_of_a_new_member_at_every_write_is_repaired() {
    if !is_installed() {
        return;
    }
    let writes = crash_everywhere("a new cluster", async || ControlPlane::new(), None).await;
    assert!(writes >= 5, "{writes}");
}

#[tokio::test]
async fn crash_of_a_restored_member_at_every_write_is_repaired() {
    if !is_installed() {
        return;
    }
    let make = async || {
        let (place, backup) = ControlPlane::with_backup("old", "new").await;
        place.backups().write_command(&backup, rt::now().into()).unwrap();
        place
    };
    let writes = crash_everywhere("a restored backup", make, Some("old")).await;
    assert!(writes >= 7, "{writes}");
}

#[tokio::test]
async fn crash_of_a_returning_member_at_every_write_is_repaired() {
    if !is_installed() {
        return;
    }
    let make = async || {
        let (place, backup) = ControlPlane::with_backup("old", "new").await;
        place.backups().write_command(&backup, rt::now().into()).unwrap();
        drop(place.start_whole().await);
        let (mark, version) = place.backups().mark().unwrap().unwrap();
        let (undone, since) = (mark.undo().unwrap(), Precondition::Read(version));
        place.backups().set_mark(&undone, &since, rt::now().into()).unwrap();
        place
    };
    let writes = crash_everywhere("an undone restoration", make, Some("new")).await;
    assert!(writes >= 3, "{writes}");
}

/// The backup was damaged after the command was written. The member keeps its data, and the command is deleted.
#[tokio::test]
async fn keeps_data_if_the_backup_cannot_be_restored() {
    if !is_installed() {
        return;
    }
    let (place, backup) = ControlPlane::with_backup("old", "new").await;
    let damage = |name: &str| {
        let path = place.directory.path().join("store/backups/etcd/main").join(name);
        let archive = path.join(DATA);
        let mut bytes = fs::read(&archive).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x10;
        fs::write(archive, bytes).unwrap();
    };
    damage(&backup);
    place.backups().write_command(&backup, rt::now().into()).unwrap();
    let etcd = place.start_whole().await;
    assert_eq!(etcd.get(OBJECT).as_deref(), Some("new"));
    assert_eq!((place.backups().commands().unwrap(), place.trash()), (vec![], 0));
    assert!(!Path::new(&place.site.data).join("restored").exists());
}

/// A volume of an earlier release says that etcd has run, but has no data. The reason names the way out.
#[tokio::test(start_paused = true)]
async fn names_the_way_out_for_a_volume_without_data() {
    let place = ControlPlane::new();
    let volume = place.volume(&Writes::default());
    let tag = volume.tag().unwrap();
    let members = [("a".to_owned(), tag.id.clone())].into();
    let mark = Mark { members, ..Mark::default() };
    volume.write_mark(&mark, &volume.stored_state().unwrap()).unwrap();
    fs::create_dir_all(place.site.data.join("member")).unwrap();
    assert!(volume.record_use().unwrap());
    fs::remove_dir_all(&place.site.data).unwrap();
    let waits = place.start(&Writes::default()).await.err().unwrap();
    assert!(waits.contains("no backup") && waits.contains("etcd-cluster-created"), "{waits}");
}
