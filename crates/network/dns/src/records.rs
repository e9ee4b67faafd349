//! Functions on records and on the names within their data.

use std::net::IpAddr;

use hickory_proto::rr::{
    Name, RData,
    rdata::{A, AAAA},
};

/// Returns the data of an address record.
pub(crate) fn address_data(ip: IpAddr) -> RData {
    match ip {
        IpAddr::V4(ip) => RData::A(A(ip)),
        IpAddr::V6(ip) => RData::AAAA(AAAA(ip)),
    }
}

/// Returns the names within the data of a record.
pub(crate) fn names_mut(data: &mut RData) -> Vec<&mut Name> {
    match data {
        RData::CNAME(name) => vec![&mut name.0],
        RData::ANAME(name) => vec![&mut name.0],
        RData::NS(name) => vec![&mut name.0],
        RData::PTR(name) => vec![&mut name.0],
        RData::MX(mx) => vec![&mut mx.exchange],
        RData::NAPTR(naptr) => vec![&mut naptr.replacement],
        RData::SOA(soa) => vec![&mut soa.mname, &mut soa.rname],
        RData::SRV(srv) => vec![&mut srv.target],
        RData::SVCB(svcb) => vec![&mut svcb.target_name],
        RData::HTTPS(https) => vec![&mut https.0.target_name],
        _ => Vec::new(),
    }
}

/// Returns the name whose addresses a client needs next.
pub(crate) fn target(data: &RData) -> Option<&Name> {
    match data {
        RData::MX(mx) => Some(&mx.exchange),
        RData::NS(name) => Some(&name.0),
        RData::SRV(srv) => Some(&srv.target),
        _ => None,
    }
}

/// Returns the address that a reverse name such as `2.0.1.10.in-addr.arpa` stands for.
pub(crate) fn reversed(name: &Name) -> Option<IpAddr> {
    let lower = name.to_lowercase();
    let labels: Vec<&str> =
        lower.iter().map(|label| std::str::from_utf8(label).ok()).collect::<Option<_>>()?;
    match labels.as_slice() {
        [d, c, b, a, "in-addr", "arpa"] => format!("{a}.{b}.{c}.{d}").parse().ok(),
        [nibbles @ .., "ip6", "arpa"] if nibbles.len() == 32 => {
            let mut number = 0u128;
            for nibble in nibbles.iter().rev() {
                let digit = Some(*nibble).filter(|nibble| nibble.len() == 1)?;
                number = number << 4 | u128::from_str_radix(digit, 16).ok()?;
            }
            Some(std::net::Ipv6Addr::from(number).into())
        }
        _ => None,
    }
}
