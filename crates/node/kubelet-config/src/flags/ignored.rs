//! Upstream's flags that are accepted without effect and have no field in the configuration file.

use api_config::known::{self, Flag};

const METRICS: &str =
    "containers are measured by their control groups and the runtime, without cAdvisor";
const LEFTOVERS: &str = "a Pod keeps the last container of each name, and none when it is gone";

/// Each flag's name, `true` if it takes a value, and the reason why it is ignored.
const IGNORED: &[Flag] = &[
    ("application-metrics-count-limit", true, METRICS),
    ("boot-id-file", true, METRICS),
    ("container-hints", true, METRICS),
    ("containerd", true, METRICS),
    ("containerd-namespace", true, METRICS),
    ("enable-load-reader", false, METRICS),
    ("event-storage-age-limit", true, METRICS),
    ("event-storage-event-limit", true, METRICS),
    ("exit-on-lock-contention", false, "there is no lock file"),
    ("experimental-allocatable-ignore-eviction", false, "what evictions keep free is no Pod's"),
    ("experimental-mounter-path", true, "the kernel is asked to mount, not a program"),
    ("global-housekeeping-interval", true, METRICS),
    ("housekeeping-interval", true, METRICS),
    ("lock-file", true, "there is no lock file"),
    ("log-cadvisor-usage", false, METRICS),
    ("machine-id-file", true, "the machine's identity is in /etc/machine-id"),
    ("max-housekeeping-interval", true, METRICS),
    ("maximum-dead-containers", true, LEFTOVERS),
    ("maximum-dead-containers-per-container", true, LEFTOVERS),
    ("minimum-container-ttl-duration", true, LEFTOVERS),
    (
        "pod-infra-container-image",
        true,
        "the runtime has its own configuration of the sandbox image",
    ),
    ("runtime-cgroups", true, "the runtime stays in the group it was started in"),
    ("storage-driver-buffer-duration", true, METRICS),
    ("storage-driver-db", true, METRICS),
    ("storage-driver-host", true, METRICS),
    ("storage-driver-password", true, METRICS),
    ("storage-driver-secure", false, METRICS),
    ("storage-driver-table", true, METRICS),
    ("storage-driver-user", true, METRICS),
];

/// Names the tables of ignored flags.
#[derive(Clone, Debug, Default)]
pub struct Ignored;

impl known::Tables for Ignored {
    const TABLES: &'static [&'static [Flag]] = &[IGNORED, known::CLIENT, known::COMMON];
}
