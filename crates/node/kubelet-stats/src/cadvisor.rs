//! `/metrics/cadvisor`: the container metrics that common Prometheus rules and dashboards use.
//!
//! Names, types and help texts are those of cAdvisor in upstream's configuration. Metrics that are always zero there
//! are omitted: load averages, task states, health.

mod families;

use std::time::UNIX_EPOCH;

use telemetry::exposition::{Exposition, Labels, gauge};

use families::{
    ALLOWED, BLKIO, CPU, DISK_FIGURES, DISKS, ERROR, FAILURES, FILE_SYSTEMS, LINKS, PRESSURE,
    PROCESSES, QUOTA, SEEN, START, THROTTLED, ULIMITS, USED, VERSION, seconds,
};

use crate::{
    error::StatsError,
    host,
    machine::Machine,
    reading::{Group, Owner, PodMember, Reading},
};

/// Returns the exposition. Without a reading it only reports the error.
pub(crate) fn text(facts: &Machine, reading: Result<&Reading, &StatsError>) -> String {
    let mut out = Exposition::default();
    let reading = reading
        .inspect_err(|error| tracing::warn!(%error, "read the resource usage of containers"));
    out.add(ERROR, &Labels::default(), f64::from(u8::from(reading.is_err())), None);
    machine(&mut out, facts);
    for group in reading.iter().flat_map(|reading| &reading.groups) {
        let labels = labels(group);
        spec(&mut out, &labels, group);
        figures(&mut out, &labels, group);
        if let Ok(reading) = reading {
            disks(&mut out, &labels, group, reading);
        }
        of_process(&mut out, &labels, group);
    }
    out.text()
}

/// Returns the labels of a cgroup, as upstream: a Pod's cgroup has the Pod's name, a sandbox's also its image and ID.
fn labels(group: &Group) -> [(&'static str, &str); 6] {
    let (pod, container, id, image) = match &group.owner {
        Owner::Pod(pod) => (Some(pod), "", "", ""),
        Owner::PodMember(PodMember { pod, container, id, image, .. }) => {
            (Some(pod), container.as_deref().unwrap_or_default(), id.as_str(), image.as_str())
        }
        Owner::Node | Owner::Class | Owner::Unknown => (None, "", "", ""),
    };
    let (namespace, name) = pod.map_or(("", ""), |pod| (&pod.namespace, &pod.name));
    [
        ("container", container),
        ("id", &group.path),
        ("image", image),
        ("name", id),
        ("namespace", namespace),
        ("pod", name),
    ]
}

/// Returns the base labels and more labels, sorted by name.
fn with(base: &[(&str, &str)], more: &[(&str, &str)]) -> Labels {
    let mut all = [base, more].concat();
    all.sort_unstable_by_key(|(name, _)| *name);
    Labels::of(&all)
}

fn spec(out: &mut Exposition, labels: &[(&str, &str)], group: &Group) {
    let labels = Labels::of(labels);
    let created = group.usage.created.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    if let Some(created) = created {
        out.add(START, &labels, created.as_secs() as f64, None);
    }
    let allowed = &group.usage.allowed;
    for (metric, value) in ALLOWED {
        out.add(*metric, &labels, value(allowed), None);
    }
    if let Some(quota) = allowed.cpu_quota {
        out.add(QUOTA, &labels, quota as f64, None);
    }
}

fn figures(out: &mut Exposition, base: &[(&str, &str)], group: &Group) {
    let (labels, at, usage) = (Labels::of(base), Some(group.at.as_millisecond()), &group.usage);
    for (metric, value) in USED {
        out.add(*metric, &labels, value(usage), at);
    }
    out.add(SEEN, &labels, group.at.as_second() as f64, at);
    if usage.cpu.total > 0 {
        out.add(CPU, &with(base, &[("cpu", "total")]), seconds(usage.cpu.total), at);
    }
    let throttled = if usage.allowed.cpu_quota.is_some() { THROTTLED } else { &[] };
    for (metric, value) in throttled {
        out.add(*metric, &labels, value(usage), at);
    }
    for ([stalled, waiting], of) in PRESSURE {
        if let Some(pressure) = of(usage) {
            out.add(stalled, &labels, pressure.full.total as f64 / 1e6, at);
            out.add(waiting, &labels, pressure.some.total as f64 / 1e6, at);
        }
    }
    for (kind, count) in
        [("pgfault", usage.memory.faults), ("pgmajfault", usage.memory.major_faults)]
    {
        for scope in ["container", "hierarchy"] {
            let labels = with(base, &[("failure_type", kind), ("scope", scope)]);
            out.add(FAILURES, &labels, count as f64, at);
        }
    }
    for link in &group.interfaces {
        let labels = with(base, &[("interface", &link.name)]);
        for (metric, value) in LINKS {
            out.add(*metric, &labels, value(link), at);
        }
    }
}

fn of_process(out: &mut Exposition, base: &[(&str, &str)], group: &Group) {
    let (labels, at) = (Labels::of(base), Some(group.at.as_millisecond()));
    for (metric, value) in PROCESSES {
        out.add(*metric, &labels, value(&group.processes), at);
    }
    if let (Owner::PodMember(_), Some(most)) = (&group.owner, group.processes.open_files) {
        out.add(ULIMITS, &with(base, &[("ulimit", "max_open_files")]), most as f64, at);
    }
}

fn disks(out: &mut Exposition, base: &[(&str, &str)], group: &Group, reading: &Reading) {
    let at = Some(group.at.as_millisecond());
    for disk in &group.usage.disks {
        let number = (disk.major, disk.minor);
        let device =
            reading.disks.get(&number).map(|d| format!("/dev/{}", d.name)).unwrap_or_default();
        let labels = with(base, &[("device", &device)]);
        for (metric, value) in DISKS {
            out.add(*metric, &labels, value(disk), at);
        }
        let (major, minor) = (disk.major.to_string(), disk.minor.to_string());
        for (operation, bytes) in [("Read", disk.read_bytes), ("Write", disk.written_bytes)] {
            let more = [
                ("device", device.as_str()),
                ("major", &major),
                ("minor", &minor),
                ("operation", operation),
            ];
            out.add(BLKIO, &with(base, &more), bytes as f64, at);
        }
    }
    if !matches!(group.owner, Owner::Node) {
        return;
    }
    for system in &reading.file_systems {
        let labels = with(base, &[("device", &system.device)]);
        for (metric, value) in FILE_SYSTEMS {
            out.add(*metric, &labels, value(&system.disk), at);
        }
        let Some(disk) = reading.disks.get(&system.number) else { continue };
        for (metric, place, unit) in DISK_FIGURES {
            if let Some(value) = disk.figures.get(*place) {
                out.add(*metric, &labels, *value as f64 / unit, at);
            }
        }
    }
}

/// Adds the metrics of the machine.
fn machine(out: &mut Exposition, machine: &Machine) {
    let labels = Labels::of(&[
        ("boot_id", &machine.boot_id),
        ("machine_id", &machine.machine_id),
        ("system_uuid", &machine.system_uuid),
    ]);
    let (cores, sockets) = host::topology();
    for (name, help, value) in [
        ("machine_cpu_cores", "Number of logical CPU cores.", machine.cpus),
        ("machine_cpu_physical_cores", "Number of physical CPU cores.", cores),
        ("machine_cpu_sockets", "Number of CPU sockets.", sockets),
        ("machine_memory_bytes", "Amount of memory installed on the machine.", machine.memory),
        ("machine_swap_bytes", "Amount of swap memory available on the machine.", machine.swap),
    ] {
        out.add(gauge(name, help), &labels, value as f64, None);
    }
    let error = gauge(
        "machine_scrape_error",
        "1 if there was an error while getting machine metrics, 0 otherwise.",
    );
    out.add(error, &Labels::default(), 0.0, None);
    let version = Labels::of(&[
        ("cadvisorRevision", ""),
        ("cadvisorVersion", ""),
        ("dockerVersion", ""),
        ("kernelVersion", &machine.kernel),
        ("osVersion", &machine.os_image),
    ]);
    out.add(VERSION, &version, 1.0, None);
}
