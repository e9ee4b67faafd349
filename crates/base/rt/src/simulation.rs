use std::{
    cell::RefCell,
    marker::PhantomData,
    time::{Duration, SystemTime},
};

use rand::{SeedableRng, rngs::StdRng};
use tokio::time::Instant;

/// A seeded replacement of the wall clock and the random source of the current thread, until it is dropped. On a
/// single-threaded runtime with paused time, the same seed gives the same run.
pub struct Simulation {
    /// The simulation that was active before this one; restored on drop.
    before: Option<Source>,
    /// Makes the type `!Send`: the simulation belongs to the thread that began it.
    _here: PhantomData<*const ()>,
}

pub(crate) struct Source {
    start: SystemTime,
    begun: Instant,
    pub(crate) random: StdRng,
}

thread_local! {
    static SOURCE: RefCell<Option<Source>> = const { RefCell::new(None) };
}

impl Simulation {
    /// Begins a simulation. The wall clock begins at `start` and advances with the runtime's clock.
    pub fn begin(seed: u64, start: SystemTime) -> Self {
        let random = StdRng::seed_from_u64(seed);
        let source = Source { start, begun: Instant::now(), random };
        Self { before: SOURCE.replace(Some(source)), _here: PhantomData }
    }

    /// Sets the wall clock, forward or back, as an administrator or NTP does. The runtime's clock continues.
    pub fn set_clock(&self, to: SystemTime) {
        with(|source| {
            if let Some(source) = source {
                source.start = to.checked_sub(source.begun.elapsed()).unwrap_or(to);
            }
        });
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        SOURCE.set(self.before.take());
    }
}

impl Source {
    pub(crate) fn now(&self) -> SystemTime {
        let since: Duration = self.begun.elapsed();
        self.start + since
    }
}

/// Calls `work` with this thread's simulation, or with `None` outside a simulation.
pub(crate) fn with<R>(work: impl FnOnce(Option<&mut Source>) -> R) -> R {
    SOURCE.with_borrow_mut(|source| work(source.as_mut()))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn observe(seed: u64) -> (SystemTime, [u64; 2], String, Vec<u8>) {
        let _simulation = Simulation::begin(seed, SystemTime::UNIX_EPOCH);
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let mut order: Vec<u8> = (0..20).collect();
        crate::shuffle(&mut order);
        (crate::now(), [crate::random(), crate::random_in(0..1_000_000)], crate::id(), order)
    }

    #[tokio::test(start_paused = true)]
    async fn sets_the_wall_clock_only() {
        let simulation = Simulation::begin(1, SystemTime::UNIX_EPOCH + Duration::from_secs(1000));
        let begun = Instant::now();
        tokio::time::sleep(Duration::from_secs(10)).await;
        simulation.set_clock(crate::now() - Duration::from_secs(500));
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(crate::now(), SystemTime::UNIX_EPOCH + Duration::from_secs(515));
        assert_eq!(begun.elapsed(), Duration::from_secs(15));
    }

    #[tokio::test(start_paused = true)]
    async fn repeats_run_with_same_seed_only() {
        let first = observe(1).await;
        assert_eq!(first.0, SystemTime::UNIX_EPOCH + Duration::from_secs(3600));
        assert_eq!(first.2.len(), 36);
        assert_eq!(observe(1).await, first);
        assert_ne!(observe(2).await.1, first.1);
        assert!(crate::now() > first.0, "the simulation is over");
        assert_ne!(crate::id(), crate::id());
    }
}
