//! Subnets of a cluster's spec.

use api_meta::{Cidr, Tree as _};
use kops_api::overlap;
use serde_json::Value;

use crate::error::Error;

/// Rejects subnets that overlap, which upstream's validation permits for each cloud.
pub(crate) fn check_subnets(spec: &Value) -> Result<(), Error> {
    let subnets = spec.items("networking.subnets").iter();
    let range =
        |subnet: &Value| Some((subnet.text("name").to_owned(), subnet.text("cidr").parse().ok()?));
    let mut ranges: Vec<(String, Cidr)> = subnets.filter_map(range).collect();
    // Ranges are disjoint, or one covers the other. So one that overlaps any overlaps its neighbour.
    ranges.sort_by_key(|(_, range)| (range.network().address, range.prefix));
    for pair in ranges.windows(2) {
        if let [(first, a), (second, b)] = pair
            && overlap(*a, *b)
        {
            let first = format!("{a} of subnet {first:?}");
            let second = format!("{b} of subnet {second:?}");
            return Err(Error::Subnets { first, second });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rejects_overlapping_subnets_by_name() {
        let check = |ranges: &[&str]| {
            let subnet = |(number, cidr)| json!({"name": format!("s{number}"), "cidr": cidr});
            let subnets: Vec<Value> = (0..).zip(ranges).map(subnet).collect();
            check_subnets(&json!({"networking": {"subnets": subnets}}))
        };
        for disjoint in [
            &[][..],
            &["10.0.0.0/16"],
            &["10.0.128.0/17", "10.0.0.0/17", "10.1.0.0/16"],
            &["10.0.0.0/16", "fd00::/64", "", "x"],
        ] {
            assert!(check(disjoint).is_ok(), "{disjoint:?}");
        }
        for overlapping in [
            &["10.0.0.0/16", "10.0.0.0/17"][..],
            &["10.0.0.0/16", "10.0.0.0/16"],
            &["10.0.64.0/24", "10.2.0.0/16", "10.0.0.0/16"],
            &["10.0.0.0/8", "10.0.0.0/24", "10.0.1.0/24"],
            &["fd00::/48", "fd00:0:0:1::/64"],
        ] {
            assert!(matches!(check(overlapping), Err(Error::Subnets { .. })), "{overlapping:?}");
        }
        let error = check(&["10.0.0.0/17", "10.0.0.0/16"]).unwrap_err().to_string();
        assert!(
            error.contains("10.0.0.0/16 of subnet \"s1\" and 10.0.0.0/17 of subnet \"s0\" overlap"),
            "{error}"
        );
    }
}
