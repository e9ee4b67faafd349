//! The cluster on which all conformance tests run: three nodes of `windlass up`, in a network namespace of their own.

use std::{
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::suite::Target;
use crate::{
    error::{During, Result},
    file::create_directory,
    run::{output, pass, program},
};

const NAME: &str = "conformance";
const NAMESPACE: &str = "windlass-conformance";
/// The usual root of a cluster with this name. `up` imports the archives of its directory `images`.
const ROOT: &str = "/var/lib/windlass/conformance";
const NODES: &str = "3";
/// The time in seconds in which every node imports the images and becomes ready.
const TIMEOUT: &str = "900";

/// The first node's interface, with an address of the range for documentation (RFC 5737), and a carrier.
const NETWORK: &[&str] = &[
    "link set lo up",
    "link add eth0 type veth peer name eth0-peer",
    "address add 192.0.2.10/24 dev eth0",
    "link set eth0 up",
    "link set eth0-peer up",
    "route add default via 192.0.2.1",
];

pub(super) struct Cluster {
    windlass: PathBuf,
    directory: PathBuf,
    kubeconfig: PathBuf,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            eprintln!("    removing the cluster: {error}");
        }
    }
}

impl Cluster {
    /// Starts the cluster with an archive of images. If `peer` has a containerd, the nodes run that one.
    pub(super) fn start(
        windlass: &Path,
        peer: &Path,
        images: &Path,
        directory: &Path,
    ) -> Result<Self> {
        let this = Self {
            windlass: windlass.to_owned(),
            directory: directory.to_owned(),
            kubeconfig: directory.join("kubeconfig"),
        };
        // An interrupted run may have left its cluster.
        this.remove()?;
        output(&mut program("ip", ["netns", "add", NAMESPACE]))?;
        for line in NETWORK {
            output(program("ip", ["-n", NAMESPACE]).args(line.split_whitespace()))?;
        }
        let forward = "echo 1 >/proc/sys/net/ipv4/ip_forward";
        pass(inside("sh").args(["-c", forward]))?;
        // A restart of the machine removes the namespace, but not the cluster's files.
        output(&mut this.windlass("down"))?;
        let archives = Path::new(ROOT).join("images");
        create_directory(&archives)?;
        let copy = archives.join("conformance.tar");
        fs::copy(images, &copy).during("copying the images to", copy.display())?;
        let mut up = this.windlass("up");
        up.args(["--nodes", NODES, "--timeout", TIMEOUT]);
        if has_containerd(peer) {
            up.env("PATH", path_with(peer)?);
        }
        pass(&mut up)?;
        Ok(this)
    }

    pub(super) fn target(&self) -> Target<'_> {
        Target {
            directory: &self.directory,
            kubeconfig: &self.kubeconfig,
            namespace: Some(NAMESPACE),
            nodes: None,
        }
    }

    fn windlass(&self, subcommand: &str) -> Command {
        let mut command = inside(&self.windlass);
        command.args([subcommand, "--name", NAME, "--root", ROOT, "--kubeconfig"]);
        command.arg(&self.kubeconfig);
        command
    }

    /// Removes the cluster and the namespace, if they exist.
    fn remove(&self) -> Result<()> {
        if !Path::new("/run/netns").join(NAMESPACE).exists() {
            return Ok(());
        }
        output(&mut self.windlass("down"))?;
        output(&mut program("ip", ["netns", "delete", NAMESPACE])).map(drop)
    }
}

/// Returns a command in the network namespace. `ip netns exec` would hide the control groups.
fn inside(name: impl AsRef<OsStr>) -> Command {
    let mut command = program("nsenter", [format!("--net=/run/netns/{NAMESPACE}")]);
    command.arg("--").arg(name);
    command
}

fn has_containerd(peer: &Path) -> bool {
    peer.join("containerd").is_file()
}

fn path_with(peer: &Path) -> Result<OsString> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let paths = std::iter::once(peer.to_owned()).chain(std::env::split_paths(&path));
    std::env::join_paths(paths).during("adding to PATH", peer.display())
}

/// Returns the output of `containerd --version` of the nodes' containerd.
pub(super) fn containerd_version(peer: &Path) -> Result<String> {
    let name = if has_containerd(peer) { peer.join("containerd") } else { "containerd".into() };
    output(&mut program(name, ["--version"]))
}
