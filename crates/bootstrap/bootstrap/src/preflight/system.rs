//! Checks of the machine: processors, memory, kernel, cgroups.

use std::time::{Duration, SystemTime};

use bootstrap_core::constants::RELEASED;

use super::check::{Check, Problem};
use crate::host::Host;
use version::KUBERNETES_VERSION;

const CPUS: usize = 2;
const MEMORY_MB: u64 = 1700;
const KERNEL: (u32, u32) = (4, 19);

pub(super) fn privileged() -> Check {
    let result = if nix::unistd::geteuid().is_root() {
        Ok(())
    } else {
        Err(Problem::error(
            "user is not running as root",
            "run the command as root, for example with sudo",
        ))
    };
    Check::new("IsPrivilegedUser", result)
}

pub(super) fn cpus(host: &Host) -> Check {
    let online = host
        .read("/proc/cpuinfo")
        .map_or(0, |text| text.lines().filter(|l| l.starts_with("processor")).count());
    // If no processor is listed, the kernel uses another format, which is not an error.
    let result = if online == 0 || online >= CPUS {
        Ok(())
    } else {
        let cause =
            format!("the number of available CPUs {online} is less than the required {CPUS}");
        Err(Problem::error(cause, "use a machine with more processors, or ignore this for a test"))
    };
    Check::new("NumCPU", result)
}

pub(super) fn memory(host: &Host) -> Check {
    let kilobytes = host.read("/proc/meminfo").and_then(|text| {
        let line = text.lines().find(|l| l.starts_with("MemTotal:"))?.to_owned();
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    let result = match kilobytes.map(|kb| kb / 1024) {
        Some(mb) if mb < MEMORY_MB => {
            let cause = format!("the system RAM ({mb} MB) is less than the minimum {MEMORY_MB} MB");
            Err(Problem::error(cause, "use a machine with more memory, or ignore this for a test"))
        }
        _ => Ok(()),
    };
    Check::new("Mem", result)
}

pub(super) fn swap(host: &Host) -> Check {
    let on = host.read("/proc/swaps").is_some_and(|text| text.lines().count() > 1);
    let result = if on {
        Err(Problem::warning(
            "swap is on; the kubelet must be properly configured to use it, and for cgroup v2 only",
            "turn it off (swapoff -a), or set failSwapOn: false in the KubeletConfiguration",
        ))
    } else {
        Ok(())
    };
    Check::new("Swap", result)
}

/// Checks the clock: certificates made with a clock far in the past expire once the clock is corrected.
pub(super) fn clock(now: SystemTime) -> Check {
    let released = SystemTime::UNIX_EPOCH + Duration::from_secs(RELEASED);
    let result = if now < released {
        Err(Problem::error(
            format!(
                "this machine's clock says {}, which is before Kubernetes {KUBERNETES_VERSION} was released",
                pki::format_time(now)
            ),
            "set the clock (timedatectl set-ntp true, or date -s): certificates are valid from the time at which they \
             are made",
        ))
    } else {
        Ok(())
    };
    Check::new("Clock", result)
}

/// Checks the kernel and its cgroups.
pub(super) fn verification(host: &Host) -> Check {
    Check::new("SystemVerification", kernel(host).and_then(|()| cgroups(host)))
}

fn kernel(host: &Host) -> Result<(), Problem> {
    let release = host.read("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut parts = release.trim().split(['.', '-']).map(str::parse::<u32>);
    match (parts.next(), parts.next()) {
        (Some(Ok(major)), Some(Ok(minor))) if (major, minor) < KERNEL => Err(Problem::error(
            format!(
                "kernel release {} is unsupported; {}.{} or newer is needed",
                release.trim(),
                KERNEL.0,
                KERNEL.1
            ),
            "boot a newer kernel",
        )),
        _ => Ok(()),
    }
}

fn cgroups(host: &Host) -> Result<(), Problem> {
    let Some(controllers) = host.read("/sys/fs/cgroup/cgroup.controllers") else {
        return Err(Problem::error(
            "cgroup v2 is not mounted at /sys/fs/cgroup; the kubelet does not run on cgroup v1",
            "boot with systemd.unified_cgroup_hierarchy=1, or set failCgroupV1: false in the KubeletConfiguration and \
             ignore this",
        ));
    };
    let missing: Vec<&str> = ["cpu", "cpuset", "memory", "pids"]
        .into_iter()
        .filter(|controller| !controllers.split_whitespace().any(|have| have == *controller))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Problem::error(
        format!("missing required cgroups: {}", missing.join(" ")),
        "enable these controllers in the kernel, or delegate them to this machine's container or slice",
    ))
}
