//! Auditing (audit.k8s.io/v1): the policy, the events and the log file. Start with [`Policy`] and [`Event`]. Not
//! responsible for the requests themselves and the webhook backend, which are in the API server.
//!
//! Invariants:
//! - The first matching rule of a policy decides. Requests without a matching rule are not audited.
//! - An event contains the authenticated user and, separately, the impersonated one.
//! - The log contains whole lines only, and never exceeds its size limit.

mod event;
mod log;
mod policy;

pub use event::{Event, Level, ObjectReference, ResponseStatus, Stage};
pub use log::{Format, Log, Rotation};
pub use policy::{Config, Policy, PolicyError};

/// Upstream's maximum length of a user agent.
const USER_AGENT_LIMIT: usize = 1024;

/// Returns a user agent as it is recorded in events.
pub fn user_agent(text: &str) -> String {
    match text.get(..USER_AGENT_LIMIT).filter(|head| head.len() < text.len()) {
        Some(head) => format!("{head}...TRUNCATED"),
        None => text.to_owned(),
    }
}

/// Returns the source addresses of a request, the nearest last: those reported by proxies, then the peer.
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
