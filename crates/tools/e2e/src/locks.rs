//! The locks of tests that run in parallel on one machine.

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The lock of the machine: every test takes it for reading, a test that needs the whole machine for writing.
static MACHINE: RwLock<()> = RwLock::new(());
/// The lock that a test on the cluster of tests that disturb each other holds.
static DISTURBED_LOCK: Mutex<()> = Mutex::new(());

/// The guards that a test on a shared cluster holds while it runs.
#[expect(dead_code, reason = "guards are held and not read")]
pub(crate) struct TestGuards {
    machine: RwLockReadGuard<'static, ()>,
    exclusive: Option<MutexGuard<'static, ()>>,
}

impl TestGuards {
    /// Waits for the guards of a test that runs beside others.
    pub(crate) fn shared() -> Self {
        Self { machine: share_machine(), exclusive: None }
    }

    /// Waits for the guards of a test that disturbs others on its cluster.
    pub(crate) fn exclusive() -> Self {
        let machine = share_machine();
        let exclusive = DISTURBED_LOCK.lock();
        Self { machine, exclusive: Some(exclusive) }
    }
}

/// Waits until no test needs the whole machine. A test with its own cluster or machines holds the guard while it runs.
pub fn share_machine() -> RwLockReadGuard<'static, ()> {
    MACHINE.read()
}

/// Waits until no other test runs. A test that needs all of the machine's processors or memory holds the guard while it
/// runs.
pub fn lock_machine() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write()
}
