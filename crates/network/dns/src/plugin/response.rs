//! The class of an answer, and the time for which it may be cached.

use std::time::Duration;

use hickory_proto::{
    op::{Message, ResponseCode},
    rr::{RData, RecordType},
};

/// The class of an answer, as the plugins `log` and `cache` distinguish them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// The requested records, or a referral.
    Success,
    /// The name does not exist, or has no records of the type.
    Denial,
    /// A failure.
    Error,
}

/// Returns the class of an answer.
pub(super) fn class(reply: &Message) -> Class {
    let has = |kind| reply.authorities.iter().any(|record| record.record_type() == kind);
    match reply.metadata.response_code {
        ResponseCode::NXDomain => Class::Denial,
        ResponseCode::NoError if !reply.answers.is_empty() => Class::Success,
        ResponseCode::NoError if has(RecordType::NS) && !has(RecordType::SOA) => Class::Success,
        ResponseCode::NoError => Class::Denial,
        _ => Class::Error,
    }
}

/// Returns the shortest TTL of an answer. `None` for answers that are not cached: those without records, and denials
/// without an SOA record (RFC 2308, section 5).
pub(super) fn lifetime(reply: &Message) -> Option<Duration> {
    let sections = [&reply.answers, &reply.authorities, &reply.additionals];
    let shortest = sections.into_iter().flatten().map(|record| record.ttl).min()?;
    let seconds = match class(reply) {
        Class::Success => shortest,
        Class::Denial => {
            let minimum = reply.authorities.iter().find_map(|record| match &record.data {
                RData::SOA(soa) => Some(soa.minimum),
                _ => None,
            });
            shortest.min(minimum?)
        }
        Class::Error => return None,
    };
    Some(Duration::from_secs(seconds.into()))
}
