//! The health of zones, which limits the rate of evictions.

use std::{collections::HashMap, time::Duration};

use api_meta::TokenBucket;
use tokio::time::Instant;

use crate::{config::EvictionRates, views::Node};

/// The eviction rate of each zone.
#[derive(Debug, Default)]
pub(super) struct Zones {
    rates: EvictionRates,
    zones: HashMap<String, Zone>,
}

#[derive(Debug)]
struct Zone {
    rate: f64,
    left: TokenBucket,
    at: Instant,
}

impl Zone {
    fn new(rate: f64, now: Instant) -> Self {
        Self { rate, left: TokenBucket::new(1.0), at: now }
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
    pub(super) fn new(rates: EvictionRates) -> Self {
        Self { rates, zones: HashMap::new() }
    }

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
        let rates = self.rates;
        for (name, (all, sick)) in counts {
            let zone = self.zones.entry(name).or_insert_with(|| Zone::new(rates.usual, now));
            zone.refill(now);
            let mostly = sick > 2 && sick as f64 / all as f64 >= rates.threshold;
            zone.rate = match () {
                () if all_lost => 0.0,
                () if all == sick => rates.usual,
                () if mostly && all > rates.large => rates.secondary,
                () if mostly => 0.0,
                () => rates.usual,
            };
        }
    }

    /// Permits the eviction of one node in the zone, or returns the time to wait before the next attempt.
    pub(super) fn permit(&mut self, zone: &str, now: Instant) -> Result<(), Duration> {
        let usual = self.rates.usual;
        let zone = self.zones.entry(zone.to_owned()).or_insert_with(|| Zone::new(usual, now));
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
        zones_at(EvictionRates::default(), sizes, now)
    }

    fn zones_at(rates: EvictionRates, sizes: &[(usize, usize)], now: Instant) -> Zones {
        let mut zones = Zones::new(rates);
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

    #[tokio::test(start_paused = true)]
    async fn applies_configured_rates() {
        let start = Instant::now();
        let fast = EvictionRates { usual: 1.0, ..EvictionRates::default() };
        let mut zones = zones_at(fast, &[(3, 1)], start);
        assert!(zones.permit("0", start).is_ok());
        assert!(zones.permit("0", start + Duration::from_secs(1)).is_ok());
        let ok = |rates, sizes: &[(usize, usize)]| {
            zones_at(rates, sizes, start).permit("0", start).is_ok()
        };
        let usual = EvictionRates::default();
        assert!(!ok(EvictionRates { usual: 0.0, ..usual }, &[(3, 1)]), "evictions are off");
        assert!(ok(EvictionRates { large: 4, ..usual }, &[(2, 3)]), "five nodes are many");
        assert!(ok(EvictionRates { threshold: 0.9, ..usual }, &[(2, 3)]), "three of five are few");
        assert!(!ok(EvictionRates { threshold: 0.3, ..usual }, &[(6, 4)]), "four of ten are many");
    }
}
