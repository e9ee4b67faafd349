//! Decides the hints of a Service's endpoints: the zones and nodes whose traffic each endpoint should get.
//!
//! `spec.trafficDistribution` hints each endpoint to its own zone or node (KEP-4444, KEP-3015). The annotation
//! `service.kubernetes.io/topology-mode: Auto` wins over it and spreads the endpoints over the zones by their
//! processors (KEP-2433).

use std::collections::{BTreeMap, BTreeSet};

use super::slice::{Endpoint, Hint, Hints};
use crate::views::{Node, Service, is_true};

/// The label of a Node with its zone.
pub(super) const ZONE: &str = "topology.kubernetes.io/zone";

/// The labels of Nodes whose processors do not count.
const CONTROL_PLANE: [&str; 2] =
    ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];

/// The preference for close endpoints in a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Preference {
    /// All endpoints are equal.
    None,
    /// Endpoints in the client's zone.
    SameZone,
    /// Endpoints on the client's node, then those in its zone.
    SameNode,
    /// Endpoints that are allocated to the client's zone, in proportion to the processors there.
    Proportional,
}

impl Preference {
    pub(super) fn of(service: &Service) -> Self {
        let annotations = &service.metadata.annotations;
        let mode = annotations
            .get("service.kubernetes.io/topology-mode")
            .or_else(|| annotations.get("service.kubernetes.io/topology-aware-hints"));
        if mode.is_some_and(|mode| mode == "Auto" || mode == "auto") {
            return Self::Proportional;
        }
        match service.spec.traffic_distribution.as_deref() {
            Some("PreferClose" | "PreferSameZone") => Self::SameZone,
            Some("PreferSameNode") => Self::SameNode,
            _ => Self::None,
        }
    }
}

/// The reason why endpoints have no hints although the Service requests them. The texts are those of upstream's Events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unbalanced {
    #[error(
        "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes"
    )]
    Nodes,
    #[error("Nodes only ready in one zone")]
    OneZone,
    #[error("One or more endpoints do not have a zone specified")]
    NoZone,
    #[error("Insufficient number of endpoints")]
    Endpoints,
    #[error(
        "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold"
    )]
    Overload,
}

/// The allocatable processors of each zone, in thousandths.
pub(super) type Zones = Result<BTreeMap<String, u64>, Unbalanced>;

/// Sums the processors of the ready nodes by zone. Nodes of the control plane do not count.
pub(super) fn zones<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> Zones {
    let mut zones: BTreeMap<String, u64> = BTreeMap::new();
    for node in nodes.into_iter().filter(|node| counts(node)) {
        let zone = node.metadata.labels.get(ZONE).filter(|zone| !zone.is_empty());
        let cpu = node.status.allocatable.cpu.map_or(0, |cpu| cpu.milli_value());
        let (Some(zone), Ok(cpu @ 1..)) = (zone, u64::try_from(cpu)) else {
            return Err(Unbalanced::Nodes);
        };
        let sum = zones.entry(zone.clone()).or_default();
        *sum = sum.saturating_add(cpu);
    }
    if zones.len() < 2 { Err(Unbalanced::OneZone) } else { Ok(zones) }
}

fn counts(node: &Node) -> bool {
    let labels = &node.metadata.labels;
    is_true(&node.status.conditions, "Ready")
        && !CONTROL_PLANE.iter().any(|label| labels.contains_key(*label))
}

/// The facts of a Node that [`zones`] reads.
pub(super) fn facts(node: &Node) -> Option<(Option<&String>, i64)> {
    let cpu = node.status.allocatable.cpu.map_or(0, |cpu| cpu.milli_value());
    counts(node).then(|| (node.metadata.labels.get(ZONE), cpu))
}

/// Hints an endpoint to its own zone, and with `node` to its own node.
pub(super) fn own_place(endpoint: &Endpoint, node: bool) -> Option<Hints> {
    let hint = |name: &String| Hint { name: name.clone() };
    let hints = Hints {
        for_zones: endpoint.zone.iter().map(hint).collect(),
        for_nodes: endpoint.node_name.iter().filter(|_| node).map(hint).collect(),
    };
    Some(hints).filter(|hints| *hints != Hints::default())
}

/// Hints the ready endpoints to zones in proportion to the processors there, and clears the hints of the others.
///
/// An endpoint stays in its own zone unless another zone would have too few. No zone's endpoints get more than 120 % of
/// the traffic that an even spread would bring them; if that is impossible, no endpoint has a hint.
pub(super) fn allocate(endpoints: &mut [&mut Endpoint], zones: &Zones) -> Result<(), Unbalanced> {
    endpoints.iter_mut().for_each(|endpoint| endpoint.hints = None);
    let zones = zones.as_ref().map_err(|reason| *reason)?;
    let mut ready: Vec<_> = endpoints.iter_mut().filter(|e| e.conditions.ready).collect();
    if ready.iter().any(|endpoint| endpoint.zone.is_none()) {
        return Err(Unbalanced::NoZone);
    }
    // The same endpoints move at each call, whatever order they come in.
    let identity =
        |e: &Endpoint| (e.target_ref.as_ref().map(|t| t.uid.clone()), e.addresses.clone());
    ready.sort_by_cached_key(|endpoint| identity(endpoint));
    let own: Vec<&str> = ready.iter().filter_map(|endpoint| endpoint.zone.as_deref()).collect();
    let allocation: Vec<String> = spread(&own, zones)?.into_iter().map(str::to_owned).collect();
    for (endpoint, name) in ready.into_iter().zip(allocation) {
        endpoint.hints = Some(Hints { for_zones: vec![Hint { name }], for_nodes: Vec::new() });
    }
    Ok(())
}

/// A zone during the allocation.
struct Share<'z> {
    name: &'z str,
    cpu: u128,
    minimum: usize,
    /// The endpoints that are allocated to the zone.
    members: Vec<usize>,
}

impl Share<'_> {
    /// Returns the excess over the even spread, in endpoints times the processors of all zones.
    fn excess(&self, endpoints: usize, cpu: u128) -> i128 {
        let (have, due) = (self.members.len() as u128 * cpu, self.cpu * endpoints as u128);
        have.cast_signed() - due.cast_signed()
    }
}

/// Returns the zone of each endpoint, given the zones that they run in.
fn spread<'z>(own: &[&str], zones: &'z BTreeMap<String, u64>) -> Result<Vec<&'z str>, Unbalanced> {
    let count = own.len();
    if count < zones.len() {
        return Err(Unbalanced::Endpoints);
    }
    let total: u128 = zones.values().map(|cpu| u128::from(*cpu)).sum();
    let mut shares: Vec<Share<'_>> = zones
        .iter()
        .map(|(name, cpu)| {
            let cpu = u128::from(*cpu);
            // The even spread, divided by 1.2.
            let minimum = (cpu * count as u128 * 5).div_ceil(total * 6);
            let minimum = usize::try_from(minimum).unwrap_or(usize::MAX);
            Share { name, cpu, minimum, members: Vec::new() }
        })
        .collect();
    let least = shares.iter().fold(0_usize, |sum, share| sum.saturating_add(share.minimum));
    if least > count {
        return Err(Unbalanced::Overload);
    }
    let mut homeless = Vec::new();
    for (endpoint, zone) in own.iter().enumerate() {
        match shares.binary_search_by(|share| share.name.cmp(zone)) {
            Ok(at) => shares[at].members.push(endpoint),
            // No ready node of this zone counts.
            Err(_) => homeless.push(endpoint),
        }
    }
    balance(&mut shares, homeless, count, total);
    let mut allocation = vec![""; count];
    for share in &shares {
        share.members.iter().for_each(|endpoint| allocation[*endpoint] = share.name);
    }
    Ok(allocation)
}

/// Moves endpoints to the zones that have less than their minimum, from those with the greatest excess.
fn balance(shares: &mut [Share<'_>], homeless: Vec<usize>, count: usize, total: u128) {
    let mut order: BTreeSet<(i128, usize)> =
        shares.iter().enumerate().map(|(at, share)| (share.excess(count, total), at)).collect();
    for endpoint in homeless {
        let Some((_, at)) = order.pop_first() else { return };
        shares[at].members.push(endpoint);
        order.insert((shares[at].excess(count, total), at));
    }
    let (mut short, mut donors): (Vec<_>, BTreeSet<_>) = (Vec::new(), BTreeSet::new());
    for (excess, at) in order {
        if shares[at].members.len() < shares[at].minimum {
            short.push(at);
        } else {
            donors.insert((excess, at));
        }
    }
    for at in short {
        while shares[at].members.len() < shares[at].minimum {
            // The minimums' sum is at most the number of endpoints, so a zone has one to spare.
            let Some((_, donor)) = donors.pop_last() else { return };
            if shares[donor].members.len() <= shares[donor].minimum {
                continue;
            }
            let moved = shares[donor].members.pop();
            shares[at].members.extend(moved);
            donors.insert((shares[donor].excess(count, total), donor));
        }
    }
}

#[cfg(test)]
mod tests;
