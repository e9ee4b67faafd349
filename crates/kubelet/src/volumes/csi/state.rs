//! Which drivers there are, and which of their volumes are in use on this node.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore, watch};

/// So many volumes of one driver are worked on at once: one that hangs leaves the threads for others.
const SEATS: usize = 32;

/// All that one kubelet knows of storage drivers and their volumes. What must outlive it is on the disk; see
/// [`super::files`].
pub(crate) struct Csi {
    drivers: Mutex<BTreeMap<String, Known>>,
    volumes: Mutex<BTreeMap<String, Volume>>,
    changed: watch::Sender<()>,
}

struct Known {
    /// `None` while the driver is away.
    driver: Option<csi::Driver>,
    seats: Arc<Semaphore>,
}

#[derive(Default)]
struct Volume {
    /// The uids of those Pods that are to have it.
    wanted: BTreeSet<String>,
    /// Whether it has to be attached to the node; of one that was found on the disk it is not known.
    attachable: Option<bool>,
    /// Whether the driver may have it on this node.
    staged: bool,
    /// Where it is published.
    published: BTreeSet<PathBuf>,
    /// What is done with a volume is done one after the other, for whichever Pod.
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Volume {
    fn is_idle(&self) -> bool {
        self.wanted.is_empty() && !self.staged && self.published.is_empty()
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for Csi {
    fn default() -> Self {
        let (changed, _) = watch::channel(());
        Self { drivers: Mutex::default(), volumes: Mutex::default(), changed }
    }
}

impl Csi {
    /// From now on a driver answers there, or, without one, nowhere.
    pub(crate) fn set_driver(&self, name: &str, driver: Option<csi::Driver>) {
        let mut drivers = lock(&self.drivers);
        let fresh = || Known { driver: None, seats: Arc::new(Semaphore::new(SEATS)) };
        drivers.entry(name.to_owned()).or_insert_with(fresh).driver = driver;
    }

    pub(super) fn driver(&self, name: &str) -> Option<csi::Driver> {
        lock(&self.drivers).get(name)?.driver.clone()
    }

    /// A place among those who ask the driver for something; whoever waits for one may stop doing so.
    pub(super) async fn seat(&self, name: &str) -> Option<OwnedSemaphorePermit> {
        let seats = lock(&self.drivers).get(name)?.seats.clone();
        seats.acquire_owned().await.ok()
    }

    /// Names a volume as one that a Pod is to have, before anybody waits for it to be attached.
    pub(super) fn want(&self, volume: &str, uid: &str, attachable: bool) {
        let mut volumes = lock(&self.volumes);
        let known = volumes.entry(volume.to_owned()).or_default();
        let new = known.attachable != Some(attachable) || known.wanted.is_empty();
        known.wanted.insert(uid.to_owned());
        known.attachable = Some(attachable);
        drop(volumes);
        if new {
            self.changed.send_replace(());
        }
    }

    /// A volume that a kubelet before this one mounted.
    pub(super) fn found(&self, volume: &str) {
        lock(&self.volumes).entry(volume.to_owned()).or_default().staged = true;
        self.changed.send_replace(());
    }

    /// The Pod has no more use of any volume.
    pub(super) fn unwant(&self, uid: &str) {
        self.change_all(|volume| {
            volume.wanted.remove(uid);
        });
    }

    pub(super) fn is_wanted(&self, volume: &str) -> bool {
        lock(&self.volumes).get(volume).is_some_and(|known| !known.wanted.is_empty())
    }

    pub(super) fn is_published(&self, volume: &str, target: &PathBuf) -> bool {
        lock(&self.volumes).get(volume).is_some_and(|known| known.published.contains(target))
    }

    pub(super) fn set_published(&self, volume: &str, target: PathBuf, is: bool) {
        self.change(volume, |known| match is {
            true => drop(known.published.insert(target)),
            false => drop(known.published.remove(&target)),
        });
    }

    pub(super) fn set_staged(&self, volume: &str, is: bool) {
        self.change(volume, |known| known.staged = is);
    }

    fn change(&self, volume: &str, change: impl FnOnce(&mut Volume)) {
        change(lock(&self.volumes).entry(volume.to_owned()).or_default());
        self.change_all(|_| {});
    }

    fn change_all(&self, change: impl Fn(&mut Volume)) {
        let mut volumes = lock(&self.volumes);
        let before = volumes.len();
        volumes.values_mut().for_each(change);
        volumes.retain(|_, known| !known.is_idle() || Arc::strong_count(&known.turn) > 1);
        if volumes.len() != before {
            drop(volumes);
            self.changed.send_replace(());
        }
    }

    /// Waits for one's turn with a volume.
    pub(super) async fn turn(&self, volume: &str) -> OwnedMutexGuard<()> {
        let turn = lock(&self.volumes).entry(volume.to_owned()).or_default().turn.clone();
        turn.lock_owned().await
    }

    /// The volumes that must not be detached. Of those that were found on the disk, the ones that the node is said to
    /// have attached; all of them before it is known.
    pub(crate) fn in_use(&self, is_attached: impl Fn(&str) -> bool) -> Vec<String> {
        let volumes = lock(&self.volumes);
        let used = volumes.iter().filter(|(name, known)| {
            !known.is_idle() && known.attachable.unwrap_or_else(|| is_attached(name))
        });
        used.map(|(name, _)| name.clone()).collect()
    }

    /// Tells when what is in use has changed.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }
}
