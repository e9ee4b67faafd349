//! The lifetime of Events: the only objects that expire, and that no quota of a namespace counts.

use api_meta::{Status, StatusReason};

use super::{call::Call, state::State};
use crate::watch_cache::namespace_of;

/// The bytes of Events that a namespace may have.
const MAX_BYTES: usize = 64 << 20;

/// Returns the seconds after which the written object is deleted, or `None` if its kind does not expire.
///
/// # Errors
///
/// 429 if the namespace has Events of `MAX_BYTES`. There is no time to retry after: a client that waits would delay its
/// other Events.
pub(super) fn seconds_to_live(
    state: &State,
    call: &Call,
    key: &str,
) -> Result<Option<u64>, Box<Status>> {
    if !call.resource.definition.strategy.expires {
        return Ok(None);
    }
    let bytes = call.cache()?.bytes_of_namespace(namespace_of(key));
    if let Some(seconds) = shortened(state.config.event_ttl.as_secs(), bytes) {
        return Ok(Some(seconds));
    }
    let message = format!(
        "the Events of namespace {:?} take {} MiB, which is the limit: delete Events, or wait until the oldest expire",
        call.path.namespace,
        MAX_BYTES >> 20
    );
    Err(Box::new(Status::failure(429, StatusReason::TooManyRequests, message)))
}

/// Returns the lifetime of a new Event in a namespace with Events of `bytes`. It is shorter in a namespace that has
/// many, so that a steady stream finds space again soon.
fn shortened(seconds: u64, bytes: usize) -> Option<u64> {
    match bytes * 4 / MAX_BYTES {
        0 | 1 => Some(seconds),
        2 => Some(seconds.div_ceil(4)),
        3 => Some(seconds.div_ceil(16)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortens_lives_of_events_in_full_namespaces() {
        let of = |mebibytes: usize| shortened(3600, mebibytes << 20);
        assert_eq!(
            [0, 31, 32, 48, 63, 64].map(of),
            [Some(3600), Some(3600), Some(900), Some(225), Some(225), None]
        );
    }
}
