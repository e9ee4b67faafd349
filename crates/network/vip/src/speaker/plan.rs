//! Decides which addresses this node announces, takes and releases.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    net::IpAddr,
    time::Duration,
};

use tokio::time::Instant;

/// The interval at which a node renews its Lease.
pub(super) const RENEW: Duration = Duration::from_millis(500);
/// The time since the start of the last renewal after which a node announces nothing.
pub(super) const FENCE: Duration = Duration::from_millis(1500);
/// The time without a renewal after which another node may take a node's addresses. It exceeds [`FENCE`] by the time
/// that a node needs to remove its addresses.
pub(super) const EXPIRE: Duration = Duration::from_secs(2);
/// The time that other nodes leave to the preferred holder of an address.
const PREFERENCE: Duration = Duration::from_millis(300);

/// An address of a Service.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ServiceAddress {
    /// `true` if this node may announce the address.
    pub(super) allowed: bool,
    /// The time when this node learnt of the address.
    pub(super) since: Instant,
}

/// The holder of an address.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Claim {
    /// The name of the node; empty after a release.
    pub(super) holder: String,
    /// The time when this node saw the last change.
    pub(super) changed: Instant,
}

/// The state as this node sees it.
pub(super) struct View<'a> {
    pub(super) node: &'a str,
    pub(super) now: Instant,
    pub(super) wanted: &'a BTreeMap<IpAddr, ServiceAddress>,
    pub(super) claims: &'a BTreeMap<IpAddr, Claim>,
    /// The times when this node saw the last renewals of other nodes' Leases.
    pub(super) heartbeats: &'a BTreeMap<String, Instant>,
    /// The start of this node's last renewal.
    pub(super) renewed: Option<Instant>,
    /// The time since which this node renews its Lease without a gap. Before it, the API may have been down, and other
    /// nodes could not renew their Leases either.
    pub(super) steady_since: Option<Instant>,
}

/// A change of an address's holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// This node becomes the holder.
    Take,
    /// The address has no holder any more.
    Release,
    /// No Service has the address any more.
    Delete,
}

/// The desired state of this node.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Plan {
    /// The addresses that this node has and announces.
    pub(super) announced: BTreeSet<IpAddr>,
    /// The writes to the API.
    pub(super) changes: BTreeMap<IpAddr, Change>,
}

pub(super) fn plan(view: &View<'_>) -> Plan {
    let mut plan = Plan::default();
    if view.renewed.is_none_or(|renewed| view.now.duration_since(renewed) >= FENCE) {
        return plan;
    }
    for (address, wanted) in view.wanted {
        let claim = view.claims.get(address);
        if claim.is_some_and(|claim| claim.holder == view.node) {
            if wanted.allowed {
                plan.announced.insert(*address);
            } else {
                plan.changes.insert(*address, Change::Release);
            }
        } else if wanted.allowed && view.may_take(*address, *wanted, claim) {
            plan.changes.insert(*address, Change::Take);
        }
    }
    for (address, claim) in view.claims {
        let is_due = claim.holder == view.node || claim.holder.is_empty() || view.is_lost(claim);
        if is_due && !view.wanted.contains_key(address) {
            plan.changes.insert(*address, Change::Delete);
        }
    }
    plan
}

impl View<'_> {
    fn may_take(&self, address: IpAddr, wanted: ServiceAddress, claim: Option<&Claim>) -> bool {
        let patience = if self.is_preferred(address) { Duration::ZERO } else { PREFERENCE };
        let free_since = match claim {
            None => wanted.since,
            Some(claim) if claim.holder.is_empty() => claim.changed.max(wanted.since),
            Some(claim) => match self.lost_since(claim) {
                Some(lost) => lost,
                None => return false,
            },
        };
        self.now >= free_since + patience
    }

    fn is_lost(&self, claim: &Claim) -> bool {
        self.lost_since(claim).is_some_and(|since| self.now >= since)
    }

    /// Returns the time from which the holder counts as lost, if its Lease stays as it is.
    fn lost_since(&self, claim: &Claim) -> Option<Instant> {
        let seen = self.heartbeats.get(&claim.holder).copied().unwrap_or(claim.changed);
        Some(seen.max(self.steady_since?) + EXPIRE)
    }

    /// Reports whether this node is the preferred holder among those that renew their Leases. The preference spreads
    /// the addresses over the nodes.
    fn is_preferred(&self, address: IpAddr) -> bool {
        let alive = self.heartbeats.iter().filter(|(_, seen)| self.now < **seen + EXPIRE);
        let own = rank(self.node, address);
        alive
            .map(|(node, _)| node)
            .filter(|node| *node != self.node)
            .all(|node| rank(node, address) < own)
    }
}

fn rank(node: &str, address: IpAddr) -> (u64, String) {
    let mut hasher = DefaultHasher::new();
    (node, address).hash(&mut hasher);
    (hasher.finish(), node.to_owned())
}
