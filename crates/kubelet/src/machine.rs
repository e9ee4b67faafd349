//! The facts about the machine that a node reports and Pods are measured against.

use std::{
    collections::BTreeMap,
    fs,
    net::{IpAddr, UdpSocket},
    path::Path,
};

use pod_core::huge_pages::Amounts;

#[derive(Clone, Debug, Default)]
pub(crate) struct Machine {
    pub(crate) cpus: u64,
    pub(crate) memory: u64,
    pub(crate) kernel: String,
    pub(crate) os_image: String,
    pub(crate) machine_id: String,
    pub(crate) system_uuid: String,
    pub(crate) boot_id: String,
    pub(crate) hostname: String,
    pub(crate) swap: u64,
    /// How many huge pages are set apart, by their size in bytes; as upstream's, they are counted at the start.
    pub(crate) huge_pages: BTreeMap<u64, u64>,
    /// `true` if the kernel enforces AppArmor profiles.
    pub(crate) app_armor: bool,
}

fn line(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn kibibytes(meminfo: &str, key: &str) -> u64 {
    let value = meminfo.lines().find_map(|l| l.strip_prefix(key)).unwrap_or_default();
    value.split_whitespace().next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 1024
}

impl Machine {
    pub(crate) fn read() -> Self {
        let meminfo = line("/proc/meminfo");
        let release = line("/etc/os-release");
        let pretty =
            release.lines().find_map(|l| l.strip_prefix("PRETTY_NAME=")).unwrap_or("Linux");
        let machine_id = [line("/etc/machine-id"), line("/var/lib/dbus/machine-id")];
        let machine_id = machine_id.into_iter().find(|id| !id.is_empty()).unwrap_or_default();
        let huge_pages = sys::huge_pages(Path::new(sys::HUGE_PAGES)).unwrap_or_else(|error| {
            tracing::warn!(%error, "the machine's huge pages are not known; it tells of none");
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
}

impl Machine {
    /// What a group is limited to that may have `amounts`: none of the pages of other sizes that the machine has.
    pub(crate) fn huge_page_limits(&self, amounts: &Amounts) -> Amounts {
        let sizes = self.huge_pages.keys();
        sizes.map(|size| (*size, amounts.get(size).copied().unwrap_or(0))).collect()
    }
}

/// The address that this machine speaks from by default; nothing is sent to find it.
pub fn default_address() -> Option<IpAddr> {
    let probe = |bind: &str, to: &str| {
        let socket = UdpSocket::bind(bind).ok()?;
        socket.connect(to).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    probe("0.0.0.0:0", "192.0.2.1:9").or_else(|| probe("[::]:0", "[2001:db8::1]:9")).or_else(|| {
        // Without a default route there may still be an address besides loopback's.
        let addresses = nix::ifaddrs::getifaddrs().ok()?;
        let ips = addresses.filter_map(|a| Some(IpAddr::V4(a.address?.as_sockaddr_in()?.ip())));
        ips.into_iter().find(|ip| !ip.is_loopback())
    })
}

/// The resolver configuration that Pods inherit.
pub(crate) fn host_resolver(path: Option<&Path>) -> pod_core::dns::Resolver {
    path.and_then(|path| fs::read_to_string(path).ok())
        .map(|text| pod_core::dns::parse(&text))
        .unwrap_or_default()
}
