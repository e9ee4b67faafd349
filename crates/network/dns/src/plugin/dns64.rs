//! The plugin `dns64`: makes IPv6 addresses of IPv4 addresses for clients behind NAT64 (RFC 6147).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures_util::future::BoxFuture;
use hickory_proto::{
    op::{Message, ResponseCode},
    rr::{RData, Record, RecordType},
};

use crate::{
    chain::{Answer, Next, Plugin, Request},
    directive::{CorefileError, Directive},
    records::address_data,
};

/// The longest TTL of a made record without an SOA record in the answer for the type AAAA (RFC 6147, section 5.1.7).
const MAX_TTL: u32 = 600;

#[derive(Debug)]
pub(crate) struct Dns64 {
    prefix: Ipv6Addr,
    bits: u8,
    translate_all: bool,
    allow_ipv4: bool,
}

impl Dns64 {
    pub(crate) fn parse(directive: &Directive) -> Result<Self, CorefileError> {
        directive.limit(1, true)?;
        let well_known = Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0);
        let mut parsed =
            Self { prefix: well_known, bits: 96, translate_all: false, allow_ipv4: false };
        if let Some(prefix) = directive.arguments().first() {
            parsed.set_prefix(directive, prefix)?;
        }
        for option in &directive.body {
            match (option.name(), option.arguments()) {
                ("prefix", [prefix]) => parsed.set_prefix(option, prefix)?,
                ("translate_all", []) => parsed.translate_all = true,
                ("allow_ipv4", []) => parsed.allow_ipv4 = true,
                _ => return option.unknown("dns64", "prefix, translate_all and allow_ipv4"),
            }
        }
        Ok(parsed)
    }

    fn set_prefix(&mut self, directive: &Directive, text: &str) -> Result<(), CorefileError> {
        let network = directive.network(text)?;
        match (network.address, network.prefix) {
            (IpAddr::V6(prefix), bits @ (32 | 40 | 48 | 56 | 64 | 96)) => {
                (self.prefix, self.bits) = (prefix, bits);
                Ok(())
            }
            _ => directive.fail("the prefix is an IPv6 network of 32, 40, 48, 56, 64 or 96 bits"),
        }
    }

    /// Embeds an address (RFC 6052, section 2.2). The ninth byte stays zero.
    fn embed(&self, ip: Ipv4Addr) -> Ipv6Addr {
        let mut bytes = self.prefix.octets();
        let begin = usize::from(self.bits / 8);
        let places = (begin..16).filter(|place| *place != 8);
        bytes[begin..].fill(0);
        for (place, byte) in places.zip(ip.octets()) {
            bytes[place] = byte;
        }
        bytes.into()
    }

    /// Reports whether the answer is replaced if the name has IPv4 addresses.
    fn is_replaced(&self, answer: &Answer) -> bool {
        match answer {
            Ok(None) => false,
            Err(_) => true,
            Ok(Some(reply)) => match reply.metadata.response_code {
                ResponseCode::NXDomain => false,
                ResponseCode::NoError => {
                    self.translate_all
                        || !reply
                            .answers
                            .iter()
                            .any(|record| record.record_type() == RecordType::AAAA)
                }
                _ => true,
            },
        }
    }

    fn translate(&self, request: &Request, found: Message, longest: u32) -> Message {
        let translate = |mut record: Record| match record.data {
            RData::A(ip) => {
                record.data = address_data(self.embed(ip.0).into());
                record.ttl = record.ttl.min(longest);
                record
            }
            _ => record,
        };
        let mut reply = request.reply(ResponseCode::NoError);
        reply.answers = found.answers.into_iter().map(translate).collect();
        reply
    }
}

impl Plugin for Dns64 {
    fn answer<'a>(&'a self, request: &'a mut Request, next: Next<'a>) -> BoxFuture<'a, Answer> {
        let is_client = self.allow_ipv4 || request.client.ip().to_canonical().is_ipv6();
        // A client that validates signatures itself would reject made records.
        let validates = request.dnssec_ok() && request.header.checking_disabled;
        if request.kind() != RecordType::AAAA || !request.is_internet() || !is_client || validates {
            return next.answer(request);
        }
        Box::pin(async move {
            let answer = next.answer(request).await;
            if !self.is_replaced(&answer) {
                return answer;
            }
            let found = next.look_up(request, request.name().clone(), RecordType::A).await;
            let has_addresses = |found: &Message| {
                found.answers.iter().any(|record| record.record_type() == RecordType::A)
            };
            let Some(found) = found.filter(has_addresses) else { return answer };
            let soa = answer.iter().flatten().flat_map(|reply| &reply.authorities);
            let longest = soa
                .filter(|record| record.record_type() == RecordType::SOA)
                .map(|record| record.ttl)
                .min();
            Ok(Some(self.translate(request, found, longest.unwrap_or(MAX_TTL))))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embeds_addresses_as_rfc_6052_shows() {
        for (prefix, expected) in [
            ("2001:db8::/32", "2001:db8:c000:221::"),
            ("2001:db8:100::/40", "2001:db8:1c0:2:21::"),
            ("2001:db8:122::/48", "2001:db8:122:c000:2:2100::"),
            ("2001:db8:122:300::/56", "2001:db8:122:3c0:0:221::"),
            ("2001:db8:122:344::/64", "2001:db8:122:344:c0:2:2100::"),
            ("2001:db8:122:344::/96", "2001:db8:122:344::192.0.2.33"),
        ] {
            let words = vec!["dns64".to_owned(), prefix.to_owned()];
            let parsed = Dns64::parse(&Directive { words, ..Directive::default() }).unwrap();
            assert_eq!(
                parsed.embed([192, 0, 2, 33].into()),
                expected.parse::<Ipv6Addr>().unwrap(),
                "{prefix}"
            );
        }
        let words = vec!["dns64".to_owned(), "2001:db8::/33".to_owned()];
        assert!(Dns64::parse(&Directive { words, ..Directive::default() }).is_err());
    }
}
