use std::time::Duration;

/// An exponential backoff with a cap and jitter. It computes delays; the caller sleeps.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    cap: Duration,
    failures: u32,
}

impl Backoff {
    /// Creates a backoff whose first delay is `first`. The delay doubles with each failure up to `cap`.
    pub fn new(first: Duration, cap: Duration) -> Self {
        Self { first, cap, failures: 0 }
    }

    /// Records a failure and returns the delay before the next attempt. `jitter` in 0..1 adds up to half of the delay,
    /// so that clients that failed together do not retry together.
    pub fn next(&mut self, jitter: f64) -> Duration {
        let doubled =
            self.first.saturating_mul(1u32.checked_shl(self.failures).unwrap_or(u32::MAX));
        self.failures = self.failures.saturating_add(1).min(31);
        doubled.min(self.cap).mul_f64(1.0 + jitter.clamp(0.0, 1.0) / 2.0)
    }

    /// Resets the delay to the first one, after a success.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_cap_and_starts_again_after_a_reset() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        let delays: Vec<_> = (0..5).map(|_| backoff.next(0.0).as_millis()).collect();
        assert_eq!(delays, [100, 200, 400, 800, 1000]);
        backoff.reset();
        assert_eq!(backoff.next(1.0), Duration::from_millis(150));
    }

    #[test]
    fn never_overflows() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(300));
        for _ in 0..100 {
            assert!(backoff.next(1.0) <= Duration::from_secs(450));
        }
    }
}
