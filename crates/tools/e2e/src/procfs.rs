//! Reads `/proc`.

use std::fs;

/// Lists the pids of all processes.
pub(crate) fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Reads a file in `/proc/PID`. Returns an empty string if the process has ended.
pub(crate) fn read(pid: u32, file: &str) -> String {
    let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the proportional set size (PSS) of a process, in bytes.
pub fn proportional_size(pid: u32) -> u64 {
    let text = read(pid, "smaps_rollup");
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024
}
