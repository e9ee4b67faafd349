//! A disk in memory that loses unsynced data in every way that a real one may.
//!
//! Bytes written but not synced survive a crash sector by sector, each by chance; so do names. After a failed sync the
//! unsynced bytes look written, but no later sync saves them.

use std::{
    collections::BTreeMap,
    io::{Error, ErrorKind, Result},
    sync::Arc,
};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::{Disk, DiskFile};

const SECTOR: usize = 512;

/// A simulated disk. Clones share its contents.
#[derive(Clone, Default)]
pub struct SimDisk(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    files: BTreeMap<u64, FileState>,
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    name_steps: Vec<NameStep>,
    next: u64,
    steps: u64,
    crash_at: Option<u64>,
    is_off: bool,
    failing_syncs: u64,
    syncs: u64,
    space: Option<u64>,
    /// While true, data syncs block.
    hold: bool,
    waiting: u64,
}

#[derive(Clone, Default)]
struct FileState {
    durable: Vec<u8>,
    view: Vec<u8>,
    pending: Vec<Pending>,
}

#[derive(Clone)]
enum Pending {
    Write(u64, Vec<u8>),
    Truncate(u64),
}

#[derive(Clone)]
enum NameStep {
    Link(String, u64),
    Rename(String, String),
    Remove(String),
}

struct SimFile {
    disk: SimDisk,
    id: u64,
}

impl SimDisk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.0.lock()
    }

    /// Fails the power at the `step`-th change from now; that change may or may not survive.
    pub fn crash_at(&self, step: u64) {
        let mut state = self.state();
        state.crash_at = Some(state.steps + step);
    }

    /// Fails the power now.
    pub fn cut_power(&self) {
        let mut state = self.state();
        state.is_off = true;
    }

    /// Reports whether the power has failed.
    pub fn has_crashed(&self) -> bool {
        self.state().is_dead()
    }

    /// Returns the number of successful data syncs.
    pub fn syncs(&self) -> u64 {
        self.state().syncs
    }

    /// Makes the next `count` data syncs fail and lose their bytes.
    pub fn fail_syncs(&self, count: u64) {
        self.state().failing_syncs = count;
    }

    /// Limits the bytes that can still be written.
    pub fn set_space(&self, space: Option<u64>) {
        self.state().space = space;
    }

    /// Blocks data syncs while `hold` is true.
    pub fn hold_syncs(&self, hold: bool) {
        self.state().hold = hold;
        self.0.1.notify_all();
    }

    /// Waits until a sync is being held.
    pub fn wait_for_held_sync(&self) {
        let mut state = self.state();
        while state.waiting == 0 {
            self.0.1.wait(&mut state);
        }
    }

    /// Returns the disk for the next process after this one was killed. The kernel still has the unsynced data, which a
    /// later sync makes durable or a loss of power loses.
    pub fn after_kill(&self) -> Self {
        let state = self.state();
        let state = State {
            files: state.files.clone(),
            names: state.names.clone(),
            durable_names: state.durable_names.clone(),
            name_steps: state.name_steps.clone(),
            next: state.next,
            ..State::default()
        };
        Self(Arc::new((Mutex::new(state), Condvar::new())))
    }

    /// Returns the disk's contents after power returns.
    pub fn after_power_loss(&self, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let state = self.state();
        let mut names = state.durable_names.clone();
        // A journal keeps the order of names; POSIX does not promise it.
        let (journal, kept) = (rng.random(), rng.random_range(0..=state.name_steps.len()));
        for (at, step) in state.name_steps.iter().enumerate() {
            let survives = if journal { at < kept } else { rng.random() };
            if survives {
                step.apply(&mut names);
            }
        }
        let files = names
            .values()
            .map(|id| {
                let image = state.files[id].after_power_loss(&mut rng);
                (*id, FileState { view: image.clone(), durable: image, pending: Vec::new() })
            })
            .collect();
        let state = State {
            files,
            durable_names: names.clone(),
            names,
            next: state.next,
            ..State::default()
        };
        Self(Arc::new((Mutex::new(state), Condvar::new())))
    }

    /// Changes bytes on the medium.
    pub fn corrupt(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.state();
        let id = state.names[name];
        let file = state.file(id);
        change(&mut file.view);
        file.durable = file.view.clone();
        file.pending.clear();
    }

    /// Returns the length of a file.
    pub fn length(&self, name: &str) -> usize {
        let state = self.state();
        state.files[&state.names[name]].view.len()
    }

    /// Returns the names of all files.
    pub fn names(&self) -> Vec<String> {
        self.state().names.keys().cloned().collect()
    }
}

impl State {
    fn is_dead(&self) -> bool {
        self.is_off || self.crash_at.is_some_and(|at| self.steps > at)
    }

    fn alive(&self) -> Result<()> {
        if self.is_dead() { Err(Error::other("power is lost")) } else { Ok(()) }
    }

    /// Counts a change. The change at which power fails is still recorded, as unsynced.
    fn change(&mut self) -> Result<()> {
        self.alive()?;
        self.steps += 1;
        Ok(())
    }

    fn file(&mut self, id: u64) -> &mut FileState {
        self.files.entry(id).or_default()
    }

    fn id(&self, name: &str) -> Result<u64> {
        self.names.get(name).copied().ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn rename_step(&mut self, step: NameStep) {
        step.apply(&mut self.names);
        self.name_steps.push(step);
    }
}

impl NameStep {
    fn apply(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            NameStep::Link(name, id) => drop(names.insert(name.clone(), *id)),
            NameStep::Rename(from, to) => {
                if let Some(id) = names.remove(from) {
                    names.insert(to.clone(), id);
                }
            }
            NameStep::Remove(name) => drop(names.remove(name)),
        }
    }
}

impl FileState {
    fn after_power_loss(&self, rng: &mut StdRng) -> Vec<u8> {
        let mut image = self.durable.clone();
        for pending in &self.pending {
            match pending {
                Pending::Truncate(_) if rng.random() => {}
                Pending::Truncate(_) => pending.apply(&mut image),
                Pending::Write(offset, bytes) => {
                    // All, nothing or some sectors. Both extremes are made likely, because they matter too.
                    let odds = [0.0, 1.0, 0.5, 0.9][rng.random_range(0..4)];
                    let mut at = 0;
                    while at < bytes.len() {
                        let place = *offset as usize + at;
                        let end = (at + SECTOR - place % SECTOR).min(bytes.len());
                        if rng.random_bool(odds) {
                            Pending::Write(place as u64, bytes[at..end].to_vec()).apply(&mut image);
                        }
                        at = end;
                    }
                }
            }
        }
        image
    }
}

impl Pending {
    fn apply(&self, image: &mut Vec<u8>) {
        match self {
            Pending::Truncate(length) => image.resize(*length as usize, 0),
            Pending::Write(offset, bytes) => {
                let end = *offset as usize + bytes.len();
                if image.len() < end {
                    image.resize(end, 0);
                }
                image[*offset as usize..end].copy_from_slice(bytes);
            }
        }
    }
}

impl Disk for SimDisk {
    fn list(&self) -> Result<Vec<String>> {
        self.state().alive()?;
        Ok(self.names())
    }

    fn open(&self, name: &str) -> Result<Box<dyn DiskFile>> {
        let state = self.state();
        state.alive()?;
        Ok(Box::new(SimFile { disk: self.clone(), id: state.id(name)? }))
    }

    fn create(&self, name: &str) -> Result<Box<dyn DiskFile>> {
        let mut state = self.state();
        state.change()?;
        let id = state.next;
        state.next += 1;
        state.files.insert(id, FileState::default());
        state.rename_step(NameStep::Link(name.to_owned(), id));
        state.alive()?;
        Ok(Box::new(SimFile { disk: self.clone(), id }))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let mut state = self.state();
        state.change()?;
        state.id(from)?;
        state.rename_step(NameStep::Rename(from.to_owned(), to.to_owned()));
        state.alive()
    }

    fn remove(&self, name: &str) -> Result<()> {
        let mut state = self.state();
        state.change()?;
        state.id(name)?;
        state.rename_step(NameStep::Remove(name.to_owned()));
        state.alive()
    }

    fn sync(&self) -> Result<()> {
        let mut state = self.state();
        state.change()?;
        state.alive()?;
        state.durable_names = state.names.clone();
        state.name_steps.clear();
        Ok(())
    }

    fn path(&self, name: &str) -> String {
        format!("sim/{name}")
    }
}

impl DiskFile for SimFile {
    fn length(&self) -> Result<u64> {
        let state = self.disk.state();
        state.alive()?;
        Ok(state.files[&self.id].view.len() as u64)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let state = self.disk.state();
        state.alive()?;
        let view = &state.files[&self.id].view;
        let from = (offset as usize).min(view.len());
        let to = (from + buffer.len()).min(view.len());
        buffer[..to - from].copy_from_slice(&view[from..to]);
        Ok(to - from)
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut state = self.disk.state();
        state.change()?;
        let room = state.space.unwrap_or(u64::MAX).min(bytes.len() as u64);
        if let Some(space) = &mut state.space {
            *space -= room;
        }
        let file = state.file(self.id);
        let pending = Pending::Write(offset, bytes[..room as usize].to_vec());
        pending.apply(&mut file.view);
        file.pending.push(pending);
        if room < bytes.len() as u64 {
            return Err(ErrorKind::StorageFull.into());
        }
        state.alive()
    }

    fn truncate(&mut self, len: u64) -> Result<()> {
        let mut state = self.disk.state();
        state.change()?;
        let file = state.file(self.id);
        let pending = Pending::Truncate(len);
        pending.apply(&mut file.view);
        file.pending.push(pending);
        state.alive()
    }

    fn sync_data(&mut self) -> Result<()> {
        let mut state = self.disk.state();
        while state.hold {
            state.waiting += 1;
            self.disk.0.1.notify_all();
            self.disk.0.1.wait(&mut state);
            state.waiting -= 1;
        }
        state.change()?;
        state.alive()?;
        let failing = state.failing_syncs > 0;
        state.failing_syncs = state.failing_syncs.saturating_sub(1);
        state.syncs += u64::from(!failing);
        let file = state.file(self.id);
        let pending = std::mem::take(&mut file.pending);
        if failing {
            return Err(Error::other("simulated failure of the device"));
        }
        for pending in pending {
            pending.apply(&mut file.durable);
        }
        Ok(())
    }
}
