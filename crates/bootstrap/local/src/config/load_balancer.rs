//! The addresses of LoadBalancer Services (`--load-balancer-range`).

use std::{net::IpAddr, str::FromStr};

use api_config::kubeadm::Arg;
use api_meta::special;
use net_core::Cidr;
use serde::{Deserialize, Serialize};

/// The source of the addresses of LoadBalancer Services.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LoadBalancer {
    /// `true` if another controller serves LoadBalancer Services.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub disabled: bool,
    /// The ranges of addresses that nodes announce. Without a range, Services have the nodes' own addresses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<String>,
}

/// The error for a range that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadBalancerError {
    #[error(
        "load balancer range {range:?}: {source}; write ranges with commas between them; --load-balancer-range also \
         accepts nodes and none"
    )]
    Form { range: String, source: api_meta::CidrError },
    #[error("load balancer range {range} overlaps {other}, the range of {owner}; choose another")]
    Overlap { range: Cidr, other: Cidr, owner: &'static str },
    #[error("load balancer range {range} contains {address}, {owner}; choose another")]
    Contains { range: Cidr, address: IpAddr, owner: &'static str },
    #[error("load balancer range {0} is not a range of unicast addresses; choose another")]
    Special(Cidr),
}

impl FromStr for LoadBalancer {
    type Err = LoadBalancerError;

    /// Parses the value of the flag: ranges, `nodes` for the nodes' own addresses, or `none`.
    fn from_str(text: &str) -> Result<Self, LoadBalancerError> {
        match text {
            "nodes" => Ok(Self::default()),
            "none" => Ok(Self { disabled: true, ranges: Vec::new() }),
            list => {
                let ranges = list.split(',').map(str::to_owned).collect();
                let parsed = Self { disabled: false, ranges };
                parsed.cidrs()?;
                Ok(parsed)
            }
        }
    }
}

impl LoadBalancer {
    /// Returns the ranges.
    pub(crate) fn cidrs(&self) -> Result<Vec<Cidr>, LoadBalancerError> {
        let parse = |range: &String| {
            range.parse().map_err(|source| LoadBalancerError::Form { range: range.clone(), source })
        };
        self.ranges.iter().map(parse).collect()
    }

    /// Returns the flags of a controller manager in a static Pod.
    pub(crate) fn flags(&self) -> Vec<Arg> {
        if self.disabled {
            return Vec::new();
        }
        let all = "*,bootstrapsigner,tokencleaner,service-lb-controller";
        let mut flags = vec![Arg::new("controllers", all)];
        if !self.ranges.is_empty() {
            flags.push(Arg::new("load-balancer-ranges", self.ranges.join(",")));
        }
        flags
    }

    /// Checks that the ranges are free.
    pub(crate) fn check(&self, host: &HostNetwork) -> Result<(), LoadBalancerError> {
        let cidrs = self.cidrs()?;
        for (index, range) in cidrs.iter().copied().enumerate() {
            if special(range.network().address).is_some() || special(range.last()).is_some() {
                return Err(LoadBalancerError::Special(range));
            }
            let earlier = cidrs[..index].iter().map(|other| (*other, "load balancers"));
            let mut others = host.ranges.iter().copied().chain(earlier);
            let overlaps = |other: Cidr| range.covers(other) || other.covers(range);
            if let Some((other, owner)) = others.find(|(other, _)| overlaps(*other)) {
                return Err(LoadBalancerError::Overlap { range, other, owner });
            }
            let taken = host.addresses.iter().find(|(address, _)| range.contains(*address));
            if let Some((address, owner)) = taken.copied() {
                return Err(LoadBalancerError::Contains { range, address, owner });
            }
        }
        Ok(())
    }
}

/// The ranges and addresses that the cluster and this host use, with their owners.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostNetwork {
    /// The ranges.
    pub(crate) ranges: Vec<(Cidr, &'static str)>,
    /// The addresses.
    pub(crate) addresses: Vec<(IpAddr, &'static str)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> HostNetwork {
        let range = |text: &str, owner| (text.parse().unwrap(), owner);
        let address = |text: &str, owner| (text.parse().unwrap(), owner);
        HostNetwork {
            ranges: vec![
                range("10.244.0.0/16", "Pods"),
                range("10.96.0.0/12", "Services"),
                range("fd00:10:244::/56", "Pods"),
            ],
            addresses: vec![
                address("192.0.2.10", "an address of this host"),
                address("192.0.2.1", "a gateway of this host"),
                address("172.29.0.2", "the address of a node"),
            ],
        }
    }

    #[test]
    fn accepts_free_ranges_and_refuses_collisions_by_owner() {
        for (text, expected) in [
            ("nodes", ""),
            ("none", ""),
            ("192.0.2.240/28", ""),
            ("192.0.2.240/28,2001:db8::/120", ""),
            ("172.29.0.128/25", ""),
            ("10.244.7.0/24", "overlaps 10.244.0.0/16, the range of Pods"),
            ("10.0.0.0/8", "overlaps 10.244.0.0/16, the range of Pods"),
            ("10.100.0.0/24", "overlaps 10.96.0.0/12, the range of Services"),
            ("fd00:10:244::/64", "the range of Pods"),
            ("192.0.2.0/28", "contains 192.0.2.10, an address of this host"),
            ("192.0.2.0/29", "contains 192.0.2.1, a gateway of this host"),
            ("172.29.0.0/24", "contains 172.29.0.2, the address of a node"),
            ("198.51.100.0/25,198.51.100.64/26", "the range of load balancers"),
            ("127.0.0.0/8", "unicast"),
            ("224.0.0.0/24", "unicast"),
            ("169.254.1.0/24", "unicast"),
            ("0.0.0.0/0", "unicast"),
            ("fe80::/64", "unicast"),
            ("", "not a CIDR"),
            ("192.0.2.240/28,", "not a CIDR"),
            ("all", "not a CIDR"),
        ] {
            let parsed = text.parse::<LoadBalancer>();
            let result = parsed.and_then(|parsed| parsed.check(&host()));
            let message = result.err().map(|error| error.to_string()).unwrap_or_default();
            assert_eq!(message.is_empty(), expected.is_empty(), "{text}: {message}");
            assert!(message.contains(expected), "{text}: {message}");
        }
    }
}
