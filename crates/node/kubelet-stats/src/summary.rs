//! `/stats/summary` (stats.k8s.io/v1alpha1).

use std::{collections::HashMap, path::Path};

use api_meta::Tree as _;
use cri::v1;
use pod_core::Timestamp;
use serde_json::{Map, Value, json};
use sys::cgroup::{Pressure, Stall};

use crate::{
    host,
    reading::{ContainerGroup, Group, PodGroups, Reading},
    sources::StatsSources,
    storage::{All, Stored, StoredPod},
};

/// Disk usage, which cgroups do not report.
pub(crate) struct Disks<'a> {
    pub(crate) stored: &'a All,
    /// The statistics of containers' writable layers.
    pub(crate) layers: &'a [v1::ContainerStats],
    pub(crate) images: &'a v1::ImageFsInfoResponse,
}

fn time(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}

/// Returns an object of the fields that are known.
fn object<const N: usize>(fields: [(&str, Option<Value>); N]) -> Value {
    let present = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Value::Object(present.collect())
}

fn pressure_json(stall: &Stall) -> Value {
    let [avg10, avg60, avg300] = stall.averages;
    json!({ "total": stall.total, "avg10": avg10, "avg60": avg60, "avg300": avg300 })
}

fn pressure(pressure: &Pressure) -> Value {
    json!({ "full": pressure_json(&pressure.full), "some": pressure_json(&pressure.some) })
}

fn cpu(group: &Group) -> Value {
    let cpu = &group.usage.cpu;
    object([
        ("time", Some(json!(time(group.at)))),
        ("usageNanoCores", group.nanocores.map(Value::from)),
        ("usageCoreNanoSeconds", Some(json!(cpu.total))),
        ("psi", cpu.pressure.as_ref().map(pressure)),
    ])
}

/// Returns the memory statistics. `limit` is the total available memory.
fn memory(group: &Group, limit: Option<u64>) -> Value {
    let memory = &group.usage.memory;
    let available = limit.map(|limit| limit.saturating_sub(memory.working_set()));
    object([
        ("time", Some(json!(time(group.at)))),
        ("availableBytes", available.map(Value::from)),
        ("usageBytes", Some(json!(memory.usage))),
        ("workingSetBytes", Some(json!(memory.working_set()))),
        ("rssBytes", Some(json!(memory.anonymous))),
        ("pageFaults", Some(json!(memory.faults))),
        ("majorPageFaults", Some(json!(memory.major_faults))),
        ("psi", memory.pressure.as_ref().map(pressure)),
    ])
}

fn swap(group: &Group, limit: Option<u64>) -> Value {
    let used = group.usage.memory.swap;
    object([
        ("time", Some(json!(time(group.at)))),
        ("swapAvailableBytes", limit.map(|limit| json!(limit.saturating_sub(used)))),
        ("swapUsageBytes", Some(json!(used))),
    ])
}

fn io(group: &Group) -> Option<Value> {
    let pressure = pressure(group.usage.io_pressure.as_ref()?);
    Some(json!({ "time": time(group.at), "psi": pressure }))
}

fn network(group: &Group) -> Option<Value> {
    let interface = |link: &host::Interface| {
        json!({
            "name": link.name, "rxBytes": link.received.bytes, "rxErrors": link.received.errors,
            "txBytes": link.sent.bytes, "txErrors": link.sent.errors,
        })
    };
    // Upstream reports this interface as the default one of a network.
    let own = group.interfaces.iter().find(|link| link.name == "eth0").map(interface);
    let mut all = own.unwrap_or_else(|| json!({ "name": "" }));
    all.put(&["time"], json!(time(group.at)));
    all.put(&["interfaces"], group.interfaces.iter().map(interface).collect::<Value>());
    (!group.interfaces.is_empty()).then_some(all)
}

fn files(stored: &Stored) -> Map<String, Value> {
    let system = &stored.system;
    let all = json!({
        "time": time(stored.at), "availableBytes": system.available, "capacityBytes": system.capacity,
        "usedBytes": stored.used, "inodesFree": system.inodes_free, "inodes": system.inodes,
        "inodesUsed": stored.inodes,
    });
    all.as_object().cloned().unwrap_or_default()
}

/// Returns the usage of a whole file system.
fn file_system(at: Timestamp, place: &Path) -> Stored {
    let system = sys::disk_use(place).unwrap_or_default();
    let used = system.capacity.saturating_sub(system.available);
    Stored { at, system, used, inodes: system.inodes.saturating_sub(system.inodes_free) }
}

/// Returns the summary with CPU and memory only (`only_cpu_and_memory`).
pub(crate) fn brief(sources: &StatsSources, reading: &Reading) -> Value {
    let pods = reading.pods();
    let pods: Vec<Value> = pods
        .iter()
        .map(|pod| {
            let containers = pod.containers.iter().map(container).collect();
            Value::Object(of_pod(pod, containers))
        })
        .collect();
    json!({ "node": node(sources, reading), "pods": pods })
}

/// Returns the whole summary.
pub(crate) fn whole(sources: &StatsSources, reading: &Reading, disks: &Disks<'_>) -> Value {
    let mut node = node(sources, reading);
    let now = sources.now();
    let root = file_system(now, &sources.root);
    node.put(&["fs"], Value::Object(files(&root)));
    let image_fs = disks
        .images
        .image_filesystems
        .iter()
        .find_map(|fs| Some(fs.fs_id.as_ref()?.mountpoint.as_str()));
    let image_fs = image_fs.map(|place| file_system(now, Path::new(place)));
    if let Some(stored) = &image_fs {
        let written = disks.images.image_filesystems.first().and_then(|fs| fs.used_bytes.as_ref());
        let mut image = files(stored);
        image.extend(written.map(|bytes| ("usedBytes".to_owned(), json!(bytes.value))));
        node.put(&["runtime"], json!({ "imageFs": image, "containerFs": image }));
    }
    if let Some((most, there)) = host::process_limits() {
        node.put(&["rlimit"], json!({ "time": time(now), "maxpid": most, "curproc": there }));
    }
    if let Some(group) = reading.node() {
        node.put(&["swap"], swap(group, Some(sources.machine.swap)));
        for (name, value) in [("io", io(group)), ("network", network(group))] {
            if let Some(value) = value {
                node.put(&[name], value);
            }
        }
    }
    let layers: HashMap<&str, &v1::ContainerStats> = disks
        .layers
        .iter()
        .filter_map(|stats| Some((stats.attributes.as_ref()?.id.as_str(), stats)))
        .collect();
    let images = image_fs.unwrap_or_default().system;
    let none = StoredPod::default();
    let pods: Vec<Value> = reading
        .pods()
        .iter()
        .map(|pod| {
            let stored = disks.stored.get(&pod.pod.uid).unwrap_or(&none);
            pod_with_disks(pod, stored, &layers, (images, root.system))
        })
        .collect();
    json!({ "node": node, "pods": pods })
}

fn node(sources: &StatsSources, reading: &Reading) -> Value {
    let booted = host::boot_time().and_then(|at| Timestamp::from_second(at).ok());
    let mut node = json!({ "nodeName": sources.node_name });
    if let Some(booted) = booted {
        node.put(&["startTime"], json!(time(booted)));
    }
    if let Some(group) = reading.node() {
        node.put(&["cpu"], cpu(group));
        node.put(&["memory"], memory(group, Some(sources.machine.memory)));
    }
    let pods = sources.cgroup_names.pods();
    if let Some(group) = reading.groups.iter().find(|group| group.path == pods) {
        let mut system = json!({ "name": "pods", "cpu": cpu(group) });
        system.put(&["memory"], memory(group, group.usage.allowed.memory));
        let created = group.usage.created.map(pod_core::timestamp);
        system.put(&["startTime"], json!(time(created.unwrap_or_default())));
        node.put(&["systemContainers"], json!([system]));
    }
    node
}

fn of_pod(pod: &PodGroups<'_>, containers: Vec<Value>) -> Map<String, Value> {
    let of = pod.pod;
    let processes: u64 = pod.containers.iter().map(|c| c.group.processes.count).sum();
    let pod = object([
        ("podRef", Some(json!({ "name": of.name, "namespace": of.namespace, "uid": of.uid }))),
        ("startTime", Some(json!(time(of.created)))),
        ("containers", Some(Value::Array(containers))),
        ("cpu", pod.own.map(cpu)),
        ("memory", pod.own.map(|group| memory(group, group.usage.allowed.memory))),
        ("io", pod.own.and_then(io)),
        ("network", pod.sandbox.and_then(network)),
        ("process_stats", Some(json!({ "process_count": processes }))),
        ("swap", pod.own.map(|group| swap(group, None))),
    ]);
    pod.as_object().cloned().unwrap_or_default()
}

fn container(container: &ContainerGroup<'_>) -> Value {
    let group = container.group;
    object([
        ("name", Some(json!(container.name))),
        ("startTime", Some(json!(time(container.created)))),
        ("cpu", Some(cpu(group))),
        ("memory", Some(memory(group, group.usage.allowed.memory))),
        ("io", io(group)),
        ("swap", Some(swap(group, group.usage.allowed.swap))),
    ])
}

/// Returns a Pod's statistics with its disk usage. Writable layers are on the first of the two file systems, logs on
/// the second.
fn pod_with_disks(
    pod: &PodGroups<'_>,
    stored: &StoredPod,
    layers: &HashMap<&str, &v1::ContainerStats>,
    (images, root): (sys::DiskUse, sys::DiskUse),
) -> Value {
    let mut ephemeral = Stored { system: root, ..Stored::default() };
    let mut count = |stored: &Stored| {
        ephemeral.at = ephemeral.at.max(stored.at);
        ephemeral.used += stored.used;
        ephemeral.inodes += stored.inodes;
    };
    let mut containers = Vec::new();
    for one in &pod.containers {
        let mut entry = container(one);
        let written = layers.get(one.id).and_then(|stats| stats.writable_layer.as_ref());
        let amount =
            |value: &Option<v1::UInt64Value>| value.as_ref().map_or(0, |value| value.value);
        if let Some(layer) = written {
            let at = pod_core::from_nanos(layer.timestamp);
            let (used, inodes) = (amount(&layer.used_bytes), amount(&layer.inodes_used));
            let stored = Stored { at, system: images, used, inodes };
            count(&stored);
            entry.put(&["rootfs"], Value::Object(files(&stored)));
        }
        if let Some(logs) = stored.logs.get(one.name) {
            count(logs);
            entry.put(&["logs"], Value::Object(files(logs)));
        }
        containers.push(entry);
    }
    let ephemerals = stored.volumes.iter().filter(|volume| volume.info.ephemeral);
    ephemerals.for_each(|volume| count(&volume.stored));
    let own = stored.files;
    count(&Stored { used: own.bytes, inodes: own.inodes, ..Stored::default() });
    let volumes = stored.volumes.iter().map(|volume| {
        let mut entry = files(&volume.stored);
        entry.insert("name".to_owned(), json!(volume.info.name));
        if let Some((namespace, name)) = &volume.info.claim {
            entry.insert("pvcRef".to_owned(), json!({ "name": name, "namespace": namespace }));
        }
        Value::Object(entry)
    });
    let volumes: Vec<Value> = volumes.collect();
    let mut entry = of_pod(pod, containers);
    if !volumes.is_empty() {
        entry.insert("volume".to_owned(), Value::Array(volumes));
    }
    entry.insert("ephemeral-storage".to_owned(), Value::Object(files(&ephemeral)));
    Value::Object(entry)
}
