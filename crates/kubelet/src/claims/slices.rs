//! Deletes the ResourceSlices of drivers that are not there, so that the scheduler sends no Pod that would wait for them:
//! of all drivers when a kubelet starts, as none has registered then, and of each some time after it has gone. A driver
//! publishes its slices again.

use std::{sync::Arc, time::Duration};

use client::{Client, DeleteOptions, ListOptions, Resource};
use tokio::time::Instant;

use super::State;
use crate::context::Context;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(5 * 60);

impl State {
    /// Sees to it that a driver's slices are deleted unless it comes back, if it is not there.
    pub(super) fn schedule(&mut self, driver: &str, grace: Duration) {
        let there = self.drivers.get(driver).is_some_and(|all| all.iter().any(|p| p.connected));
        if there {
            self.wipes.remove(driver);
        } else {
            self.wipes.entry(driver.to_owned()).or_insert_with(|| Instant::now() + grace);
        }
    }

    fn due(&self) -> Option<(String, Instant)> {
        let next = self.wipes.iter().min_by_key(|(_, at)| **at);
        next.map(|(driver, at)| (driver.clone(), *at))
    }
}

/// Deletes them when it is time, until shutdown.
pub(crate) async fn run(ctx: Arc<Context>, client: Client) {
    let claims = &ctx.claims;
    let mut changes = claims.changed.subscribe();
    let mut wait = rt::Backoff::new(FIRST, LONGEST);
    loop {
        let due = claims.lock().due();
        let at = due.as_ref().map_or_else(|| Instant::now() + rt::FAR, |(_, at)| *at);
        tokio::select! {
            biased;
            () = tokio::time::sleep_until(at) => {}
            _ = changes.changed() => continue,
        }
        let Some((driver, at)) = due else { continue };
        match delete(&client, &ctx.settings.node_name, &driver).await {
            Ok(()) => {
                tracing::info!(driver, "deleted the ResourceSlices of drivers that are not there");
                wait.reset();
                claims.lock().wipes.remove(&driver);
            }
            Err(error) => {
                tracing::warn!(driver, %error, "delete ResourceSlices");
                let again = Instant::now() + wait.next(rt::random());
                // It may have come back meanwhile.
                if let Some(next) = claims.lock().wipes.get_mut(&driver).filter(|n| **n == at) {
                    *next = again;
                }
            }
        }
    }
}

async fn delete(client: &Client, node: &str, driver: &str) -> Result<(), client::Error> {
    let of_driver =
        if driver.is_empty() { String::new() } else { format!(",spec.driver={driver}") };
    let chosen = ListOptions::fields(&format!("spec.nodeName={node}{of_driver}"));
    let options = DeleteOptions::default();
    match client.delete_collection(&Resource::RESOURCE_SLICES, "", &chosen, &options).await {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}
