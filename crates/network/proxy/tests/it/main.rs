//! Sends real packets between network namespaces through real rules. Needs root, nft and iptables.
#![allow(clippy::unwrap_used)]

mod api;
mod cves;
mod run;
mod services;
mod world;
