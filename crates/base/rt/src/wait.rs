use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Calls `attempt` until it succeeds, fails with an error that is not `is_passing`, or `patience` has passed. Returns
/// the result of the last attempt.
pub async fn retry<T, E, F: Future<Output = Result<T, E>>>(
    patience: Duration,
    pause: Duration,
    is_passing: impl Fn(&E) -> bool,
    mut attempt: impl FnMut() -> F,
) -> Result<T, E> {
    let until = Instant::now() + patience;
    loop {
        match attempt().await {
            Err(error) if is_passing(&error) && Instant::now() < until => sleep(pause).await,
            ended => return ended,
        }
    }
}

/// Waits until `holds` returns `true`. Returns `false` if it does not within `patience`.
pub async fn wait_until(
    patience: Duration,
    pause: Duration,
    mut holds: impl FnMut() -> bool,
) -> bool {
    let attempt = || std::future::ready(if holds() { Ok(()) } else { Err(()) });
    retry(patience, pause, |()| true, attempt).await.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_millis(100);

    #[tokio::test(start_paused = true)]
    async fn returns_last_error_after_patience_and_final_error_at_once() {
        let begun = Instant::now();
        let mut tried = 0;
        let mut attempt = || {
            tried += 1;
            std::future::ready(if tried < 4 { Err(tried) } else { Ok(tried) })
        };
        assert_eq!(retry(PAUSE * 2, PAUSE, |_| true, &mut attempt).await, Err(3));
        assert_eq!(begun.elapsed(), PAUSE * 2);
        assert_eq!(retry(PAUSE, PAUSE, |_| true, attempt).await, Ok(4));
        let given_up = retry(PAUSE, PAUSE, |_| false, || async { Err::<(), _>("final") }).await;
        assert_eq!((given_up, begun.elapsed()), (Err("final"), PAUSE * 2));
        assert!(!wait_until(Duration::ZERO, PAUSE, || false).await);
    }
}
