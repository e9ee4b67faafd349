use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

/// The longest duration to add to an `Instant`. Durations from users can be so long that the addition panics; a century
/// is long enough.
pub const FAR: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Returns the wall-clock time, or the simulated time in a simulation.
pub fn now() -> SystemTime {
    crate::simulation::with(|simulation| simulation.map_or_else(SystemTime::now, |s| s.now()))
}

/// Returns the processor time that the calling thread has used. It is zero in a simulation, where the same work must
/// always end at the same point.
pub fn processor_time() -> Duration {
    let simulated = crate::simulation::with(|simulation| simulation.is_some());
    if simulated {
        return Duration::ZERO;
    }
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(used).unwrap_or_default()
}

/// The wall clock, injectable so that expiry and rotation can be tested.
pub trait Clock: Send + Sync + 'static {
    /// Returns the current time.
    fn now(&self) -> SystemTime;
}

/// The machine's clock, or that of the active [`crate::Simulation`].
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> SystemTime {
        now()
    }
}

/// A clock that stands still until a test advances it.
pub struct ManualClock(Mutex<SystemTime>);

impl ManualClock {
    /// Creates a clock that shows `now`.
    pub fn new(now: SystemTime) -> Self {
        Self(Mutex::new(now))
    }

    /// Advances the clock.
    pub fn advance(&self, by: Duration) {
        *self.0.lock() += by;
    }
}

impl Clock for ManualClock {
    fn now(&self) -> SystemTime {
        *self.0.lock()
    }
}
