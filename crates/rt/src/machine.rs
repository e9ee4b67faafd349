/// The name that the machine goes by, as the kernel has it; empty where there is no `/proc`.
pub fn hostname() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}
