//! Sends real packets between network namespaces through real rules. Needs root, nft and iptables.
#![allow(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

mod api;
mod cves;
mod run;
mod services;
mod world;
