//! The CNI plugin: a veth pair for each Pod, a bridge for each node, addresses from the node's Pod CIDRs.
//!
//! Routes to other nodes and NetworkPolicies belong to the crate `podnet`. A plugin process lives for one call: the
//! runtime starts it with the call in the environment and the configuration on stdin. It must be fast, may run
//! concurrently with itself, and may be killed at any point. Read [`handle`] first.
//!
//! Invariants:
//! - A Pod's address has a full prefix and all its traffic goes through the gateway. So traffic between Pods of one
//!   node is routed too, and Service rules and policies apply whether or not bridges call netfilter.
//! - An address belongs to an attachment (container and interface) before it is used and until its interface is gone.
//!   Calls can be repeated after a crash at any point.
//! - The nftables table of a bridge is written as a whole from the leases in one transaction, and only if it is missing
//!   or its host ports change.

mod bandwidth;
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
    InstallError, Network, PLUGIN, PluginFile, foreign_configuration, install, uninstall,
};
use netlink::Kernel;
pub use results::forget_results;
pub use rules::table_name;
use serde_json::Value;
use spec::{Call, Config};
pub use spec::{Environment, Failure};

/// Runs one call of the plugin: reads it, handles it, and answers on stdout as the CNI specification requires.
pub fn main() -> ExitCode {
    let mut input = Vec::new();
    let read = std::io::stdin().lock().read_to_end(&mut input);
    let environment = Environment::of_process();
    let result = read.map_err(|error| Failure::io("reading the configuration from stdin", &error));
    let result = result.and_then(|_| handle(&environment, &input));
    let (output, code) = match result {
        Ok(output) => (output, ExitCode::SUCCESS),
        Err(failure) => (Some(failure.to_json(&spec::version_of(&input))), ExitCode::FAILURE),
    };
    if let Some(output) = output {
        // If stdout is closed, the runtime no longer waits for the answer.
        let _ = std::io::stdout().write_all(output.to_string().as_bytes());
    }
    code
}

/// Handles one call in the calling thread's network namespace, and returns the output for stdout.
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
