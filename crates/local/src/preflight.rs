//! What the machine must have before anything is made on it: each condition with its cause and cure.

use std::{fmt, net::TcpListener, path::Path, process::Command};

use crate::Cluster;

/// A condition that is not met.
#[derive(Debug)]
pub struct Problem {
    /// Upstream's name for the check, where it has one.
    pub check: &'static str,
    pub cause: String,
    pub cure: &'static str,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {}; {}", self.check, self.cause, self.cure)
    }
}

const NEEDED_MIB: u64 = 1024;

/// All problems at once, so that they can be mended in one go.
pub(crate) fn check(cluster: &Cluster) -> Vec<Problem> {
    let mut problems = Vec::new();
    if !nix::unistd::geteuid().is_root() {
        problems.push(problem(
            "IsPrivilegedUser",
            "user is not running as root",
            "run it with sudo",
        ));
        return problems;
    }
    problems.extend(containerd());
    for program in ["runc", "nft", "ctr"] {
        if which(program).is_none() {
            problems.push(Problem {
                check: "FileExisting",
                cause: format!("{program} not found in PATH"),
                cure: "install containerd, runc and nftables (apt-get install containerd runc nftables)",
            });
        }
    }
    let settings = &cluster.settings;
    for (port, what) in [
        (settings.api_port, "the API server"),
        (settings.kubelet_port, "the kubelet"),
        (10256, "the service proxy"),
    ] {
        if let Err(error) = TcpListener::bind(("0.0.0.0", port)) {
            problems.push(Problem {
                check: "Port",
                cause: format!("port {port}, for {what}, is in use ({error})"),
                cure: "stop what listens there (ss -ltnp shows it), or run `windlass down` if it is another cluster",
            });
        }
    }
    problems.extend(cgroups());
    let forwarding = std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap_or_default();
    if forwarding.trim() != "1" {
        problems.push(problem(
            "FileContent",
            "/proc/sys/net/ipv4/ip_forward contents are not set to 1",
            "run `sysctl -w net.ipv4.ip_forward=1`",
        ));
    }
    problems.extend(space(&cluster.root));
    problems
}

fn problem(check: &'static str, cause: &str, cure: &'static str) -> Problem {
    Problem { check, cause: cause.to_owned(), cure }
}

fn which(program: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|d| d.join(program)).find(|p| p.is_file())
}

fn containerd() -> Option<Problem> {
    let cure = "install containerd 1.6 or newer (apt-get install containerd)";
    let output = match Command::new("containerd").arg("--version").output() {
        Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Err(error) => {
            return Some(Problem {
                check: "CRI",
                cause: format!("containerd cannot be run: {error}"),
                cure,
            });
        }
    };
    // `containerd github.com/containerd/containerd 1.6.20~ds1 …`, or with a v before the number.
    let version = output.split_whitespace().nth(2).unwrap_or_default().trim_start_matches('v');
    let mut numbers = version.split(['.', '~', '-', '+']).map(|n| n.parse::<u32>().unwrap_or(0));
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    (found < (1, 6)).then(|| Problem {
        check: "ContainerRuntimeVersion",
        cause: format!("containerd is {version}, which is too old"),
        cure,
    })
}

/// The controllers that the kubelet and runc need, in either version of cgroups.
fn cgroups() -> Option<Problem> {
    let unified = std::fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").ok();
    let has = |name: &str| match &unified {
        Some(controllers) => controllers.split_whitespace().any(|c| c == name),
        None => Path::new("/sys/fs/cgroup").join(name).is_dir(),
    };
    let missing: Vec<&str> = ["cpu", "memory", "pids"].into_iter().filter(|c| !has(c)).collect();
    (!missing.is_empty()).then(|| Problem {
        check: "SystemVerification",
        cause: format!("missing required cgroups: {}", missing.join(" ")),
        cure: "enable them on the kernel's command line (cgroup_enable=memory)",
    })
}

fn space(root: &Path) -> Option<Problem> {
    let existing = root.ancestors().find(|p| p.exists())?;
    let stat = nix::sys::statvfs::statvfs(existing).ok()?;
    let free = stat.blocks_available() * stat.fragment_size() / (1 << 20);
    (free < NEEDED_MIB).then(|| Problem {
        check: "Space",
        cause: format!("{} has {free} MiB free, and {NEEDED_MIB} are needed", existing.display()),
        cure: "free some, or choose another place with --root",
    })
}
