use std::{
    cell::RefCell,
    marker::PhantomData,
    time::{Duration, SystemTime},
};

use rand::{SeedableRng, rngs::StdRng};
use tokio::time::Instant;

/// What this thread takes for the machine's time and chance, until it is dropped: everything that happens on a runtime of
/// one thread whose time is paused happens again with the same seed.
pub struct Simulation {
    before: Option<Source>,
    /// It belongs to the thread that began it.
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
    /// The wall clock begins at `start` and goes on as the runtime's clock does.
    pub fn begin(seed: u64, start: SystemTime) -> Self {
        let random = StdRng::seed_from_u64(seed);
        let source = Source { start, begun: Instant::now(), random };
        Self { before: SOURCE.replace(Some(source)), _here: PhantomData }
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

/// Works with the simulation that this thread is in, if it is in one.
pub(crate) fn with<R>(work: impl FnOnce(Option<&mut Source>) -> R) -> R {
    SOURCE.with_borrow_mut(|source| work(source.as_mut()))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn happens(seed: u64) -> (SystemTime, [u64; 2], String, Vec<u8>) {
        let _simulation = Simulation::begin(seed, SystemTime::UNIX_EPOCH);
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let mut order: Vec<u8> = (0..20).collect();
        crate::shuffle(&mut order);
        (crate::now(), [crate::random(), crate::random_in(0..1_000_000)], crate::id(), order)
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_seed_has_the_same_happen_and_another_does_not() {
        let first = happens(1).await;
        assert_eq!(first.0, SystemTime::UNIX_EPOCH + Duration::from_secs(3600));
        assert_eq!(first.2.len(), 36);
        assert_eq!(happens(1).await, first);
        assert_ne!(happens(2).await.1, first.1);
        assert!(crate::now() > first.0, "the simulation is over");
        assert_ne!(crate::id(), crate::id());
    }
}
