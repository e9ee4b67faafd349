//! A network namespace with one interface, an address and a default route, as a node requires.

use std::{path::PathBuf, process::Command};

use crate::process::{run, until};

/// The node's address, of the range for documentation (RFC 5737), which is not routed.
const ADDRESS: &str = "192.0.2.10";
const GATEWAY: &str = "192.0.2.1";

/// A network namespace. Dropping it does not delete the namespace.
#[derive(Clone, Debug)]
pub struct Namespace {
    /// The file name below `/run/netns`.
    pub name: String,
}

impl Namespace {
    /// Creates the namespace and sets the interface `eth0` up.
    pub fn create(name: &str) -> Self {
        let namespace = Self { name: name.to_owned() };
        call("ip", &["netns", "add", name]);
        for line in [
            "link set lo up",
            // Both ends stay in the namespace: the second one gives the first one a carrier.
            "link add eth0 type veth peer name eth0-peer",
            // The kernel would add link-local addresses later, and they would look like objects of a cluster.
            "link set eth0 addrgenmode none",
            "link set eth0-peer addrgenmode none",
            &format!("address add {ADDRESS}/24 dev eth0"),
            "link set eth0 up",
            "link set eth0-peer up",
            &format!("route add default via {GATEWAY}"),
        ] {
            let words: Vec<&str> =
                ["-n", name].into_iter().chain(line.split_whitespace()).collect();
            call("ip", &words);
        }
        run(namespace.command("sh", &["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]), b"").ok();
        // The kernel reports the carrier later, and a snapshot of the machine contains the links' states.
        until("links with a carrier", || {
            let links = namespace.command("ip", &["-o", "link", "show", "up"]);
            run(links, b"").ok_if(|links| links.matches("state UP").count() == 2)
        });
        namespace
    }

    /// Returns the path of the namespace's file.
    pub fn path(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.name)
    }

    /// Returns a command that runs in the namespace. It uses nsenter, because `ip netns exec` mounts another /sys,
    /// which hides the cgroups.
    pub fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path().display())).arg("--").arg(program).args(args);
        command
    }
}

fn call(program: &str, args: &[&str]) {
    let mut command = Command::new(program);
    command.args(args);
    run(command, b"").ok();
}
