//! Facts about the machine that the Node reports and on which admission depends.

use std::{collections::BTreeMap, fs, path::Path};

use pod_core::huge_pages::Amounts;

/// The hardware and operating system of the machine.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// The number of CPUs that the kubelet may use.
    pub cpus: u64,
    /// The size of memory in bytes.
    pub memory: u64,
    /// The release of the kernel.
    pub kernel: String,
    /// The name of the operating system.
    pub os_image: String,
    /// The machine ID of systemd or D-Bus.
    pub machine_id: String,
    /// The UUID of the hardware, or the machine ID.
    pub system_uuid: String,
    /// The ID of the boot.
    pub boot_id: String,
    /// The host name.
    pub hostname: String,
    /// The size of swap in bytes.
    pub swap: u64,
    /// The number of reserved huge pages by page size in bytes. They are counted once at startup, as upstream.
    pub huge_pages: BTreeMap<u64, u64>,
    /// `true` if the kernel enforces AppArmor profiles.
    pub app_armor: bool,
}

fn line(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn kibibytes(meminfo: &str, key: &str) -> u64 {
    let value = meminfo.lines().find_map(|l| l.strip_prefix(key)).unwrap_or_default();
    value.split_whitespace().next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 1024
}

impl Machine {
    /// Reads the facts from `/proc`, `/sys` and `/etc`.
    pub fn read() -> Self {
        let meminfo = line("/proc/meminfo");
        let release = line("/etc/os-release");
        let pretty =
            release.lines().find_map(|l| l.strip_prefix("PRETTY_NAME=")).unwrap_or("Linux");
        let machine_id = [line("/etc/machine-id"), line("/var/lib/dbus/machine-id")];
        let machine_id = machine_id.into_iter().find(|id| !id.is_empty()).unwrap_or_default();
        let huge_pages = sys::huge_pages(Path::new(sys::HUGE_PAGES)).unwrap_or_else(|error| {
            tracing::warn!(%error, "read the machine's huge pages; the node reports none");
            BTreeMap::new()
        });
        let uuid = line("/sys/class/dmi/id/product_uuid");
        Self {
            cpus: std::thread::available_parallelism().map_or(1, |n| n.get() as u64),
            memory: kibibytes(&meminfo, "MemTotal:"),
            swap: kibibytes(&meminfo, "SwapTotal:"),
            kernel: line("/proc/sys/kernel/osrelease"),
            os_image: pretty.trim_matches('"').to_owned(),
            system_uuid: if uuid.is_empty() { machine_id.clone() } else { uuid },
            machine_id,
            boot_id: line("/proc/sys/kernel/random/boot_id"),
            hostname: rt::node_name(),
            huge_pages,
            app_armor: line("/sys/module/apparmor/parameters/enabled") == "Y",
        }
    }

    /// Returns the huge page limits of a cgroup that may use `amounts`. The limit of every other page size is 0.
    pub fn huge_page_limits(&self, amounts: &Amounts) -> Amounts {
        let sizes = self.huge_pages.keys();
        sizes.map(|size| (*size, amounts.get(size).copied().unwrap_or(0))).collect()
    }
}
