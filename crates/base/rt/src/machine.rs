/// Returns the host name from the kernel, or an empty string without `/proc`.
pub fn hostname() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

/// Returns the default name of this machine's Node: the host name in lower case.
pub fn node_name() -> String {
    hostname().to_lowercase()
}
