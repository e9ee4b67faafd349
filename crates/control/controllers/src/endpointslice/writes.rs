//! The slices that were written and that the informer does not show yet. Until then its slices are stale.

use std::{collections::HashMap, sync::Arc, time::Duration};

use api_meta::ObjectMeta;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::slice::Slice;

/// The time after which a write is no longer expected to appear. Another client may delete or relabel a slice before
/// the informer shows it.
const EXPIRY: Duration = Duration::from_secs(30);

/// A written slice.
struct Write {
    resource_version: u64,
    at: Instant,
}

/// The writes by the key of their Service and the name of the slice.
#[derive(Default)]
pub(super) struct Writes(Mutex<HashMap<String, HashMap<String, Write>>>);

impl Writes {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, HashMap<String, Write>>> {
        self.0.lock()
    }

    /// Records a written slice of a Service.
    pub(super) fn record(&self, service: &str, slice: &ObjectMeta) {
        let resource_version = slice.resource_version.parse().unwrap_or(0);
        let write = Write { resource_version, at: Instant::now() };
        self.lock().entry(service.to_owned()).or_default().insert(slice.name.clone(), write);
    }

    /// Forgets a deleted slice.
    pub(super) fn forget(&self, service: &str, slice: &str) {
        if let Some(writes) = self.lock().get_mut(service) {
            writes.remove(slice);
        }
    }

    /// Forgets the slices of a deleted Service.
    pub(super) fn forget_service(&self, service: &str) {
        self.lock().remove(service);
    }

    /// Reports whether `slices` contains all writes for the Service that have not expired.
    pub(super) fn are_visible(&self, service: &str, slices: &[Arc<Slice>]) -> bool {
        let mut services = self.lock();
        let Some(writes) = services.get_mut(service) else { return true };
        let visible = |name: &String| {
            let slice = slices.iter().find(|slice| slice.metadata.name == *name)?;
            slice.metadata.resource_version.parse::<u64>().ok()
        };
        writes.retain(|name, write| {
            write.at.elapsed() < EXPIRY
                && visible(name).is_none_or(|version| version < write.resource_version)
        });
        if !writes.is_empty() {
            return false;
        }
        services.remove(service);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(name: &str, version: &str) -> ObjectMeta {
        ObjectMeta {
            name: name.to_owned(),
            resource_version: version.to_owned(),
            ..ObjectMeta::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn waits_until_informer_shows_written_slices() {
        let writes = Writes::default();
        let slices =
            |version| [Arc::new(Slice { metadata: meta("web-x", version), ..Slice::default() })];
        assert!(writes.are_visible("default/web", &[]));
        writes.record("default/web", &meta("web-x", "5"));
        assert!(!writes.are_visible("default/web", &[]));
        assert!(!writes.are_visible("default/web", &slices("4")));
        assert!(writes.are_visible("default/web", &slices("5")));
    }

    #[tokio::test(start_paused = true)]
    async fn does_not_wait_forever_for_slice_that_another_client_deleted() {
        let writes = Writes::default();
        writes.record("default/web", &meta("web-x", "5"));
        writes.record("default/web", &meta("web-y", "6"));
        writes.forget("default/web", "web-x");
        assert!(!writes.are_visible("default/web", &[]), "web-y may still appear");
        tokio::time::advance(EXPIRY).await;
        assert!(writes.are_visible("default/web", &[]));
    }
}
