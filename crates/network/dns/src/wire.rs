//! Reads and changes parts of encoded messages on the forwarding path without decoding them.

use std::time::Duration;

const HEADER: usize = 12;

pub(crate) fn id(packet: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes([*packet.first()?, *packet.get(1)?]))
}

pub(crate) fn set_id(packet: &mut [u8], id: u16) {
    if let Some(bytes) = packet.get_mut(..2) {
        bytes.copy_from_slice(&id.to_be_bytes());
    }
}

/// Returns the end of the question if there is exactly one.
pub(crate) fn question_end(packet: &[u8]) -> Option<usize> {
    if u16_at(packet, 4)? != 1 {
        return None;
    }
    let end = skip_name(packet, HEADER)? + 4;
    (end <= packet.len()).then_some(end)
}

/// Reports whether `response` answers `query`: the question is the same, ignoring letter case.
pub(crate) fn answers(query: &[u8], response: &[u8]) -> bool {
    let (Some(query_end), Some(response_end)) = (question_end(query), question_end(response))
    else {
        return false;
    };
    let is_response = response.get(2).is_some_and(|flags| flags & 0x80 != 0);
    is_response && query[HEADER..query_end].eq_ignore_ascii_case(&response[HEADER..response_end])
}

pub(crate) fn is_truncated(packet: &[u8]) -> bool {
    packet.get(2).is_some_and(|flags| flags & 0x02 != 0)
}

/// Returns a truncated response with only header and question, which makes the client retry over TCP.
pub(crate) fn truncated(packet: &[u8]) -> Vec<u8> {
    let end = question_end(packet).unwrap_or(HEADER.min(packet.len()));
    let mut short = packet[..end].to_vec();
    if let Some(flags) = short.get_mut(2) {
        *flags |= 0x02;
    }
    if let Some(counts) = short.get_mut(6..HEADER) {
        counts.fill(0);
    }
    short
}

/// The TTL of a response for caching, and the offsets of its TTL fields.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Lifetime {
    pub(crate) is_denial: bool,
    pub(crate) ttl: Duration,
    pub(crate) offsets: Vec<u16>,
}

/// Returns `None` for answers not to cache: failures, truncated, malformed, or negative without authority.
pub(crate) fn lifetime(packet: &[u8]) -> Option<Lifetime> {
    let code = packet.get(3)? & 0x0f;
    let counts = [u16_at(packet, 6)?, u16_at(packet, 8)?, u16_at(packet, 10)?];
    if is_truncated(packet) || (code != 0 && code != 3) {
        return None;
    }
    let is_denial = code == 3 || counts[0] == 0;
    let mut at = question_end(packet)?;
    let mut shortest: Option<u32> = None;
    let mut authority = None;
    let mut offsets = Vec::new();
    for (section, count) in counts.into_iter().enumerate() {
        for _ in 0..count {
            let fixed = skip_name(packet, at)?;
            let kind = u16_at(packet, fixed)?;
            let ttl = u32_at(packet, fixed + 4)?;
            let data = fixed + 10;
            let end = data + usize::from(u16_at(packet, fixed + 8)?);
            if end > packet.len() {
                return None;
            }
            // The TTL field of OPT holds flags.
            if kind != 41 {
                offsets.push(u16::try_from(fixed + 4).ok()?);
                shortest = Some(shortest.map_or(ttl, |shortest| shortest.min(ttl)));
            }
            if section == 1 && kind == 6 && end >= data + 4 {
                authority = Some(ttl.min(u32_at(packet, end - 4)?));
            }
            at = end;
        }
    }
    let seconds = if is_denial { authority? } else { shortest? };
    Some(Lifetime { is_denial, ttl: Duration::from_secs(seconds.into()), offsets })
}

fn skip_name(packet: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *packet.get(at)? {
            0 => return Some(at + 1),
            length if length & 0xc0 == 0xc0 => return Some(at + 2),
            length if length & 0xc0 == 0 => at += 1 + usize::from(length),
            _ => return None,
        }
    }
}

fn u16_at(packet: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(packet.get(at..at + 2)?.try_into().ok()?))
}

pub(crate) fn u32_at(packet: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(packet.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use hickory_proto::{
        op::{Edns, Message, OpCode, Query, ResponseCode},
        rr::{
            Name, RData, Record, RecordType,
            rdata::{A, SOA},
        },
    };
    use proptest::prelude::*;

    use super::*;

    fn response(ttls: &[u32], soa: Option<(u32, u32)>, code: ResponseCode) -> Vec<u8> {
        let name = Name::from_ascii("www.example.com.").unwrap();
        let mut message = Message::response(7, OpCode::Query);
        message.metadata.response_code = code;
        message.add_query(Query::query(name.clone(), RecordType::A));
        for ttl in ttls {
            message.add_answer(Record::from_rdata(
                name.clone(),
                *ttl,
                RData::A(A([192, 0, 2, 1].into())),
            ));
        }
        if let Some((ttl, minimum)) = soa {
            let soa = SOA::new(name.clone(), name.clone(), 1, 2, 3, 4, minimum);
            message.add_authority(Record::from_rdata(name, ttl, RData::SOA(soa)));
        }
        message.set_edns(Edns::new());
        message.to_vec().unwrap()
    }

    #[test]
    fn lifetime_is_shortest_ttl_or_soa_minimum() {
        let of = |packet: &[u8]| {
            lifetime(packet).map(|lifetime| (lifetime.is_denial, lifetime.ttl.as_secs()))
        };
        assert_eq!(of(&response(&[300, 60], None, ResponseCode::NoError)), Some((false, 60)));
        assert_eq!(of(&response(&[], Some((300, 20)), ResponseCode::NXDomain)), Some((true, 20)));
        assert_eq!(of(&response(&[], Some((5, 20)), ResponseCode::NoError)), Some((true, 5)));
        assert_eq!(of(&response(&[], None, ResponseCode::NXDomain)), None);
        assert_eq!(of(&response(&[60], None, ResponseCode::ServFail)), None);
        assert_eq!(of(&truncated(&response(&[60], None, ResponseCode::NoError))), None);
        let packet = response(&[300, 60], None, ResponseCode::NoError);
        let ttls: Vec<_> = lifetime(&packet)
            .unwrap()
            .offsets
            .iter()
            .map(|at| u32_at(&packet, usize::from(*at)).unwrap())
            .collect();
        assert_eq!(ttls, [300, 60]);
    }

    #[test]
    fn truncated_response_is_valid_and_keeps_question() {
        let short =
            Message::from_vec(&truncated(&response(&[60], Some((1, 1)), ResponseCode::NoError)))
                .unwrap();
        assert!(short.metadata.truncation && short.answers.is_empty() && short.queries.len() == 1);
    }

    proptest! {
        #[test]
        fn never_panics_on_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = (lifetime(&bytes), question_end(&bytes), truncated(&bytes), answers(&bytes, &bytes));
        }

        #[test]
        fn never_panics_on_changed_message(at in 0usize..120, byte in any::<u8>()) {
            let mut bytes = response(&[1, 2], Some((3, 4)), ResponseCode::NoError);
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = (lifetime(&bytes), question_end(&bytes), truncated(&bytes), answers(&bytes, &bytes));
        }
    }
}
