//! The plugin `local`: answers names of the machine itself, so that they do not reach other servers.

use std::net::{Ipv4Addr, Ipv6Addr};

use futures_util::future::BoxFuture;
use hickory_proto::{
    op::ResponseCode,
    rr::{
        Name, RData, Record, RecordType,
        rdata::{NS, PTR, SOA},
    },
};

use crate::{
    chain::{Answer, Next, Plugin, Request},
    directive::{CorefileError, Directive, parse_name},
    records::address_data,
};

/// The zones. Only the first one has addresses.
const ZONES: [&str; 4] =
    ["localhost.", "0.in-addr.arpa.", "127.in-addr.arpa.", "255.in-addr.arpa."];
const POINTER: &str = "1.0.0.127.in-addr.arpa.";
/// A week.
const TTL: u32 = 604_800;

#[derive(Debug)]
pub(crate) struct Local {
    /// `true` if names such as `localhost.example.org` have loopback addresses.
    has_prefix: bool,
}

impl Local {
    pub(crate) fn parse(directive: &Directive) -> Result<Self, CorefileError> {
        directive.limit(0, true)?;
        let mut parsed = Self { has_prefix: true };
        for option in &directive.body {
            parsed.has_prefix = match (option.name(), option.arguments()) {
                ("localhost_prefix", [value]) if value == "on" => true,
                ("localhost_prefix", [value]) if value == "off" => false,
                _ => return option.unknown("local", "localhost_prefix on|off"),
            }
        }
        Ok(parsed)
    }
}

impl Plugin for Local {
    fn answer<'a>(&'a self, request: &'a mut Request, next: Next<'a>) -> BoxFuture<'a, Answer> {
        let name = request.name().to_lowercase().to_ascii();
        let is_in = |zone: &&str| {
            name.strip_suffix(*zone).is_some_and(|below| below.is_empty() || below.ends_with('.'))
        };
        let zone = ZONES.into_iter().find(is_in);
        let is_host = zone == Some("localhost.")
            || (self.has_prefix && name.starts_with("localhost.") && zone.is_none());
        if zone.is_none() && !is_host {
            return next.answer(request);
        }
        let is_apex = zone == Some(name.as_str());
        let localhost = || parse_name("localhost").unwrap_or_default();
        let owner = |data| Record::from_rdata(request.name().clone(), TTL, data);
        let answer = match request.kind() {
            RecordType::A if is_host => Some(owner(address_data(Ipv4Addr::LOCALHOST.into()))),
            RecordType::AAAA if is_host => Some(owner(address_data(Ipv6Addr::LOCALHOST.into()))),
            RecordType::PTR if name == POINTER => Some(owner(RData::PTR(PTR(localhost())))),
            RecordType::SOA if is_apex => Some(soa(request.name().clone())),
            RecordType::NS if is_apex => Some(owner(RData::NS(NS(localhost())))),
            _ => None,
        };
        let exists = is_host || is_apex || name == POINTER;
        let code = if exists { ResponseCode::NoError } else { ResponseCode::NXDomain };
        let mut reply = request.reply(code);
        if answer.is_none() {
            let zone = zone.and_then(|zone| parse_name(zone).ok());
            reply.add_authority(soa(zone.unwrap_or_else(|| request.name().clone())));
        }
        reply.answers.extend(answer);
        Box::pin(async move { Ok(Some(reply)) })
    }
}

fn soa(zone: Name) -> Record {
    let name = |text| parse_name(text).unwrap_or_default();
    let soa = SOA::new(name("localhost"), name("root.localhost"), 1, 0, 0, 0, TTL);
    Record::from_rdata(zone, TTL, RData::SOA(soa))
}
