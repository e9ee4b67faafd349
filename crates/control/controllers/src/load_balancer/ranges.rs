//! Gives each Service an address of its own from ranges, one of each IP family.

use std::{collections::BTreeSet, net::IpAddr};

use api_meta::{Cidr, Family};

use super::model::{Decision, Shortage, Snapshot, families, requested, sort};
use crate::views::Service;

pub(super) fn plan<'a>(
    snapshot: &Snapshot<'a>,
    services: &[&'a Service],
    ranges: &[Cidr],
) -> Vec<(&'a Service, Decision)> {
    let nodes = snapshot.nodes.iter().flat_map(|node| node.status.internal_ips());
    let mut used: BTreeSet<IpAddr> =
        nodes.chain(snapshot.api_servers.iter().map(|server| server.ip())).collect();
    // Services keep their addresses before any of them gets a new one.
    let kept: Vec<_> =
        services.iter().map(|service| keep(snapshot, service, ranges, &mut used)).collect();
    let mut free = Family::ALL.map(|family| candidates(ranges, family));
    let mut decisions = Vec::new();
    for (service, mut addresses) in services.iter().zip(kept) {
        let families = families(service);
        let mut shortage = None;
        for family in &families {
            if addresses.iter().any(|ip| Family::of(*ip) == *family) {
                continue;
            }
            let requested = requested(service).filter(|ip| Family::of(*ip) == *family);
            let found = match requested {
                Some(ip) if !is_in(ranges, ip) => Err(Shortage::OutsideRanges(ip)),
                Some(ip) if !used.insert(ip) => Err(Shortage::InUse(ip)),
                Some(ip) => Ok(ip),
                None => free[usize::from(*family == Family::V6)]
                    .find(|ip| used.insert(*ip))
                    .ok_or_else(|| missing(ranges, *family)),
            };
            match found {
                Ok(ip) => addresses.push(ip),
                Err(cause) => shortage = shortage.or(Some(cause)),
            }
        }
        sort(&mut addresses, &families);
        decisions.push((*service, Decision::Assign { addresses, shortage }));
    }
    decisions
}

/// Returns the Service's current addresses that are still valid, at most one of each family.
fn keep(
    snapshot: &Snapshot<'_>,
    service: &Service,
    ranges: &[Cidr],
    used: &mut BTreeSet<IpAddr>,
) -> Vec<IpAddr> {
    let (mut open, requested) = (families(service), requested(service));
    let mut kept = snapshot.current(service);
    kept.retain(|ip| {
        let family = Family::of(*ip);
        let is_requested =
            requested.is_none_or(|wanted| Family::of(wanted) != family || wanted == *ip);
        let valid =
            open.contains(&family) && is_requested && is_in(ranges, *ip) && used.insert(*ip);
        if valid {
            open.retain(|other| *other != family);
        }
        valid
    });
    kept
}

fn missing(ranges: &[Cidr], family: Family) -> Shortage {
    if ranges.iter().any(|range| range.family() == family) {
        Shortage::RangeExhausted(family)
    } else {
        Shortage::NoRange(family)
    }
}

fn is_in(ranges: &[Cidr], ip: IpAddr) -> bool {
    ranges.iter().any(|range| range.contains(ip))
}

/// Returns the addresses that may be allocated, in order. They are computed one by one, because ranges may be huge.
fn candidates(ranges: &[Cidr], family: Family) -> impl Iterator<Item = IpAddr> {
    let ranges = ranges.iter().filter(move |range| range.family() == family);
    ranges.flat_map(|range| (0..).map_while(|n| range.nth(n)).filter(|ip| is_usable(*range, *ip)))
}

/// Leaves out addresses that may be those of a network, of a broadcast or of any router.
fn is_usable(range: Cidr, ip: IpAddr) -> bool {
    match ip {
        _ if range.host_bits() < 2 => true,
        IpAddr::V4(v4) => !matches!(v4.octets()[3], 0 | 255),
        IpAddr::V6(_) => ip != range.network().address,
    }
}
