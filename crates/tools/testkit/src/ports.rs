//! Allocates ports for servers that tests start as processes.

use std::{
    net::TcpListener,
    ops::Range,
    process,
    sync::atomic::{AtomicU16, Ordering},
};

/// The range lies below Linux's ephemeral ports (from 32768), which outgoing connections and listeners on port 0 use,
/// and below the node ports (from 30000).
const RANGE: Range<u16> = 12_000..30_000;

static ALLOCATED: AtomicU16 = AtomicU16::new(0);

/// Returns a free TCP port on loopback for a server that starts later.
///
/// The kernel reuses a port that it chose (`bind` with port 0) as soon as it is released. Another test's server may
/// then get it, and a client meets the wrong certificate. Calls in one process never return the same port, and
/// different processes start at different ports.
///
/// # Panics
/// If no port is free.
pub fn free_port() -> u16 {
    let width = RANGE.end - RANGE.start;
    // Processes of one test run have similar PIDs, so spread their first ports.
    let begin = process::id().wrapping_mul(977) % u32::from(width);
    for _ in 0..width {
        let number = ALLOCATED.fetch_add(1, Ordering::Relaxed);
        let offset = (begin + u32::from(number)) % u32::from(width);
        let port = RANGE.start + u16::try_from(offset).expect("less than the range is wide");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no port of {RANGE:?} is free on loopback");
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, iter};

    use super::*;

    #[test]
    fn never_returns_used_or_listening_port() {
        let held = TcpListener::bind(("127.0.0.1", free_port())).unwrap();
        let held = held.local_addr().unwrap().port();
        let mut given = BTreeSet::from([held]);
        for port in iter::repeat_with(free_port).take(1_000) {
            assert!(RANGE.contains(&port) && given.insert(port), "{port}");
        }
        ALLOCATED.fetch_sub(1_001, Ordering::Relaxed);
        assert_ne!(free_port(), held, "the port is in use");
    }
}
