//! The zones' processors, summed once for all Services, and the outcomes of allocations that Services have Events of.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use client::WorkQueue;
use parking_lot::Mutex;

use super::hints::{self, Preference, Unbalanced, Zones};
use crate::{
    shared::Watched,
    views::{Node, Service},
};

/// The delay after a change of nodes, so that many changes cause one allocation.
const DELAY: Duration = Duration::from_secs(1);

/// The outcomes by address family.
type Outcomes = BTreeMap<String, Result<(), Unbalanced>>;

/// An Event about the allocation of a Service's endpoints.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Notice {
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) is_warning: bool,
}

#[derive(Default)]
pub(super) struct Balance {
    zones: Mutex<Option<Arc<Zones>>>,
    /// By the key of the Service.
    reported: Mutex<HashMap<String, Outcomes>>,
}

impl Balance {
    /// Requeues the Services with proportional hints when the processors of a zone change.
    pub(super) fn follow(
        self: &Arc<Self>,
        nodes: &Watched<Node>,
        services: &Watched<Service>,
        queue: &WorkQueue<String>,
    ) {
        let (own, services, queue) = (self.clone(), services.clone(), queue.clone());
        nodes.on(move |change| {
            let before = change.old.and_then(|node| hints::facts(node));
            if before == change.new.and_then(|node| hints::facts(node)) {
                return;
            }
            *own.zones.lock() = None;
            for service in services.list() {
                if Preference::of(&service) == Preference::Proportional {
                    queue.add_after(service.metadata.key(), DELAY);
                }
            }
        });
    }

    /// Returns the processors of each zone.
    pub(super) fn zones(&self, nodes: &Watched<Node>) -> Arc<Zones> {
        let sum = || Arc::new(hints::zones(nodes.list().iter().map(|node| &**node)));
        self.zones.lock().get_or_insert_with(sum).clone()
    }

    /// Records the outcomes for a Service, and returns the Events about the changed ones.
    pub(super) fn record(&self, service: &str, outcomes: Outcomes) -> Vec<Notice> {
        let mut reported = self.reported.lock();
        let before = reported.remove(service).unwrap_or_default();
        let changed = outcomes.iter().filter(|(family, now)| before.get(*family) != Some(now));
        let mut notices: Vec<_> = changed.map(|(family, now)| notice(family, *now)).collect();
        if outcomes.is_empty() && before.values().any(Result::is_ok) {
            notices.push(Notice {
                reason: "TopologyAwareHintsDisabled",
                message: "Topology Aware Hints has been disabled".to_owned(),
                is_warning: true,
            });
        }
        if !outcomes.is_empty() {
            reported.insert(service.to_owned(), outcomes);
        }
        notices
    }

    /// Forgets a deleted Service.
    pub(super) fn forget(&self, service: &str) {
        self.reported.lock().remove(service);
    }
}

fn notice(family: &str, outcome: Result<(), Unbalanced>) -> Notice {
    let (reason, text) = match outcome {
        Ok(()) => ("TopologyAwareHintsEnabled", "Topology Aware Hints has been enabled".to_owned()),
        Err(why) => ("TopologyAwareHintsDisabled", why.to_string()),
    };
    let message = format!("{text}, addressType: {family}");
    Notice { reason, message, is_warning: outcome.is_err() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_only_changed_outcomes() {
        let balance = Balance::default();
        let of = |outcome| BTreeMap::from([("IPv4".to_owned(), outcome)]);
        let texts = |outcomes: Outcomes| -> Vec<String> {
            balance.record("default/web", outcomes).into_iter().map(|n| n.message).collect()
        };
        let few = "Insufficient number of endpoints, addressType: IPv4";
        assert_eq!(texts(of(Err(Unbalanced::Endpoints))), [few]);
        assert!(texts(of(Err(Unbalanced::Endpoints))).is_empty());
        assert_eq!(texts(of(Ok(()))), ["Topology Aware Hints has been enabled, addressType: IPv4"]);
        assert_eq!(texts(Outcomes::new()), ["Topology Aware Hints has been disabled"]);
        assert!(texts(Outcomes::new()).is_empty() && balance.reported.lock().is_empty());
    }
}
