//! The core and the state that the informers and the worker share.
#![expect(clippy::disallowed_types, reason = "a poisoned lock shows that the core must be rebuilt")]

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use sched_core::Core;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

/// A source of the whole cluster state.
pub(crate) trait StateSource: Send + Sync {
    /// Adds all objects to a new core.
    fn add_all(&self, core: &mut Core, now: u64);
}

/// The core and the state that its users share.
pub(crate) struct Shared {
    core: Mutex<Core>,
    /// Notified when the core may have a decision.
    pub(crate) changed: Notify,
    /// The number of changes applied to the core, for tasks that wait for one.
    pub(crate) updates: watch::Sender<u64>,
    pub(crate) start: Instant,
    /// The source of state for a core that replaces one after a panic.
    source: OnceLock<Weak<dyn StateSource>>,
}

impl Shared {
    pub(crate) fn new(core: Core) -> Arc<Self> {
        Arc::new(Self {
            core: Mutex::new(core),
            changed: Notify::new(),
            updates: watch::Sender::new(0),
            start: Instant::now(),
            source: OnceLock::new(),
        })
    }

    /// Sets the source of state for a rebuilt core.
    pub(crate) fn set_source(&self, source: Weak<dyn StateSource>) {
        let _ = self.source.set(source);
    }

    /// Locks the core. After a panic under the lock its state is unreliable, so it is rebuilt from the informers.
    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(|poisoned| {
            let mut core = poisoned.into_inner();
            if let Some(source) = self.source.get().and_then(Weak::upgrade) {
                tracing::warn!("rebuilding the scheduler's state after a panic");
                *core = core.restart(self.now());
                source.add_all(&mut core, self.now());
                self.core.clear_poison();
            }
            core
        })
    }

    /// Returns the time of the core's clock, in milliseconds.
    pub(crate) fn now(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    /// Applies a change to the core, then wakes the scheduling loop.
    pub(crate) fn update(&self, change: impl FnOnce(&mut Core, u64)) {
        change(&mut self.core(), self.now());
        self.changed.notify_one();
        self.updates.send_modify(|count| *count = count.wrapping_add(1));
    }
}
