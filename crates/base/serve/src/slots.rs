//! Limits the number of connections, and decides which one is closed for a new one.
//!
//! A new connection is not rejected because of idle ones: it replaces the connection that has been idle longest.
//! Unknown peers and the source with the most connections are preferred for closing. Connections that a cluster needs
//! to work ([`Standing::Essential`]) are never closed.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::Notify, time::Instant};

use crate::limits::Limits;

/// A longer request is a watch, or its response is not being read.
const LONG: Duration = Duration::from_secs(60);
/// The interval at which a waiting connection checks whether another one has become idle.
const LOOK: Duration = Duration::from_secs(1);

/// The authentication state of a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    #[default]
    Unknown,
    /// A request on the connection was authenticated.
    Known,
    /// Nodes and the control plane. Their connections are not closed for others.
    Essential,
}

/// The activity of a connection: the number of requests in progress, and the time of the last change.
#[derive(Debug)]
pub struct ConnectionActivity {
    opened: Instant,
    requests: AtomicUsize,
    /// The time at which the last request began or, if none is in progress, ended, in milliseconds since `opened`.
    changed: AtomicU64,
    spoke: AtomicBool,
    standing: AtomicU8,
    /// `true` if the connection is not a sequence of requests, so that idleness cannot be detected.
    pinned: AtomicBool,
    closing: AtomicBool,
    close: Notify,
}

impl Default for ConnectionActivity {
    fn default() -> Self {
        Self {
            opened: Instant::now(),
            requests: AtomicUsize::new(0),
            changed: AtomicU64::new(0),
            spoke: AtomicBool::new(false),
            standing: AtomicU8::new(0),
            pinned: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            close: Notify::new(),
        }
    }
}

/// A request in progress, until its response was taken.
#[derive(Debug)]
pub(crate) struct ActiveRequest(Arc<ConnectionActivity>);

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.0.touch();
        self.0.requests.fetch_sub(1, Relaxed);
    }
}

impl ConnectionActivity {
    /// Records the standing. It never decreases.
    pub(crate) fn raise_standing(&self, standing: Standing) {
        self.standing.fetch_max(standing as u8, Relaxed);
    }

    fn standing(&self) -> Standing {
        match self.standing.load(Relaxed) {
            0 => Standing::Unknown,
            1 => Standing::Known,
            _ => Standing::Essential,
        }
    }

    pub(crate) fn begin(self: &Arc<Self>) -> ActiveRequest {
        self.requests.fetch_add(1, Relaxed);
        self.spoke.store(true, Relaxed);
        self.touch();
        ActiveRequest(self.clone())
    }

    pub(crate) fn pin(&self) {
        self.pinned.store(true, Relaxed);
    }

    fn touch(&self) {
        let now = self.opened.elapsed().as_millis();
        self.changed.store(u64::try_from(now).unwrap_or(u64::MAX), Relaxed);
    }

    fn since(&self) -> Instant {
        self.opened + Duration::from_millis(self.changed.load(Relaxed))
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.requests.load(Relaxed) > 0
    }

    /// Returns once the connection has been idle for as long as the limits allow.
    pub(crate) async fn idle_too_long(&self, limits: &Limits) {
        loop {
            let allowed = if self.spoke.load(Relaxed) { limits.idle } else { limits.request_head };
            let until = if self.is_busy() {
                // The connection becomes idle at the earliest now, so it need not be checked before this time.
                Instant::now() + allowed
            } else {
                self.since() + allowed
            };
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }

    /// Returns when this connection must be closed for another one.
    pub(crate) async fn closed(&self) {
        self.close.notified().await;
    }
}

/// The source of connections: an IPv4 address, or the /64 network of an IPv6 address, since a host may own all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Source(IpAddr);

impl Source {
    fn of(peer: SocketAddr) -> Self {
        Self(match peer.ip().to_canonical() {
            IpAddr::V6(v6) => {
                let network = u128::from(v6) >> 64 << 64;
                IpAddr::V6(network.into())
            }
            v4 => v4,
        })
    }
}

/// The connection slots of one listener.
pub(crate) struct Slots {
    limit: usize,
    limit_of_a_source: usize,
    table: Mutex<ConnectionTable>,
    freed: Notify,
}

#[derive(Default)]
struct ConnectionTable {
    next: u64,
    connections: HashMap<u64, (Source, Arc<ConnectionActivity>)>,
    sources: HashMap<Source, usize>,
    /// The number of connections that are closing.
    closing: usize,
}

/// The slot of a connection. Dropping it frees the slot.
pub(crate) struct Slot {
    slots: Arc<Slots>,
    id: u64,
    pub(crate) activity: Arc<ConnectionActivity>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut table = self.slots.lock();
        if let Some((source, activity)) = table.connections.remove(&self.id) {
            table.closing -= usize::from(activity.closing.load(Relaxed));
            if let Some(count) = table.sources.get_mut(&source) {
                *count -= 1;
                if *count == 0 {
                    table.sources.remove(&source);
                }
            }
        }
        drop(table);
        self.slots.freed.notify_one();
    }
}

/// The result of admitting a new connection.
pub(crate) enum Admission {
    Admitted(Slot),
    /// All slots are taken by connections in use.
    Wait,
    /// Its source has too many unknown connections, and all are in use.
    Refused,
}

impl Slots {
    pub(crate) fn new(limit: usize, limit_of_a_source: usize) -> Arc<Self> {
        let limit = limit.min(files());
        Arc::new(Self { limit, limit_of_a_source, table: Mutex::default(), freed: Notify::new() })
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionTable> {
        self.table.lock()
    }

    pub(crate) fn admit(self: &Arc<Self>, peer: SocketAddr) -> Admission {
        let (source, now) = (Source::of(peer), Instant::now());
        let mut table = self.lock();
        if table.sources.get(&source).is_some_and(|count| *count >= self.limit_of_a_source) {
            let unknown = |activity: &ConnectionActivity| {
                activity.standing() == Standing::Unknown && !activity.closing.load(Relaxed)
            };
            let own = table
                .connections
                .values()
                .filter(|(from, activity)| *from == source && unknown(activity));
            if own.count() >= self.limit_of_a_source && !table.close_one(Some(source), now, self) {
                return Admission::Refused;
            }
        }
        if table.connections.len() - table.closing >= self.limit
            && !table.close_one(None, now, self)
        {
            return Admission::Wait;
        }
        let (id, activity) = (table.next, Arc::<ConnectionActivity>::default());
        table.next += 1;
        table.connections.insert(id, (source, activity.clone()));
        *table.sources.entry(source).or_default() += 1;
        Admission::Admitted(Slot { slots: self.clone(), id, activity })
    }

    /// Closes the least needed connection when the process is out of file descriptors.
    pub(crate) fn close_one(&self) -> bool {
        self.lock().close_one(None, Instant::now(), self)
    }

    /// Waits until a slot may be free.
    pub(crate) async fn changed(&self) {
        let _ = tokio::time::timeout(LOOK, self.freed.notified()).await;
    }

    #[cfg(test)]
    pub(crate) fn open(&self) -> usize {
        self.lock().connections.len()
    }
}

impl ConnectionTable {
    /// Closes the least needed connection, of one source or of all. Returns `false` if all are needed.
    fn close_one(&mut self, of: Option<Source>, now: Instant, slots: &Slots) -> bool {
        let candidates = self.connections.values().filter_map(|(source, activity)| {
            if of.is_some_and(|of| of != *source) {
                return None;
            }
            let crowd = self.sources.get(source).copied().unwrap_or_default();
            let rank = rank(activity, crowd > slots.limit_of_a_source, now)?;
            Some(((rank, crowd, now.duration_since(activity.since())), activity))
        });
        let Some((_, activity)) = candidates.max_by_key(|(need, _)| *need) else { return false };
        activity.closing.store(true, Relaxed);
        activity.close.notify_one();
        self.closing += 1;
        true
    }
}

/// Returns how dispensable a connection is, or `None` if it must stay.
fn rank(activity: &ConnectionActivity, of_many: bool, now: Instant) -> Option<u8> {
    let standing = activity.standing();
    if standing == Standing::Essential
        || activity.pinned.load(Relaxed)
        || activity.closing.load(Relaxed)
    {
        return None;
    }
    let long = now.duration_since(activity.since()) >= LONG;
    match (standing, activity.is_busy()) {
        (Standing::Unknown, false) => Some(3),
        (_, false) => Some(2),
        (Standing::Unknown, true) if long && of_many => Some(1),
        // Clients restart a watch that ends.
        (_, true) if long && of_many => Some(0),
        _ => None,
    }
}

/// Returns the number of connections that the file descriptor limit allows, with a quarter of it reserved for other
/// files.
fn files() -> usize {
    use nix::sys::resource::{Resource, getrlimit};
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1024, 1024));
    usize::try_from(soft / 4 * 3).unwrap_or(usize::MAX).max(16)
}
