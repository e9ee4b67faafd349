//! Keeps the number of volumes that the node can have, `allocatable.count` in the CSINode, up to date.
//!
//! A driver that wants this has `nodeAllocatableUpdatePeriodSeconds` in its CSIDriver (KEP-4876). It is asked at that
//! interval, and at once when a volume cannot be attached because the node has too many.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use client::{Client, Informer, ListOptions, Resource};
use futures_util::future::join_all;
use k8s_openapi::api::storage::v1::CSIDriver;
use kubelet_volumes::Drivers;
use tokio::time::Instant;

use crate::plugins::csi_node;

/// The shortest interval, as the API server has it.
const MIN_PERIOD: Duration = Duration::from_secs(10);
/// The time for a driver's answer, so that a silent driver does not delay the others for long.
const ANSWER: Duration = Duration::from_secs(5);

/// The volume limits of one node.
#[derive(Clone)]
pub struct VolumeLimits {
    client: Client,
    node_name: String,
    drivers: Arc<Drivers>,
    declared: Informer<CSIDriver>,
}

impl VolumeLimits {
    /// Starts to watch CSIDrivers.
    pub fn new(client: Client, node_name: &str, drivers: Arc<Drivers>, tasks: &rt::Tasks) -> Self {
        let options = ListOptions::default();
        let declared = Informer::start(&client, Resource::CSI_DRIVERS, options, tasks, |_| {});
        Self { client, node_name: node_name.to_owned(), drivers, declared }
    }

    /// Updates the limits until shutdown.
    pub async fn run(self) {
        self.declared.synced().await;
        let mut exhausted = self.drivers.exhausted();
        let mut due = BTreeMap::new();
        loop {
            let now = Instant::now();
            let urgent = self.drivers.take_exhausted();
            let periods = self.periods();
            let names = due_drivers(&mut due, &periods, &urgent, now);
            join_all(names.iter().map(|name| self.update(name))).await;
            let next = due.values().min().copied().unwrap_or(now + MIN_PERIOD);
            tokio::select! {
                () = tokio::time::sleep_until(next.min(now + MIN_PERIOD)) => {}
                _ = exhausted.changed() => {}
            }
        }
    }

    /// Returns the interval of each registered driver that has one.
    fn periods(&self) -> BTreeMap<String, Duration> {
        let names = self.drivers.names().into_iter();
        let period = |name: String| {
            let declared = self.declared.get(&name)?;
            let seconds = declared.spec.node_allocatable_update_period_seconds?;
            let seconds = u64::try_from(seconds).unwrap_or_default();
            Some((name, Duration::from_secs(seconds).max(MIN_PERIOD)))
        };
        names.filter_map(period).collect()
    }

    /// Asks a driver for its limit and writes it to the CSINode.
    async fn update(&self, name: &str) {
        let Some(driver) = self.drivers.driver(name) else { return };
        let count = match driver.with_timeout(ANSWER).node_info().await {
            Ok(info) => info.max_volumes_per_node,
            Err(error) => {
                tracing::warn!(driver = name, %error, "ask a CSI driver how many volumes the node can have");
                return;
            }
        };
        if let Err(error) = csi_node::set_count(&self.client, &self.node_name, name, count).await {
            tracing::warn!(driver = name, %error, "write the number of volumes to the CSINode");
        }
    }
}

/// Returns the drivers that are due for a query, and plans their next times.
fn due_drivers(
    due: &mut BTreeMap<String, Instant>,
    periods: &BTreeMap<String, Duration>,
    urgent: &BTreeSet<String>,
    now: Instant,
) -> Vec<String> {
    due.retain(|name, _| periods.contains_key(name));
    let mut names = Vec::new();
    for (name, period) in periods {
        // A shorter interval counts at once.
        let at = due.entry(name.clone()).or_insert(now + *period);
        *at = (*at).min(now + *period);
        if *at <= now || urgent.contains(name) {
            *at = now + *period;
            names.push(name.clone());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asks_at_intervals_and_after_exhaustion() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let periods = |seconds: &[(&str, u64)]| -> BTreeMap<String, Duration> {
            let period =
                |(name, seconds): &(&str, u64)| ((*name).to_owned(), Duration::from_secs(*seconds));
            seconds.iter().map(period).collect()
        };
        let (none, a) = (BTreeSet::new(), BTreeSet::from(["a".to_owned(), "unknown".to_owned()]));
        let mut due = BTreeMap::new();
        let mut ask = |list: &[(&str, u64)], urgent: &BTreeSet<String>, seconds| {
            due_drivers(&mut due, &periods(list), urgent, at(seconds))
        };
        let both = &[("a", 10), ("b", 30)][..];
        assert!(ask(both, &none, 0).is_empty(), "registration has just told the limit");
        assert!(ask(both, &none, 9).is_empty());
        assert_eq!(ask(both, &none, 10), ["a"]);
        assert_eq!(ask(both, &a, 12), ["a"]);
        assert!(ask(both, &none, 21).is_empty(), "the interval begins anew");
        assert_eq!(ask(both, &none, 30), ["a", "b"]);
        assert!(ask(&[("b", 1000)], &a, 31).is_empty(), "without an interval there is no update");
        assert!(ask(&[("b", 10)], &none, 41).is_empty());
        assert_eq!(ask(&[("b", 10)], &none, 51), ["b"], "a shorter interval counts at once");
    }
}
