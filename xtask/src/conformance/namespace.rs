//! The network namespace of the cluster.

use std::{ffi::OsStr, path::Path, process::Command};

use crate::{
    error::Result,
    run::{output, pass, program},
};

pub(super) const NAME: &str = "windlass-conformance";

/// The first node's interface, with an address of the range for documentation (RFC 5737), and a carrier.
const NETWORK: &[&str] = &[
    "link set lo up",
    "link add eth0 type veth peer name eth0-peer",
    "address add 192.0.2.10/24 dev eth0",
    "link set eth0 up",
    "link set eth0-peer up",
    "route add default via 192.0.2.1",
];

pub(super) fn exists() -> bool {
    Path::new("/run/netns").join(NAME).exists()
}

pub(super) fn create() -> Result<()> {
    output(&mut program("ip", ["netns", "add", NAME]))?;
    for line in NETWORK {
        output(program("ip", ["-n", NAME]).args(line.split_whitespace()))?;
    }
    let forward = "echo 1 >/proc/sys/net/ipv4/ip_forward";
    pass(inside("sh").args(["-c", forward]))
}

pub(super) fn delete() -> Result<()> {
    output(&mut program("ip", ["netns", "delete", NAME])).map(drop)
}

/// Returns a command in the network namespace. `ip netns exec` would hide the control groups.
pub(super) fn inside(name: impl AsRef<OsStr>) -> Command {
    let mut command = program("nsenter", [format!("--net=/run/netns/{NAME}")]);
    command.arg("--").arg(name);
    command
}
