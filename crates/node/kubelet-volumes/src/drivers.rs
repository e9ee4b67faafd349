//! The registered drivers, and their volumes in use on this node.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore, watch};

use crate::error::Cause;

/// The number of concurrent operations per driver. A hanging driver leaves threads for others.
const SEATS: usize = 32;
/// The time that a Pod waits for one of the driver's slots.
const SLOT_TIMEOUT: Duration = Duration::from_secs(10);

/// The CSI drivers of one kubelet and their volumes. State that must survive a restart is on the disk; see
/// [`crate::csi`].
pub struct Drivers {
    drivers: Mutex<BTreeMap<String, RegisteredDriver>>,
    volumes: Mutex<BTreeMap<String, Volume>>,
    /// The drivers that could not attach a volume because the node has too many.
    exhausted: watch::Sender<BTreeSet<String>>,
    changed: watch::Sender<()>,
}

/// A driver with one of its slots, which is free again when this is dropped.
pub(crate) struct AcquiredDriver {
    pub(crate) driver: csi::Driver,
    _slot: OwnedSemaphorePermit,
}

struct RegisteredDriver {
    /// `None` while the driver is not registered.
    driver: Option<csi::Driver>,
    seats: Arc<Semaphore>,
}

#[derive(Default)]
struct Volume {
    /// The UIDs of the Pods that need the volume.
    users: BTreeSet<String>,
    /// `true` if the volume must be attached to the node. `None` for a volume found on the disk.
    attachable: Option<bool>,
    /// `true` if the driver may have staged the volume on this node.
    staged: bool,
    /// The paths at which the volume is published.
    published: BTreeSet<PathBuf>,
    /// Serializes the operations on a volume, for all Pods.
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Volume {
    fn is_idle(&self) -> bool {
        self.users.is_empty() && !self.staged && self.published.is_empty()
    }
}

impl Default for Drivers {
    fn default() -> Self {
        let (changed, _) = watch::channel(());
        let exhausted = watch::Sender::default();
        Self { drivers: Mutex::default(), volumes: Mutex::default(), exhausted, changed }
    }
}

impl Drivers {
    /// Registers a driver, or removes it if `driver` is `None`.
    pub fn set_driver(&self, name: &str, driver: Option<csi::Driver>) {
        let mut drivers = self.drivers.lock();
        let fresh = || RegisteredDriver { driver: None, seats: Arc::new(Semaphore::new(SEATS)) };
        drivers.entry(name.to_owned()).or_insert_with(fresh).driver = driver;
    }

    /// Returns a registered driver.
    pub fn driver(&self, name: &str) -> Option<csi::Driver> {
        self.drivers.lock().get(name)?.driver.clone()
    }

    /// Returns the names of the registered drivers.
    pub fn names(&self) -> Vec<String> {
        let drivers = self.drivers.lock();
        let registered = drivers.iter().filter(|(_, entry)| entry.driver.is_some());
        registered.map(|(name, _)| name.clone()).collect()
    }

    /// Records that a driver could not attach a volume because the node has too many.
    pub fn set_exhausted(&self, driver: &str) {
        self.exhausted.send_modify(|all| _ = all.insert(driver.to_owned()));
    }

    /// Returns a channel that changes when a driver is recorded by [`Drivers::set_exhausted`].
    pub fn exhausted(&self) -> watch::Receiver<BTreeSet<String>> {
        self.exhausted.subscribe()
    }

    /// Returns the drivers that were recorded since the last call.
    pub fn take_exhausted(&self) -> BTreeSet<String> {
        let mut taken = BTreeSet::new();
        self.exhausted.send_if_modified(|all| {
            taken = std::mem::take(all);
            false
        });
        taken
    }

    /// Waits for a slot of the driver. The future may be dropped. `caller` is upstream's name of the operation.
    pub(crate) async fn acquire(
        &self,
        name: &str,
        caller: &'static str,
    ) -> Result<AcquiredDriver, Cause> {
        let no_driver = || Cause::NoDriver { caller, driver: name.to_owned() };
        let driver = self.driver(name).ok_or_else(no_driver)?;
        let seats = self.drivers.lock().get(name).map(|entry| entry.seats.clone());
        let seats = seats.ok_or_else(no_driver)?;
        match tokio::time::timeout(SLOT_TIMEOUT, seats.acquire_owned()).await {
            Ok(slot) => Ok(AcquiredDriver { driver, _slot: slot.map_err(|_| no_driver())? }),
            Err(_) => Err(Cause::Busy { driver: name.to_owned(), waited: SLOT_TIMEOUT }),
        }
    }

    /// Records that a Pod needs a volume. Must be called before waiting for the attachment.
    pub(crate) fn add_user(&self, volume: &str, uid: &str, attachable: bool) {
        let mut volumes = self.volumes.lock();
        let entry = volumes.entry(volume.to_owned()).or_default();
        let new = entry.attachable != Some(attachable) || entry.users.is_empty();
        entry.users.insert(uid.to_owned());
        entry.attachable = Some(attachable);
        drop(volumes);
        if new {
            self.changed.send_replace(());
        }
    }

    /// Records a volume that an earlier kubelet mounted.
    pub(crate) fn add_unused(&self, volume: &str) {
        self.volumes.lock().entry(volume.to_owned()).or_default().staged = true;
        self.changed.send_replace(());
    }

    /// Records that a Pod needs no volume any more.
    pub(crate) fn remove_user(&self, uid: &str) {
        self.change_all(|volume| {
            volume.users.remove(uid);
        });
    }

    pub(crate) fn is_used(&self, volume: &str) -> bool {
        self.volumes.lock().get(volume).is_some_and(|entry| !entry.users.is_empty())
    }

    pub(crate) fn is_published(&self, volume: &str, target: &PathBuf) -> bool {
        self.volumes.lock().get(volume).is_some_and(|entry| entry.published.contains(target))
    }

    pub(crate) fn set_published(&self, volume: &str, target: PathBuf, is: bool) {
        self.change(volume, |entry| {
            if is {
                entry.published.insert(target);
            } else {
                entry.published.remove(&target);
            }
        });
    }

    pub(crate) fn set_staged(&self, volume: &str, is: bool) {
        self.change(volume, |entry| entry.staged = is);
    }

    fn change(&self, volume: &str, change: impl FnOnce(&mut Volume)) {
        change(self.volumes.lock().entry(volume.to_owned()).or_default());
        self.change_all(|_| {});
    }

    fn change_all(&self, change: impl Fn(&mut Volume)) {
        let mut volumes = self.volumes.lock();
        let before = volumes.len();
        volumes.values_mut().for_each(change);
        volumes.retain(|_, entry| !entry.is_idle() || Arc::strong_count(&entry.turn) > 1);
        if volumes.len() != before {
            drop(volumes);
            self.changed.send_replace(());
        }
    }

    /// Forgets the volumes that no Pod uses and no operation locks.
    pub(crate) fn forget_idle(&self) {
        self.change_all(|_| {});
    }

    /// Waits for exclusive access to a volume.
    pub(crate) async fn lock_volume(&self, volume: &str) -> OwnedMutexGuard<()> {
        let turn = self.volumes.lock().entry(volume.to_owned()).or_default().turn.clone();
        turn.lock_owned().await
    }

    /// Returns the volumes that must not be detached. A volume found on the disk counts if `is_attached` returns `true`
    /// for it.
    pub fn in_use(&self, is_attached: impl Fn(&str) -> bool) -> Vec<String> {
        let volumes = self.volumes.lock();
        let used = volumes.iter().filter(|(name, entry)| {
            !entry.is_idle() && entry.attachable.unwrap_or_else(|| is_attached(name))
        });
        used.map(|(name, _)| name.clone()).collect()
    }

    /// Returns a channel that changes with the volumes in use.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }
}
