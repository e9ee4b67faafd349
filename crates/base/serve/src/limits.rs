//! The limits of a listener.

use std::time::Duration;

/// The limits of a listener.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The number of connections, limited further by the file descriptors of the process.
    pub connections: usize,
    /// The number of unauthenticated connections of one address (for IPv6: of one /64).
    pub connections_of_a_source: usize,
    /// The number of concurrent requests on a connection of HTTP/2.
    pub streams_per_connection: u32,
    /// The timeout of the TLS handshake.
    pub handshake: Duration,
    /// The time until the first request must arrive.
    pub request_head: Duration,
    /// The time that a connection may be idle between requests.
    pub idle: Duration,
    /// The number of bytes of responses that a connection may buffer. `None` uses the default, which suits large lists.
    pub send_buffer: Option<usize>,
    /// The probability that a request makes the server close its HTTP/2 connection (GOAWAY), so that the client
    /// connects again and a load balancer can choose another server.
    pub goaway_chance: f64,
    /// `true` if a connection of HTTP/1.1 may serve several requests.
    pub keep_alive: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            connections_of_a_source: 1_000,
            streams_per_connection: 250,
            handshake: Duration::from_secs(10),
            request_head: Duration::from_secs(32),
            idle: Duration::from_secs(90),
            send_buffer: None,
            goaway_chance: 0.0,
            keep_alive: true,
        }
    }
}
