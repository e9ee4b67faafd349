use std::time::Duration;

/// An allowance that comes back with time, up to a burst: what `qps` and `burst` mean in Kubernetes' settings. Pure: the
/// caller says how much time has passed.
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket {
    tokens: f64,
    burst: f64,
}

impl TokenBucket {
    /// One that is full.
    pub fn new(burst: f64) -> Self {
        Self { tokens: burst, burst }
    }

    /// Adds what has come since the last call, at so many a second.
    pub fn refill(&mut self, passed: Duration, rate: f64) {
        self.tokens = (self.tokens + passed.as_secs_f64() * rate).min(self.burst);
    }

    /// Takes one. Returns whether there was one.
    pub fn take(&mut self) -> bool {
        let may = self.tokens >= 1.0;
        if may {
            self.tokens -= 1.0;
        }
        may
    }

    /// Takes one, be it one that is still to come. Returns how long it is until then, at so many a second.
    pub fn reserve(&mut self, rate: f64) -> Duration {
        self.tokens -= 1.0;
        Duration::try_from_secs_f64((-self.tokens / rate).max(0.0)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_comes_back_up_to_the_burst() {
        let mut bucket = TokenBucket::new(3.0);
        assert_eq!((0..5).filter(|_| bucket.take()).count(), 3);
        bucket.refill(Duration::from_millis(500), 4.0);
        assert_eq!((0..5).filter(|_| bucket.take()).count(), 2);
        bucket.refill(Duration::from_secs(3600), 4.0);
        assert_eq!((0..5).filter(|_| bucket.take()).count(), 3);
        assert_eq!(bucket.reserve(4.0), Duration::from_millis(250));
        assert_eq!(bucket.reserve(4.0), Duration::from_millis(500));
        bucket.refill(Duration::from_millis(500), 4.0);
        assert!(!bucket.take());
    }
}
