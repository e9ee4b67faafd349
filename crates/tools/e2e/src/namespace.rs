//! A network namespace with one interface, an address and a default route: what a node expects of a machine.

use std::{path::PathBuf, process::Command};

use crate::process::run;

/// The node's address: of a range that documentation uses, which leads nowhere.
const ADDRESS: &str = "192.0.2.10";
const GATEWAY: &str = "192.0.2.1";

/// A network namespace by its name below `/run/netns`; dropping it leaves it there.
#[derive(Clone, Debug)]
pub struct Namespace {
    pub name: String,
}

impl Namespace {
    /// Makes it, with the interface `eth0` up.
    pub fn create(name: &str) -> Self {
        let namespace = Self { name: name.to_owned() };
        call("ip", &["netns", "add", name]);
        for line in [
            "link set lo up",
            // Both ends stay here: the second gives the first a carrier.
            "link add eth0 type veth peer name eth0-peer",
            // Link-local addresses would come by themselves a while later, as if a cluster had made them.
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
        namespace
    }

    /// The file that stands for the namespace.
    pub fn path(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.name)
    }

    /// A command that runs in the namespace. `ip netns exec` would hide the cgroups by mounting another /sys.
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
