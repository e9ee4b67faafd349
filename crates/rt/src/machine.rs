/// The name that the machine goes by, as the kernel has it; empty where there is no `/proc`.
pub fn hostname() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

/// The name by which a node of this machine goes, unless it is given another.
pub fn node_name() -> String {
    hostname().to_lowercase()
}
