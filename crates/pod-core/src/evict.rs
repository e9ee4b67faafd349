//! What a node gives up when it runs short: when that is, which Pod goes first, and how that is said.

use std::{cmp::Reverse, collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::Pod;

use crate::{
    Ending, Phase, Role, Timestamp,
    admit::is_critical,
    members,
    resources::{Amounts, pod_amounts, whole},
    time::since,
};

/// What is measured, in the order in which it is seen to: memory first, for that kills what it does not get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    Memory,
    NodeFs,
    NodeFsInodes,
    ImageFs,
    ImageFsInodes,
    Pids,
}

impl Signal {
    /// All signals, in the order that they are acted on.
    pub const ALL: [Self; 6] = [
        Self::Memory,
        Self::NodeFs,
        Self::NodeFsInodes,
        Self::ImageFs,
        Self::ImageFsInodes,
        Self::Pids,
    ];

    /// Its name in the kubelet's configuration.
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

    /// The condition of a node that is short of it.
    pub fn condition(self) -> &'static str {
        match self {
            Self::Memory => "MemoryPressure",
            Self::Pids => "PIDPressure",
            _ => "DiskPressure",
        }
    }

    /// What is short, as messages call it.
    pub fn resource(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::NodeFs | Self::ImageFs => "ephemeral-storage",
            Self::NodeFsInodes | Self::ImageFsInodes => "inodes",
            Self::Pids => "pids",
        }
    }

    /// Whether unused images and ended containers may be given up instead of a Pod.
    pub fn is_disk(self) -> bool {
        self.condition() == "DiskPressure"
    }
}

/// An amount of bytes or things, or a share of what there is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    Count(u64),
    Share(f64),
}

impl Amount {
    /// Reads `100Mi` or `10%`; `None` for what is neither.
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

    /// The amount as a number; a share is of `capacity`, rounded down.
    pub fn of(self, capacity: u64) -> u64 {
        match self {
            Self::Count(count) => count,
            Self::Share(share) => (capacity as f64 * share) as u64,
        }
    }
}

/// Below what a node is short.
#[derive(Clone, Debug, PartialEq)]
pub struct Threshold {
    pub signal: Signal,
    pub amount: Amount,
    /// How long a node may be short before it acts; `None` for a threshold that is hard.
    pub grace: Option<Duration>,
    /// How much more than the threshold is to be free afterwards.
    pub reclaim: Option<Amount>,
}

/// What a signal shows now, in bytes, inodes or processes. A capacity of 0 means that it cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    pub available: u64,
    /// How much there is in all, in the same unit.
    pub capacity: u64,
}

impl Threshold {
    fn is_met(&self, reading: Reading, with_reclaim: bool) -> bool {
        let more = self.reclaim.filter(|_| with_reclaim).map_or(0, |r| r.of(reading.capacity));
        let least = self.amount.of(reading.capacity).saturating_add(more);
        reading.capacity > 0 && reading.available < least
    }
}

/// What a look at the node amounts to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shortage {
    /// The node's conditions that hold.
    pub conditions: Vec<&'static str>,
    /// The threshold to act on, and what was read.
    pub act: Option<(Threshold, Reading)>,
}

/// What a node remembers between looks.
#[derive(Clone, Debug, Default)]
pub struct Watcher {
    thresholds: Vec<Threshold>,
    /// How long a condition stays after the last shortage.
    transition: Duration,
    first_met: BTreeMap<usize, Timestamp>,
    acted: Vec<usize>,
    last_short: BTreeMap<&'static str, Timestamp>,
}

impl Watcher {
    /// A watcher that was never short. Hard thresholds are acted on before soft ones of the same signal.
    pub fn new(mut thresholds: Vec<Threshold>, transition: Duration) -> Self {
        thresholds.sort_by_key(|t| (t.signal, t.grace.is_some()));
        Self { thresholds, transition, ..Self::default() }
    }

    /// Says what holds now; at most one threshold is acted on at a time, and again at the next look.
    pub fn look(&mut self, readings: &BTreeMap<Signal, Reading>, now: Timestamp) -> Shortage {
        let acted = std::mem::take(&mut self.acted);
        let met: Vec<(usize, &Threshold, Reading)> = self
            .thresholds
            .iter()
            .enumerate()
            .filter_map(|(at, threshold)| {
                let reading = *readings.get(&threshold.signal)?;
                // What was acted on is short until what is to be reclaimed has been.
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

/// What one container uses of what is short.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerUse {
    pub name: String,
    /// In bytes, or in inodes where these are short.
    pub used: u64,
}

/// What a Pod uses of what is short, all of it and by container.
#[derive(Clone, Debug)]
pub struct PodUse<'a> {
    pub pod: &'a Pod,
    pub used: u64,
    pub containers: Vec<ContainerUse>,
}

fn requested(amounts: &Amounts, signal: Signal) -> u64 {
    match signal {
        Signal::Memory => u64::try_from(amounts.memory_request).unwrap_or(0),
        _ => 0,
    }
}

/// The Pods that may be given up, the first to go first: those that use more than they asked for, then by priority,
/// then by how much more they use.
pub fn rank<'a>(signal: Signal, mut pods: Vec<PodUse<'a>>) -> Vec<PodUse<'a>> {
    pods.retain(|one| !is_critical(one.pod));
    pods.sort_by_key(|one| {
        let priority = one.pod.spec.as_ref().and_then(|s| s.priority).unwrap_or(0);
        let asked = requested(&pod_amounts(one.pod), signal);
        let over = one.used.saturating_sub(asked);
        (one.used <= asked, priority, Reverse(over))
    });
    pods
}

/// How a Pod ends that a shortage took.
pub fn ending(threshold: &Threshold, reading: Reading, one: &PodUse<'_>) -> Ending {
    let signal = threshold.signal;
    let resource = signal.resource();
    let shown = |count: u64| if signal == Signal::Pids { count.to_string() } else { bytes(count) };
    let quantity = shown(threshold.amount.of(reading.capacity));
    let mut message = format!(
        "The node was low on resource: {resource}. Threshold quantity: {quantity}, available: {}. ",
        shown(reading.available)
    );
    for used in &one.containers {
        let members = members(one.pod);
        let Some(member) = members.iter().find(|m| m.container.name == used.name) else { continue };
        let amounts = member.container.resources.as_ref().map(Amounts::of).unwrap_or_default();
        let asked = requested(&amounts, signal);
        if used.used > asked {
            let (name, amount) = (&used.name, shown(used.used));
            let request = if asked == 0 { "0".to_owned() } else { shown(asked) };
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

/// A number of bytes as a quantity, in kibibytes where it is not small: nobody wants to know it finer.
fn bytes(count: u64) -> String {
    let count = if count < 1024 { count } else { count / 1024 * 1024 };
    let value = i64::try_from(count).unwrap_or(i64::MAX);
    api_meta::Quantity::new(value, api_meta::QuantityFormat::BinarySi).to_string()
}

/// What a Pod has written to the node's disk, by volume and by container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Storage {
    pub empty_dirs: BTreeMap<String, u64>,
    /// Each container's writable layer, logs and termination log.
    pub containers: BTreeMap<String, u64>,
    /// The Pod's `/etc/hosts`, which all of its containers write to.
    pub hosts: u64,
}

impl Storage {
    /// Bytes in all, which a Pod's own limit is compared with.
    pub fn total(&self) -> u64 {
        self.empty_dirs.values().chain(self.containers.values()).sum::<u64>() + self.hosts
    }
}

/// Whether a Pod limits what it may write to the node's disk, so that it has to be measured.
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

/// How a Pod ends that has written more than it may, if it has.
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
    // Only where all containers are limited is the Pod.
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
