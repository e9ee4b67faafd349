//! Waits for parts of a cluster until a deadline.

use std::time::Duration;

use tokio::time::Instant;

use crate::{cluster::Cluster, error::Error, process::Role};

/// Waits until `holds` returns `true`. Returns `false` at the deadline.
pub(crate) async fn wait(deadline: Instant, mut holds: impl AsyncFnMut() -> bool) -> bool {
    while !holds().await {
        if Instant::now() > deadline {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    true
}

/// Returns an error with the end of the log of `role` unless `up`.
pub(crate) fn check_up(
    cluster: &Cluster,
    up: bool,
    what: &'static str,
    role: Role,
) -> Result<(), Error> {
    if up {
        return Ok(());
    }
    let log = role.last_words(cluster);
    Err(Error::NotUp { what, pods: String::new(), process: role.name(), log })
}
