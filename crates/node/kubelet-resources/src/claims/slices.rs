//! Deletes ResourceSlices of drivers that are not connected, so that the scheduler sends no Pods that would wait for
//! them. A kubelet that starts deletes those of all drivers, because none has registered yet; later each driver's
//! slices are deleted some time after it disconnects. A driver that registers publishes its slices again.

use std::{sync::Arc, time::Duration};

use client::{Client, DeleteOptions, ListOptions, Resource};
use tokio::time::Instant;

use super::{Claims, State};

const MIN_DELAY: Duration = Duration::from_secs(1);
const MAX_DELAY: Duration = Duration::from_secs(5 * 60);

impl State {
    /// Schedules the deletion of a driver's slices if the driver is not connected, else cancels it.
    pub(super) fn schedule(&mut self, driver: &str, grace: Duration) {
        let there = self.drivers.get(driver).is_some_and(|all| all.iter().any(|p| p.connected));
        if there {
            self.wipes.remove(driver);
        } else {
            self.wipes.entry(driver.to_owned()).or_insert_with(|| Instant::now() + grace);
        }
    }

    fn next_due(&self) -> Option<(String, Instant)> {
        let next = self.wipes.iter().min_by_key(|(_, at)| **at);
        next.map(|(driver, at)| (driver.clone(), *at))
    }
}

/// Deletes slices that are due, until shutdown.
pub async fn remove_slices(claims: Arc<Claims>, client: Client, node: String) {
    let mut changes = claims.changed.subscribe();
    let mut wait = rt::Backoff::new(MIN_DELAY, MAX_DELAY);
    loop {
        let due = claims.lock().next_due();
        let at = due.as_ref().map_or_else(|| Instant::now() + rt::FAR, |(_, at)| *at);
        tokio::select! {
            biased;
            () = tokio::time::sleep_until(at) => {}
            _ = changes.changed() => continue,
        }
        let Some((driver, at)) = due else { continue };
        match delete(&client, &node, &driver).await {
            Ok(()) => {
                tracing::info!(driver, "deleted the ResourceSlices of disconnected drivers");
                wait.reset();
                claims.lock().wipes.remove(&driver);
            }
            Err(error) => {
                tracing::warn!(driver, %error, "delete the ResourceSlices of disconnected drivers; trying again");
                let again = Instant::now() + wait.next(rt::random());
                // The driver may have reconnected meanwhile.
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
