//! The CNI plugin: a veth pair for each Pod, a bridge for each node, addresses from the node's Pod range.
//!
//! A plugin is a process that lives for one call: the runtime starts it with the call in the environment and
//! the configuration on stdin. It must be fast, may run beside itself, and may be killed anywhere.
//!
//! Invariants:
//! - A Pod's address has a full prefix and everything goes through its gateway, so that traffic between Pods of
//!   one node is routed too: Service rules and policies see it whether or not bridges call netfilter.
//! - An address belongs to an attachment (container and interface) from before it is used until after its
//!   interface is gone. Calls can be repeated after a crash at any point.
//! - The nftables table of a bridge is written whole, from the leases, in one transaction, and only when it is
//!   missing or its host ports change.

mod bridge;
mod forward;
#[cfg(test)]
mod fuzzed;
mod install;
mod lease;
mod loopback;
mod results;
mod rules;
mod spec;

use std::{
    io::{Read, Write},
    process::ExitCode,
};

pub use forward::{allow_forwarding, disallow_forwarding};
pub use install::{
    InstallError, Network, PLUGIN, foreign_configuration, install, install_copy, uninstall,
};
use netlink::Kernel;
pub use results::forget_results;
pub use rules::table_name;
use serde_json::Value;
use spec::{Call, Config};
pub use spec::{Environment, Failure};

/// The plugin's whole life: reads the call, does it, and answers on stdout as the CNI specification says.
pub fn main() -> ExitCode {
    let mut input = Vec::new();
    let read = std::io::stdin().lock().read_to_end(&mut input);
    let environment = Environment::of_process();
    let result = read.map_err(|error| Failure::io("reading the configuration from stdin", &error));
    let result = result.and_then(|_| handle(&environment, &input));
    let (answer, code) = match result {
        Ok(answer) => (answer, ExitCode::SUCCESS),
        Err(failure) => (Some(failure.to_json(&spec::version_of(&input))), ExitCode::FAILURE),
    };
    if let Some(answer) = answer {
        // Nobody is left to tell when stdout is closed.
        let _ = std::io::stdout().write_all(answer.to_string().as_bytes());
    }
    code
}

/// Does one call in the calling thread's network namespace; returns what is to be written to stdout.
pub fn handle(environment: &Environment, input: &[u8]) -> Result<Option<Value>, Failure> {
    let call = environment.call()?;
    if matches!(call, Call::Version) {
        return Ok(Some(spec::versions(input)));
    }
    let config = Config::parse(input)?;
    let net = Kernel::open().map_err(Failure::network)?;
    if config.plugin == "loopback" {
        return loopback::handle(&call, &config);
    }
    match call {
        Call::Add(attachment) => bridge::add(&net, &config, &attachment).map(Some),
        Call::Delete(attachment) => bridge::delete(&net, &config, &attachment).map(|()| None),
        Call::Check(attachment) => bridge::check(&net, &config, &attachment).map(|()| None),
        Call::Gc => bridge::collect(&net, &config).map(|()| None),
        Call::Status => bridge::status(&config).map(|()| None),
        Call::Version => Ok(None),
    }
}
