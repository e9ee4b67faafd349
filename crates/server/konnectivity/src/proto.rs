//! The API of konnectivity-server: generated messages, client and server.

// Generated code is not linted, and its server half is only for tests.
#![allow(clippy::all, clippy::too_many_lines, clippy::unwrap_used, unreachable_pub, dead_code)]

include!(concat!(env!("OUT_DIR"), "/_.rs"));
