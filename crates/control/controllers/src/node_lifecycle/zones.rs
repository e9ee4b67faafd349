//! The health of zones, which limits the rate of evictions.

use std::{collections::HashMap, time::Duration};

use api_meta::TokenBucket;
use tokio::time::Instant;

use crate::views::Node;

/// The rate at which nodes are tainted for eviction, per second.
const RATE: f64 = 0.1;
/// The rate in a large zone whose nodes are mostly unhealthy, per second.
const SLOW_RATE: f64 = 0.01;
const LARGE: usize = 50;
const MOST: f64 = 0.55;

/// The eviction rate of each zone.
#[derive(Debug, Default)]
pub(super) struct Zones {
    zones: HashMap<String, Zone>,
}

#[derive(Debug)]
struct Zone {
    rate: f64,
    left: TokenBucket,
    at: Instant,
}

impl Zone {
    fn new(now: Instant) -> Self {
        Self { rate: RATE, left: TokenBucket::new(1.0), at: now }
    }

    fn refill(&mut self, now: Instant) {
        self.left.refill(now - self.at, self.rate);
        self.at = now;
    }
}

/// Returns region and zone of a node, the unit of failure, in upstream's form.
pub(super) fn zone_of(node: &Node) -> String {
    let label = |key| node.metadata.labels.get(key).map_or("", String::as_str);
    match (label("topology.kubernetes.io/region"), label("topology.kubernetes.io/zone")) {
        ("", "") => String::new(),
        (region, zone) => format!("{region}:\0:{zone}"),
    }
}

impl Zones {
    /// Sets each zone's rate by the health of its nodes. If all zones are entirely unhealthy, the fault is likely on
    /// this side and nothing is evicted.
    pub(super) fn update(&mut self, nodes: impl Iterator<Item = (String, bool)>, now: Instant) {
        let mut counts: HashMap<String, (usize, usize)> = HashMap::new();
        for (zone, ready) in nodes {
            let (all, sick) = counts.entry(zone).or_default();
            *all += 1;
            *sick += usize::from(!ready);
        }
        let all_lost = counts.values().all(|(all, sick)| all == sick);
        self.zones.retain(|zone, _| counts.contains_key(zone));
        for (name, (all, sick)) in counts {
            let zone = self.zones.entry(name).or_insert_with(|| Zone::new(now));
            zone.refill(now);
            let mostly = sick > 2 && sick as f64 / all as f64 >= MOST;
            zone.rate = match () {
                () if all_lost => 0.0,
                () if all == sick => RATE,
                () if mostly && all > LARGE => SLOW_RATE,
                () if mostly => 0.0,
                () => RATE,
            };
        }
    }

    /// Permits the eviction of one node in the zone, or returns the time to wait before the next attempt.
    pub(super) fn permit(&mut self, zone: &str, now: Instant) -> Result<(), Duration> {
        let zone = self.zones.entry(zone.to_owned()).or_insert_with(|| Zone::new(now));
        zone.refill(now);
        if zone.rate > 0.0 && zone.left.take() {
            return Ok(());
        }
        Err(Duration::from_secs(5))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zones(sizes: &[(usize, usize)], now: Instant) -> Zones {
        let mut zones = Zones::default();
        let nodes = sizes.iter().enumerate().flat_map(|(zone, &(well, sick))| {
            (0..well + sick).map(move |n| (zone.to_string(), n < well))
        });
        zones.update(nodes, now);
        zones
    }

    #[tokio::test(start_paused = true)]
    async fn limits_evictions_to_one_node_per_ten_seconds() {
        let start = Instant::now();
        let mut zones = zones(&[(3, 1)], start);
        assert!(zones.permit("0", start).is_ok());
        assert!(zones.permit("0", start + Duration::from_secs(9)).is_err());
        assert!(zones.permit("0", start + Duration::from_secs(10)).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn stops_evictions_when_all_zones_fail() {
        let start = Instant::now();
        let ok = |sizes: &[(usize, usize)], zone| zones(sizes, start).permit(zone, start).is_ok();
        assert!(!ok(&[(2, 3)], "0"), "a small zone mostly sick");
        assert!(ok(&[(20, 40)], "0"), "a large zone is evicted slowly");
        assert!(!ok(&[(0, 3), (0, 2)], "0"), "everything sick");
        assert!(ok(&[(0, 3), (2, 0)], "0"), "one zone lost, another well");
        assert!(!ok(&[(0, 1)], "0"), "a single node is everything");
    }
}
