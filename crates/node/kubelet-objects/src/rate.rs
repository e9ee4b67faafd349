//! Limits the rate of requests.

use api_meta::TokenBucket;
use parking_lot::Mutex;
use tokio::time::Instant;

/// A limit of some requests per second with a burst, or none.
#[derive(Debug)]
pub struct RateLimit(Option<Mutex<Bucket>>);

#[derive(Debug)]
struct Bucket {
    tokens: TokenBucket,
    per_second: f64,
    at: Instant,
}

impl RateLimit {
    /// Creates a limit of some requests per second with a burst.
    pub fn new(per_second: u32, burst: u32) -> Self {
        // A bucket without any burst would never have a whole token.
        let tokens = TokenBucket::new(burst.max(1).into());
        Self(Some(Mutex::new(Bucket { tokens, per_second: per_second.into(), at: Instant::now() })))
    }

    /// Creates a limit that allows everything.
    pub fn unlimited() -> Self {
        Self(None)
    }

    /// Takes from the bucket with the tokens that it has now. Returns `None` if there is no limit.
    fn take<T>(&self, take: impl FnOnce(&mut Bucket) -> T) -> Option<T> {
        let mut bucket = self.0.as_ref()?.lock();
        let now = Instant::now();
        let passed = now.saturating_duration_since(bucket.at);
        let per_second = bucket.per_second;
        bucket.tokens.refill(passed, per_second);
        bucket.at = now;
        Some(take(&mut bucket))
    }

    /// Takes a token. Returns `false` if there is none.
    pub fn try_take(&self) -> bool {
        self.take(|bucket| bucket.tokens.take()).unwrap_or(true)
    }

    /// Takes a token, and waits until there is one.
    pub async fn wait(&self) {
        if let Some(missing) = self.take(|bucket| bucket.tokens.reserve(bucket.per_second)) {
            tokio::time::sleep(missing).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn allows_burst_and_then_the_rate() {
        let limit = RateLimit::new(2, 3);
        assert!((0..3).all(|_| limit.try_take()) && !limit.try_take());
        let begin = Instant::now();
        limit.wait().await;
        assert!((begin.elapsed().as_secs_f64() - 0.5).abs() < 0.01, "{:?}", begin.elapsed());
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!((0..9).filter(|_| limit.try_take()).count(), 3, "the bucket is full");
        assert!((0..9).all(|_| RateLimit::unlimited().try_take()));
    }
}
