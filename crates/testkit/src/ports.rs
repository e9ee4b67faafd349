//! Ports for servers that tests start as processes.

use std::{
    net::TcpListener,
    ops::Range,
    process,
    sync::atomic::{AtomicU16, Ordering},
};

/// Below the range from which Linux takes ports of outgoing connections (from 32768) and listeners on port 0, and
/// below the range of node ports (from 30000).
const RANGE: Range<u16> = 12_000..30_000;

static TAKEN: AtomicU16 = AtomicU16::new(0);

/// A TCP port of loopback for a server that starts later.
///
/// The kernel gives a port of its choice (`bind` with port 0) to somebody else as soon as it is let go: a connection
/// or another test's server then has it, and a client meets a certificate of a stranger. No two calls in one process
/// give the same port; where processes begin to look differs.
///
/// # Panics
/// If no port is free.
pub fn free_port() -> u16 {
    let width = RANGE.end - RANGE.start;
    // Neighbours in number, as tests of one run are, begin far apart.
    let begin = process::id().wrapping_mul(977) % u32::from(width);
    for _ in 0..width {
        let taken = TAKEN.fetch_add(1, Ordering::Relaxed);
        let offset = (begin + u32::from(taken)) % u32::from(width);
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
    fn no_port_is_given_twice_or_while_somebody_listens() {
        let held = TcpListener::bind(("127.0.0.1", free_port())).unwrap();
        let held = held.local_addr().unwrap().port();
        let mut given = BTreeSet::from([held]);
        for port in iter::repeat_with(free_port).take(1_000) {
            assert!(RANGE.contains(&port) && given.insert(port), "{port}");
        }
        TAKEN.fetch_sub(1_001, Ordering::Relaxed);
        assert_ne!(free_port(), held, "somebody listens there");
    }
}
