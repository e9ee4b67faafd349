//! The API servers that all tasks share.

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

use crate::pool::{Finding, Pool};

/// The servers, shared by all tasks, with a notification of changes.
pub(crate) struct Servers {
    pool: Mutex<Pool>,
    pub(crate) changed: watch::Sender<()>,
}

impl Servers {
    pub(crate) fn new(addresses: &[String]) -> Self {
        Self { pool: Mutex::new(Pool::new(addresses)), changed: watch::channel(()).0 }
    }

    pub(crate) fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock()
    }

    pub(crate) fn report(&self, address: &str, finding: Finding) {
        let changed = self.pool().report(address, finding);
        if let Some(health) = changed {
            tracing::info!(server = address, ?health, "API server");
            self.changed.send_replace(());
        }
    }

    /// Waits until the server is silent.
    pub(crate) async fn wait_until_silent(&self, address: &str) {
        let mut changes = self.changed.subscribe();
        while !self.pool().is_silent(address) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }
}
