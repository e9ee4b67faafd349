//! Names, types and help texts of the metrics, each with a function that returns its value.

use sys::cgroup::{CgroupLimits, Disk, Pressure, Usage};
use telemetry::exposition::{Metric, counter, gauge};

use crate::host;

pub(crate) type Getter<T> = fn(&T) -> f64;

pub(crate) fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

/// The metrics of every cgroup.
pub(crate) const USED: &[(Metric, Getter<Usage>)] = &[
    (
        counter(
            "container_cpu_user_seconds_total",
            "Cumulative user cpu time consumed in seconds.",
        ),
        |u| seconds(u.cpu.user),
    ),
    (
        counter(
            "container_cpu_system_seconds_total",
            "Cumulative system cpu time consumed in seconds.",
        ),
        |u| seconds(u.cpu.system),
    ),
    (gauge("container_memory_cache", "Number of bytes of page cache memory."), |u| {
        u.memory.cache as f64
    }),
    (gauge("container_memory_rss", "Size of RSS in bytes."), |u| u.memory.anonymous as f64),
    (gauge("container_memory_kernel_usage", "Size of kernel memory allocated in bytes."), |u| {
        u.memory.kernel as f64
    }),
    (gauge("container_memory_mapped_file", "Size of memory mapped files in bytes."), |u| {
        u.memory.mapped as f64
    }),
    (gauge("container_memory_swap", "Container swap usage in bytes."), |u| u.memory.swap as f64),
    (counter("container_memory_failcnt", "Number of memory usage hits limits"), |u| {
        u.memory.limit_hits as f64
    }),
    (
        gauge(
            "container_memory_usage_bytes",
            "Current memory usage in bytes, including all memory regardless of when it was accessed",
        ),
        |u| u.memory.usage as f64,
    ),
    (gauge("container_memory_max_usage_bytes", "Maximum memory usage recorded in bytes"), |u| {
        u.memory.peak as f64
    }),
    (gauge("container_memory_working_set_bytes", "Current working set in bytes."), |u| {
        u.memory.working_set() as f64
    }),
    (
        gauge("container_memory_total_active_file_bytes", "Current total active file in bytes."),
        |u| u.memory.active_file as f64,
    ),
    (
        gauge(
            "container_memory_total_inactive_file_bytes",
            "Current total inactive file in bytes.",
        ),
        |u| u.memory.inactive_file as f64,
    ),
    (
        counter(
            "container_oom_events_total",
            "Count of out of memory events observed for the container",
        ),
        |u| u.memory.oom_kills as f64,
    ),
    (gauge("container_threads", "Number of threads running inside the container"), |u| {
        u.pids as f64
    }),
    (
        gauge(
            "container_threads_max",
            "Maximum number of threads allowed inside the container, infinity if value is zero",
        ),
        |u| u.allowed.pids.unwrap_or(0) as f64,
    ),
];

pub(crate) const CPU: Metric =
    counter("container_cpu_usage_seconds_total", "Cumulative cpu time consumed in seconds.");

/// The metrics of cgroups with a CPU quota.
pub(crate) const THROTTLED: &[(Metric, Getter<Usage>)] = &[
    (
        counter(
            "container_cpu_cfs_periods_total",
            "Number of elapsed enforcement period intervals.",
        ),
        |u| u.cpu.periods as f64,
    ),
    (
        counter(
            "container_cpu_cfs_throttled_periods_total",
            "Number of throttled period intervals.",
        ),
        |u| u.cpu.throttled_periods as f64,
    ),
    (
        counter(
            "container_cpu_cfs_throttled_seconds_total",
            "Total time duration the container has been throttled.",
        ),
        |u| seconds(u.cpu.throttled),
    ),
    (
        counter("container_cpu_cfs_burst_periods_total", "Number of periods when burst occurs."),
        |u| u.cpu.burst_periods as f64,
    ),
    (
        counter(
            "container_cpu_cfs_burst_seconds_total",
            "Total time duration the container has been bursted.",
        ),
        |u| seconds(u.cpu.burst),
    ),
];

/// The two metrics of one kind of pressure, and a function that returns its values.
type PressureMetrics = ([Metric; 2], fn(&Usage) -> Option<Pressure>);

/// Pressure stall information, if the kernel reports it: first the time of full stalls, then of partial ones.
pub(crate) const PRESSURE: [PressureMetrics; 3] = [
    (
        [
            counter(
                "container_pressure_cpu_stalled_seconds_total",
                "Total time duration no tasks in the container could make progress due to CPU congestion.",
            ),
            counter(
                "container_pressure_cpu_waiting_seconds_total",
                "Total time duration tasks in the container have waited due to CPU congestion.",
            ),
        ],
        |u| u.cpu.pressure,
    ),
    (
        [
            counter(
                "container_pressure_memory_stalled_seconds_total",
                "Total time duration no tasks in the container could make progress due to memory congestion.",
            ),
            counter(
                "container_pressure_memory_waiting_seconds_total",
                "Total time duration tasks in the container have waited due to memory congestion.",
            ),
        ],
        |u| u.memory.pressure,
    ),
    (
        [
            counter(
                "container_pressure_io_stalled_seconds_total",
                "Total time duration no tasks in the container could make progress due to IO congestion.",
            ),
            counter(
                "container_pressure_io_waiting_seconds_total",
                "Total time duration tasks in the container have waited due to IO congestion.",
            ),
        ],
        |u| u.io_pressure,
    ),
];

pub(crate) const FAILURES: Metric =
    counter("container_memory_failures_total", "Cumulative count of memory allocation failures.");

pub(crate) const PROCESSES: &[(Metric, Getter<host::Processes>)] = &[
    (gauge("container_processes", "Number of processes running inside the container."), |p| {
        p.count as f64
    }),
    (
        gauge("container_file_descriptors", "Number of open file descriptors for the container."),
        |p| p.descriptors as f64,
    ),
    (gauge("container_sockets", "Number of open sockets for the container."), |p| p.sockets as f64),
];
pub(crate) const ULIMITS: Metric = gauge(
    "container_ulimits_soft",
    "Soft ulimit values for the container root process. Unlimited if -1, except priority and nice",
);

pub(crate) const DISKS: &[(Metric, Getter<Disk>)] = &[
    (counter("container_fs_reads_bytes_total", "Cumulative count of bytes read"), |d| {
        d.read_bytes as f64
    }),
    (counter("container_fs_reads_total", "Cumulative count of reads completed"), |d| {
        d.reads as f64
    }),
    (counter("container_fs_writes_bytes_total", "Cumulative count of bytes written"), |d| {
        d.written_bytes as f64
    }),
    (counter("container_fs_writes_total", "Cumulative count of writes completed"), |d| {
        d.writes as f64
    }),
];
pub(crate) const BLKIO: Metric =
    counter("container_blkio_device_usage_total", "Blkio Device bytes usage");

pub(crate) const FILE_SYSTEMS: &[(Metric, Getter<sys::DiskUse>)] = &[
    (gauge("container_fs_inodes_free", "Number of available Inodes"), |f| f.inodes_free as f64),
    (gauge("container_fs_inodes_total", "Number of Inodes"), |f| f.inodes as f64),
    (
        gauge(
            "container_fs_limit_bytes",
            "Number of bytes that can be consumed by the container on this filesystem.",
        ),
        |f| f.capacity as f64,
    ),
    (
        gauge(
            "container_fs_usage_bytes",
            "Number of bytes that are consumed by the container on this filesystem.",
        ),
        |f| f.capacity.saturating_sub(f.available) as f64,
    ),
];

/// The metrics of the machine's disks, each with the index of its value in `/proc/diskstats` and its unit.
pub(crate) const DISK_FIGURES: &[(Metric, usize, f64)] = &[
    (counter("container_fs_reads_merged_total", "Cumulative count of reads merged"), 1, 1.0),
    (
        counter("container_fs_sector_reads_total", "Cumulative count of sector reads completed"),
        2,
        1.0,
    ),
    (
        counter("container_fs_read_seconds_total", "Cumulative count of seconds spent reading"),
        3,
        1e3,
    ),
    (counter("container_fs_writes_merged_total", "Cumulative count of writes merged"), 5, 1.0),
    (
        counter("container_fs_sector_writes_total", "Cumulative count of sector writes completed"),
        6,
        1.0,
    ),
    (
        counter("container_fs_write_seconds_total", "Cumulative count of seconds spent writing"),
        7,
        1e3,
    ),
    (gauge("container_fs_io_current", "Number of I/Os currently in progress"), 8, 1.0),
    (
        counter(
            "container_fs_io_time_seconds_total",
            "Cumulative count of seconds spent doing I/Os",
        ),
        9,
        1e3,
    ),
    (
        counter(
            "container_fs_io_time_weighted_seconds_total",
            "Cumulative weighted I/O time in seconds",
        ),
        10,
        1e3,
    ),
];

pub(crate) const LINKS: &[(Metric, Getter<host::Interface>)] = &[
    (counter("container_network_receive_bytes_total", "Cumulative count of bytes received"), |i| {
        i.received.bytes as f64
    }),
    (
        counter("container_network_receive_packets_total", "Cumulative count of packets received"),
        |i| i.received.packets as f64,
    ),
    (
        counter(
            "container_network_receive_packets_dropped_total",
            "Cumulative count of packets dropped while receiving",
        ),
        |i| i.received.dropped as f64,
    ),
    (
        counter(
            "container_network_receive_errors_total",
            "Cumulative count of errors encountered while receiving",
        ),
        |i| i.received.errors as f64,
    ),
    (
        counter("container_network_transmit_bytes_total", "Cumulative count of bytes transmitted"),
        |i| i.sent.bytes as f64,
    ),
    (
        counter(
            "container_network_transmit_packets_total",
            "Cumulative count of packets transmitted",
        ),
        |i| i.sent.packets as f64,
    ),
    (
        counter(
            "container_network_transmit_packets_dropped_total",
            "Cumulative count of packets dropped while transmitting",
        ),
        |i| i.sent.dropped as f64,
    ),
    (
        counter(
            "container_network_transmit_errors_total",
            "Cumulative count of errors encountered while transmitting",
        ),
        |i| i.sent.errors as f64,
    ),
];

/// The limits of a cgroup. These metrics have no timestamp.
pub(crate) const ALLOWED: &[(Metric, Getter<CgroupLimits>)] = &[
    (gauge("container_spec_cpu_period", "CPU period of the container."), |a| a.cpu_period as f64),
    (gauge("container_spec_cpu_shares", "CPU share of the container."), |a| a.cpu_shares as f64),
    (gauge("container_spec_memory_limit_bytes", "Memory limit for the container."), |a| {
        a.memory.unwrap_or(0) as f64
    }),
    (
        gauge("container_spec_memory_swap_limit_bytes", "Memory swap limit for the container."),
        |a| a.swap.unwrap_or(0) as f64,
    ),
    (
        gauge(
            "container_spec_memory_reservation_limit_bytes",
            "Memory reservation limit for the container.",
        ),
        |a| a.reserved as f64,
    ),
];
pub(crate) const QUOTA: Metric = gauge("container_spec_cpu_quota", "CPU quota of the container.");
pub(crate) const START: Metric = gauge(
    "container_start_time_seconds",
    "Start time of the container since unix epoch in seconds.",
);
pub(crate) const SEEN: Metric =
    gauge("container_last_seen", "Last time a container was seen by the exporter");
pub(crate) const ERROR: Metric = gauge(
    "container_scrape_error",
    "1 if there was an error while getting container metrics, 0 otherwise",
);
pub(crate) const VERSION: Metric = gauge(
    "cadvisor_version_info",
    "A metric with a constant '1' value labeled by kernel version, OS version, docker version, cadvisor version & \
     cadvisor revision.",
);
