//! The resource usage of processes, from the kernel.

use std::fs;

/// Returns the CPU time of processes, in seconds. The kernel's unit is 10 ms.
pub(super) fn processor_seconds(pids: &[u32]) -> f64 {
    let of = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
        fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum::<u64>()
    };
    pids.iter().map(of).sum::<u64>() as f64 / 100.0
}

/// Returns the current proportional set size of processes, in megabytes.
pub(super) fn memory(pids: &[u32]) -> f64 {
    sum(pids, "smaps_rollup", "Pss:")
}

/// Returns the sum of the peak resident set sizes of processes, in megabytes.
pub(super) fn peak_memory(pids: &[u32]) -> f64 {
    sum(pids, "status", "VmHWM:")
}

/// Adds up a value that the kernel reports in KiB.
fn sum(pids: &[u32], file: &str, field: &str) -> f64 {
    let of = |pid: &u32| {
        let text = fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
        line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0)
    };
    pids.iter().map(of).sum::<u64>() as f64 * 1024.0 / 1e6
}
