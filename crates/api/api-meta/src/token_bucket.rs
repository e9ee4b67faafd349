use std::time::Duration;

/// A token bucket for `qps` and `burst` settings. It reads no clock: the caller passes the elapsed time.
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket {
    tokens: f64,
    burst: f64,
}

impl TokenBucket {
    /// Creates a full bucket.
    pub fn new(burst: f64) -> Self {
        Self { tokens: burst, burst }
    }

    /// Adds the tokens of the time since the last call. `rate` is in tokens per second.
    pub fn refill(&mut self, passed: Duration, rate: f64) {
        self.tokens = (self.tokens + passed.as_secs_f64() * rate).min(self.burst);
    }

    /// Takes a token. Returns `false` if the bucket is empty.
    pub fn take(&mut self) -> bool {
        let may = self.tokens >= 1.0;
        if may {
            self.tokens -= 1.0;
        }
        may
    }

    /// Takes a token, even a future one. Returns the time until it is available. `rate` is in tokens per second.
    pub fn reserve(&mut self, rate: f64) -> Duration {
        self.tokens -= 1.0;
        Duration::try_from_secs_f64((-self.tokens / rate).max(0.0)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refills_tokens_up_to_burst() {
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
