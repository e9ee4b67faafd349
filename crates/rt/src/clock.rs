use std::{
    sync::Mutex,
    time::{Duration, SystemTime},
};

/// The longest wait that is added to the time of an `Instant`. Seconds that a user names go up to where adding them
/// panics, and nobody sees the end of a century.
pub const FAR: Duration = Duration::from_secs(100 * 365 * 86_400);

/// What the wall clock says; a simulation's time in one.
pub fn now() -> SystemTime {
    crate::simulation::with(|simulation| simulation.map_or_else(SystemTime::now, |s| s.now()))
}

/// The processor time that the calling thread has used. It stands still in a simulation, where the same work must not
/// end at another point the next time.
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
    fn now(&self) -> SystemTime;
}

/// The machine's clock, or that of the [`crate::Simulation`] that runs.
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> SystemTime {
        now()
    }
}

/// A clock that stands still until a test moves it.
pub struct ManualClock(Mutex<SystemTime>);

impl ManualClock {
    /// A clock that stands at `now` until it is told otherwise.
    pub fn new(now: SystemTime) -> Self {
        Self(Mutex::new(now))
    }

    /// Lets time pass.
    pub fn advance(&self, by: Duration) {
        *self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner) += by;
    }
}

impl Clock for ManualClock {
    fn now(&self) -> SystemTime {
        *self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
