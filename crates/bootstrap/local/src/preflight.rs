//! The requirements on the host, checked before anything is created. Each problem has a cause and a solution.

use std::{
    io,
    net::{IpAddr, TcpListener},
    path::{Path, PathBuf},
    process::Command,
};

use bootstrap_core::constants;
use net_core::Cidr;

use crate::{
    cluster::{Cluster, ranges},
    metrics,
    problem::Problem,
    replicated,
};

const NEEDED_MIB: u64 = 1024;
const PROGRAMS: [&str; 3] = ["runc", "nft", "ctr"];
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];

/// The facts about the host, so that [`Machine::problems`] is a pure function.
pub(crate) struct Machine {
    root: bool,
    /// The error if this binary cannot be the program of a container.
    image: Option<oci::ProgramError>,
    /// The output of `containerd --version`, or the error of running it.
    containerd: io::Result<String>,
    missing_programs: Vec<&'static str>,
    /// Ports in use: number, intended user, and error.
    ports_in_use: Vec<(u16, &'static str, String)>,
    missing_controllers: Vec<&'static str>,
    /// `/proc/sys/net/ipv4/ip_forward`.
    forwarding: String,
    /// The cluster's directory or its nearest existing ancestor, and the free space there in MiB.
    free: Option<(PathBuf, u64)>,
    /// The cluster's ranges that contain the node's address: name, range, and address.
    overlaps: Vec<(&'static str, Cidr, IpAddr)>,
}

/// Returns all problems at once, so that they can be solved together.
pub(crate) fn check(cluster: &Cluster) -> Vec<Problem> {
    Machine::inspect(cluster).problems()
}

impl Machine {
    fn inspect(cluster: &Cluster) -> Self {
        let settings = &cluster.settings;
        let ports = [
            (settings.api_port, "the API server"),
            (settings.kubelet_port, "the kubelet"),
            (metrics::PORT, "the Metrics API"),
            (10256, "the service proxy"),
            (constants::CONTROLLER_MANAGER_PORT, "the controller manager"),
            (constants::SCHEDULER_PORT, "the scheduler"),
        ];
        let more = replicated::PORTS.iter().filter(|_| cluster.is_replicated());
        let ports_in_use = ports.into_iter().chain(more.copied()).filter_map(|(port, what)| {
            let error = TcpListener::bind(("0.0.0.0", port)).err()?;
            Some((port, what, error.to_string()))
        });
        let forwarding = std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward");
        Self {
            root: nix::unistd::geteuid().is_root(),
            image: std::env::current_exe().ok().and_then(|own| oci::require_static(&own).err()),
            containerd: containerd_version(),
            missing_programs: PROGRAMS.into_iter().filter(|p| find_program(p).is_none()).collect(),
            ports_in_use: ports_in_use.collect(),
            missing_controllers: missing_controllers(Path::new("/sys/fs/cgroup")),
            forwarding: forwarding.unwrap_or_default().trim().to_owned(),
            free: free(&cluster.root),
            overlaps: overlaps(&settings.service_cidr, &settings.pod_cidr, settings.address),
        }
    }

    fn problems(&self) -> Vec<Problem> {
        if !self.root {
            // Without root, the other facts are unreliable.
            return vec![problem(
                "IsPrivilegedUser",
                "user is not running as root",
                "run it with sudo",
            )];
        }
        let mut problems = Vec::new();
        if let Some(error) = &self.image {
            problems.push(problem(
                "ImageProgram",
                format!("cluster DNS runs from an image of this binary, and {error}"),
                "`cargo xtask dist` builds one",
            ));
        }
        problems.extend(self.containerd_problem());
        for program in &self.missing_programs {
            problems.push(problem(
                "FileExisting",
                format!("{program} not found in PATH"),
                "install containerd, runc and nftables (apt-get install containerd runc nftables)",
            ));
        }
        for (port, what, error) in &self.ports_in_use {
            problems.push(problem(
                "Port",
                format!("port {port}, for {what}, is in use ({error})"),
                "stop the process that listens there (find it with `ss -ltnp`), or run `windlass down` if it is \
                 another cluster",
            ));
        }
        if !self.missing_controllers.is_empty() {
            problems.push(problem(
                "SystemVerification",
                format!("missing required cgroups: {}", self.missing_controllers.join(" ")),
                "enable them on the kernel's command line (cgroup_enable=memory)",
            ));
        }
        if self.forwarding != "1" {
            problems.push(problem(
                "FileContent",
                "/proc/sys/net/ipv4/ip_forward contents are not set to 1",
                "run `sysctl -w net.ipv4.ip_forward=1`",
            ));
        }
        if let Some((place, free)) = self.free.as_ref().filter(|(_, free)| *free < NEEDED_MIB) {
            problems.push(problem(
                "Space",
                format!("{} has {free} MiB free, and {NEEDED_MIB} are needed", place.display()),
                "free disk space, or choose another directory with --root",
            ));
        }
        for (what, range, address) in &self.overlaps {
            problems.push(problem(
                "Networking",
                format!("the node's address {address} is one of the {what}' range {range}, so it would be unreachable"),
                "choose another range with --service-cidr or --pod-network-cidr, or another address with --address",
            ));
        }
        problems
    }

    fn containerd_problem(&self) -> Option<Problem> {
        let cure = "install containerd 1.6 or newer (apt-get install containerd)";
        let output = match &self.containerd {
            Ok(output) => output,
            Err(error) => {
                return Some(problem("CRI", format!("containerd cannot be run: {error}"), cure));
            }
        };
        // The output is `containerd github.com/containerd/containerd 1.6.20~ds1 …`, or has a v before the number.
        let version = output.split_whitespace().nth(2).unwrap_or_default().trim_start_matches('v');
        let mut numbers =
            version.split(['.', '~', '-', '+']).map(|n| n.parse::<u32>().unwrap_or(0));
        let release = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        (release < (1, 6)).then(|| {
            let cause = match version {
                "" => format!("containerd does not report its version: {output:?}"),
                _ => format!("containerd is {version}, which is too old"),
            };
            problem("ContainerRuntimeVersion", cause, cure)
        })
    }
}

/// Returns the cluster's ranges that contain the node's address. Invalid ranges are skipped, because they are rejected
/// when the settings are created.
fn overlaps(services: &str, pods: &str, node: IpAddr) -> Vec<(&'static str, Cidr, IpAddr)> {
    let of = |what, text: &str| {
        ranges(text).unwrap_or_default().into_iter().map(move |range| (what, range, node))
    };
    let all = of("Services", services).chain(of("Pods", pods));
    all.filter(|(_, range, address)| range.contains(*address)).collect()
}

fn problem(check: &'static str, cause: impl Into<String>, cure: &'static str) -> Problem {
    Problem { check, cause: cause.into(), cure }
}

fn find_program(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|d| d.join(program)).find(|p| p.is_file())
}

fn containerd_version() -> io::Result<String> {
    let output = Command::new("containerd").arg("--version").output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the missing cgroup controllers that the kubelet and runc need, for cgroups v1 and v2.
fn missing_controllers(cgroups: &Path) -> Vec<&'static str> {
    let unified = std::fs::read_to_string(cgroups.join("cgroup.controllers")).ok();
    let has = |name: &str| match &unified {
        Some(controllers) => controllers.split_whitespace().any(|c| c == name),
        None => cgroups.join(name).is_dir(),
    };
    CONTROLLERS.into_iter().filter(|name| !has(name)).collect()
}

/// Returns the nearest existing ancestor of a path, and the free space there in MiB.
pub(crate) fn free(root: &Path) -> Option<(PathBuf, u64)> {
    let existing = root.ancestors().find(|p| p.exists())?;
    let stat = nix::sys::statvfs::statvfs(existing).ok()?;
    Some((existing.to_owned(), stat.blocks_available() * stat.fragment_size() / (1 << 20)))
}

#[cfg(test)]
mod tests;
