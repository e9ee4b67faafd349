//! Plans the addresses of LoadBalancer Services from a snapshot of Services and nodes.
//!
//! Invariants:
//! - No two Services get the same port of a node's address, and no two Services get the same address of a range.
//! - A Service keeps its addresses while they are valid, whatever other Services come and go.

use super::{
    model::{Decision, Snapshot, is_balanced, is_released},
    nodes, ranges,
};
use crate::{config::LoadBalancerSource, views::Service};

/// Plans all Services at once, because each port and address has one owner.
pub(super) fn plan<'a>(snapshot: &Snapshot<'a>) -> Vec<(&'a Service, Decision)> {
    let mut balanced: Vec<&Service> =
        snapshot.services.iter().copied().filter(|service| is_balanced(service)).collect();
    // Older Services win, as a Pod that was scheduled first keeps its host ports.
    balanced.sort_by_key(|service| (service.metadata.creation_timestamp, service.metadata.key()));
    let mut decisions = match snapshot.source {
        LoadBalancerSource::Nodes => nodes::plan(snapshot, &balanced),
        LoadBalancerSource::Ranges(ranges) => ranges::plan(snapshot, &balanced, ranges),
    };
    let released = snapshot.services.iter().filter(|service| is_released(service));
    decisions.extend(released.map(|service| (*service, Decision::Release)));
    decisions
}

#[cfg(test)]
mod tests;
