//! Limits the rate of requests.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// A token bucket. It is full at first.
#[derive(Debug)]
pub struct RateLimit {
    /// The tokens per second and the size of the bucket; `None` if there is no limit.
    limit: Option<Limit>,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug)]
struct Limit {
    per_second: f64,
    burst: f64,
}

#[derive(Clone, Copy, Debug)]
struct State {
    tokens: f64,
    at: Instant,
}

impl RateLimit {
    /// Creates a limit of some requests per second with a burst.
    pub fn new(per_second: u32, burst: u32) -> Self {
        let limit = Limit { per_second: per_second.into(), burst: burst.into() };
        let state = State { tokens: limit.burst, at: Instant::now() };
        Self { limit: Some(limit), state: Mutex::new(state) }
    }

    /// Creates a limit that allows everything.
    pub fn unlimited() -> Self {
        let state = State { tokens: 0.0, at: Instant::now() };
        Self { limit: None, state: Mutex::new(state) }
    }

    /// Takes a token, or returns the time until there is one.
    fn take(&self) -> Result<(), Duration> {
        let Some(limit) = self.limit else { return Ok(()) };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let gained = now.duration_since(state.at).as_secs_f64() * limit.per_second;
        // A bucket without any burst would never have a whole token.
        state.tokens = (state.tokens + gained).min(limit.burst.max(1.0));
        state.at = now;
        if state.tokens >= 1.0 {
            state.tokens -= 1.0;
            return Ok(());
        }
        Err(Duration::from_secs_f64((1.0 - state.tokens) / limit.per_second))
    }

    /// Takes a token. Returns `false` if there is none.
    pub fn try_take(&self) -> bool {
        self.take().is_ok()
    }

    /// Takes a token, and waits until there is one.
    pub async fn wait(&self) {
        while let Err(missing) = self.take() {
            tokio::time::sleep(missing).await;
        }
    }
}

#[cfg(test)]
mod tests {
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
