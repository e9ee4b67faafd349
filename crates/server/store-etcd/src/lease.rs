//! Leases for keys that expire. Many keys share a lease, as upstream's do, because a lease per key would cost etcd far
//! more than the key.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use store::Result;

use crate::{
    channel::{Channels, Repeat},
    proto::{LeaseGrantRequest, lease_client::LeaseClient},
    status,
};

/// A lease lasts a little longer than requested, and accepts further keys for that extra time.
const REUSE_PERCENT: u64 = 5;
const REUSE_AT_MOST: u64 = 60;
/// The most keys per lease. etcd deletes all keys of a lease in one transaction, which this bounds.
const KEYS_PER_LEASE: u64 = 1000;

/// The leases that new keys share, by the seconds that the keys live. Few lifetimes are in use.
pub(crate) struct Leases {
    clock: Arc<dyn rt::Clock>,
    shared: Mutex<BTreeMap<u64, SharedLease>>,
}

#[derive(Clone, Copy, Debug)]
struct SharedLease {
    id: i64,
    ends: SystemTime,
    keys: u64,
}

impl Leases {
    pub(crate) fn new(clock: Arc<dyn rt::Clock>) -> Self {
        Self { clock, shared: Mutex::default() }
    }

    /// Returns a lease that ends after `ttl` seconds or a little later.
    pub(crate) async fn get(&self, channels: &Channels, ttl: u64) -> Result<i64> {
        let ttl = ttl.max(1);
        let spare = spare(ttl);
        let now = self.clock.now();
        if let Some(id) = self.take_shared(now, ttl, spare) {
            return Ok(id);
        }
        let request = LeaseGrantRequest { ttl: (ttl + spare) as i64, ..Default::default() };
        // A repeated grant leaves at most a lease without keys, which expires by itself.
        let granted = channels
            .call(Repeat::Always, |channel| async move {
                LeaseClient::new(channel).lease_grant(request).await
            })
            .await
            .map_err(|failed| status::error("grant a lease", &failed))?;
        let ends = now + Duration::from_secs(ttl + spare);
        self.shared.lock().insert(ttl, SharedLease { id: granted.id, ends, keys: 1 });
        Ok(granted.id)
    }

    /// Returns the last lease of this lifetime, if it ends neither before `ttl` nor too long after.
    fn take_shared(&self, now: SystemTime, ttl: u64, spare: u64) -> Option<i64> {
        let mut shared = self.shared.lock();
        let granted = shared.get_mut(&ttl)?;
        let wanted = now + Duration::from_secs(ttl);
        let fits = granted.ends >= wanted && granted.ends <= wanted + Duration::from_secs(spare);
        if !fits || granted.keys >= KEYS_PER_LEASE {
            return None;
        }
        granted.keys += 1;
        Some(granted.id)
    }

    /// Stops sharing this lease.
    pub(crate) fn forget(&self, id: i64) {
        self.shared.lock().retain(|_, granted| granted.id != id);
    }
}

fn spare(ttl: u64) -> u64 {
    (ttl * REUSE_PERCENT / 100).min(REUSE_AT_MOST)
}

#[cfg(test)]
mod tests {
    use rt::ManualClock;

    use super::*;

    fn leases(clock: &Arc<ManualClock>, ttl: u64) -> Leases {
        let leases = Leases::new(clock.clone());
        let ends = rt::Clock::now(&**clock) + Duration::from_secs(ttl + spare(ttl));
        leases.shared.lock().insert(ttl, SharedLease { id: 7, ends, keys: 1 });
        leases
    }

    #[test]
    fn shares_lease_while_its_end_fits() {
        let clock = Arc::new(ManualClock::new(SystemTime::UNIX_EPOCH));
        let leases = leases(&clock, 3600);
        let take = |ttl| leases.take_shared(rt::Clock::now(&*clock), ttl, spare(ttl));
        assert_eq!(take(3600), Some(7));
        assert_eq!([take(3000), take(4000)], [None, None]);
        // Keys with another lifetime do not replace the lease.
        leases.shared.lock().insert(900, SharedLease { id: 8, ends: clock_end(), keys: 1 });
        assert_eq!(take(3600), Some(7));
        clock.advance(Duration::from_secs(60));
        assert_eq!(take(3600), Some(7));
        clock.advance(Duration::from_secs(1));
        assert_eq!(take(3600), None);
    }

    #[test]
    fn bounds_keys_per_lease_and_forgets_leases() {
        let clock = Arc::new(ManualClock::new(SystemTime::UNIX_EPOCH));
        let leases = leases(&clock, 3600);
        let take = || leases.take_shared(rt::Clock::now(&*clock), 3600, spare(3600));
        let taken = std::iter::from_fn(take).count();
        assert_eq!(taken as u64, KEYS_PER_LEASE - 1);
        leases.shared.lock().insert(3600, SharedLease { id: 8, ends: clock_end(), keys: 1 });
        leases.forget(7);
        assert_eq!(take(), Some(8));
        leases.forget(8);
        assert_eq!(take(), None);
    }

    fn clock_end() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(3650)
    }
}
