//! Audit (audit.k8s.io/v1): which requests are recorded, what is recorded of them, and the file that it is written to.
//!
//! Invariants:
//! - The first rule of a policy that fits a request decides; what none fits is not recorded.
//! - An event says who asked before anybody is impersonated, and who is then acted for.
//! - A log keeps every line whole, and is never longer than its limit.

mod event;
mod log;
mod policy;

pub use event::{Event, Level, ObjectReference, ResponseStatus, Stage};
pub use log::{Format, Log, Rotation};
pub use policy::{Config, Policy, PolicyError};

/// Upstream's limit for what a client says it is.
const USER_AGENT_LIMIT: usize = 1024;

/// A user agent as events tell it.
pub fn user_agent(text: &str) -> String {
    match text.get(..USER_AGENT_LIMIT).filter(|head| head.len() < text.len()) {
        Some(head) => format!("{head}...TRUNCATED"),
        None => text.to_owned(),
    }
}

/// The addresses that a request came by, the nearest last: what proxies say, and who is at the other end.
pub fn source_ips(
    forwarded: Option<&str>,
    real: Option<&str>,
    peer: Option<std::net::IpAddr>,
) -> Vec<String> {
    let parse = |text: &str| text.trim().parse::<std::net::IpAddr>().ok();
    let mut ips: Vec<_> =
        forwarded.iter().flat_map(|all| all.split(',')).filter_map(parse).collect();
    let real = real.and_then(parse).filter(|ip| !ips.contains(ip));
    ips.extend(real);
    let peer = peer.filter(|ip| ips.last() != Some(ip));
    ips.extend(peer);
    ips.iter().map(ToString::to_string).collect()
}
