//! Waits in tests that run in real time.

use std::time::Duration;

/// Waits until the condition is true. Panics with `what` after 15 seconds.
pub async fn until<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) {
    let waiting = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(15), waiting).await;
    assert!(waited.is_ok(), "timed out waiting: {what}");
}
