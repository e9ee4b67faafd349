//! Node-pressure eviction: thresholds, the ranking of Pods, and the final state of an evicted Pod. Read [`Watcher`]
//! first.

use std::{cmp::Reverse, collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::Pod;

use crate::{
    admit::is_critical,
    phase::Phase,
    plan::Ending,
    resources::{Amounts, pod_amounts, whole},
    spec::{Role, members},
    time::{Timestamp, since},
};

/// The measured resources in the order of eviction. Memory comes first, because its lack leads to out-of-memory kills.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    /// Available memory.
    Memory,
    /// Available bytes of the node's file system.
    NodeFs,
    /// Free inodes of the node's file system.
    NodeFsInodes,
    /// Available bytes of the images' file system.
    ImageFs,
    /// Free inodes of the images' file system.
    ImageFsInodes,
    /// Available process IDs.
    Pids,
}

impl Signal {
    /// All signals, in the order of eviction.
    pub const ALL: [Self; 6] = [
        Self::Memory,
        Self::NodeFs,
        Self::NodeFsInodes,
        Self::ImageFs,
        Self::ImageFsInodes,
        Self::Pids,
    ];

    /// Returns the signal's name in the kubelet's configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory.available",
            Self::NodeFs => "nodefs.available",
            Self::NodeFsInodes => "nodefs.inodesFree",
            Self::ImageFs => "imagefs.available",
            Self::ImageFsInodes => "imagefs.inodesFree",
            Self::Pids => "pid.available",
        }
    }

    /// Returns the node condition for a lack of the resource.
    pub fn condition(self) -> &'static str {
        match self {
            Self::Memory => "MemoryPressure",
            Self::Pids => "PIDPressure",
            _ => "DiskPressure",
        }
    }

    /// Returns the resource's name in messages.
    pub fn resource(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::NodeFs | Self::ImageFs => "ephemeral-storage",
            Self::NodeFsInodes | Self::ImageFsInodes => "inodes",
            Self::Pids => "pids",
        }
    }

    /// Reports whether removing unused images and ended containers may relieve the pressure.
    pub fn is_disk(self) -> bool {
        self.condition() == "DiskPressure"
    }
}

/// An absolute amount, or a fraction of the capacity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// Bytes, inodes or processes.
    Count(u64),
    /// A fraction from 0 to 1.
    Share(f64),
}

impl Amount {
    /// Parses `100Mi` or `10%`. Returns `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        match text.strip_suffix('%') {
            Some(share) => {
                let share: f64 = share.trim().parse().ok()?;
                (0.0..=100.0).contains(&share).then_some(Self::Share(share / 100.0))
            }
            None => {
                let count = api_meta::Quantity::parse(text).ok()?.value();
                u64::try_from(count).ok().map(Self::Count)
            }
        }
    }

    /// Returns the absolute amount. A fraction is taken of `capacity` and rounded down.
    pub fn of(self, capacity: u64) -> u64 {
        match self {
            Self::Count(count) => count,
            Self::Share(share) => (capacity as f64 * share) as u64,
        }
    }
}

/// An eviction threshold: the node is under pressure if less than this is available.
#[derive(Clone, Debug, PartialEq)]
pub struct Threshold {
    /// The measured resource.
    pub signal: Signal,
    /// The least available amount.
    pub amount: Amount,
    /// The time for which the threshold must be met before the node evicts; `None` for a hard threshold.
    pub grace: Option<Duration>,
    /// The additional amount to reclaim.
    pub reclaim: Option<Amount>,
}

/// A measured value in bytes, inodes or processes. A capacity of 0 means that it cannot be measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// The available amount.
    pub available: u64,
    /// The total amount.
    pub capacity: u64,
}

impl Threshold {
    fn is_met(&self, reading: Reading, with_reclaim: bool) -> bool {
        let more = self.reclaim.filter(|_| with_reclaim).map_or(0, |r| r.of(reading.capacity));
        let least = self.amount.of(reading.capacity).saturating_add(more);
        reading.capacity > 0 && reading.available < least
    }
}

/// The result of an evaluation of the thresholds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shortage {
    /// The pressure conditions that are true.
    pub conditions: Vec<&'static str>,
    /// The threshold to act on, and its measured value.
    pub act: Option<(Threshold, Reading)>,
}

/// The state of the thresholds between two evaluations.
#[derive(Clone, Debug, Default)]
pub struct Watcher {
    thresholds: Vec<Threshold>,
    /// The time that a condition stays true after the last shortage.
    transition: Duration,
    first_met: BTreeMap<usize, Timestamp>,
    acted: Vec<usize>,
    last_short: BTreeMap<&'static str, Timestamp>,
}

impl Watcher {
    /// Creates a watcher without any shortage. Hard thresholds come before soft ones of the same signal.
    pub fn new(mut thresholds: Vec<Threshold>, transition: Duration) -> Self {
        thresholds.sort_by_key(|t| (t.signal, t.grace.is_some()));
        Self { thresholds, transition, ..Self::default() }
    }

    /// Evaluates the thresholds. At most one is returned to act on; the caller evaluates again afterwards.
    pub fn look(&mut self, readings: &BTreeMap<Signal, Reading>, now: Timestamp) -> Shortage {
        let acted = std::mem::take(&mut self.acted);
        let met: Vec<(usize, &Threshold, Reading)> = self
            .thresholds
            .iter()
            .enumerate()
            .filter_map(|(at, threshold)| {
                let reading = *readings.get(&threshold.signal)?;
                // A threshold that was acted on stays met until the amount to reclaim is available, too.
                threshold.is_met(reading, acted.contains(&at)).then_some((at, threshold, reading))
            })
            .collect();
        self.first_met.retain(|at, _| met.iter().any(|(met, ..)| met == at));
        let mut act = None;
        for (at, threshold, reading) in met {
            let first = *self.first_met.entry(at).or_insert(now);
            self.last_short.insert(threshold.signal.condition(), now);
            if since(first, now) >= threshold.grace.unwrap_or_default() {
                self.acted.push(at);
                act.get_or_insert((threshold.clone(), reading));
            }
        }
        let transition = self.transition;
        self.last_short.retain(|_, last| *last == now || since(*last, now) < transition);
        Shortage { conditions: self.last_short.keys().copied().collect(), act }
    }
}

/// The usage of the scarce resource by one container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerUse {
    /// The container's name.
    pub name: String,
    /// The usage in bytes, or in inodes if these are scarce.
    pub used: u64,
}

/// The usage of the scarce resource by one Pod.
#[derive(Clone, Debug)]
pub struct PodUse<'a> {
    /// The Pod.
    pub pod: &'a Pod,
    /// The usage of the whole Pod.
    pub used: u64,
    /// The usage by container.
    pub containers: Vec<ContainerUse>,
}

fn requested(amounts: &Amounts, signal: Signal) -> u64 {
    match signal {
        Signal::Memory => u64::try_from(amounts.memory_request).unwrap_or(0),
        _ => 0,
    }
}

/// Returns the Pods that may be evicted, in the order of eviction: Pods that exceed their requests first, then by
/// priority, then by the amount above the requests.
pub fn rank<'a>(signal: Signal, mut pods: Vec<PodUse<'a>>) -> Vec<PodUse<'a>> {
    pods.retain(|one| !is_critical(one.pod));
    pods.sort_by_key(|one| {
        let priority = one.pod.spec.as_ref().and_then(|s| s.priority).unwrap_or(0);
        let requested = requested(&pod_amounts(one.pod), signal);
        let over = one.used.saturating_sub(requested);
        (one.used <= requested, priority, Reverse(over))
    });
    pods
}

/// Returns the final state of a Pod that is evicted because of a threshold.
pub fn ending(threshold: &Threshold, reading: Reading, one: &PodUse<'_>) -> Ending {
    let signal = threshold.signal;
    let resource = signal.resource();
    let text = |count: u64| if signal == Signal::Pids { count.to_string() } else { bytes(count) };
    let quantity = text(threshold.amount.of(reading.capacity));
    let mut message = format!(
        "The node was low on resource: {resource}. Threshold quantity: {quantity}, available: {}. ",
        text(reading.available)
    );
    for used in &one.containers {
        let members = members(one.pod);
        let Some(member) = members.iter().find(|m| m.container.name == used.name) else { continue };
        let amounts = member.container.resources.as_ref().map(Amounts::of).unwrap_or_default();
        let requested = requested(&amounts, signal);
        if used.used > requested {
            let (name, amount) = (&used.name, text(used.used));
            let request = if requested == 0 { "0".to_owned() } else { text(requested) };
            message.push_str(&format!(
                "Container {name} was using {amount}, request is {request}, has larger consumption of {resource}. "
            ));
        }
    }
    evicted(message)
}

fn evicted(message: String) -> Ending {
    Ending {
        phase: Phase::Failed,
        reason: Some("Evicted".to_owned()),
        message: Some(message),
        disrupted: true,
    }
}

/// Formats bytes as a quantity, rounded down to kibibytes unless small.
fn bytes(count: u64) -> String {
    let count = if count < 1024 { count } else { count / 1024 * 1024 };
    let value = i64::try_from(count).unwrap_or(i64::MAX);
    api_meta::Quantity::new(value, api_meta::QuantityFormat::BinarySi).to_string()
}

/// The bytes that a Pod has written to the node's disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Storage {
    /// The size of each emptyDir volume.
    pub empty_dirs: BTreeMap<String, u64>,
    /// The size of each container's writable layer, logs and termination log.
    pub containers: BTreeMap<String, u64>,
    /// The size of the Pod's `/etc/hosts`, which all of its containers can write.
    pub hosts: u64,
}

impl Storage {
    /// Returns the total in bytes, for comparison with the Pod's limit.
    pub fn total(&self) -> u64 {
        self.empty_dirs.values().chain(self.containers.values()).sum::<u64>() + self.hosts
    }
}

/// Reports whether a Pod has limits of local ephemeral storage and must be measured.
pub fn limits_storage(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    let volumes = spec.and_then(|s| s.volumes.as_ref()).into_iter().flatten();
    volumes.into_iter().any(|v| v.empty_dir.as_ref().is_some_and(|e| e.size_limit.is_some()))
        || members(pod).iter().any(|m| storage_limit(&m.container).is_some())
}

fn storage_limit(container: &k8s_openapi::api::core::v1::Container) -> Option<&str> {
    let limits = container.resources.as_ref()?.limits.as_ref()?;
    limits.get("ephemeral-storage").map(|quantity| quantity.0.as_str())
}

/// Returns the final state of a Pod that exceeds its limits of local ephemeral storage, if it does.
pub fn over_storage_limit(pod: &Pod, storage: &Storage) -> Option<Ending> {
    let size = |text: &str| {
        let limit =
            whole(&k8s_openapi::apimachinery::pkg::api::resource::Quantity(text.to_owned()));
        u64::try_from(limit).unwrap_or(0)
    };
    for volume in pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()) {
        let limit = volume.empty_dir.as_ref().and_then(|e| e.size_limit.as_ref());
        let Some(limit) = limit.filter(|limit| size(&limit.0) > 0) else { continue };
        if storage.empty_dirs.get(&volume.name).is_some_and(|used| *used > size(&limit.0)) {
            return Some(evicted(format!(
                "Usage of EmptyDir volume {:?} exceeds the limit {:?}. ",
                volume.name, limit.0
            )));
        }
    }
    let members = members(pod);
    let lasting = || members.iter().filter(|m| m.role != Role::Ephemeral);
    for member in lasting() {
        let Some(limit) = storage_limit(&member.container) else { continue };
        let name = &member.container.name;
        if storage.containers.get(name).is_some_and(|used| *used > size(limit)) {
            return Some(evicted(format!(
                "Container {name} exceeded its local ephemeral storage limit {limit:?}. "
            )));
        }
    }
    // The Pod has a limit only if all of its containers have one.
    let limits: Option<Vec<u64>> = lasting()
        .filter(|m| m.role != Role::Init)
        .map(|m| storage_limit(&m.container).map(size))
        .collect();
    let limit: u64 = limits?.iter().sum();
    (limit > 0 && storage.total() > limit).then(|| {
        evicted(format!(
            "Pod ephemeral local storage usage exceeds the total limit of containers {}. ",
            bytes(limit)
        ))
    })
}
