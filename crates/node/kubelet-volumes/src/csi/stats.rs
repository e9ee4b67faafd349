//! Usage of volumes as reported by their drivers. No other source knows it for block devices and shared file systems.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream};

use super::files::{Layout, PodVolume};
use crate::drivers::Drivers;

/// The timeout of a driver's answer, so that a request for the kubelet's metrics does not time out.
const ANSWER: Duration = Duration::from_secs(5);
/// The number of concurrent calls.
const CONCURRENCY: usize = 8;

/// A CSI volume of a Pod.
#[derive(Clone, Debug)]
pub struct PublishedVolume {
    /// The PersistentVolume's name, or the volume's name in the Pod.
    pub name: String,
    driver: String,
    handle: String,
    target: PathBuf,
}

/// A driver's answer about a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatsResponse {
    /// The usage of the volume.
    Figures(csi::VolumeStats),
    /// The driver does not report usage.
    Nothing,
    /// The driver did not answer, or answered with an error.
    NotAnswered,
}

/// Returns the CSI volumes of a Pod, as recorded below the kubelet's root.
pub fn published_volumes(root: &Path, uid: &str) -> Vec<PublishedVolume> {
    // An unreadable record is skipped; mounting and unmounting report the error.
    let held = Layout::new(root).of_pod(uid).unwrap_or_default();
    let published = |PodVolume { record, target, .. }: PodVolume| PublishedVolume {
        name: record.spec_name,
        driver: record.driver,
        handle: record.handle,
        target,
    };
    held.into_iter().map(published).collect()
}

/// The state of a driver during one round of calls.
struct DriverQuery {
    /// `None` if the driver does not report usage.
    driver: Option<csi::Driver>,
    /// `true` if the driver did not answer. It is not called again in this round.
    silent: AtomicBool,
}

impl DriverQuery {
    async fn new(drivers: &Drivers, name: &str) -> Self {
        let mut query = Self { driver: None, silent: AtomicBool::new(true) };
        let Some(driver) = drivers.driver(name) else { return query };
        let driver = driver.with_timeout(ANSWER);
        match driver.capabilities().await {
            Ok(can) => {
                query.driver = can.volume_stats.then_some(driver);
                query.silent = AtomicBool::new(false);
            }
            Err(error) => {
                tracing::debug!(driver = name, %error, "read the capabilities of a CSI driver for volume statistics")
            }
        }
        query
    }

    async fn usage_of(&self, volume: &PublishedVolume) -> StatsResponse {
        if self.silent.load(Ordering::Relaxed) {
            return StatsResponse::NotAnswered;
        }
        let Some(driver) = &self.driver else { return StatsResponse::Nothing };
        match driver.volume_stats(&volume.handle, &volume.target).await {
            Ok(Some(stats)) => StatsResponse::Figures(stats),
            Ok(None) => StatsResponse::Nothing,
            Err(error) => {
                // An error from the driver is an answer, and the next volume may succeed.
                self.silent.fetch_or(!error.is_final(), Ordering::Relaxed);
                tracing::debug!(volume = volume.name, %error, "read the statistics of a CSI volume");
                StatsResponse::NotAnswered
            }
        }
    }
}

/// Calls the drivers for the usage of their volumes. The answers are in the order of the volumes.
pub async fn query_usage(drivers: &Drivers, volumes: &[&PublishedVolume]) -> Vec<StatsResponse> {
    let names: BTreeSet<&str> = volumes.iter().map(|volume| volume.driver.as_str()).collect();
    // The futures are boxed with explicit types, because the compiler cannot prove otherwise that they are `Send`.
    let mut asking: Vec<BoxFuture<'_, (&str, DriverQuery)>> = Vec::new();
    for name in names {
        asking.push(async move { (name, DriverQuery::new(drivers, name).await) }.boxed());
    }
    let queries: BTreeMap<&str, DriverQuery> =
        stream::iter(asking).buffer_unordered(CONCURRENCY).collect().await;
    let mut answers: Vec<BoxFuture<'_, StatsResponse>> = Vec::new();
    for volume in volumes {
        if let Some(query) = queries.get(volume.driver.as_str()) {
            answers.push(query.usage_of(volume).boxed());
        }
    }
    stream::iter(answers).buffered(CONCURRENCY).collect().await
}
